"""Jobs on a real cluster: submits that must not double, holds, pins, requeues, and people who act beside us."""

import asyncio
import random
import time

import pytest

from activities.backends.slurm.marks import JobMarks
from fleet.errors import FleetError, NotFoundError, PermanentError, RefusedError, TemporaryError
from fleet.identity import fleet_name
from fleet.model import Phase
from fleet.orders import JobSpec, StartOrder
from tests.slurm.conftest import Opener
from tests.slurm.lab import Cluster
from tests.slurm.waiting import job_in, stopped, trains, until

pytestmark = pytest.mark.slurm


def small(key: str, command: str = "sleep 300", *options: str) -> JobSpec:
    """A submit of ours that needs no GPU."""
    return JobSpec(
        job=key, name="small", script=f"#!/bin/sh\n{command}\n", workdir="/", options=("--output=/dev/null", *options)
    )


class Died(Exception):  # noqa: N818 - not an error of ours: the worker is gone
    """The worker was killed here."""


async def live_with_key(cluster: Cluster, key: str) -> list[str]:
    jobs = await cluster.backend.jobs(max_age=-1)
    return [job.native_id for job in jobs if job.key == key and not job.phase.ended]


# -- submit


async def test_submits_that_are_killed_and_frozen_at_random_make_one_job_a_key(alpha: Cluster) -> None:
    rnd = random.Random(7)
    keys = [f"k{n}" for n in range(4)]

    async def worker(key: str) -> None:
        backend = alpha.another_backend()
        while True:
            backend.commands.limit = rnd.choice([0.004, 0.01, 0.05, 2.0])  # many an sbatch is killed on its way
            try:
                await backend.submit(small(key, "sleep 300", "--cpus-per-task=1"))
                return
            except FleetError:
                await asyncio.sleep(rnd.random() / 5)

    async def trouble() -> None:
        for _ in range(2):
            await alpha.lab("ctld-freeze", "alpha")
            await asyncio.sleep(1.0)
            await alpha.lab("ctld-thaw", "alpha")
            await asyncio.sleep(0.5)

    await asyncio.gather(trouble(), *(worker(key) for key in keys for _ in range(3)))
    for key in keys:  # a late one lands held; the next submit of the key sweeps it away
        job = await alpha.backend.submit(small(key))
        await job_in(alpha, job.native_id, Phase.RUNNING)
        assert await live_with_key(alpha, key) == [job.native_id]
    started = [job for job in await alpha.backend.jobs(max_age=-1) if job.started_at is not None and job.nodes]
    assert len(started) == len(keys)


async def test_doubles_of_a_key_are_dropped_before_any_of_them_starts(alpha: Cluster) -> None:
    comment = "--comment=gpu-runbooks.io/supervise gpu-runbooks.io/job=dup"
    ids = [await alpha.quick_job("small.dup", "sleep 300", "--hold", comment) for _ in range(3)]
    job = await alpha.backend.submit(small("dup"))
    assert job.native_id == ids[0]
    await job_in(alpha, ids[0], Phase.RUNNING)
    for late in ids[1:]:
        gone = await alpha.backend.job(late)
        assert (gone.phase, gone.started_at, gone.nodes) == (Phase.CANCELLED, gone.started_at, ())


async def test_doubles_of_a_later_submission_are_dropped_and_the_first_ones_job_is_left_alone(alpha: Cluster) -> None:
    first = await alpha.backend.submit(small("dup", "sleep 300", "--cpus-per-task=1"))
    comment = "--comment=gpu-runbooks.io/supervise gpu-runbooks.io/job=dup gpu-runbooks.io/epoch=1"
    ids = [await alpha.quick_job("small.dup", "sleep 300", "--hold", comment) for _ in range(2)]
    second = await alpha.backend.submit(small("dup").model_copy(update={"epoch": 1}))
    assert second.native_id == ids[0]
    assert (await alpha.backend.job(ids[1])).phase is Phase.CANCELLED
    await job_in(alpha, first.native_id, Phase.RUNNING)
    assert await live_with_key(alpha, "dup") == [first.native_id, ids[0]]


