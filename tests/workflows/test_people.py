"""Questions and answers: whose answer counts, for which plan, and what happens when nobody answers (T02, T04)."""

import asyncio
import dataclasses
import subprocess
import time
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.testing import TimeSkipper

from activities import api, people_api
from clients.questions import make_answer
from clients.signing import sign
from fleet.decision import Action
from fleet.model import Phase
from fleet.people import Choice, Plan, Question, Signer
from fleet.runbooks import AskInput, Order, Runbook, Update
from tests.require import needs_program
from tests.workflows.conftest import Opener
from tests.workflows.stage import Handle, Stage


def question(name: str, *, expires: float = 3600, **changes: object) -> Question:
    now = time.time()
    plain = Question(
        id=f"{name}/ask/1",
        plan=Plan(title=f"Reboot {name}", steps=(f"reboot {name}",), subject=name, op="abcdefg"),
        why="XID 79",
        options=(Choice.APPROVE, Choice.DENY),
        default=Choice.DENY,
        asked_at=now,
        expires_at=now + expires,
    )
    return plain.model_copy(update=changes)


async def put(stage: Stage, asked: Question) -> Handle:
    """Asks it as a runbook does."""
    return await stage.client.start_workflow(
        Runbook.ASK, AskInput(question=asked), id=asked.id, task_queue="runbooks", static_summary=asked.plan.title
    )


async def refused(stage: Stage, asked: Question, choice: Choice = Choice.APPROVE, **changes: object) -> str:
    """The words of the refusal; the question must still be open afterwards."""
    with pytest.raises(WorkflowUpdateFailedError) as error:
        await stage.answer(asked, choice, changed=changes)
    assert (await stage.view(asked.id)).outcome is None
    return str(error.value.cause)


async def test_an_answer_counts_only_for_the_question_and_the_plan_as_they_were_read(stage: Stage) -> None:
    asked = question("n1")
    await put(stage, asked)
    assert "the plan changed" in await refused(stage, asked, plan_hash="0" * 16)
    assert "the plan changed" in await refused(stage, asked, op="other22")
    assert "has expired" in await refused(stage, asked, expires_at=time.time() - 1)
    assert "no option here" in await refused(stage, asked, Choice.ATTEST)
    outcome = await stage.answer(asked, Choice.APPROVE)
    assert (outcome.choice, outcome.by, outcome.signed) == (Choice.APPROVE, "grace", False)
    assert "unsigned, embedded server" in outcome.reason
    assert (await stage.result(asked.id))["choice"] == "approve"


async def test_equal_answers_have_one_effect_and_later_ones_learn_of_the_first(stage: Stage) -> None:
    """T04: three equal posts, one of somebody else, and a late deny."""
    asked = question("n1")
    await put(stage, asked)
    said = make_answer(asked, Choice.APPROVE, "grace", "seen")
    others = make_answer(asked, Choice.APPROVE, "bob", "me too"), make_answer(asked, Choice.DENY, "grace", "no")
    gate = stage.gates.set(asked.id, "verify_answer", "after")
    first = asyncio.create_task(stage.give(said))
    await gate.wait()  # while the first one is being verified
    more = [asyncio.create_task(stage.give(answer)) for answer in (said, said, *others)]
    await asyncio.sleep(0.2)
    gate.open()
    outcomes = await asyncio.gather(first, *more[:2])
    assert {o.by for o in outcomes} == {"grace"}
    assert {o.choice for o in outcomes} == {Choice.APPROVE}
    for late in more[2:]:
        with pytest.raises(WorkflowUpdateFailedError) as error:
            await late
        assert "already answered by grace: approve" in str(error.value.cause)
    assert (await stage.result(asked.id))["by"] == "grace"


async def test_nobody_in_time_means_the_safe_default(stage: Stage) -> None:
    asked = question("n1", expires=1.0)
    await put(stage, asked)
    result = await stage.result(asked.id)
    assert (result["choice"], result["by"]) == ("deny", "nobody (expired)")
    with pytest.raises(Exception, match="completed"):
        await stage.answer(asked, Choice.APPROVE)


