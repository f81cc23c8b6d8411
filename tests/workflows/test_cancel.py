"""A cancel at every step leaves a state that is safe and described, and nothing destructive follows it (T06)."""

import asyncio
from dataclasses import dataclass

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecutionStatus

from fleet.model import NodeState, Phase
from fleet.runbooks import Runbook
from tests.workflows.stage import Stage

CANCELLED = WorkflowExecutionStatus.CANCELED
HARMLESS = {"hold"}
"""What may still happen to a job after a cancel: the job's own runbook holds an attempt that was started."""


@dataclass(frozen=True)
class Case:
    """One step of a runbook: the activity after whose effect the cancel comes, and what is left."""

    step: str
    activity: str
    left: str
    ops: tuple[str, ...]


RECOVERY = (
    Case("checkpoint", "request_checkpoint", "was not stopped", ("attempt", "adopt", "signal")),
    Case("stop", "stop_job", "stays held in the queue", ("attempt", "adopt", "signal", "stop")),
    Case("fence", "prove_stopped", "stays held in the queue", ("attempt", "adopt", "signal", "stop")),
    Case(
        "start",
        "start_attempt",
        "attempt 2 runs on",
        ("attempt", "adopt", "signal", "stop", "start_attempt", "attempt"),
    ),
    Case(
        "requeue wait",
        "wait_running",
        "held against the scheduler's own requeue",
        ("attempt", "adopt", "signal", "stop", "start_attempt", "attempt"),
    ),
)


async def test_a_failover_cancelled_at_any_step_stays_as_it_is_described(wide_stage: Stage) -> None:
    await asyncio.gather(*(_cancel_recovery(wide_stage, case) for case in RECOVERY))


async def _cancel_recovery(stage: Stage, case: Case) -> None:
    job = case.activity.replace("_", "-")
    child = f"job/{job}/failover/2"
    native_id = await stage.supervise(job)
    gate = stage.gates.set(child, case.activity, "after")
    last_words = stage.gates.set(child, "read_job", "before")
    await stage.order(job)
    await gate.wait()
    assert (await stage.view(child)).step == case.step
    await stage.handle(child).cancel()
    gate.open()
    await last_words.wait()
    await stage.handle(child).cancel()  # a second one, while it describes what it leaves
    last_words.open()
    assert await stage.ended(child) is CANCELLED, case
    view = await stage.view(child)
    assert view.result.startswith("cancelled at"), case
    assert case.left in view.result, case
    assert case.left in await stage.page(child)
    await stage.stays(lambda: _ops(stage, native_id) == case.ops, f"{case} {_ops(stage, native_id)}", seconds=2.5)
    assert await stage.runs(f"job/{job}")
    if case.step == "stop":
        await stage.record(child, "failover-cancelled")
    native = await stage.native(native_id)
    assert native.held
    assert native.phase is (Phase.PENDING if "held in the queue" in case.left else Phase.RUNNING)
    if native.phase is Phase.PENDING:
        assert f"`runbook release {job}`" in view.result
        await stage.alpha.give_back(native_id)
        assert not (await stage.native(native_id)).held


def _ops(stage: Stage, native_id: str) -> tuple[str, ...]:
    return tuple(op for op in stage.ops(target=native_id) if op not in HARMLESS)


async def test_a_failover_cancelled_while_it_asks_leaves_the_job_running(stage: Stage) -> None:
    stage.write_policy(modes={"failover_in_cluster": "approve"})
    native_id = await stage.supervise()
    await stage.order("train")
    question = await stage.question("job/train/failover/2")
    await stage.handle("job/train/failover/2").cancel()
    assert await stage.ended("job/train/failover/2") is CANCELLED
    assert await stage.ended(question.id) is CANCELLED
    assert "was not stopped" in (await stage.view("job/train/failover/2")).result
    await stage.stays(lambda: "stop" not in stage.ops(), "not stopped")
    assert (await stage.native(native_id)).phase is Phase.RUNNING


async def test_a_cancelled_question_counts_as_its_safe_default_and_the_runbook_goes_on(stage: Stage) -> None:
    stage.write_policy(modes={"failover_in_cluster": "approve"})
    native_id = await stage.supervise()
    await stage.order("train")
    question = await stage.question("job/train/failover/2")
    await stage.handle(question.id).cancel()
    result = await stage.result("job/train/failover/2")
    assert result["ended"] == "denied"
    assert await stage.runs("job/train")
    assert (await stage.native(native_id)).phase is Phase.RUNNING


async def test_a_failover_cancelled_before_its_first_new_step_says_that_the_attempt_runs(stage: Stage) -> None:
    native_id = await stage.supervise(spec=stage.spec(load_time=1.5))
    with stage.faults._store.begin() as db:
        db.execute("update jobs set plan = json_set(plan, '$.load_time', 60.0)")
    await stage.order("train")
    await stage.at_step("job/train/failover/2", "first new step")
    await stage.handle("job/train/failover/2").cancel()
    assert await stage.ended("job/train/failover/2") is CANCELLED
    assert "attempt 2 runs on" in (await stage.view("job/train/failover/2")).result
    await stage.stays(lambda: len(stage.attempts(native_id)) == 2, "it runs on")


