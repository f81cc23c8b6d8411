"""What every runbook shares: running a step, parking it when its retries are spent, and the page a person reads.

A runbook never fails on a spent step. It parks: it asks a person, with what happened and what can be done, and
goes on as told.
"""

import asyncio
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributePair
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    TimeoutType,
    is_cancelled_exception,
)
from temporalio.exceptions import TimeoutError as StepTimeoutError
from temporalio.workflow import ActivityCancellationType

with workflow.unsafe.imports_passed_through():
    from activities import api
    from activities.api import Activity
    from fleet.identity import RUNBOOKS_QUEUE, cluster_queue, data_queue, op_id
    from fleet.model import Value
    from fleet.people import Choice, Outcome, Plan, Question
    from fleet.runbooks import AskInput, Runbook, View
    from workflows import attributes

In = TypeVar("In", bound=Value)
Out = TypeVar("Out", bound=Value)

RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=500), backoff_coefficient=2.0, maximum_interval=timedelta(seconds=20)
)
"""Waits between tries of one step; the step's budget in `activities/api.py` ends them."""
POLICY_AGAIN = timedelta(seconds=60)
"""Wait before a policy that could not be read is read again."""
STORY_LINES = 60
"""Lines of the story kept on the page; older ones are in the history."""
LAST_WORDS = timedelta(seconds=30)
"""Budget of a step that only describes or gives back while a cancelled runbook ends: nobody waits longer for that."""


ASK_BRIEFLY = timedelta(seconds=30)
"""Within this time a cluster answers, or is taken for one that does not; nothing of the job waits for it longer."""


class StepFailed(Exception):  # noqa: N818 - a step that failed, in the words of the runbook
    """A step's retries are spent, or it was refused."""

    def __init__(self, step: str, text: str, *, refused: bool) -> None:
        super().__init__(text)
        self.step = step
        self.refused = refused


class Abandoned(Exception):  # noqa: N818 - a person's decision, not an error
    """A person (or the safe default) ended the runbook at this step."""

    def __init__(self, step: str, choice: Choice, text: str) -> None:
        super().__init__(text)
        self.step = step
        self.choice = choice