async def test_ranks_see_the_environment_of_their_submission_in_each_attempt(alpha: Cluster) -> None:
    say = "srun sh -c 'echo \"$GPU_RUNBOOKS_EPOCH.$SLURM_RESTART_COUNT $GPU_RUNBOOKS_CHECKPOINT\"'; sleep 300"
    root = "/ckpt/with space, comma and 'quotes'"
    told = alpha.work / "told"
    spec = small("told", say, f"--output={told}").model_copy(
        update={"epoch": 3, "env": {"GPU_RUNBOOKS_CHECKPOINT": root}}
    )
    job = await alpha.backend.submit(spec)

    async def lines() -> list[str]:
        return told.read_text().splitlines() if told.exists() else []

    await until(lines, lambda seen: seen == [f"3. {root}"])
    await alpha.backend.adopt(job.native_id)
    await stopped(alpha, job.native_id)
    await alpha.backend.start_attempt(StartOrder(native_id=job.native_id, restarts=1))
    await until(lines, lambda seen: f"3.1 {root}" in seen)


async def test_a_job_that_the_controller_lost_is_made_again_and_its_reused_id_is_no_confusion(alpha: Cluster) -> None:
    await alpha.backend.submit(small("first"))
    lost = await alpha.backend.submit(small("lost"))
    await alpha.lab("ctld-kill", "alpha")
    await alpha.lab("ctld-start", "alpha")
    await until(lambda: alpha.backend.jobs(max_age=-1), lambda _: True)
    other = await alpha.backend.submit(small("other"))
    again = await alpha.backend.submit(small("lost"))
    assert again.key == "lost"
    assert await live_with_key(alpha, "lost") == [again.native_id]
    if other.native_id == lost.native_id:  # the id went to somebody else: the key tells
        assert (await alpha.backend.job(lost.native_id)).key == "other"
        assert again.native_id != lost.native_id


async def test_an_ended_job_of_the_key_is_returned_and_not_made_again(alpha: Cluster) -> None:
    job = await alpha.backend.submit(small("once", "exit 3"))
    await job_in(alpha, job.native_id, Phase.FAILED)
    again = await alpha.backend.submit(small("once", "exit 3"))
    assert (again.native_id, again.phase, again.exit_code) == (job.native_id, Phase.FAILED, 3)


async def test_what_slurm_cannot_take_is_told_with_its_words_and_leaves_nothing(alpha: Cluster) -> None:
    with pytest.raises(PermanentError, match="partition"):
        await alpha.backend.submit(small("bad", "true", "--partition=nope"))
    assert await live_with_key(alpha, "bad") == []


# -- adopt and give back


async def test_what_cannot_be_held_is_refused_with_the_fix(alpha: Cluster) -> None:
    fixed = await alpha.quick_job("fixed", "sleep 300", "--no-requeue")
    with pytest.raises(RefusedError, match=rf"scontrol update JobId={fixed} Requeue=1"):
        await alpha.backend.adopt(fixed)
    array = await alpha.quick_job("array", "sleep 300", "--array=1-2", "--hold")
    with pytest.raises(RefusedError, match="each task"):
        await alpha.backend.adopt(array)
    for native_id in (fixed, array):
        assert "gpu-runbooks" not in await alpha.slurm("scontrol", "show", "job", native_id)


async def test_an_array_task_is_held_by_its_own_id_and_the_others_stay_free(alpha: Cluster) -> None:
    array = await alpha.quick_job("array", "sleep 300", "--array=1-2")
    for task in (1, 2):
        await job_in(alpha, f"{array}_{task}", Phase.RUNNING)
    await alpha.backend.adopt(f"{array}_1")
    assert (await alpha.backend.job(f"{array}_1")).held
    assert not (await alpha.backend.job(f"{array}_2")).held
    await stopped(alpha, f"{array}_1")
    assert (await alpha.backend.job(f"{array}_2")).phase is Phase.RUNNING


async def test_a_job_that_waits_for_its_first_start_is_adopted_and_still_free_to_start(alpha: Cluster) -> None:
    blocker = await alpha.quick_job("blocker", "sleep 300", "-N4", "--exclusive")
    waiting = await alpha.quick_job("waiting", "sleep 300", "-N4", "--exclusive")
    taken = await alpha.backend.adopt(waiting)
    assert not taken.job.held
    assert taken.job.adopted
    await alpha.slurm("scancel", blocker)
    await job_in(alpha, waiting, Phase.RUNNING)
    assert (await alpha.backend.hold(waiting)).held


async def test_the_name_of_an_adopted_job_survives_that_slurm_moves_its_submit_time(alpha: Cluster) -> None:
    native_id = await alpha.quick_job("named", "sleep 300")
    job = await job_in(alpha, native_id, Phase.RUNNING)
    await alpha.backend.adopt(native_id)
    await until(lambda: asyncio.sleep(0, time.time()), lambda now: now > job.submitted_at + 2)
    requeued = await stopped(alpha, native_id)
    assert fleet_name(requeued) == fleet_name(job)
    assert requeued.fingerprint == job.fingerprint
    moved = await alpha.slurm("squeue", "-h", "-j", native_id, "-o", "%V")
    first = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(job.submitted_at))
    assert moved.strip() != first, "Slurm did not move the submit time, so this test shows nothing"


