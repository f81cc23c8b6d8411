"""A job in trouble: the whole way from what was seen to a training step, looked at in the fleet."""

import os
import time

import pytest

import workflows.fencing
from fleet.decision import Action
from fleet.faults.evidence import Evidence, FaultClass, Kind, Source
from fleet.ledger import Rung
from fleet.model import Phase, ReceiptGrade
from fleet.people import Choice
from fleet.runbooks import EvidenceBatch, Signal
from tests.faults.sources.dumps import dump, record, torch_pickle
from tests.workflows.stage import PATIENCE, Stage

LOOKS_BY_ITSELF_AFTER = 60.0
"""Seconds until a job's runbook looks at its job without a word of the watch (`LOOK_EVERY`)."""


async def test_a_lost_gpu_moves_the_job_excludes_the_node_and_heals_it(stage: Stage) -> None:
    native_id = await stage.supervise()
    sick = (await stage.nodes_of())[1]
    boot = stage.faults.boot(sick)
    saved = stage.faults.checkpoints(native_id)[-1][1]
    await stage.lose_gpu(sick)
    view = await stage.trains_again("train", native_id, 2)
    assert view.ledger
    assert view.ledger.last
    last = view.ledger.last
    assert last.rung is Rung.IN_CLUSTER
    assert sick not in last.nodes
    assert (last.progress.resumed_from or 0) >= saved
    assert "back at work" in await stage.result(f"node/alpha/{sick}")
    facts = await stage.node(sick)
    assert (facts.drained, facts.gpus, facts.boot != boot) == (False, 8, True)
    effects = stage.ops("hold", "signal")
    assert sorted(effects) == sorted(
        ["attempt", "adopt", "isolate", "stop", "start_attempt", "attempt", "reboot", "check", "release"]
    )
    assert effects.index("stop") < min(effects.index("start_attempt"), effects.index("reboot"))
    assert stage.faults.most_attempts_alive(native_id) == 1
    assert (await stage.native(native_id)).adopted
    first = view.ledger.attempts[0]
    assert first.verdict
    assert first.verdict.fault is FaultClass.HARDWARE
    assert first.receipt
    assert first.receipt.grade() is ReceiptGrade.DAEMON_GONE
    (report,) = await stage.reports("job/train", "incident")
    assert "79" in report.title
    assert len(report.attempts) == 2
    await stage.record("job/train/failover/2", "failover-gpu-lost")
    await stage.record(f"node/alpha/{sick}", "heal-gpu-lost")


async def test_a_transient_end_restarts_on_the_same_nodes(stage: Stage) -> None:
    native_id = await stage.supervise()
    nodes = await stage.nodes_of()
    stage.faults.end_job(native_id, 1, ("RuntimeError: NCCL error: unhandled system error, remote process exited",))
    view = await stage.trains_again("train", native_id, 2)
    assert view.ledger
    assert view.ledger.last
    assert (view.ledger.last.rung, view.ledger.last.nodes) == (Rung.IN_PLACE, nodes)
    assert (view.ledger.last.progress.resumed_from or 0) > 0
    assert stage.ops("hold") == ["attempt", "adopt", "stop", "start_attempt", "attempt", "unpin"]
    await stage.record("job/train/restart/2", "restart-in-place")


async def test_a_preempted_job_goes_on_after_a_receipt_and_costs_no_try(stage: Stage) -> None:
    native_id = await stage.supervise()
    stage.faults.preempt(native_id)
    view = await stage.trains_again("train", native_id, 2)
    assert view.ledger
    first, second = view.ledger.attempts
    assert first.receipt
    assert {n.node for n in first.receipt.nodes} == set(first.nodes)
    assert second.rung is Rung.OBSERVED
    assert stage.faults.most_attempts_alive(native_id) == 1


async def test_a_fault_of_the_program_is_refused_with_its_cause_and_moved_nowhere(stage: Stage) -> None:
    native_id = stage.faults.person_submit(stage.spec(fail_at=15))
    result = await _result(stage)
    assert result.startswith("user fault, not restarted")
    assert "RuntimeError" in result
    assert len(stage.attempts(native_id)) == 1
    assert not {"stop", "start_attempt", "isolate", "reboot"} & set(stage.ops())
    assert (await stage.native(native_id)).phase is Phase.FAILED
    (report,) = await stage.reports("job/train", "job")
    assert any("RuntimeError" in line for line in report.lines)
    await stage.record("job/train", "supervise-user-fault")


