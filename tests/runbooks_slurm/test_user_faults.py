"""What is the job's own fault is not moved; its owner reads the cause."""

from fleet.faults.evidence import FaultClass
from fleet.ledger import Rung
from fleet.model import Phase
from tests.runbooks_slurm.scenario import scenario
from tests.runbooks_slurm.stage import Stage


@scenario()
async def test_an_exception_of_the_program_is_told_to_its_owner_and_not_moved(stage: Stage) -> None:
    native_id = await stage.sbatch(stage.spec(every=0, step_time=600))
    await stage.trains("train", 1)
    stage.hurry()
    result = await stage.result("job/train")
    assert "user fault, not restarted" in result
    assert "ZeroDivisionError: integer modulo by zero" in result
    native = await stage.native(native_id)
    assert (native.phase, native.restarts) == (Phase.FAILED, 0)
    view = await stage.view("job/train")
    assert view.verdict is not None
    assert view.verdict.fault is FaultClass.USER
    assert not [name for name in await stage.runbooks() if name.startswith(("job/train/", "node/"))]


@scenario()
async def test_the_words_of_an_attempt_that_lost_its_node_are_no_evidence_against_the_next_one(stage: Stage) -> None:
    """All attempts write into one log; only the node that was lost is repaired, its neighbour is left alone. What the
    second one says of itself (a loss that is no number) may be its nodes' fault or its own, and only other nodes can
    tell: there are too few of them, so a person decides."""
    native_id = await stage.train(train="--raise-at-step 500")
    healthy, sick = await stage.nodes_of("train")
    await stage.fault("node-crash", sick)
    await stage.trains("train", 2)
    lost = [line for line in stage.output("train") if f"ON {healthy} CANCELLED" in line]
    assert lost, "Slurm has told the first attempt's end into the log"
    stage.hurry()
    question = await stage.question("job/train")
    assert "loss is NaN at step 500" in question.why
    view = await stage.view("job/train")
    assert view.ledger is not None
    attempts = [(a.restarts, a.rung, a.cause) for a in view.ledger.attempts]
    assert attempts == [(0, Rung.FIRST, ""), (1, Rung.IN_CLUSTER, "node_down")]
    assert (await stage.native(native_id)).restarts == 1
    await stage.result(f"node/alpha/{sick}")
    assert {name for name in await stage.runbooks() if name.startswith("node/")} == {f"node/alpha/{sick}"}


@scenario()
async def test_code_0_short_of_the_declared_steps_is_not_taken_for_done_nor_started_again(stage: Stage) -> None:
    native_id = await stage.sbatch(stage.spec(nodes=1, step_time=600, train="--fail-at-step 21 --exit-code 0"))
    await stage.trains("train", 1)
    stage.hurry()
    result = await stage.result("job/train")
    assert "ended with code 0 at step 20 of 1000" in result
    native = await stage.native(native_id)
    assert (native.phase, native.restarts) == (Phase.SUCCEEDED, 0)
