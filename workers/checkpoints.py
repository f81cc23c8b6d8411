"""`runbook checkpoints`: which checkpoint of a folder or a job is complete, and why the others are not."""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from activities.backends.factory import make_backend
from activities.checkpoints import look
from clients.errors import Exit
from clients.options import COMMON, Common
from clients.output import clean
from fleet.checkpoints.layout import Known
from fleet.checkpoints.model import Candidate, Judgement
from fleet.errors import InvalidInputError, NotFoundError
from fleet.model import NativeJob
from fleet.policy_file import parse_policy
from workers.fleets import find_fleet
from workers.job_by_name import found, parts

if TYPE_CHECKING:
    from rich.table import Table


def checkpoints(
    where: str,
    /,
    *,
    ranks: Annotated[int | None, Parameter(name="--ranks")] = None,
    total_steps: int | None = None,
    hashes: Annotated[bool, Parameter(negative=())] = False,
    fleet: str | None = None,
    common: Common = COMMON,
) -> int:
    """Show every checkpoint of a folder, the newest first; exit 1 without a complete one, 8 where a person must look.

    It reads names, sizes and small files on this machine, and changes nothing.

    Parameters
    ----------
    where
        The folder that holds the checkpoints, or a job that declares one.
    ranks
        Number of ranks of the job, for formats whose files do not tell it.
    total_steps
        The job's total: a higher step is none. A job's own declaration is used where it has one.
    hashes
        Compare every hash of our receipts and of Megatron's integrity.json; reads all the data.
    fleet
        Fleet file, to find a job; default $GPU_RUNBOOKS_FLEET, ./fleet.yaml, or the state folder's.
    """
    root, declared = _place(where, fleet)
    known = Known(total_steps=total_steps or declared, world=ranks, hashes=hashes)
    judgement = look(root, known)
    screen = common.screen
    if screen.form == "json":
        screen.data(as_json(judgement))
    elif screen.form == "name":
        if judgement.newest_complete:
            screen.line(judgement.newest_complete.entry.name)
    elif judgement.candidates:
        screen.show(as_table(judgement))
    for note in judgement.notes:
        screen.note(f"note: {note}")
    screen.note(summary(judgement))
    if judgement.question:
        return Exit.WAITING
    return Exit.DONE if judgement.newest_complete else Exit.FAILED


def as_json(judgement: Judgement) -> dict[str, Any]:
    """The promised shape; names relative to the folder."""
    newest = judgement.newest_complete
    return {
        "format": judgement.format,
        "newest_complete": {"step": newest.entry.step, "entry": newest.entry.name} if newest else None,
        "candidates": [
            {"entry": c.entry.name, "step": c.entry.step, "complete": c.complete, "reason": _reason(c)}
            for c in judgement.candidates
        ],
    }


def as_table(judgement: Judgement) -> "Table":
    """One row a checkpoint; the newest complete one is marked."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("ENTRY", overflow="fold")
    table.add_column("STEP", justify="right", no_wrap=True)
    table.add_column("COMPLETE", no_wrap=True)
    table.add_column("LOST", justify="right", no_wrap=True)
    table.add_column("REASON", overflow="fold")
    newest = judgement.newest_complete
    for c in judgement.candidates:
        word, style = ("newest", "bold green") if c is newest else ("yes", "green") if c.complete else ("no", "red")
        table.add_row(
            Text(clean(c.entry.name)),
            "-" if c.entry.step is None else str(c.entry.step),
            Text(word, style),
            str(lost) if (lost := _lost(c, newest)) else "-",
            Text(clean(_reason(c))),
        )
    return table


def summary(judgement: Judgement) -> str:
    """What to resume from, in one sentence."""
    if judgement.question:
        return f"a person looks: {judgement.question}"
    newest = judgement.newest_complete
    if newest is None:
        return "none is complete: nothing may be resumed from here, and no step 0 is started without a person"
    lost = judgement.steps_lost
    cost = f", {lost} steps before the newest" if lost else ""
    where = "" if judgement.movable else "; node-local: no source for another cluster"
    return f"resume from {newest.entry.name} (step {newest.entry.step}{cost}){where}"


def _lost(candidate: Candidate, newest: Candidate | None) -> int:
    """Steps that its refusal costs."""
    if candidate.complete or newest is None or newest.entry.step is None or candidate.entry.step is None:
        return 0
    return max(0, candidate.entry.step - newest.entry.step)


def _reason(candidate: Candidate) -> str:
    return "; ".join([candidate.reason, *candidate.notes])


# --- a folder or a job


def _place(where: str, fleet: str | None) -> tuple[Path, int | None]:
    """The folder to look at, and the job's total steps where a job declares them."""
    path = Path(where).expanduser()
    if path.is_dir():
        return path, None
    if where.startswith(("/", "./", "../", "~")) or where in {".", ".."}:
        raise NotFoundError(
            f"there is no folder {json.dumps(where)} on this machine; run it where the store is mounted"
        )
    return asyncio.run(_declared(where, fleet))


async def _declared(text: str, fleet: str | None) -> tuple[Path, int | None]:
    """The root that a job declares. Raises NotFoundError, InvalidInputError, or CliError for no such job."""
    file = find_fleet(fleet)
    policy = parse_policy(file.read_text(encoding="utf-8"), str(file))
    cluster, name = parts(text, policy)
    backends = {c: make_backend(c, policy, file.parent) for c in ((cluster,) if cluster else policy.clusters)}
    try:
        _, job = await found(name, backends)
    finally:
        for backend in backends.values():
            await backend.close()
    return checkpoint_root(job, policy.cluster(job.cluster).checkpoint_roots), job.tokens.total_steps


def checkpoint_root(job: NativeJob, roots: tuple[str, ...]) -> Path:
    """A job's own word for its root counts only below a root of the cluster, links resolved."""
    declared = job.tokens.checkpoint
    if declared is None:
        raise InvalidInputError(
            f"{job.cluster}/{job.native_id} declares no checkpoint root; name the folder, or let it declare "
            "gpu-runbooks.io/checkpoint=/PATH"
        )
    real = Path(declared).resolve()
    if not any(real.is_relative_to(Path(root).resolve()) for root in roots):
        raise InvalidInputError(
            f"{declared} is under none of the checkpoint_roots of cluster {job.cluster}: add one to fleet.yaml"
        )
    return real
