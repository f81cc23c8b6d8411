"""Saving, stopping and starting attempts of a held job."""

import pytest

from fleet.errors import RefusedError
from fleet.model import Phase
from fleet.orders import StartOrder
from tests.contract.rig import Rig
from tests.contract.steps import adopted, phase, progress, ranks, restarted, saved, started, stopped, training


async def test_a_requested_checkpoint_is_saved_and_training_goes_on(rig: Rig) -> None:
    spec, job = await adopted(rig, checkpoint_every=100_000)
    step = await saved(rig, spec, job.native_id)
    seen = await progress(rig, job.native_id, 0, lambda p: (p.saved or 0) >= step and (p.step or 0) > step)
    assert seen.saved == step
    await ranks(rig, job.native_id, 2)


async def test_stop_leaves_the_job_held_in_the_queue_and_its_ranks_gone(rig: Rig) -> None:
    _, job = await adopted(rig)
    waiting = await stopped(rig, job.native_id)
    assert waiting.held
    assert waiting.restarts == 1
    assert await rig.ranks_alive(job.native_id) == 0


async def test_stopping_twice_is_stopping_once(rig: Rig) -> None:
    _, job = await adopted(rig)
    await rig.backend.stop(job.native_id, 0)
    await rig.backend.stop(job.native_id, 0)
    waiting = await stopped(rig, job.native_id)
    assert waiting.restarts == 1
    assert waiting.held


async def test_a_late_stop_of_an_older_attempt_leaves_the_newer_one_alone(rig: Rig) -> None:
    _, job = await adopted(rig)
    await stopped(rig, job.native_id)
    await restarted(rig, job.native_id, 1)
    await rig.backend.settle_attempt(job.native_id)
    await rig.backend.stop(job.native_id, 0)
    seen = (await rig.backend.progress(job.native_id, 1)).step or 0
    await progress(rig, job.native_id, 1, lambda p: (p.step or 0) > seen)
    assert (await rig.backend.job(job.native_id)).restarts == 1


async def test_stop_of_an_ended_job_is_refused_and_does_not_revive_it(rig: Rig) -> None:
    job = await rig.backend.submit(rig.training_spec("short", steps=5))
    await phase(rig, job.native_id, Phase.SUCCEEDED, 120)
    with pytest.raises(RefusedError):
        await rig.backend.stop(job.native_id, 0)
    assert (await rig.backend.job(job.native_id)).phase is Phase.SUCCEEDED


async def test_a_job_that_a_person_cancelled_is_not_revived(rig: Rig) -> None:
    _, job = await adopted(rig)
    await rig.person_cancel(job.native_id)
    await phase(rig, job.native_id, Phase.CANCELLED)
    with pytest.raises(RefusedError):
        await rig.backend.stop(job.native_id, 0)
    with pytest.raises(RefusedError):
        await rig.backend.start_attempt(StartOrder(native_id=job.native_id, restarts=0))
    assert (await rig.backend.job(job.native_id)).phase is Phase.CANCELLED
    await ranks(rig, job.native_id, 0)


async def test_the_next_attempt_runs_elsewhere_and_resumes_from_the_checkpoint(rig: Rig) -> None:
    spec, job = await adopted(rig, checkpoint_every=100_000)
    await saved(rig, spec, job.native_id)
    bad = job.nodes[0]
    await stopped(rig, job.native_id)
    newest = await rig.newest_complete_checkpoint(spec.job)
    again = await restarted(rig, job.native_id, 1, exclude=(bad,))
    assert bad not in again.nodes
    assert again.excluded == (bad,)
    assert again.restarts == 1
    assert again.own_excluded == ()
    seen = await rig.backend.progress(job.native_id, 1)
    assert newest is not None
    assert seen.resumed_from == newest
    assert seen.first_step == newest + 1
    await stopped(rig, job.native_id, 1)
    third = await restarted(rig, job.native_id, 2, exclude=(again.nodes[0],))
    assert third.excluded == (again.nodes[0],), "what an earlier order ruled out is taken back"
    assert again.nodes[0] not in third.nodes


async def test_the_next_attempt_does_not_wait_for_the_schedulers_own_delay(rig: Rig) -> None:
    _, job = await adopted(rig)
    await stopped(rig, job.native_id)
    ordered = rig.now()
    again = await restarted(rig, job.native_id, 1)
    delay = (await rig.backend.probe()).requeue_delay or 60
    assert again.started_at is not None
    assert again.started_at - ordered < delay / 3


async def test_the_next_attempt_goes_before_a_job_that_waits_longer(rig: Rig) -> None:
    if not rig.batch_scheduler:
        pytest.skip(f"{rig.name} has no queue: pods are scheduled one by one")
    keep = (await rig.backend.capacity()).free_nodes[0]
    await rig.backend.isolate(keep, "opccccc", "keeps the older job waiting")
    rival = await rig.backend.submit(rig.training_spec("rival", nodes=6))
    await rig.backend.hold(rival.native_id)
    await rig.backend.release(keep, "opccccc")
    _, job = await adopted(rig, nodes=6)
    await stopped(rig, job.native_id)
    await rig.backend.isolate(job.nodes[0], "opccccc", "keeps both waiting")
    await rig.backend.give_back(rival.native_id)
    await rig.backend.start_attempt(StartOrder(native_id=job.native_id, restarts=1, front=True))
    await rig.backend.release(job.nodes[0], "opccccc")
    await training(rig, job.native_id, 1)
    assert (await rig.backend.job(rival.native_id)).phase is Phase.PENDING


async def test_starting_twice_makes_one_attempt(rig: Rig) -> None:
    _, job = await adopted(rig)
    await stopped(rig, job.native_id)
    order = StartOrder(native_id=job.native_id, restarts=1)
    await rig.backend.start_attempt(order)
    await rig.backend.start_attempt(order)
    await training(rig, job.native_id, 1)
    again = await rig.backend.start_attempt(order)
    assert again.phase is Phase.RUNNING
    assert again.restarts == 1
    await ranks(rig, job.native_id, 2)


async def test_a_start_is_refused_when_somebody_else_moved_the_job(rig: Rig) -> None:
    _, job = await adopted(rig)
    await stopped(rig, job.native_id)
    with pytest.raises(RefusedError):
        await rig.backend.start_attempt(StartOrder(native_id=job.native_id, restarts=0))
    after = await rig.backend.job(job.native_id)
    assert after.held
    assert after.phase is Phase.PENDING


async def test_in_place_keeps_the_nodes_and_leaves_nothing_pinned(rig: Rig) -> None:
    _, other = await started(rig, "other")
    _, job = await adopted(rig)
    await stopped(rig, job.native_id)
    await rig.backend.cancel(other.native_id)
    await phase(rig, other.native_id, Phase.CANCELLED)
    again = await restarted(rig, job.native_id, 1, require=job.nodes)
    assert sorted(again.nodes) == sorted(job.nodes)
    settled = await rig.backend.settle_attempt(job.native_id)
    assert settled.required == ()


async def test_settling_holds_the_new_attempt_against_the_schedulers_requeue(rig: Rig) -> None:
    _, job = await adopted(rig)
    await stopped(rig, job.native_id)
    await restarted(rig, job.native_id, 1)
    settled = await rig.backend.settle_attempt(job.native_id)
    assert settled.held
    assert settled.phase is Phase.RUNNING
    await rig.person_requeue(job.native_id)
    waiting = await phase(rig, job.native_id, Phase.PENDING)
    assert waiting.held
    assert waiting.restarts == 2
