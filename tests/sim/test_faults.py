"""What goes wrong in the simulated world, at its own time, and what the journal says afterwards."""

from typing import Any

import pytest

from activities.backends.sim import SimBackend
from activities.backends.sim.faults import Faults
from fleet.errors import AmbiguousError, RefusedError, TemporaryError
from fleet.model import NativeJob, NodeState, Phase
from fleet.orders import StartOrder
from tests.sim.conftest import spec

OP = "opaaaaa"
CHECKED = "gpu-runbooks.io/generation-check=yes"


async def running(alpha: SimBackend, faults: Faults, comment: str = "", **directives: Any) -> NativeJob:
    job = await alpha.submit(spec(comment=comment, **directives))
    faults.jump(15)
    return await alpha.job(job.native_id)


async def test_the_log_reads_as_a_real_training_prints(alpha: SimBackend, faults: Faults) -> None:
    job = await running(alpha, faults)
    lines = await alpha.log_tail(job.native_id, 100)
    assert lines[0] == "starting at step 0 gen=0.0"
    assert lines[1].startswith("step 1/1000 loss ")
    assert lines[1].endswith("gen=0.0 rank=0")
    assert lines.index("saved step 20 gen=0.0") == 21
    assert await alpha.log_tail(job.native_id, 3) == lines[-3:]
    await alpha.stop(job.native_id, 0)
    faults.jump(1)
    await alpha.start_attempt(StartOrder(native_id=job.native_id, restarts=1))
    faults.jump(2.1)
    later = await alpha.log_tail(job.native_id, 4)
    assert later[1] == "resumed from step 20 gen=0.1"
    assert later[2].startswith("step 21/1000 ")


async def test_a_lost_node_follows_the_schedulers_default_timetable(alpha: SimBackend, faults: Faults) -> None:
    """Not responding at 9 s, down and requeued at 27 s, running elsewhere 121 s after that, by itself."""
    job = await running(alpha, faults)
    crashed_at = faults.now()
    faults.crash_node(job.nodes[0])
    faults.jump(8)
    assert (await alpha.node(job.nodes[0])).responding
    faults.jump(2)
    lost = await alpha.node(job.nodes[0])
    assert (lost.state, lost.responding) == (NodeState.UP, False)
    assert (await alpha.job(job.native_id)).phase is Phase.RUNNING
    faults.jump(1000)
    again = await alpha.job(job.native_id)
    assert again.restarts == 1
    assert job.nodes[0] not in again.nodes
    assert again.started_at == pytest.approx(crashed_at + 27 + 0.3 + 121, abs=0.5)


@pytest.mark.parametrize("checked", [True, False])
async def test_a_split_brain_that_happens_is_seen(alpha: SimBackend, faults: Faults, checked: bool) -> None:
    """Nobody holds the job, so attempt 2 starts beside a living rank of attempt 1, and both write."""
    job = await running(alpha, faults, CHECKED if checked else "")
    faults.kill_daemon(job.nodes[0])
    faults.jump(27 + 0.5 + 121 + 30)
    assert faults.ranks_alive(job.native_id) == 3
    assert faults.most_attempts_alive(job.native_id) == 2
    late = faults.late_writes(job.native_id)
    assert late
    assert {(write.restarts, write.refused) for write in late} == {(0, checked)}
    written = faults.checkpoints(job.native_id)
    assert all(((0, write.step) in written) is not checked for write in late)


async def test_a_late_writer_spoils_only_a_program_without_a_check(alpha: SimBackend, faults: Faults) -> None:
    resumed = {}
    for name, comment in (("checked", CHECKED), ("plain", "")):
        job = await alpha.submit(spec(name, comment=comment))
        faults.jump(30)
        job = await alpha.job(job.native_id)
        faults.kill_daemon(job.nodes[0])
        faults.jump(27 + 0.5 + 121 + 30)
        faults.person_requeue(job.native_id)
        faults.jump(125)
        resumed[name] = (await alpha.progress(job.native_id, 2)).resumed_from or 0
        own = max(step for restarts, step in faults.checkpoints(job.native_id) if restarts == 1)
        assert (resumed[name] == own) is (name == "checked")
        await alpha.cancel(job.native_id)
        faults.start_daemon(job.nodes[0])
        faults.jump(5)


async def test_a_held_job_never_has_two_attempts(alpha: SimBackend, faults: Faults) -> None:
    job = await running(alpha, faults)
    await alpha.adopt(job.native_id)
    faults.kill_daemon(job.nodes[0])
    faults.jump(5000)
    waiting = await alpha.job(job.native_id)
    assert (waiting.phase, waiting.held, waiting.restarts) == (Phase.PENDING, True, 1)
    assert faults.ranks_alive(job.native_id) == 0  # it came to its own end meanwhile
    assert faults.most_attempts_alive(job.native_id) == 1
    assert len(faults.effects("attempt", job.native_id)) == 1


