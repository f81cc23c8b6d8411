"""A job leaves a real Slurm cluster for another one, with its checkpoint."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fleet.ledger import Rung
from fleet.model import Phase, ReceiptGrade
from fleet.orders import JobSpec
from fleet.people import Choice
from tests.runbooks_slurm.scenario import scenario
from tests.runbooks_slurm.stage import Stage
from tests.runbooks_slurm.training import complete_of, resumed, steps_of, undisturbed
from tests.runbooks_slurm.watching import attempts_alive
from tests.slurm.lab import Cluster, rank_pids

MOVE = "job/train/transfer/2"
STEPS = 400
TWO = ("alpha", "beta")


def movable(stage: Stage, tokens: str = "gpu-runbooks.io/transfer", steps: int = STEPS) -> JobSpec:
    """A training whose script says all of its options, and takes its checkpoint root from where it is told."""
    plain = stage.spec(steps=steps)
    folder = stage.folder_of("train")
    rank = stage.lab.work / "train.rank.sh"
    told = f"${{GPU_RUNBOOKS_CHECKPOINT:-{folder}}}"
    rank.write_text(rank.read_text().replace(f"--checkpoint-dir {folder}", f'--checkpoint-dir "{told}"'))
    options = [option for option in plain.options if not option.startswith("--output")]
    lines = [*(f"#SBATCH {option}" for option in options), "#SBATCH --output=train.out"]
    first, _, rest = plain.script.partition("\n")
    return plain.model_copy(
        update={
            "script": "\n".join([first, *lines, rest]),
            "options": (),
            "comment": f"{plain.comment} gpu-runbooks.io/checkpoint={folder} {tokens}",
        }
    )


async def trains(stage: Stage) -> str:
    """A movable job trains on alpha and has saved; its native id."""
    native_id = await stage.sbatch(movable(stage))
    await stage.trains("train", 1)
    await stage.until(lambda: complete_of(stage.folder_of("train"), "0.0"), "it has a checkpoint")
    return native_id


async def on_disk(stage: Stage, native_id: str) -> None:
    """A controller that dies forgets what it wrote last: waits until the job as it runs now is on its disk."""
    began = time.time()
    await stage.scontrol("update", f"JobId={native_id}", "TimeLimit=50")
    [state] = (stage.lab.root / stage.lab.name).rglob("job_state")
    await stage.until(lambda: state.stat().st_mtime > began, "the controller has saved its jobs")


async def trains_on_beta(stage: Stage) -> str:
    """Waits until the ledger has a second attempt, on beta; its native id."""

    async def there() -> str | None:
        view = await stage.view_if("job/train")
        last = view.ledger.last if view and view.ledger else None
        done = last and last.cluster == "beta" and last.progress.step and view and view.step == "watching"
        return last.native_id if last and done else None

    return str(await stage.until(there, "the job trains on beta"))


@scenario(clusters=TWO, sites=True, nodes=2, limits={"cluster_lost_after": "5s"})
async def test_a_whole_cluster_dies_and_its_job_trains_elsewhere_and_what_comes_back_is_ended(stage: Stage) -> None:
    """Controller and nodes are gone at once. The controller that comes back still shows the dead job as running."""
    alpha, beta = stage.labs.values()
    native_id = await trains(stage)
    nodes = await stage.nodes_of("train")
    calm = await asyncio.to_thread(undisturbed, stage.folder / "calm", STEPS)

    await on_disk(stage, native_id)
    await alpha.lab("ctld-kill", "alpha")
    for node in nodes:
        await alpha.lab("node-crash", "alpha", node)
    question = await stage.question(MOVE)
    assert Choice.ATTEST in question.options
    assert not rank_pids(native_id, alpha.settings.conf)
    await stage.answer(question, Choice.ATTEST)
    moved = await trains_on_beta(stage)

    view = await stage.view("job/train")
    assert view.ledger is not None
    first, second = view.ledger.attempts
    assert first.receipt is not None
    assert first.receipt.grade() is ReceiptGrade.ATTESTED
    assert (second.cluster, second.rung, second.restarts) == ("beta", Rung.ACROSS_CLUSTERS, 0)
    last = complete_of(stage.folder_of("train"), "0.0")[-1]
    assert second.progress.resumed_from == last
    assert {span.stage for span in second.spans} >= {"detect", "decide", "copy", "requeue_wait", "first_new_step"}

    await alpha.lab("ctld-start", "alpha")
    assert (await alpha.backend.job(native_id)).nodes == nodes, "the controller believes that it runs"
    for node in nodes:
        await alpha.lab("power-on", "alpha", node)
    await stage.phase(native_id, Phase.CANCELLED)
    assert not rank_pids(native_id, alpha.settings.conf)
    assert attempts_alive(moved, beta.settings.conf) == {0: 2}
    (beta.work / "ckpt-train" / "hurry").touch()
    assert "done" in await stage.result("job/train")
    assert (await beta.backend.job(moved)).phase is Phase.SUCCEEDED
    lines = stage.output("train")
    assert resumed(lines, "1.0") == last
    steps = steps_of(lines)
    assert [s for s, _, g in steps if g == "1.0"] == list(range(last + 1, STEPS + 1))
    assert all(loss == calm[step] for step, loss, _ in steps)


@scenario(clusters=TWO, sites=True, nodes=3)
async def test_a_cluster_without_healthy_nodes_is_left_after_a_proven_stop(stage: Stage) -> None:
    beta = stage.labs["beta"]
    native_id = await trains(stage)
    held = await stage.nodes_of("train")
    [spare] = {f"alpha{n}" for n in (1, 2, 3)} - set(held)
    await stage.scontrol("update", f"NodeName={spare}", "State=DRAIN", "Reason=rack works")

    await stage.lose_gpu(held[0])
    moved = await trains_on_beta(stage)

    view = await stage.view("job/train")
    assert view.ledger is not None
    first, second = view.ledger.attempts
    assert first.receipt is not None
    assert {r.node for r in first.receipt.nodes} == set(held)
    assert first.receipt.grade() is not ReceiptGrade.ATTESTED
    assert second.rung is Rung.ACROSS_CLUSTERS
    assert second.progress.resumed_from == complete_of(stage.folder_of("train"), "0.0")[-1]
    await stage.phase(native_id, Phase.CANCELLED)
    assert attempts_alive(moved, beta.settings.conf) == {0: 2}
    assert await stage.result(f"node/alpha/{held[0]}") == "repaired, checked and back at work"
    (beta.work / "ckpt-train" / "hurry").touch()
    assert "done" in await stage.result("job/train")


LAUNCH = Path(sys.executable).with_name("runbook-launch")


def under_a_lease(stage: Stage) -> JobSpec:
    """The same job; each node's ranks are started by the launcher, inside srun."""
    spec = movable(stage, steps=100 * STEPS)
    rank = stage.lab.work / "train.rank.sh"
    address = stage.client.service_client.config.target_host
    words = f'--cluster "$SLURM_CLUSTER_NAME" --address {address} --namespace {stage.client.namespace}'
    launched = f"{LAUNCH} {words} --term 12s --grace 1s --wait 60s -- {sys.executable}"
    rank.write_text(rank.read_text().replace(sys.executable, launched, 1))
    return spec