async def test_the_one_who_asked_for_a_wide_step_cannot_approve_it(stage: Stage) -> None:
    asked = question("n1", wide=True, requester="ada")
    await put(stage, asked)
    assert "somebody else must approve" in await refused(stage, asked, approver="ada")
    assert (await stage.answer(asked, Choice.APPROVE, by="grace")).by == "grace"


async def test_where_signers_are_listed_only_their_own_signature_counts(stage: Stage, tmp_path: Path) -> None:
    needs_program("ssh-keygen", "openssh-client")
    signer = Signer(name="grace", key=make_key(tmp_path / "grace"))
    make_key(tmp_path / "mallory")
    asked = question("n1", signers=(signer,))
    await put(stage, asked)
    assert "must be signed" in await refused(stage, asked)
    assert "no approver here" in await refused(stage, asked, approver="mallory")
    forgeries: list[tuple[str, dict[str, object]]] = [
        ("mallory", {}),
        ("grace", {"choice": Choice.DENY}),
        ("grace", {"reason": "changed after it was signed"}),
    ]
    for key, changed in forgeries:
        said = sign(make_answer(asked, Choice.APPROVE, "grace", "seen"), tmp_path / key)
        with pytest.raises(WorkflowUpdateFailedError) as error:
            await stage.give(said.model_copy(update=changed))
        assert "signature is not by grace" in str(error.value.cause)
    outcome = await stage.give(sign(make_answer(asked, Choice.APPROVE, "grace", "seen"), tmp_path / "grace"))
    assert outcome.signed
    assert any("refused the answer of grace" in line for line in (await stage.view(asked.id)).story)


def make_key(path: Path) -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)  # noqa: S607
    return path.with_suffix(".pub").read_text()


async def test_an_unsigned_answer_counts_on_the_embedded_server_only(open_stage: Opener) -> None:
    stage = await open_stage()
    await stage.start_worker(embedded=False)
    asked = question("n1")
    await put(stage, asked)
    assert "embedded server only" in await refused(stage, asked)


async def test_two_open_questions_are_answered_each_by_itself(stage: Stage) -> None:
    """T02: the job's runbook and the node's ask at the same time; one yes is no yes to the other."""
    stage.write_policy(modes={"failover_in_cluster": "approve", "isolate": "approve"})
    native_id = await stage.supervise()
    sick = (await stage.nodes_of())[0]
    await stage.lose_gpu(sick)
    about_node = await stage.question(f"node/alpha/{sick}")
    about_job = await stage.question("job/train/failover/2")
    assert about_node.plan.digest != about_job.plan.digest
    for asked in (about_node, about_job):
        assert any(f"xid 79 on {sick}" in line for line in asked.evidence), asked.evidence
    swapped = {"question": about_node.id}
    with pytest.raises(WorkflowUpdateFailedError) as error:
        await stage.handle(about_node.id).execute_update(
            "answer", make_answer(about_job, Choice.APPROVE, "grace", "").model_copy(update=swapped)
        )
    assert "the plan changed" in str(error.value.cause)
    await stage.answer(about_node, Choice.APPROVE)
    await stage.until(lambda: "isolate" in stage.ops(), "the node is isolated")
    await stage.stays(lambda: "stop" not in stage.ops(), "the job's question stays open")
    assert (await stage.view(about_job.id)).outcome is None
    await stage.answer(about_job, Choice.DENY)
    result = await stage.result("job/train/failover/2")
    assert result["ended"] == "denied"
    await stage.stays(lambda: "stop" not in stage.ops(), "denied")
    assert (await stage.native(native_id)).phase is Phase.RUNNING


async def test_the_approved_plan_is_the_one_that_is_carried_out(stage: Stage) -> None:
    stage.write_policy(modes={"failover_in_cluster": "approve"})
    native_id = await stage.supervise()
    sick = (await stage.nodes_of())[0]
    await stage.lose_gpu(sick)
    asked = await stage.question("job/train/failover/2")
    assert any(f"without {sick}" in step or sick in step for step in asked.plan.steps)
    assert "stop" not in stage.ops()
    await stage.answer(asked, Choice.APPROVE)
    await stage.trains_again("train", native_id, 2)
    (order,) = stage.faults.effects("start_attempt")
    assert f"exclude={sick}" in order.detail
    await stage.record(asked.id, "ask-approved")