async def test_a_returning_daemon_kills_the_stale_rank_a_little_later(alpha: SimBackend, faults: Faults) -> None:
    job = await running(alpha, faults)
    await alpha.adopt(job.native_id)
    faults.kill_daemon(job.nodes[0])
    faults.jump(40)
    faults.start_daemon(job.nodes[0])
    faults.jump(2)
    assert (await alpha.node(job.nodes[0])).state is NodeState.UP
    assert faults.ranks_alive(job.native_id) == 1
    faults.jump(0.5)
    assert faults.ranks_alive(job.native_id) == 0


async def test_xid_79_hangs_the_job_until_a_reboot_brings_the_gpu_back(alpha: SimBackend, faults: Faults) -> None:
    job = await running(alpha, faults)
    sick = job.nodes[0]
    assert ": 79," in faults.gpu_lost(sick)
    before = (await alpha.progress(job.native_id, 0)).step
    faults.jump(100)
    assert (await alpha.progress(job.native_id, 0)).step == before
    assert (await alpha.job(job.native_id)).phase is Phase.RUNNING
    assert (await alpha.node(sick)).gpus == 7
    await alpha.isolate(sick, OP, "XID 79")
    await alpha.reboot(sick, OP)
    faults.jump(10)
    assert (await alpha.node(sick)).state is NodeState.DRAINING, "a reboot waits for the job"
    await alpha.stop(job.native_id, 0)
    faults.jump(4)
    assert (await alpha.job(job.native_id)).phase is Phase.STOPPING, "hung ranks take the whole KillWait"
    faults.jump(1.5)
    assert (await alpha.node(sick)).state is NodeState.REBOOTING
    faults.jump(3)
    healed = await alpha.node(sick)
    assert (healed.state, healed.gpus, healed.op) == (NodeState.DRAINED, 8, OP)
    assert (await alpha.run_check(sick, OP, "quick")).passed


async def test_a_dead_gpu_fails_the_check_after_the_reboot(alpha: SimBackend, faults: Faults) -> None:
    faults.gpu_dead("alpha1")
    await alpha.isolate("alpha1", OP, "XID 79")
    await alpha.reboot("alpha1", OP)
    faults.jump(5)
    result = await alpha.run_check("alpha1", OP, "quick")
    assert (result.ran, result.passed, result.gpus) == (True, False, 7)
    assert result.detail == "7 of 8 GPUs"


async def test_a_boot_that_never_returns_is_down_at_its_time_limit(alpha: SimBackend, faults: Faults) -> None:
    faults.break_boot("alpha1")
    await alpha.isolate("alpha1", OP, "sick")
    before = await alpha.node("alpha1")
    await alpha.reboot("alpha1", OP)
    faults.jump(55)
    assert (await alpha.node("alpha1")).state is NodeState.REBOOTING
    faults.jump(10)
    after = await alpha.node("alpha1")
    assert (after.state, after.boot, after.op) == (NodeState.DOWN, before.boot, OP)
    assert "reboot timed out" in after.reason
    with pytest.raises(RefusedError):
        await alpha.reboot("alpha1", OP)
    result = await alpha.run_check("alpha1", OP, "quick")
    assert not result.ran
    faults.mend_boot("alpha1")
    await alpha.power_on("alpha1", OP)
    faults.jump(5)
    assert (await alpha.node("alpha1")).boot != before.boot


async def test_a_lost_answer_is_ambiguous_and_its_effect_is_there_once(alpha: SimBackend, faults: Faults) -> None:
    faults.lose_next_answer("submit")
    with pytest.raises(AmbiguousError):
        await alpha.submit(spec("once"))
    job = await alpha.submit(spec("once"))
    assert faults.native_ids("once") == (job.native_id,)
    assert len(faults.effects("submit")) == 1


async def test_a_frozen_controller_lets_every_second_write_happen(alpha: SimBackend, faults: Faults) -> None:
    faults.controller_freeze()
    for name in ("one", "two", "three", "four"):
        with pytest.raises(AmbiguousError):
            await alpha.submit(spec(name))
    faults.controller_thaw()
    assert [e.detail for e in faults.effects("submit")] == ["one", "three"]


