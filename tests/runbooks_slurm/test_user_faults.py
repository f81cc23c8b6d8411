"""What is the job's own fault is not moved; its owner reads the cause."""

import re

import pytest

from fleet.faults.evidence import FaultClass
from fleet.model import Phase
from tests.runbooks_slurm.scenario import scenario
from tests.runbooks_slurm.stage import Stage


@scenario()
async def test_an_exception_of_the_program_is_told_to_its_owner_and_not_moved(stage: Stage) -> None:
    native_id = await stage.sbatch(stage.spec(train="--raise-at-step 25 --fault-rank 1", step_time=0.1))
    result = await stage.result("job/train")
    assert "user fault, not restarted" in result
    assert "loss is NaN at step 25 on rank 1" in result
    native = await stage.native(native_id)
    assert (native.phase, native.restarts) == (Phase.FAILED, 0)
    view = await stage.view("job/train")
    assert view.verdict is not None
    assert view.verdict.fault is FaultClass.USER
    assert not [name for name in await stage.runbooks() if name.startswith(("job/train/", "node/"))]


@scenario()
async def test_an_exception_after_a_lost_node_is_still_the_programs_own(stage: Stage) -> None:
    """The log holds the words of both attempts; those of the first are no evidence against the second."""
    native_id = await stage.train(train="--raise-at-step 120")
    sick = (await stage.nodes_of("train"))[1]
    await stage.fault("node-crash", sick)
    await stage.trains("train", 2)
    stage.hurry()
    result = await stage.result("job/train")
    assert "loss is NaN at step 120 on rank 0" in result
    assert "user fault, not restarted" in result
    native = await stage.native(native_id)
    assert (native.phase, native.restarts) == (Phase.FAILED, 1)
    await stage.result(f"node/alpha/{sick}")
    others = {name for name in await stage.runbooks() if name.startswith("node/")}
    assert others == {f"node/alpha/{sick}"}


@scenario()
async def test_code_0_short_of_the_declared_steps_is_not_taken_for_done_nor_started_again(stage: Stage) -> None:
    native_id = await stage.sbatch(stage.spec(steps=20, total=400, step_time=0.1))
    result = await stage.result("job/train")
    assert "ended with code 0 at step 20 of 400" in result
    native = await stage.native(native_id)
    assert (native.phase, native.restarts) == (Phase.SUCCEEDED, 0)


@pytest.mark.parametrize("code", [1, 42])
@scenario()
async def test_an_exit_code_alone_gets_one_try_in_place_and_one_elsewhere_and_then_a_person(
    stage: Stage, code: int
) -> None:
    native_id = await stage.sbatch(stage.spec(train=f"--fail-at-step 12 --exit-code {code}", step_time=0.1))
    question = await stage.question("job/train")
    native = await stage.native(native_id)
    assert native.phase is Phase.FAILED
    starts = re.findall(rf"(?:Allocate|Started) JobId={native_id} NodeList=(\S+)", stage.log("slurmctld.log"))
    assert 1 <= len(starts) <= 3
    assert str(code) in question.why