async def test_the_sites_own_text_in_the_admin_comment_survives_us(alpha: Cluster) -> None:
    native_id = await alpha.quick_job("commented", "sleep 300")
    await job_in(alpha, native_id, Phase.RUNNING)
    await alpha.slurm("scontrol", "update", f"JobId={native_id}", "AdminComment=ticket 7 = urgent")
    await alpha.backend.adopt(native_id)
    record = await alpha.backend.view.job(native_id)
    assert record.admin_comment.startswith("ticket 7 = urgent gpu-runbooks:")
    await alpha.backend.give_back(native_id)
    record = await alpha.backend.view.job(native_id)
    assert record.admin_comment == "ticket 7 = urgent"
    assert record.marks == JobMarks()
    assert not record.job.held


# -- stop and start


async def test_a_script_that_ends_well_at_sigterm_is_not_lost_as_completed(alpha: Cluster) -> None:
    native_id = await alpha.quick_job("polite", "trap 'exit 0' TERM; sleep 300 & wait")
    await job_in(alpha, native_id, Phase.RUNNING)
    await alpha.backend.adopt(native_id)
    waiting = await stopped(alpha, native_id)
    assert (waiting.held, waiting.restarts) == (True, 1)


async def test_a_person_who_cancels_is_not_overruled_even_while_the_job_is_still_ending(alpha: Cluster) -> None:
    native_id = await alpha.quick_job("stubborn", "trap '' TERM; while :; do sleep 1; done")
    await job_in(alpha, native_id, Phase.RUNNING)
    await alpha.backend.adopt(native_id)
    await alpha.slurm("scancel", native_id)
    await job_in(alpha, native_id, Phase.STOPPING)
    with pytest.raises(TemporaryError):
        await alpha.backend.stop(native_id, 0)
    await job_in(alpha, native_id, Phase.CANCELLED)
    with pytest.raises(RefusedError):
        await alpha.backend.stop(native_id, 0)
    assert (await alpha.backend.job(native_id)).restarts == 0


async def test_a_supervised_job_that_failed_is_revived_held_and_ours(alpha: Cluster) -> None:
    flag = alpha.work / "second"
    native_id = await alpha.quick_job(
        "failing", f"test -e {flag} && sleep 300; touch {flag}; exit 3", "--comment=gpu-runbooks.io/supervise"
    )
    await job_in(alpha, native_id, Phase.FAILED)
    waiting = await stopped(alpha, native_id)
    assert (waiting.held, waiting.restarts) == (True, 1)
    assert (await alpha.backend.view.job(native_id)).marks.held
    await alpha.backend.start_attempt(StartOrder(native_id=native_id, restarts=1))
    assert (await job_in(alpha, native_id, Phase.RUNNING)).restarts == 1


async def test_a_failed_job_that_nobody_opted_in_is_not_revived(alpha: Cluster) -> None:
    native_id = await alpha.quick_job("private", "exit 3")
    await job_in(alpha, native_id, Phase.FAILED)
    with pytest.raises(RefusedError, match="not supervised"):
        await alpha.backend.stop(native_id, 0)
    assert (await alpha.backend.job(native_id)).phase is Phase.FAILED


async def test_a_pinned_job_is_freed_when_its_node_is_excluded_and_keeps_its_owners_exclusions(
    alpha: Cluster,
) -> None:
    native_id = await alpha.quick_job("pinned", "sleep 300", "-w", "alpha2", "-x", "alpha1")
    await job_in(alpha, native_id, Phase.RUNNING)
    await alpha.backend.adopt(native_id)
    await stopped(alpha, native_id)
    await alpha.backend.start_attempt(StartOrder(native_id=native_id, restarts=1, exclude=("alpha2",)))
    again = await job_in(alpha, native_id, Phase.RUNNING)
    assert (set(again.excluded), again.own_excluded) == ({"alpha1", "alpha2"}, ("alpha1",))
    assert again.nodes[0] in {"alpha3", "alpha4"}
    await alpha.backend.settle_attempt(native_id)
    await stopped(alpha, native_id, 1)
    await alpha.backend.give_back(native_id)
    assert (await alpha.backend.job(native_id)).excluded == ("alpha1",), "only its owner's own is left"