@scenario(clusters=TWO, sites=True, nodes=2, limits={"cluster_lost_after": "5s"})
async def test_ranks_under_a_lease_end_without_their_controller_and_the_job_moves_without_a_person(
    stage: Stage,
) -> None:
    """The controller is gone and the nodes train on: nobody could stop them but their launchers."""
    alpha, beta = stage.labs.values()
    native_id = await stage.sbatch(under_a_lease(stage))
    await stage.trains("train", 1)
    await stage.until(lambda: complete_of(stage.folder_of("train"), "0.0"), "it has a checkpoint")
    await on_disk(stage, native_id)
    async with never_on_both(native_id, alpha, beta):
        await alpha.lab("ctld-kill", "alpha")
        assert rank_pids(native_id, alpha.settings.conf), "they know nothing of it"
        moved = await trains_on_beta(stage)
        assert not rank_pids(native_id, alpha.settings.conf)
        await alpha.lab("ctld-start", "alpha")
        await stage.until(lambda: _was_ended(stage), "what it left is ended")

    view = await stage.view("job/train")
    assert view.ledger is not None
    first, second = view.ledger.attempts
    assert first.receipt is not None
    assert first.receipt.grade() is ReceiptGrade.LEASE_EXPIRED
    assert second.progress.resumed_from == complete_of(stage.folder_of("train"), "0.0")[-1]
    assert not [name for name in await stage.runbooks() if name.startswith(f"{MOVE}/ask")], "nobody was asked"
    assert attempts_alive(moved, beta.settings.conf) == {0: 2}


@asynccontextmanager
async def never_on_both(native_id: str, alpha: Cluster, beta: Cluster) -> AsyncIterator[None]:
    """Looks at the ranks' processes all the time."""
    both: list[tuple[list[int], list[int]]] = []

    async def look() -> None:
        while True:
            old = await asyncio.to_thread(rank_pids, native_id, alpha.settings.conf)
            new = await asyncio.to_thread(rank_pids, None, beta.settings.conf)
            both.extend([(old, new)] if old and new else [])
            await asyncio.sleep(0.2)

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()
    assert not both, "ranks in both clusters at once"


async def _was_ended(stage: Stage) -> bool:
    story = (await stage.view("job/train")).story
    return any(f"which it left, {how}" in line for line in story for how in ("was ended", "is over"))
