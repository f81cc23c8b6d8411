"""Two sites under a stage: alpha saves on `near`, beta on `far`; checkpoints in them that are really complete."""

import getpass
import hashlib
import json
from pathlib import Path

from fleet.identity import TOKEN_PREFIX
from fleet.orders import JobSpec
from tests.workflows.stage import Stage


def add_sites(stage: Stage, *, more: str = "", near: str = "", far: str = "") -> None:
    """Writes the policy anew, with both sites; `near` and `far` are further words of each."""
    for name in ("near", "far"):
        (stage.folder / name).mkdir(exist_ok=True)
    sites = [
        "sites:",
        f"  near: {{mount: {stage.folder / 'near'}{near}}}",
        f"  far: {{mount: {stage.folder / 'far'}{far}}}",
        more,
    ]
    stage.write_policy(more="\n".join(sites))
    text = stage.policy_file.read_text()
    for cluster, site in (("alpha", "near"), ("beta", "far")):
        text = text.replace(f"{cluster}: {{kind: sim,", f"{cluster}: {{kind: sim, site: {site},")
    stage.policy_file.write_text(text)


def saving(stage: Stage, job: str = "train", *, user: str | None = None) -> JobSpec:
    """A job of alpha that names a checkpoint root on `near`, as a user whom this machine knows. It saves nothing
    itself: what lies there is what a test put there."""
    spec = stage.spec(job, tokens=f"{TOKEN_PREFIX}checkpoint={root(stage, job)}", checkpoint_every=1_000_000)
    return spec.model_copy(update={"user": user or getpass.getuser()})


def root(stage: Stage, job: str = "train", site: str = "near") -> Path:
    return stage.folder / site / job


def save(
    stage: Stage, step: int, job: str = "train", *, site: str = "near", complete: bool = True, lines: int = 200
) -> Path:
    """A checkpoint as the lab's training program writes it, its marker last; gives its folder."""
    folder = root(stage, job, site) / f"step_{step:08}.g1.0"
    folder.mkdir(parents=True)
    shards = {f"rank_{rank}.json": f"weights of {rank} at {step}\n".encode() * lines for rank in range(2)}
    for name, data in shards.items():
        (folder / name).write_bytes(data)
    if complete:
        sums = {name: hashlib.sha256(data).hexdigest() for name, data in shards.items()}
        (folder / "COMPLETE").write_text(json.dumps({"step": step, "world": len(shards), "shards": sums}))
    return folder