async def test_a_dead_controller_lets_nothing_happen_and_decides_nothing(alpha: SimBackend, faults: Faults) -> None:
    job = await running(alpha, faults)
    faults.controller_kill()
    faults.crash_node(job.nodes[0])
    faults.jump(1000)
    with pytest.raises(TemporaryError):
        await alpha.submit(spec("lost"))
    assert len(faults.effects("attempt")) == 1
    faults.controller_start()
    assert faults.native_ids("lost") == ()
    assert (await alpha.node(job.nodes[0])).state is NodeState.DOWN
    assert (await alpha.job(job.native_id)).restarts == 1


async def test_power_needs_no_controller(alpha: SimBackend, faults: Faults) -> None:
    faults.controller_kill()
    await alpha.power_off("alpha1", OP)
    assert faults.power_status("alpha1") == "off"


async def test_orders_given_twice_are_journaled_once(alpha: SimBackend, faults: Faults) -> None:
    job = await running(alpha, faults)
    for _ in range(2):
        await alpha.adopt(job.native_id)
        await alpha.isolate(job.nodes[0], OP, "sick")
        await alpha.stop(job.native_id, 0)
    faults.jump(1)
    order = StartOrder(native_id=job.native_id, restarts=1, exclude=(job.nodes[0],))
    for _ in range(2):
        await alpha.start_attempt(order)
    for _ in range(2):
        await alpha.settle_attempt(job.native_id)
        await alpha.power_off(job.nodes[0], OP)
    ops = [e.op for e in faults.effects() if e.op not in {"submit", "attempt"}]
    assert ops == ["adopt", "isolate", "stop", "start_attempt", "hold", "power_off"]
    assert [e.detail.split()[0] for e in faults.effects("attempt")] == ["restarts=0", "restarts=1"]


async def test_a_refused_order_leaves_no_trace(alpha: SimBackend, faults: Faults) -> None:
    faults.health_drain("alpha1", "XID 79")
    with pytest.raises(RefusedError):
        await alpha.release("alpha1", OP)
    with pytest.raises(RefusedError):
        await alpha.reboot("alpha1", OP)
    with pytest.raises(RefusedError):
        await alpha.run_check("alpha2", OP, "quick")
    assert faults.effects() == ()
    assert (await alpha.node("alpha1")).reason == "healthcheck: XID 79"


async def test_people_and_the_scheduler_act_beside_us(alpha: SimBackend, faults: Faults) -> None:
    job = await running(alpha, faults)
    await alpha.adopt(job.native_id)
    faults.preempt(job.native_id)
    faults.jump(1)
    assert (await alpha.job(job.native_id)).held
    faults.person_release(job.native_id)
    faults.jump(125)
    assert (await alpha.job(job.native_id)).phase is Phase.RUNNING
    faults.end_job(job.native_id, 0, ("gone early",))
    ended = await alpha.job(job.native_id)
    assert (ended.phase, ended.exit_code) == (Phase.SUCCEEDED, 0)
    assert not (await alpha.progress(job.native_id, 1)).done
    assert (await alpha.log_tail(job.native_id))[-1] == "gone early"


async def test_an_owners_hold_is_not_ours_to_release(alpha: SimBackend, faults: Faults) -> None:
    job = await running(alpha, faults)
    await alpha.adopt(job.native_id)
    await alpha.stop(job.native_id, 0)
    faults.jump(1)
    faults.person_hold(job.native_id)
    with pytest.raises(RefusedError):
        await alpha.start_attempt(StartOrder(native_id=job.native_id, restarts=1))
    assert (await alpha.give_back(job.native_id)).held


async def test_a_job_that_may_not_be_requeued_is_refused_and_lost_with_its_node(
    alpha: SimBackend, faults: Faults
) -> None:
    native_id = faults.person_submit(spec().model_copy(update={"options": ("--no-requeue",)}))
    with pytest.raises(RefusedError):
        await alpha.adopt(native_id)
    node = (await alpha.job(native_id)).nodes[0]
    faults.crash_node(node)
    faults.jump(40)
    assert (await alpha.job(native_id)).phase is Phase.NODE_LOST


async def test_a_signal_that_the_program_does_not_handle_kills_it(alpha: SimBackend, faults: Faults) -> None:
    job = await running(alpha, faults)
    await alpha.request_checkpoint(job.native_id, "USR2")
    assert (await alpha.job(job.native_id)).phase is Phase.FAILED


async def test_ranks_that_ignore_sigterm_take_the_whole_grace(alpha: SimBackend, faults: Faults) -> None:
    job = await running(alpha, faults, ignores_term=True)
    await alpha.stop(job.native_id, 0)
    faults.jump(4.8)
    assert (await alpha.job(job.native_id)).phase is Phase.STOPPING
    assert faults.ranks_alive(job.native_id) == 2
    faults.jump(0.5)
    assert (await alpha.job(job.native_id)).phase is Phase.PENDING
    assert faults.ranks_alive(job.native_id) == 0
