"""Slurm acts by itself: it preempts, fails to launch, forgets ended jobs. It goes on after a receipt, or is asked."""

import re

from fleet.ledger import Rung
from fleet.model import NodeState, Phase
from fleet.people import Choice
from tests.runbooks_slurm.scenario import scenario
from tests.runbooks_slurm.stage import Stage
from tests.runbooks_slurm.training import complete_of, resumed
from tests.runbooks_slurm.watching import watching

PREEMPTS = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=REQUEUE",
    "PartitionName=low Nodes=ALL PriorityTier=1 GraceTime=0 MaxTime=INFINITE State=UP",
    "PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP",
)


@scenario(lab=PREEMPTS)
async def test_a_preempted_job_goes_on_after_a_receipt_and_it_costs_no_try(stage: Stage) -> None:
    native_id = await stage.train(nodes=4, every=2, options=("--partition=low",))
    async with watching(stage.lab, native_id) as seen:
        urgent = await stage.lab.quick_job("urgent", "sleep 5", "--partition=urgent", "--nodes=4", "--gres=gpu:8")
        await stage.phase(urgent, Phase.RUNNING)
        view = await stage.trains("train", 2)
        stage.hurry()
        assert "done" in await stage.result("job/train")
    assert (Phase.PENDING, True, 1) in seen.states
    assert seen.never_two_at_once()
    native = await stage.native(native_id)
    assert (native.phase, native.restarts) == (Phase.SUCCEEDED, 1)
    assert view.ledger is not None
    first, second = view.ledger.attempts
    assert first.receipt is not None
    assert {r.node for r in first.receipt.nodes} == set(first.nodes)
    assert (second.rung, second.charge) == (Rung.OBSERVED, 0)
    lines = stage.output("train")
    assert resumed(lines, "0.1") == complete_of(stage.folder_of("train"), "0.0")[-1]
    assert not [name for name in await stage.runbooks() if name.startswith("node/") or "/ask/" in name]


@scenario()
async def test_a_launch_that_fails_on_a_node_is_made_elsewhere_and_the_node_is_left_out(stage: Stage) -> None:
    """The prolog fails: Slurm drains the node and holds the job. The cause is the node, not the job."""
    (stage.lab.root / "alpha" / "health" / "prolog-fail-alpha1").write_text("x")
    native_id = await stage.sbatch(stage.spec())

    async def failed() -> bool:
        return (await stage.node("alpha1")).state is NodeState.DRAINED

    await stage.until(failed, "Slurm drains the node")
    view = await stage.trains("train", 2)
    native = await stage.native(native_id)
    assert (native.phase, native.restarts, "alpha1" in native.nodes) == (Phase.RUNNING, 1, False)
    assert native.held, "held again, against Slurm's own requeue"
    assert view.ledger is not None
    assert [(a.rung, a.nodes) for a in view.ledger.attempts] == [(Rung.FIRST, ()), (Rung.IN_CLUSTER, native.nodes)]
    assert view.verdict is not None
    assert view.verdict.rule == "reason:launch_failed_requeued_held"
    node = await stage.node("alpha1")
    assert "Prolog error" in node.reason
    assert node.op is None, "Slurm's drain stays Slurm's"
    assert "Prolog error" in (await stage.question("node/alpha/alpha1")).why
    releases = [argv for argv in stage.written if argv[:2] == ("scontrol", "release")]
    assert releases == [("scontrol", "release", native_id)]


@scenario(lab=("MinJobAge=2",))
async def test_a_job_that_slurm_has_purged_is_unknown_and_asked_about_and_another_one_goes_on(stage: Stage) -> None:
    native_id = await stage.train("gone", nodes=1)
    other = await stage.train("other", nodes=1)
    await stage.stop_worker()
    stage.hurry("gone")

    async def purged() -> bool:
        return (await stage.native(native_id)).phase is Phase.ABSENT

    await stage.until(purged, "Slurm forgets the job")
    await stage.start_worker()
    question = await stage.question("job/gone")
    assert "not in the controller" in question.plan.title
    assert question.default is Choice.ABORT
    await stage.answer(question, Choice.ABORT)
    result = await stage.result("job/gone")
    assert "end unknown" in result
    assert "done" not in result
    assert len(re.findall(rf"(?:Allocate|Started) JobId={native_id} ", stage.log("slurmctld.log"))) == 1
    await stage.lose_gpu((await stage.nodes_of("other"))[0])
    await stage.trains("other", 2)
    assert (await stage.native(other)).restarts == 1