async def test_an_adoption_that_is_not_allowed_leaves_the_job_to_the_scheduler(stage: Stage) -> None:
    stage.write_policy(modes={"adopt": "observe"})
    native_id = stage.faults.person_submit(stage.spec())
    await stage.until(lambda: _told(stage, "job/train", "not adopted"), "it says so")
    assert not (await stage.native(native_id)).held
    assert stage.ops() == ["attempt"]


async def test_spent_retries_park_the_runbook_and_a_retry_goes_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "STOP_JOB", dataclasses.replace(api.STOP_JOB, budget=timedelta(seconds=2)))
    native_id = await stage.supervise()
    gate = stage.gates.set("job/train/failover/2", "stop_job", "before")
    await stage.lose_gpu((await stage.nodes_of())[0])
    await gate.wait()
    stage.faults.controller_kill()
    gate.open()
    asked = await stage.question("job/train/failover/2")
    assert "stop job does not succeed" in asked.plan.title
    assert "does not answer" in asked.why
    assert asked.default is Choice.ABORT
    described = await stage.handle("job/train/failover/2").describe()
    assert {p.key.name: p.value for p in described.typed_search_attributes}["RunbookNeedsHuman"] is True
    stage.faults.controller_start()
    await stage.answer(asked, Choice.RETRY)
    await stage.trains_again("train", native_id, 2)


async def test_a_missing_worker_is_named_in_the_question(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "SCHEDULE_TO_START", timedelta(seconds=1))
    spec = stage.spec("far")
    await stage.submit(spec, cluster="beta")
    asked = await stage.question("job/far")
    assert "nobody polls the task queue cluster.beta" in asked.why
    assert "runbook worker --cluster beta" in asked.why
    await stage.stop_worker()
    await stage.start_worker("alpha", "beta")
    await stage.answer(asked, Choice.RETRY)
    await stage.until(lambda: stage.beta.effects("adopt"), "it runs on beta")


async def test_a_hook_that_fails_is_shown_and_called_again_until_it_works(
    open_stage: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(people_api, "NOTIFY", dataclasses.replace(people_api.NOTIFY, budget=timedelta(seconds=1)))
    stage = await open_stage()
    sent = stage.folder / "sent"
    hook = stage.folder / "hook"
    hook.write_text(f"#!/bin/sh\ncat >> {sent}\necho >> {sent}\n")
    stage.write_policy(more=f"notify: {{command: [{hook}]}}")
    await stage.start_worker()
    skipper = TimeSkipper(stage.client)
    asked = question("n1", expires=4 * 3600)
    with skipper.with_time_skipping_disabled():
        handle = await skipper.client.start_workflow(
            Runbook.ASK, AskInput(question=asked), id=asked.id, task_queue="runbooks"
        )
    await stage.until(lambda: _told(stage, asked.id, "NOTIFICATION FAILED"), "the failure is in the story")
    assert "Notification FAILED" in await stage.page(asked.id)
    hook.chmod(0o700)
    await skipper.fast_forward(handle, timedelta(minutes=1))
    await stage.until(lambda: _told(stage, asked.id, "someone was notified"), "it works at last")
    assert "Notification FAILED" not in await stage.page(asked.id)
    await skipper.fast_forward(handle, timedelta(hours=2, minutes=5))
    await stage.until(lambda: sent.read_text().count('"kind"') == 2, "a reminder at half time")
    await skipper.fast_forward(handle, timedelta(hours=2))
    assert (await stage.result(asked.id))["by"] == "nobody (expired)"


async def _told(stage: Stage, workflow_id: str, words: str) -> bool:
    try:
        return any(words in line for line in (await stage.view(workflow_id)).story)
    except Exception:  # noqa: BLE001 - the runbook has not begun yet
        return False


async def test_an_order_that_no_worker_took_in_time_is_refused_and_not_carried_out(stage: Stage) -> None:
    """The person was told that nobody took it, and may have done something else since."""
    native_id = await stage.supervise()
    late = Order(want=Action.FAILOVER_IN_CLUSTER, by="ada", reason="hours ago", valid_until=time.time() - 1)
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await stage.handle("job/train").execute_update(Update.ORDER, late)
    assert "too old" in str(refused.value.cause)
    await stage.stays(lambda: len(stage.attempts(native_id)) == 1, "not moved")
