"""`AskHuman`: one question, its notification, its answers and its safe default."""

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities import people_api
    from fleet.people import Answer, Outcome, Question, Refusal, refusal
    from fleet.runbooks import NOT_ALLOWED, REFUSED, VIEW, AskInput, Runbook, Update, View
    from workflows.base import Book, StepFailed

REMIND_AT = 0.5
"""Part of the time to the expiry after which the hook is called once more."""
NOTIFY_AGAIN = (30.0, 60.0, 120.0, 300.0)
"""Seconds until a hook that failed is called again; the last one repeats until the question ends."""


@workflow.defn(name=Runbook.ASK)
class AskHuman(Book):
    """Waits for one valid answer; when none comes in time, the safe default is the answer."""

    kind = Runbook.ASK

    @workflow.init
    def __init__(self, inp: AskInput) -> None:
        super().__init__()
        self.question: Question = inp.question
        self.link = inp.link
        self.outcome: Outcome | None = None
        self.checking = asyncio.Lock()
        self.headline = inp.question.plan.title

    @workflow.run
    async def run(self, inp: AskInput) -> Outcome:
        self._describe()
        self.at("asked", waits="an answer", then=f"{self.question.default} at the expiry")
        notifying = asyncio.create_task(self._notify())
        outcome = await self._wait()
        notifying.cancel()
        self.tell(f"{outcome.by}: {outcome.choice}")
        self.at("answered")
        await workflow.wait_condition(workflow.all_handlers_finished)
        return outcome

    async def _wait(self) -> Outcome:
        left = self.question.expires_at - self.now()
        try:
            await workflow.wait_condition(
                lambda: self.outcome is not None,
                timeout=timedelta(seconds=max(left, 0)),
                timeout_summary=f"expiry, then {self.question.default}",
            )
        except TimeoutError:
            await workflow.wait_condition(lambda: not self.checking.locked())
        if self.outcome is None:
            self.outcome = Outcome(
                question=self.question.id,
                choice=self.question.default,
                by="nobody (expired)",
                signed=False,
                at=self.now(),
            )
        return self.outcome

    async def _notify(self) -> None:
        """Wakes someone, now and at half time."""
        half = (self.question.expires_at - self.now()) * REMIND_AT
        await self._wake("first")
        await workflow.sleep(half, summary="remind at half time")
        await self._wake("reminder")

    async def _wake(self, which: str) -> None:
        """A hook that fails is shown on the page and called again, for as long as the question is open."""
        me = workflow.info().workflow_id
        waits = list(NOTIFY_AGAIN)
        while True:
            try:
                told = await self.act(
                    people_api.NOTIFY,
                    people_api.NotifyIn(
                        question=self.question,
                        workflow_id=me,
                        link=self.link,
                        delivery=f"{me}#{self.question.plan.op}#{which}",
                    ),
                    summary="wake someone",
                )
            except StepFailed as failed:
                self.facts["Notification FAILED"] = str(failed)
                self.tell(f"NOTIFICATION FAILED, tried again: {failed}")
                await workflow.sleep(waits.pop(0) if len(waits) > 1 else waits[0], summary="call the hook again")
                continue
            self.facts.pop("Notification FAILED", None)
            self.tell("someone was notified" if told.delivered else "no notification hook is configured")
            return

    def _describe(self) -> None:
        question = self.question
        self.facts |= {
            "Why": question.why,
            "Plan": " → ".join(question.plan.steps),
            "Plan hash": f"`{question.plan.digest}`",
            "Options": ", ".join(question.options),
            "Answer with": f"`runbook approve {question.id}` or `runbook deny {question.id}`",
            "Evidence": "; ".join(question.evidence),
        }

    @workflow.update(name=Update.ANSWER, description="A person's answer, signed where the fleet lists signers.")
    async def answer(self, answer: Answer) -> Outcome:
        """The validator checked hash, expiry, approver and nonce; the signature is verified here before it counts."""
        async with self.checking:
            try:
                verified = await self.act(
                    people_api.VERIFY_ANSWER,
                    people_api.VerifyIn(question=self.question, answer=answer),
                    summary=f"verify the answer of {answer.approver}",
                )
            except StepFailed as failed:
                raise ApplicationError(f"the answer could not be verified: {failed}", type="Unverified") from failed
            again = refusal(self.question, answer, now=self.now(), answered=self.outcome)
            if again is None and not verified.ok:
                again = Refusal(verified.why, not_allowed=True)
            if again is not None:
                self.tell(f"refused the answer of {answer.approver}: {again.text}")
                raise _refused(again)
            self.outcome = Outcome(
                question=self.question.id,
                choice=answer.choice,
                by=answer.approver,
                signed=answer.signature is not None,
                at=self.now(),
                reason=answer.reason + ("" if answer.signature else " (unsigned, embedded server)"),
            )
            return self.outcome

    @answer.validator
    def check_answer(self, answer: Answer) -> None:
        """Refuses at once what cannot count; nothing of it enters the history."""
        why = refusal(self.question, answer, now=workflow.now().timestamp(), answered=self.outcome)
        if why is not None:
            raise _refused(why)

    @workflow.query(name=VIEW)
    def view(self) -> View:
        """The question as `runbook describe` shows it."""
        return self.view_with(
            question=self.question,
            outcome=self.outcome,
            result=self.outcome.choice if self.outcome else "",
        )


def _refused(why: Refusal) -> ApplicationError:
    return ApplicationError(why.text, type=NOT_ALLOWED if why.not_allowed else REFUSED)
