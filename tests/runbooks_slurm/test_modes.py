"""A failover that may only be proposed: nothing is written until a listed person has signed for this very plan."""

import subprocess
from pathlib import Path

from fleet.model import Phase
from tests.runbooks_slurm.scenario import scenario
from tests.runbooks_slurm.stage import Stage

ASKS = "job/train/failover/2"


def new_key(folder: Path, name: str) -> tuple[Path, str]:
    """A person's SSH key: private file and public line."""
    key = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(key)], check=True)  # noqa: S607
    return key, key.with_suffix(".pub").read_text().strip()


@scenario(modes={"failover_in_cluster": "propose"})
async def test_a_proposed_failover_writes_nothing_until_a_signed_approval(stage: Stage) -> None:
    grace, grace_public = new_key(stage.folder, "grace")
    mallory, _ = new_key(stage.folder, "mallory")
    approvers = f"approvers:\n  - name: grace\n    key: {grace_public}"
    stage.write_policy(modes={"failover_in_cluster": "propose"}, more=approvers)
    native_id = await stage.train()
    sick = (await stage.nodes_of("train"))[1]
    before = await stage.native(native_id)
    written = of_job(stage, native_id)
    await stage.lose_gpu(sick)
    question = await stage.question(ASKS)
    assert [signer.name for signer in question.signers] == ["grace"]

    async def untouched() -> bool:
        return await stage.native(native_id) == before and of_job(stage, native_id) == written

    await stage.stays(untouched, "nothing is written while nobody has answered", 3)

    async def approve(*words: str) -> int:
        return (await stage.cli("approve", question.id, "--reason", "go", "--yes", *words)).code

    assert await approve("--as", "grace", "--key", str(mallory)) == 4
    assert await approve("--as", "mallory", "--key", str(mallory)) == 4
    assert await approve("--as", "grace") == 4
    assert await approve("--as", "grace", "--key", str(grace), "--plan-hash", "0" * 16) == 1
    assert await untouched()
    assert (await stage.view(question.id)).outcome is None
    assert await approve("--as", "grace", "--key", str(grace), "--plan-hash", question.plan.digest) == 0
    await stage.trains("train", 2)
    running = await stage.native(native_id)
    assert (running.phase, running.restarts, sick in running.nodes) == (Phase.RUNNING, 1, False)
    outcome = (await stage.view(question.id)).outcome
    assert outcome is not None
    assert (outcome.by, outcome.signed) == ("grace", True)
    assert await approve("--as", "grace", "--key", str(grace)) == 1, "a second answer changes nothing"


def of_job(stage: Stage, native_id: str) -> list[tuple[str, ...]]:
    """Our writes to the job."""
    return [argv for argv in stage.written if native_id in argv or f"JobId={native_id}" in argv]