class Book:
    """Base of all runbooks: the page, the steps and the questions."""

    kind: Runbook
    headline: str = ""

    def __init__(self) -> None:
        self.step = "starting"
        self.waits_for = ""
        self.next = ""
        self.story: tuple[str, ...] = ()
        self.questions = 0
        self.facts: dict[str, str] = {}
        self.leaving = False

    # -- identity and time

    @property
    def op(self) -> str:
        """Fixed for this incarnation, over resets and continue-as-new."""
        info = workflow.info()
        return op_id(info.workflow_id, info.first_execution_run_id)

    @staticmethod
    def now() -> float:
        return workflow.now().timestamp()

    # -- the page

    def at(self, step: str, *, waits: str = "", then: str = "") -> None:
        """Names the step that begins now; it is on the page and in the search attributes."""
        self.step, self.waits_for, self.next = step, waits, then
        workflow.upsert_search_attributes([attributes.STEP.value_set(step)])
        self.show()

    def tell(self, line: str) -> None:
        """Adds a line to the story, with the time."""
        stamp = workflow.now().strftime("%H:%M:%S")
        self.story = (*self.story, f"{stamp} {line}")[-STORY_LINES:]
        workflow.logger.info(line)
        self.show()

    def show(self) -> None:
        """Renders the page (Markdown) that the Temporal UI shows while the runbook runs and after."""
        rows = [f"## {self.headline or self.kind}", "", f"**Step:** {self.step}  "]
        if self.waits_for:
            rows.append(f"**Waits for:** {self.waits_for}  ")
        if self.next:
            rows.append(f"**Next:** {self.next}  ")
        rows += [f"**{name}:** {text}  " for name, text in self.facts.items() if text]
        rows += ["", *(f"- {line}" for line in reversed(self.story))]
        workflow.set_current_details("\n".join(rows)[:18000])

    def view_with(self, **more: Any) -> View:
        """What a person sees of any runbook, and what this kind adds to it."""
        return View(
            workflow=workflow.info().workflow_id,
            kind=self.kind,
            step=self.step,
            waits_for=self.waits_for,
            story=self.story,
            **more,
        )

    # -- steps

    def stop_if_cancelled(self) -> None:
        """Raises CancelledError once the runbook was told to stop, until it says its last words (`leaving`).

        A cancel that arrives while an activity runs becomes that activity's own cancel; when it completes all the
        same, its result wins and nobody else hears of the cancel. So it is looked for before whatever comes next.
        """
        if not self.leaving and workflow.cancellation_reason() is not None:
            raise asyncio.CancelledError("the runbook was cancelled")

    async def act(
        self,
        spec: Activity[In, Out],
        arg: In,
        *,
        cluster: str | None = None,
        site: str | None = None,
        budget: timedelta | None = None,
        summary: str = "",
    ) -> Out:
        """Runs one activity, next to a cluster or to a site's storage where one is named. Waits out a freeze; raises
        StepFailed when its retries are spent (`budget`; by default the step's own) or it is refused."""
        budget = min(budget or spec.budget, LAST_WORDS if self.leaving else spec.budget)
        while True:
            self.stop_if_cancelled()
            try:
                result: Out = await workflow.execute_activity(
                    spec.name,
                    arg,
                    task_queue=_queue(cluster, site),
                    result_type=spec.gives,
                    start_to_close_timeout=spec.start_to_close,
                    schedule_to_close_timeout=budget,
                    schedule_to_start_timeout=min(budget, api.SCHEDULE_TO_START),
                    heartbeat_timeout=api.HEARTBEAT,
                    retry_policy=RETRY,
                    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                    summary=summary[:200] or spec.name.replace("_", " "),
                )
                return result
            except ActivityError as error:
                if is_cancelled_exception(error):
                    raise
                cause = error.cause
                if isinstance(cause, ApplicationError) and cause.type == api.ERROR_FROZEN:
                    await self._wait_out_freeze(cluster, str(cause))
                    continue
                raise StepFailed(spec.name, _why(spec, error, cluster, site), refused=_is_refusal(cause)) from error

    async def _wait_out_freeze(self, cluster: str | None, text: str) -> None:
        before = self.waits_for
        self.tell(f"frozen, waiting for unfreeze ({text})")
        self.waits_for = "an unfreeze (`runbook unfreeze`)"
        self.show()
        await self.act(api.WAIT_UNFROZEN, api.OnNode(cluster=cluster or "", node=""), summary="wait for unfreeze")
        self.waits_for = before
        self.tell("unfrozen, going on")

    async def must(
        self,
        spec: Activity[In, Out],
        arg: In,
        *,
        cluster: str | None = None,
        site: str | None = None,
        summary: str = "",
    ) -> Out:
        """Like `act`, but a spent step parks and asks a person. Raises Abandoned when told to give up.

        A refusal (a law, a wrong state) is not asked about: the caller decides what it means. Nor is anybody asked
        while a cancelled runbook describes what it leaves.
        """
        while True:
            try:
                return await self.act(spec, arg, cluster=cluster, site=site, summary=summary)
            except StepFailed as failed:
                if failed.refused or self.leaving:
                    raise
                outcome = await self.ask(
                    title=f"{spec.name.replace('_', ' ')} does not succeed",
                    why=str(failed),
                    steps=(f"retry: run '{spec.name}' again", "abort: end here and leave the state as described"),
                    options=(Choice.RETRY, Choice.ABORT, Choice.TAKE_OVER),
                    default=Choice.ABORT,
                )
                if outcome.choice is not Choice.RETRY:
                    raise Abandoned(spec.name, outcome.choice, str(failed)) from failed

    # -- people

    async def policy(self, cluster: str) -> api.PolicyOut:
        """The policy as it is now; its hash stays in the history. A broken file is waited for, never guessed."""
        while True:
            try:
                return await self.act(api.READ_POLICY, api.PolicyIn(cluster=cluster), summary="read the policy")
            except StepFailed as failed:
                self.tell(f"nothing is decided: {failed}")
                await workflow.sleep(POLICY_AGAIN, summary="before the policy is read again")

    async def ask(
        self,
        *,
        title: str,
        why: str,
        steps: tuple[str, ...],
        options: tuple[Choice, ...] = (Choice.APPROVE, Choice.DENY),
        default: Choice = Choice.DENY,
        evidence: tuple[str, ...] = (),
        requester: str = "",
        wide: bool = False,
        cluster: str = "",
    ) -> Outcome:
        """Asks a person in a child runbook of its own; its end is an outcome, never a silence."""
        policy = await self.policy(cluster)
        self.stop_if_cancelled()
        self.questions += 1
        me = workflow.info().workflow_id
        now = self.now()
        question = Question(
            id=f"{me}/ask/{self.questions}",
            plan=Plan(title=title, steps=steps, subject=me, op=self.op),
            why=why[:1500],
            evidence=tuple(e[:500] for e in (evidence or self.evidence_lines())[:20]),
            options=options,
            default=default,
            asked_at=now,
            expires_at=now + policy.question_expiry,
            signers=policy.signers,
            requester=requester,
            wide=wide,
        )
        before = (self.step, self.waits_for, self.next)
        self.at("needs a person", waits=f"an answer to `{question.id}`", then=f"{default} if nobody answers in time")
        workflow.upsert_search_attributes([attributes.NEEDS_HUMAN.value_set(True)])
        self.tell(f"asked: {title}")
        try:
            outcome: Outcome = await workflow.execute_child_workflow(
                Runbook.ASK,
                AskInput(question=question),
                id=question.id,
                result_type=Outcome,
                static_summary=title[:180],
                static_details=why[:2000],
                search_attributes=workflow.info().typed_search_attributes.updated(
                    SearchAttributePair(attributes.NEEDS_HUMAN, True),
                    SearchAttributePair(attributes.STEP, "needs a person"),
                ),
            )
        except ChildWorkflowError as error:
            if is_cancelled_exception(error) and workflow.cancellation_reason() is not None:
                raise
            how = "was cancelled" if is_cancelled_exception(error) else "failed"
            outcome = Outcome(
                question=question.id, choice=default, by=f"nobody (the question {how})", signed=False, at=self.now()
            )
        workflow.upsert_search_attributes([attributes.NEEDS_HUMAN.value_set(False)])
        self.at(before[0], waits=before[1], then=before[2])
        self.tell(f"{outcome.by} answered {outcome.choice}" + (f": {outcome.reason}" if outcome.reason else ""))
        return outcome

    def evidence_lines(self) -> tuple[str, ...]:
        """What every question of this runbook shows as evidence."""
        return ()

    async def allowed(
        self,
        mode: str,
        *,
        title: str,
        why: str,
        steps: tuple[str, ...],
        evidence: tuple[str, ...] = (),
        requester: str = "",
        cluster: str = "",
    ) -> bool:
        """Whether the policy's mode lets a step happen: auto yes, observe no, propose and approve ask."""
        if mode == "auto":
            return True
        if mode == "observe":
            self.tell(f"observe only, not done: {title}")
            return False
        outcome = await self.ask(
            title=title, why=why, steps=steps, evidence=evidence, requester=requester, cluster=cluster
        )
        return outcome.choice is Choice.APPROVE


def _is_refusal(cause: BaseException | None) -> bool:
    return isinstance(cause, ApplicationError) and cause.type in {api.ERROR_REFUSED, api.ERROR_PERMANENT}


def _queue(cluster: str | None, site: str | None) -> str:
    return data_queue(site) if site else cluster_queue(cluster) if cluster else RUNBOOKS_QUEUE


def _why(spec: Activity[In, Out], error: ActivityError, cluster: str | None, site: str | None) -> str:
    """The failure in words that name what is missing."""
    cause = error.cause
    if isinstance(cause, StepTimeoutError) and cause.type is TimeoutType.SCHEDULE_TO_START:
        option = f" --data {site}" if site else f" --cluster {cluster}" if cluster else ""
        return (
            f"nobody polls the task queue {_queue(cluster, site)}: its worker is missing. "
            f"Start it with `runbook worker{option}`, then answer retry"
        )
    last = cause.cause if isinstance(cause, StepTimeoutError) and cause.cause else cause
    if isinstance(last, ApplicationError) and last.message.startswith(f"{spec.name}: "):
        return last.message
    return f"{spec.name}: {last if last is not None else error}"