async def test_a_pin_of_ours_does_not_outlive_its_attempt(alpha: Cluster) -> None:
    """Slurm cannot clear ReqNodeList on a running job, so the next start must."""
    native_id = await alpha.quick_job("inplace", "sleep 300", "-x", "alpha4")
    job = await job_in(alpha, native_id, Phase.RUNNING)
    await alpha.backend.adopt(native_id)
    await stopped(alpha, native_id)
    await alpha.backend.start_attempt(StartOrder(native_id=native_id, restarts=1, require=job.nodes))
    again = await job_in(alpha, native_id, Phase.RUNNING)
    assert again.nodes == job.nodes
    settled = await alpha.backend.settle_attempt(native_id)
    assert (settled.held, settled.required) == (True, ())
    await stopped(alpha, native_id, 1)
    await alpha.backend.start_attempt(StartOrder(native_id=native_id, restarts=2, exclude=job.nodes))
    elsewhere = await job_in(alpha, native_id, Phase.RUNNING)
    assert not set(elsewhere.nodes) & {*job.nodes, "alpha4"}
    assert (await alpha.backend.view.job(native_id)).pinned == ()


async def test_giving_back_a_waiting_job_takes_our_pin_away_and_puts_the_owners_back(alpha: Cluster) -> None:
    native_id = await alpha.quick_job("owner-pin", "sleep 300", "-w", "alpha2")
    await job_in(alpha, native_id, Phase.RUNNING)
    await alpha.backend.adopt(native_id)
    record = await alpha.backend.view.job((await stopped(alpha, native_id)).native_id)
    await alpha.backend._jobs.pin(record, ("alpha3",))
    assert (await alpha.backend.view.job(native_id)).pinned == ("alpha3",)
    await alpha.backend.give_back(native_id)
    assert (await alpha.backend.view.job(native_id)).pinned == ("alpha2",)


async def test_a_start_with_an_unknown_node_changes_nothing(alpha: Cluster) -> None:
    native_id = await alpha.quick_job("partial", "sleep 300")
    await job_in(alpha, native_id, Phase.RUNNING)
    await alpha.backend.adopt(native_id)
    await stopped(alpha, native_id)
    with pytest.raises(NotFoundError, match="alpha99"):
        await alpha.backend.start_attempt(
            StartOrder(native_id=native_id, restarts=1, exclude=("alpha1", "alpha99", "alpha2"))
        )
    after = await alpha.backend.job(native_id)
    assert (after.held, after.excluded) == (True, ())


@pytest.mark.parametrize("commands", range(1, 5))
async def test_a_start_that_died_after_any_command_is_finished_by_the_next_one(lab: Opener, commands: int) -> None:
    async with lab("alpha", nodes=4, requeue=120) as alpha:
        await _die_and_finish(alpha, commands)


async def _die_and_finish(alpha: Cluster, commands: int) -> None:
    """Four commands: exclude, release, priority, start time."""
    native_id = await alpha.quick_job("crashed", "sleep 300", "-N2", "--gres=gpu:8")
    job = await job_in(alpha, native_id, Phase.RUNNING)
    await alpha.slurm("scontrol", "update", "NodeName=alpha4", "State=DRAIN", "Reason=keeps the rival waiting")
    await alpha.quick_job("rival", "sleep 300", "-N4", "--gres=gpu:8")
    await alpha.backend.adopt(native_id)
    await stopped(alpha, native_id)
    order = StartOrder(native_id=native_id, restarts=1, exclude=(job.nodes[0],))
    dying = alpha.another_backend()
    await dying.probe()
    run, left = dying.commands.run, commands

    async def last_command(program: str, *args: str, **how: object) -> object:
        nonlocal left
        done = await run(program, *args, **how)  # type: ignore[arg-type]
        if args[0] in {"update", "release"}:
            left -= 1
            if left == 0:
                raise Died
        return done

    dying.commands.run = last_command  # type: ignore[method-assign,assignment]
    with pytest.raises(Died):
        await dying.start_attempt(order)
    await dying.close()
    await alpha.backend.start_attempt(order)
    again = await job_in(alpha, native_id, Phase.RUNNING)
    assert (again.restarts, again.excluded) == (1, (job.nodes[0],))
    assert job.nodes[0] not in again.nodes