async def test_an_end_that_is_told_while_the_job_is_read_is_not_overlooked(stage: Stage) -> None:
    read = stage.gates.set("job/train", "read_job", "after")
    native_id = stage.faults.person_submit(stage.spec())
    await read.wait()  # what was read is on its way and says that the job has not ended
    stage.faults.end_job(native_id, 77)

    async def told() -> bool:
        history = await stage.handle("job/train").fetch_history()
        signals = (e.workflow_execution_signaled_event_attributes.input for e in history.events)
        return any(b'"failed"' in payload.data for told in signals for payload in told.payloads)

    await stage.until(told, "the watch tells the end")
    read.open()
    await stage.until(lambda: len(stage.attempts(native_id)) == 2, "the end is acted on", LOOKS_BY_ITSELF_AFTER / 2)


async def _result(stage: Stage) -> str:
    return str(await stage.result("job/train"))


async def test_an_unknown_fault_is_tried_in_place_once_elsewhere_once_and_then_asked_about(stage: Stage) -> None:
    stage.write_policy(limits={"budget_resets_per_day": "0"})
    native_id = await stage.supervise()
    nodes = [await stage.nodes_of()]
    for attempt in (2, 3):
        stage.faults.end_job(native_id, 77)
        view = await stage.trains_again("train", native_id, attempt)
        nodes.append(await stage.nodes_of())
    assert nodes[1] == nodes[0]
    assert not set(nodes[2]) & set(nodes[0])
    # The same failure at the same step on other nodes is the program's own fault, which is another test's matter.
    assert view.ledger
    ended_at = max(attempt.progress.step or 0 for attempt in view.ledger.attempts[:2])
    await stage.until(lambda: stage.faults.checkpoints(native_id)[-1][1] > ended_at, "attempt 3 came further")
    stage.faults.end_job(native_id, 77)
    question = await stage.question("job/train")
    assert "spent" in question.why
    assert len(stage.attempts(native_id)) == 3
    await stage.answer(question, Choice.RETRY)
    await stage.trains_again("train", native_id, 4)