@pytest.mark.parametrize("activity", ["stop_job", None])
async def test_a_cancelled_job_runbook_leaves_the_job_and_nobody_takes_it_up_again(
    stage: Stage, activity: str | None
) -> None:
    native_id = await stage.supervise()
    if activity:
        gate = stage.gates.set("job/train/failover/2", activity, "after")
        await stage.order("train")
        await gate.wait()
        await stage.handle("job/train").cancel()
        gate.open()
        assert await stage.ended("job/train/failover/2") is CANCELLED
    else:
        await stage.handle("job/train").cancel()
    assert await stage.ended("job/train") is CANCELLED
    page = await stage.page("job/train")
    assert ("stays held in the queue" if activity else "the job runs on, held") in page
    assert "`runbook release train`" in page
    assert await stage.reports("job/train", "job")
    assert not (await stage.alpha.give_back(native_id)).held
    if activity:
        stage.faults.jump(130)  # the scheduler's own delay of a requeued job
    await stage.until(lambda: _runs(stage, native_id), "the scheduler has it back")
    await stage.stays(lambda: not _adopted_again(stage), "not adopted again", seconds=2)
    assert not await stage.runs("job/train")


async def _runs(stage: Stage, native_id: str) -> bool:
    return (await stage.native(native_id)).phase is Phase.RUNNING


def _adopted_again(stage: Stage) -> bool:
    return stage.ops().count("adopt") > 1


HEAL = (
    Case("lease", "acquire_lease", "carries no mark of ours", ()),
    Case("isolate", "isolate_node", "carries our mark", ("isolate",)),
    Case("evacuate", "read_holders", "carries our mark", ("isolate",)),
    Case("fence", "power_off_node", "off.", ("isolate", "power_off")),
    Case("reboot", "reboot_node", "carries our mark", ("isolate", "reboot")),
    Case("check", "check_node", "carries our mark", ("isolate", "reboot", "check")),
    Case("return", "release_node", "back at work", ("isolate", "reboot", "check", "release")),
)


async def test_a_repair_cancelled_at_any_step_stays_as_it_is_described(wide_stage: Stage) -> None:
    await asyncio.gather(*(_cancel_heal(wide_stage, n, case) for n, case in enumerate(HEAL, start=1)))
    leases = (await wide_stage.view("guard/alpha")).leases
    assert leases == ()


async def _cancel_heal(stage: Stage, number: int, case: Case) -> None:
    node = f"alpha{number}"
    workflow_id = f"node/alpha/{node}"
    too_late = case.step == "return"  # the runbook hears of the cancel while its last step goes on to its end
    gate = stage.gates.set(workflow_id, case.activity, "after", deaf=too_late)
    line = stage.faults.gpu_lost(node)
    if case.step == "fence":
        stage.faults.crash_node(node)
    await stage.heal(node, line)
    await gate.wait()
    assert (await stage.view(workflow_id)).step == case.step
    await stage.handle(workflow_id).cancel()
    if too_late:
        await stage.until(lambda: _hears(stage, workflow_id), "the runbook hears of the cancel")
    gate.open()
    assert await stage.ended(workflow_id) is (_COMPLETED if too_late else CANCELLED), case
    view = await stage.view(workflow_id)
    assert case.left in view.result, case
    assert case.left in await stage.page(workflow_id)
    await stage.stays(lambda: tuple(stage.ops(target=node)) == case.ops, f"{case} {stage.ops(target=node)}")
    facts = await stage.node(node)
    assert facts.isolated_by_us is ("isolate" in case.ops and "release" not in case.ops)
    if facts.isolated_by_us:
        assert f"`runbook release alpha/{node}`" in view.result
    if case.step == "fence":
        assert stage.faults.power_status(node) == "off"
        assert "It is powered off." in view.result or "A power-off was ordered; look" in view.result
    elif case.step == "reboot":
        assert facts.state is NodeState.DRAINED


_COMPLETED = WorkflowExecutionStatus.COMPLETED


async def _hears(stage: Stage, workflow_id: str) -> bool:
    """It has passed the cancel on to its step."""
    history = await stage.handle(workflow_id).fetch_history()
    return any(e.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED for e in history.events)


async def test_a_dead_controller_does_not_keep_a_cancelled_runbook_from_ending(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datetime import timedelta

    import workflows.base

    monkeypatch.setattr(workflows.base, "LAST_WORDS", timedelta(seconds=3))
    native_id = await stage.supervise()
    stage.faults.controller_kill()
    await stage.handle("job/train").cancel()
    assert await stage.ended("job/train") is CANCELLED
    assert "could not be read" in await stage.page("job/train")
    stage.faults.controller_start()
    assert stage.ops(target=native_id) == ["attempt", "adopt"]
    running = [r.workflow_type async for r in stage.client.list_workflows('ExecutionStatus="Running"')]
    assert Runbook.ASK not in running
