"""Several submissions of one job, told apart by their epoch, and the end of what is left of an older one."""

import pytest

from fleet.errors import InvalidInputError, NotFoundError, RefusedError
from fleet.model import NativeJob, Phase
from fleet.orders import JobSpec, StartOrder
from tests.contract.rig import Rig, eventually
from tests.contract.steps import adopted, phase, progress, stopped


def later(spec: JobSpec, epoch: int = 1) -> JobSpec:
    return spec.model_copy(update={"epoch": epoch})


async def of_key(rig: Rig, key: str) -> dict[str, int]:
    """Native id -> epoch of every object of the job that the cluster knows."""
    return {job.native_id: job.tokens.epoch for job in await rig.backend.jobs(max_age=0) if job.key == key}


async def steps_of_its_own(rig: Rig, job: NativeJob, generation: str) -> None:
    """Waits until it trains, and prints that generation."""
    await phase(rig, job.native_id, Phase.RUNNING)
    await progress(rig, job.native_id, 0, lambda p: p.step is not None)
    await eventually(
        rig,
        lambda: rig.backend.log_tail(job.native_id),
        lambda lines: any(line.startswith("step ") and f"gen={generation} " in line for line in lines),
        30,
        f"a step of {generation}",
    )


async def test_a_later_submission_is_another_native_object_and_each_is_made_once(rig: Rig) -> None:
    spec, first = await adopted(rig, "moves")
    await stopped(rig, first.native_id)
    second = await rig.backend.submit(later(spec))
    again = await rig.backend.submit(later(spec))
    assert again.native_id == second.native_id != first.native_id
    assert (second.key, second.tokens.epoch) == (spec.job, 1)
    assert (await rig.backend.submit(spec)).native_id == first.native_id
    assert await of_key(rig, spec.job) == {first.native_id: 0, second.native_id: 1}
    await steps_of_its_own(rig, second, "1.0")
    assert (await rig.backend.job(first.native_id)).held


async def test_an_older_submission_is_made_beside_a_later_one_and_never_taken_for_it(rig: Rig) -> None:
    spec = rig.training_spec("late", nodes=1)
    second = await rig.backend.submit(later(spec, 2))
    first = await rig.backend.submit(later(spec))
    assert await of_key(rig, spec.job) == {second.native_id: 2, first.native_id: 1}


async def test_a_job_that_ended_is_not_what_a_later_submission_returns(rig: Rig) -> None:
    spec = rig.training_spec("short", nodes=1, steps=5)
    first = await rig.backend.submit(spec)
    await phase(rig, first.native_id, Phase.SUCCEEDED, 120)
    second = await rig.backend.submit(later(spec))
    assert second.native_id != first.native_id
    assert (await rig.backend.submit(spec)).phase is Phase.SUCCEEDED


async def test_an_environment_that_cannot_be_handed_on_is_refused_before_anything_exists(rig: Rig) -> None:
    for name, value in (("no-name", "x"), ("GPU_RUNBOOKS_EPOCH", "7"), ("ROOT", "/a\n/b")):
        spec = rig.training_spec("env").model_copy(update={"env": {name: value}})
        with pytest.raises(InvalidInputError, match="variable"):
            await rig.backend.submit(spec)
        assert any("variable" in line for line in await rig.backend.try_submit(spec))
        assert await of_key(rig, spec.job) == {}


async def test_cancel_ends_a_held_waiting_job_for_good_and_twice_is_once(rig: Rig) -> None:
    spec, first = await adopted(rig)
    await stopped(rig, first.native_id)
    second = await rig.backend.submit(later(spec))
    for _ in range(2):
        gone = await rig.backend.cancel(first.native_id)
        assert (gone.phase, gone.held) == (Phase.CANCELLED, False)
    with pytest.raises(RefusedError):
        await rig.backend.start_attempt(StartOrder(native_id=first.native_id, restarts=1))
    await steps_of_its_own(rig, second, "1.0")
    assert (await rig.backend.submit(spec)).phase is Phase.CANCELLED


async def test_cancel_of_a_running_held_job_leaves_a_later_submission_alone(rig: Rig) -> None:
    spec, first = await adopted(rig)
    second = await rig.backend.submit(later(spec))
    await rig.backend.cancel(first.native_id)
    await phase(rig, first.native_id, Phase.CANCELLED)
    await steps_of_its_own(rig, second, "1.0")


async def test_cancel_says_how_a_job_ended_that_was_over_before(rig: Rig) -> None:
    job = await rig.backend.submit(rig.training_spec("short", nodes=1, steps=5))
    await phase(rig, job.native_id, Phase.SUCCEEDED, 120)
    assert (await rig.backend.cancel(job.native_id)).phase is Phase.SUCCEEDED


async def test_cancel_of_a_job_that_the_cluster_does_not_know_says_so(rig: Rig) -> None:
    with pytest.raises(NotFoundError):
        await rig.backend.cancel("999999")