async def test_the_schedulers_own_requeue_waits_for_a_receipt_while_the_old_rank_lives(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Split brain: the daemon is dead, the rank writes on, the scheduler gives the node up and requeues. No daemon
    will prove that node, so it is fenced at once and not after a patience that outlasts this test."""
    monkeypatch.setattr(workflows.fencing, "PROVE_PATIENCE", 10 * PATIENCE)
    native_id = await stage.supervise(spec=stage.spec(tokens="gpu-runbooks.io/generation-check=yes"))
    sick = (await stage.nodes_of())[0]
    stage.faults.kill_daemon(sick)
    view = await stage.trains_again("train", native_id, 2)
    assert stage.faults.most_attempts_alive(native_id) == 1
    assert stage.faults.late_writes(native_id) == ()
    start = stage.faults.effects("start_attempt", native_id)[0].at
    off = stage.faults.effects("power_off", sick)[0].at
    assert off < start
    assert view.ledger
    assert view.ledger.attempts[0].receipt
    assert view.ledger.attempts[0].receipt.grade() in {ReceiptGrade.DAEMON_GONE, ReceiptGrade.POWER_OFF}
    assert "back at work" in await stage.result(f"node/alpha/{sick}")
    assert view.ledger.attempts[0].verdict
    assert view.ledger.attempts[0].verdict.fault is FaultClass.HARDWARE
    assert sick not in view.ledger.attempts[1].nodes
    await stage.record("job/train/failover/2", "failover-fenced")


async def test_a_silent_node_that_was_isolated_first_is_still_what_ended_the_attempt_on_it(stage: Stage) -> None:
    native_id = await stage.supervise()
    sick = (await stage.nodes_of())[0]
    gather = stage.gates.set("job/train", "gather_evidence", "before")
    stage.faults.kill_daemon(sick)
    await gather.wait()
    await stage.until(lambda: stage.faults.effects("isolate", sick), f"{sick} is isolated")
    gather.open()
    view = await stage.trains_again("train", native_id, 2)
    assert view.ledger
    assert view.ledger.attempts[0].verdict
    assert view.ledger.attempts[0].verdict.fault is FaultClass.HARDWARE
    assert sick not in view.ledger.attempts[1].nodes


async def test_a_job_that_did_not_opt_in_is_left_alone(stage: Stage) -> None:
    native_id = stage.faults.person_submit(stage.spec("other", tokens="-"))
    await stage.until(lambda: stage.attempts(native_id), "it runs")
    await stage.supervise()
    stage.faults.end_job(native_id, 1)
    await stage.stays(lambda: not stage.faults.effects("adopt", native_id), "not adopted")
    assert stage.ops(target=native_id) == ["attempt"]
    assert not await stage.runs("job/other")


async def test_a_job_that_cannot_be_adopted_is_neither_stopped_nor_moved(stage: Stage) -> None:
    spec = stage.spec().model_copy(update={"options": ("--no-requeue",)})
    native_id = stage.faults.person_submit(spec)
    await stage.until(lambda: stage.runs("job/train"), "it has a runbook")
    await stage.runs_in("train", 1)
    await stage.lose_gpu((await stage.nodes_of())[0])
    await stage.until(lambda: _told(stage, "left as it is"), "it says that it cannot")
    assert await _told(stage, "cannot be adopted")
    assert await _told(stage, "submitted with --no-requeue; it runs on. the job was not touched")
    assert stage.ops("signal", target=native_id) == ["attempt"]
    assert len(stage.attempts(native_id)) == 1
    native = await stage.native(native_id)
    assert (native.phase, native.held, native.adopted) == (Phase.RUNNING, False, False)


async def test_what_was_seen_on_an_earlier_boot_of_its_node_moves_no_job(stage: Stage) -> None:
    native_id = await stage.supervise()
    node = (await stage.nodes_of())[0]
    old = Evidence(
        source=Source.SCHEDULER, kind=Kind.NODE_DOWN, code="down", cluster="alpha", node=node, boot="old", seen_at=1.0
    )
    await stage.handle("job/train").signal(Signal.EVIDENCE, EvidenceBatch(evidence=(old,)))
    await stage.stays(lambda: len(stage.attempts(native_id)) == 1, "the job runs on")
    assert "stop" not in stage.ops()
    assert (await stage.view("job/train")).step == "watching"


async def test_a_job_that_declares_no_checkpoint_signal_is_never_signalled(stage: Stage) -> None:
    native_id = await stage.supervise(spec=stage.spec(signal=False))
    await stage.lose_gpu((await stage.nodes_of())[0])
    await stage.trains_again("train", native_id, 2)
    assert "signal" not in stage.ops()


async def test_a_job_that_ends_during_its_failover_is_over(stage: Stage) -> None:
    native_id = await stage.supervise()
    sick = (await stage.nodes_of())[0]
    gate = stage.gates.set("job/train/failover/2", "request_checkpoint", "after")
    await stage.lose_gpu(sick)
    await gate.wait()
    stage.faults.end_job(native_id, 0, ("done",))
    gate.open()
    result = await _result(stage)
    assert "ended with code 0" in result
    assert stage.attempts(native_id) == stage.attempts(native_id)[:1]
    assert "start_attempt" not in stage.ops()
    assert (await stage.native(native_id)).phase is Phase.SUCCEEDED


@pytest.mark.parametrize("when", ["watching", "recovering"])
async def test_a_persons_scancel_is_respected(stage: Stage, when: str) -> None:
    native_id = await stage.supervise()
    if when == "recovering":
        gate = stage.gates.set("job/train/failover/2", "stop_job", "after")
        await stage.lose_gpu((await stage.nodes_of())[0])
        await gate.wait()
        stage.faults.person_cancel(native_id)
        gate.open()
    else:
        stage.faults.person_cancel(native_id)
    assert "cancelled in the cluster by a person" in await _result(stage)
    assert len(stage.attempts(native_id)) == 1
    assert (await stage.native(native_id)).phase is Phase.CANCELLED


async def test_a_second_fault_on_a_new_node_during_the_recovery_is_not_waited_out(stage: Stage) -> None:
    """The new attempt hangs while it loads; waiting for its first step would take the whole step_timeout."""
    stage.write_policy(limits={"step_timeout": "1h", "nodes_out": "2", "nodes_out_percent": '"50%"'})
    native_id = await stage.supervise(spec=stage.spec(load_time=1.5, checkpoint_every=5))
    sick = (await stage.nodes_of())[0]
    await stage.lose_gpu(sick)
    await stage.at_step("job/train/failover/2", "first new step")
    second = next(n for n in (await stage.native(native_id)).nodes if n != sick)
    await stage.lose_gpu(second)
    view = await stage.trains_again("train", native_id, 3)
    assert view.ledger
    assert not {sick, second} & set(view.ledger.attempts[2].nodes)
    assert stage.faults.most_attempts_alive(native_id) == 1
    for node in {sick, second}:
        assert "back at work" in await stage.result(f"node/alpha/{node}")


async def test_evidence_about_a_node_that_the_job_has_left_moves_it_no_more(stage: Stage) -> None:
    native_id = await stage.supervise()
    sick = (await stage.nodes_of())[0]
    await stage.lose_gpu(sick)
    await stage.trains_again("train", native_id, 2)
    late = Evidence(
        source=Source.KERNEL, kind=Kind.XID, code="79", cluster="alpha", node=sick, seen_at=time.time(), raw_hash="2"
    )
    await stage.handle("job/train").signal("evidence", {"evidence": [late.model_dump()]})
    await stage.stays(lambda: len(stage.attempts(native_id)) == 2, "two attempts")


async def test_a_hang_whose_dumps_name_a_node_restarts_in_place_once_then_elsewhere_and_has_it_checked(
    stage: Stage,
) -> None:
    stage.write_policy(limits={"budget_resets_per_day": "0"})
    dumps = stage.folder / "dumps"
    dumps.mkdir()
    native_id = await stage.supervise(spec=stage.spec(tokens=f"gpu-runbooks.io/dumps={dumps}"))
    nodes = await stage.nodes_of()
    booted = stage.faults.boot(nodes[1])
    for attempt in (1, 2):
        written = (await stage.native(native_id)).started_at or 0.0
        for rank in (0, 1, 2):  # of four, two a node: the last rank of the second node left none
            file = dumps / f"nccl_trace_rank_{rank}"
            waits = record(9, "started", time_created_ns=int(written * 1e9))
            file.write_bytes(torch_pickle(dump([waits])))
            os.utime(file, (written + 60, written + 60))
        stalled = Evidence(
            source=Source.JOB,
            kind=Kind.JOB_STALLED,
            cluster="alpha",
            job="train",
            seen_at=time.time(),
            raw_hash=str(attempt),
        )
        await stage.handle("job/train").signal("evidence", {"evidence": [stalled.model_dump()]})
        view = await stage.trains_again("train", native_id, attempt + 1)
    assert view.ledger
    first, second, third = view.ledger.attempts
    for hung in (first, second):
        assert hung.verdict
        assert (hung.verdict.rule, hung.verdict.culprit.node) == ("hang:no_dump", nodes[1])
    assert (second.rung, second.nodes) == (Rung.IN_PLACE, nodes)
    assert third.rung is Rung.IN_CLUSTER
    assert nodes[1] not in third.nodes
    assert await stage.result(f"node/alpha/{nodes[1]}") == "checked and back at work"
    after = await stage.node(nodes[1])
    assert (after.boot, after.drained, after.op) == (booted, False, None)


async def test_a_spent_budget_ends_in_a_question_whose_safe_default_leaves_the_job(stage: Stage) -> None:
    stage.write_policy(limits={"in_cluster_tries": "0", "question_expiry": "2s"})
    native_id = await stage.supervise()
    await stage.lose_gpu((await stage.nodes_of())[0])
    assert "left to a person" in await _result(stage)
    assert len(stage.attempts(native_id)) == 1
    assert "stop" not in stage.ops()


async def test_an_ordered_failover_moves_a_healthy_job_from_its_newest_checkpoint(stage: Stage) -> None:
    native_id = await stage.supervise()
    before = await stage.nodes_of()
    await stage.order("train")
    view = await stage.trains_again("train", native_id, 2)
    assert not set(before) & set(await stage.nodes_of())
    assert view.ledger
    assert view.ledger.last
    resumed, asked = view.ledger.last.progress.resumed_from, stage.faults.effects("signal", native_id)
    assert asked
    assert (0, resumed) in stage.faults.checkpoints(native_id)


async def test_a_resume_from_step_zero_is_told_and_is_no_progress(stage: Stage) -> None:
    """The checkpoints are lost between the attempts: the new one begins at step 0."""
    await stage.supervise()
    gate = stage.gates.set("job/train/failover/2", "stop_job", "after")
    await stage.lose_gpu((await stage.nodes_of())[0])
    await gate.wait()
    lose_checkpoints(stage)
    gate.open()
    result = await stage.result("job/train/failover/2")
    assert result["ended"] == "no_step"
    assert "bad resume" in result["text"]
    await stage.until(lambda: _told(stage, "bad resume"), "the job's story says so")


async def _told(stage: Stage, words: str) -> bool:
    return any(words in line for line in (await stage.view("job/train")).story)


def lose_checkpoints(stage: Stage) -> None:
    with stage.faults._store.begin() as db:
        db.execute("delete from checkpoints")


@pytest.mark.parametrize(
    ("name", "exit_code", "steps", "expected"),
    [
        ("S04 B: COMPLETED short of its steps", 0, 200_000, "ended with code 0 at step"),
        ("S04 A: FAILED after its last step", 125, 30, "done (its last step was seen"),
    ],
)
async def test_progress_decides_whether_a_job_is_done(
    stage: Stage, name: str, exit_code: int, steps: int, expected: str
) -> None:
    """`steps` is what the job declares; the simulated program goes on for ever, so it ends when the test says."""
    spec = stage.spec(checkpoint_every=5)
    declared = spec.comment.replace("total-steps=100000", f"total-steps={steps}")
    assert declared != spec.comment
    native_id = stage.faults.person_submit(spec.model_copy(update={"comment": declared}))
    await stage.until(lambda: stage.faults.effects("adopt", native_id), "it is adopted")
    enough = min(steps, 30)
    await stage.until(lambda: _saved(stage, native_id) >= enough, "it is far enough")
    stage.faults.end_job(native_id, exit_code)
    result = await _result(stage)
    assert result.startswith(expected), name
    assert len(stage.attempts(native_id)) == 1


def _saved(stage: Stage, native_id: str) -> int:
    return max((step for _, step in stage.faults.checkpoints(native_id)), default=0)


async def test_a_job_that_the_controller_lost_is_asked_about_and_neither_done_nor_failed(stage: Stage) -> None:
    native_id = await stage.supervise()
    stage.faults.controller_kill()
    with stage.faults._store.begin() as db:
        db.execute("delete from placements")
        db.execute("delete from jobs where id = ?", (int(native_id),))
    stage.faults.controller_start()
    await stage.order("train", Action.RESTART_IN_PLACE)
    question = await stage.question("job/train")
    assert "not in the controller" in question.plan.title
    await stage.answer(question, Choice.ABORT)
    assert "end unknown" in await _result(stage)


async def test_nodes_that_the_jobs_owner_rules_out_are_no_room_for_it(stage: Stage) -> None:
    """Else it would be stopped and wait in the queue for nodes that it never takes."""
    native_id = await stage.supervise(spec=stage.spec(exclude="alpha3,alpha4"))
    sick = (await stage.nodes_of())[0]
    await stage.report(sick, stage.faults.gpu_lost(sick))
    question = await stage.question("job/train")
    assert "(1 too few)" in question.why
    assert "stop" not in stage.ops(target=native_id)
    assert (await stage.native(native_id)).own_excluded == ("alpha3", "alpha4")
