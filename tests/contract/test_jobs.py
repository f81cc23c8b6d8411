"""Submitting, reading, adopting and giving back jobs."""

import asyncio

import pytest

from fleet.errors import AmbiguousError, InvalidInputError, NotFoundError, RefusedError, TemporaryError
from fleet.model import NativeJob, Phase
from tests.contract.rig import Rig, eventually
from tests.contract.steps import adopted, lost_by_scheduler, phase, progress, ranks, started, training


async def with_key(rig: Rig, key: str) -> list[NativeJob]:
    return [job for job in await rig.backend.jobs(max_age=0) if job.key == key and not job.phase.ended]


async def test_probe_tells_the_waits_that_callers_derive_from(rig: Rig) -> None:
    facts = await rig.backend.probe()
    assert facts.cluster == rig.backend.cluster
    assert facts.kind == rig.backend.kind
    assert facts.node_down_after > 0
    assert facts.stop_takes > 0
    assert (facts.requeue_delay >= 60) is rig.batch_scheduler, "the suite runs with the scheduler's default delay"
    assert facts.reboot_timeout > 0


async def test_submit_starts_a_job_that_trains_and_ends(rig: Rig) -> None:
    spec = rig.training_spec("short", steps=30)
    job = await rig.backend.submit(spec)
    assert job.key == spec.job
    assert job.nodes_wanted == 2
    assert not job.held
    assert job.tokens.supervise
    assert job.tokens.checkpoint_signal == "USR1"
    ended = await phase(rig, job.native_id, Phase.SUCCEEDED, 120)
    assert ended.exit_code == 0
    seen = await rig.backend.progress(job.native_id, 0)
    assert (seen.first_step, seen.step, seen.total, seen.done) == (1, 30, 30, True)
    assert seen.loss is not None
    assert await rig.ranks_alive(job.native_id) == 0


async def test_submitting_twice_makes_one_job(rig: Rig) -> None:
    spec = rig.training_spec("once")
    first = await rig.backend.submit(spec)
    second = await rig.backend.submit(spec)
    assert second.native_id == first.native_id
    await training(rig, first.native_id)
    assert len(await with_key(rig, spec.job)) == 1


async def test_submitting_at_the_same_time_makes_one_job(rig: Rig) -> None:
    spec = rig.training_spec("race")
    both = await asyncio.gather(rig.backend.submit(spec), rig.backend.submit(spec))
    assert both[0].native_id == both[1].native_id
    await training(rig, both[0].native_id)
    assert len(await with_key(rig, spec.job)) == 1


async def test_a_submit_whose_answer_is_lost_makes_one_job(rig: Rig) -> None:
    spec = rig.training_spec("lost")
    await rig.freeze_controller()
    with pytest.raises((AmbiguousError, TemporaryError)):
        await rig.backend.submit(spec)
    with pytest.raises((AmbiguousError, TemporaryError)):
        await rig.backend.submit(spec)
    await rig.thaw_controller()
    job = await eventually(rig, lambda: rig.backend.submit(spec), lambda j: j.key == spec.job, 30)
    await training(rig, job.native_id)
    assert [j.native_id for j in await with_key(rig, spec.job)] == [job.native_id]


async def test_a_submit_that_the_cluster_can_never_take_is_refused_before_it_exists(rig: Rig) -> None:
    spec = rig.training_spec("empty").model_copy(update={"script": "no shebang"})
    with pytest.raises(InvalidInputError):
        await rig.backend.submit(spec)
    assert await with_key(rig, spec.job) == []


async def test_reads_of_a_frozen_controller_say_temporary_and_never_empty(rig: Rig) -> None:
    _, job = await started(rig)
    await rig.freeze_controller()
    with pytest.raises(TemporaryError):
        await rig.backend.job(job.native_id)
    with pytest.raises(TemporaryError):
        await rig.backend.jobs(max_age=0)
    await rig.thaw_controller()
    await phase(rig, job.native_id, Phase.RUNNING)


async def test_an_unknown_job_is_absent_and_refuses_orders(rig: Rig) -> None:
    assert (await rig.backend.job("999999")).phase is Phase.ABSENT
    with pytest.raises(NotFoundError):
        await rig.backend.adopt("999999")
    with pytest.raises(NotFoundError):
        await rig.backend.stop("999999", 0)


async def test_a_job_that_fails_by_itself_shows_its_code_and_its_last_words(rig: Rig) -> None:
    spec = rig.training_spec("bug", fail_at=10, exit_code=7)
    job = await rig.backend.submit(spec)
    ended = await phase(rig, job.native_id, Phase.FAILED, 60)
    assert ended.exit_code == 7
    assert any("Traceback" in line for line in await rig.backend.log_tail(job.native_id))
    assert (await rig.backend.progress(job.native_id, 0)).step in {9, 10}


async def test_adoption_holds_a_running_job_without_touching_it(rig: Rig) -> None:
    spec = rig.training_spec("plain")
    native_id = await rig.person_submit(spec)
    await training(rig, native_id)
    taken = await rig.backend.adopt(native_id)
    assert taken.job.held
    assert taken.job.phase is Phase.RUNNING
    assert taken.job.key is None
    assert taken.script is not None
    assert taken.script.startswith(rig.script_start)
    step = (await rig.backend.progress(native_id, 0)).step or 0
    await progress(rig, native_id, 0, lambda p: (p.step or 0) > step)
    await ranks(rig, native_id, 2)


async def test_adopting_twice_is_adopting_once(rig: Rig) -> None:
    _, job = await adopted(rig)
    again = await rig.backend.adopt(job.native_id)
    assert again.job.held
    assert again.job.phase is Phase.RUNNING
    assert again.job.restarts == 0


async def test_an_adopted_job_that_somebody_requeues_stays_held_in_the_queue(rig: Rig) -> None:
    _, job = await adopted(rig)
    await rig.person_requeue(job.native_id)
    waiting = await phase(rig, job.native_id, Phase.PENDING)
    assert waiting.held
    assert waiting.restarts == 1
    await ranks(rig, job.native_id, 0)


async def test_the_schedulers_own_requeue_leaves_an_adopted_job_held(rig: Rig) -> None:
    _, job = await adopted(rig)
    await rig.crash_node(job.nodes[0])
    waiting = await lost_by_scheduler(rig, job)
    assert waiting.held
    assert waiting.restarts == 1
    await ranks(rig, job.native_id, 0)


async def test_adoption_of_an_ended_job_is_refused(rig: Rig) -> None:
    job = await rig.backend.submit(rig.training_spec("short", steps=5))
    await phase(rig, job.native_id, Phase.SUCCEEDED, 120)
    with pytest.raises(RefusedError):
        await rig.backend.adopt(job.native_id)


async def test_giving_back_a_running_job_makes_it_the_schedulers_again(rig: Rig) -> None:
    _, job = await adopted(rig)
    given = await rig.backend.give_back(job.native_id)
    assert not given.held
    assert given.phase is Phase.RUNNING
    held = await rig.backend.hold(job.native_id)
    assert held.held
    assert held.phase is Phase.RUNNING


async def test_cancel_ends_a_job_for_good_and_twice_is_once(rig: Rig) -> None:
    _, job = await adopted(rig)
    await rig.backend.cancel(job.native_id)
    await phase(rig, job.native_id, Phase.CANCELLED)
    await ranks(rig, job.native_id, 0)
    assert (await rig.backend.cancel(job.native_id)).phase is Phase.CANCELLED