async def test_a_start_in_the_second_of_the_stop_is_not_refused_by_slurmd(lab: Opener) -> None:
    """Without a wait slurmd says "already killed, do not launch batch job" and the job is FAILED with code 1."""
    async with lab("alpha", nodes=1, requeue=120) as alpha:
        native_id = await alpha.quick_job("hasty", "sleep 300")
        await job_in(alpha, native_id, Phase.RUNNING)
        await alpha.backend.adopt(native_id)
        for restarts in range(6):
            now = time.time()
            await asyncio.sleep(1.01 - now % 1)  # the first moments of a second: all of it may fall into one
            await stopped(alpha, native_id, restarts)
            await alpha.backend.start_attempt(StartOrder(native_id=native_id, restarts=restarts + 1))
            await job_in(alpha, native_id, Phase.RUNNING)
        log = (alpha.root / "alpha" / "log" / "slurmd-alpha1.log").read_text()
        assert "already killed" not in log


async def test_a_failed_launch_is_started_again_elsewhere_after_the_order(alpha: Cluster) -> None:
    (alpha.root / "alpha" / "health" / "prolog-fail-alpha1").write_text("x")
    native_id = await alpha.quick_job("prolog", "sleep 300", "-x", "alpha[2-4]")
    failed = await until(  # the reason stands before what is left of the launch has ended
        lambda: alpha.backend.job(native_id),
        lambda j: j.held and j.reason == "launch failed requeued held" and j.phase is Phase.PENDING,
    )
    await alpha.backend.adopt(native_id)
    await alpha.slurm("scontrol", "update", f"JobId={native_id}", "ExcNodeList=")
    order = StartOrder(native_id=native_id, restarts=failed.restarts, exclude=("alpha1",))
    await alpha.backend.start_attempt(order)
    assert (await job_in(alpha, native_id, Phase.RUNNING)).nodes != ("alpha1",)


async def test_a_persons_hold_is_not_released_by_a_start(alpha: Cluster) -> None:
    native_id = await alpha.quick_job("theirs", "sleep 300", "--hold")
    await alpha.backend.adopt(native_id)
    with pytest.raises(RefusedError, match="held by a person"):
        await alpha.backend.start_attempt(StartOrder(native_id=native_id, restarts=0))
    assert (await alpha.backend.job(native_id)).held
    assert not any(native_id in line and "released" in line for line in await alpha.backend.give_back_all())
    assert (await alpha.backend.job(native_id)).held


async def test_a_checkpoint_signal_that_the_job_does_not_declare_is_refused_and_kills_nothing(alpha: Cluster) -> None:
    native_id = await alpha.quick_job("nohandler", "sleep 300")
    await job_in(alpha, native_id, Phase.RUNNING)
    with pytest.raises(RefusedError, match="declares none"):
        await alpha.backend.request_checkpoint(native_id, "USR1")
    assert (await alpha.backend.job(native_id)).phase is Phase.RUNNING


# -- reads


async def test_a_purged_job_is_absent_however_many_are_asked_for(lab: Opener) -> None:
    async with lab("alpha", nodes=1, words=("-o", "MinJobAge=2")) as alpha:
        gone = await alpha.quick_job("gone", "true")
        lives = await alpha.quick_job("lives", "sleep 300")
        await job_in(alpha, gone, Phase.ABSENT, 60)
        assert (await alpha.backend.job(lives)).phase is Phase.RUNNING
        assert (await alpha.backend.job("99999")).phase is Phase.ABSENT
        assert [j.native_id for j in await alpha.backend.jobs(max_age=-1)] == [lives]


async def test_one_squeue_serves_all_who_ask_at_once(alpha: Cluster) -> None:
    before = alpha.backend.commands.calls.get("squeue", 0)
    await asyncio.gather(*(alpha.backend.jobs() for _ in range(100)))
    assert alpha.backend.commands.calls["squeue"] == before + 1
    await asyncio.gather(*(alpha.backend.job("1") for _ in range(100)))
    assert alpha.backend.commands.calls["squeue"] <= before + 3


async def test_the_log_of_a_requeued_job_keeps_the_words_of_both_attempts(alpha: Cluster) -> None:
    job = await alpha.backend.submit(alpha.training_spec("log", nodes=1))
    await trains(alpha, job.native_id)
    await alpha.backend.adopt(job.native_id)
    await stopped(alpha, job.native_id)
    await alpha.backend.start_attempt(StartOrder(native_id=job.native_id, restarts=1))
    await trains(alpha, job.native_id, 1)
    text = "\n".join(await alpha.backend.log_tail(job.native_id, 1000))
    assert "gen=0.0" in text
    assert "gen=0.1" in text
