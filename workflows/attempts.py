"""What `SuperviseJob` does for one attempt: find it, begin it, look at it, judge it, move it, book it."""

from collections.abc import Iterable, Mapping
from datetime import timedelta

from temporalio import workflow
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import ActivityError, ChildWorkflowError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities import api
    from fleet.budget import record_checkpoint
    from fleet.decision import Action, Decision
    from fleet.faults.evidence import Evidence, FaultClass, Kind, Source, Verdict
    from fleet.identity import job_workflow_id
    from fleet.ledger import Attempt, Ledger, Rung
    from fleet.model import NativeJob, Phase, Progress
    from fleet.report import job_report
    from fleet.runbooks import (
        FINGERPRINT_MEMO,
        Order,
        RecoveryEnd,
        RecoveryInput,
        RecoveryResult,
        Runbook,
        SuperviseInput,
    )
    from workflows import attributes
    from workflows.base import Abandoned, Book, StepFailed


STALL_LEAST = 60.0
"""Seconds without a step that are no stall whatever the policy says: it is not even read."""
LOOK_EVERY = timedelta(seconds=60)
"""How often a job is looked at without a signal: the net under a lost watch."""
LOOK_SOON = timedelta(seconds=10)
"""The same for a young attempt of which no step was seen: people look at it, and its cluster may be lost soon."""
YOUNG = 300.0
"""Seconds for which an attempt is young: loading a large checkpoint takes minutes."""
LOOK_BRIEFLY = timedelta(seconds=60)
"""How long a look without a reason may try: then the cluster counts as silent since the look before."""
_CHILDREN = {
    Action.RESTART_IN_PLACE: (Runbook.RESTART, "restart", "restart in place"),
    Action.FAILOVER_IN_CLUSTER: (Runbook.FAILOVER, "failover", "failover"),
    Action.FAILOVER_ACROSS_CLUSTERS: (Runbook.TRANSFER, "transfer", "to another cluster"),
}
"""Runbook, word of its id, and step of the job's runbook meanwhile."""


class Attempts(Book):
    """The state of one job, and the moves on it."""

    kind = Runbook.SUPERVISE

    def __init__(self, inp: SuperviseInput) -> None:
        super().__init__()
        self.inp = inp
        self.native = inp.native
        self.ledger = inp.ledger or Ledger(job=inp.job, submitted_at=self.now())
        self.adopted = inp.adopted
        self.story = inp.story
        self.questions = inp.questions
        self.verdict: Verdict | None = None
        self.taken_up = 0.0
        """When what happened last was taken up: detection ended and the decision began."""
        self.progress = self.ledger.last.progress if self.ledger.last else Progress()
        self.child: workflow.ChildWorkflowHandle | None = None  # type: ignore[type-arg]  # generic only for checkers
        self.headline = f"Job {inp.job} on {inp.cluster or 'no cluster yet'}"

    @property
    def native_id(self) -> str:
        """The job's id in its cluster."""
        return self.native.native_id if self.native else self.inp.native_id or ""

    def carry_over(self) -> SuperviseInput:
        """The input of the next run: everything that must survive continue-as-new."""
        return self.inp.model_copy(
            update={
                "native": self.native,
                "native_id": self.native_id,
                "ledger": self.ledger,
                "adopted": self.adopted,
                "story": self.story[-20:],
                "questions": self.questions,
                "spec": None,
                "wish": None,
            }
        )

    # -- finding and beginning

    async def find_job(self) -> None:
        """Submits the spec, or reads the job that is there."""
        if self.inp.spec is not None:
            self.native = await self.must(
                api.SUBMIT_JOB,
                api.Submit(cluster=self.inp.cluster, spec=self.inp.spec),
                cluster=self.inp.cluster,
                summary=f"submit {self.inp.job}",
            )
            self.tell(f"submitted as {self.native.native_id}")
        else:
            self.native = await self.must(
                api.READ_JOB,
                api.OnJob(cluster=self.inp.cluster, native_id=self.inp.native_id or ""),
                cluster=self.inp.cluster,
            )
        if not self.inp.fingerprint:
            self.inp = self.inp.model_copy(update={"fingerprint": self.native.fingerprint})
            workflow.upsert_memo({FINGERPRINT_MEMO: self.inp.fingerprint})
        submitted = self.native.submitted_at or self.now()
        self.ledger = self.ledger.model_copy(update={"submitted_at": submitted})

    async def begin_attempt(self, native: NativeJob) -> None:
        """An attempt that somebody else started, or the first one: adopt it and write it down."""
        if not self.adopted:
            await self.adopt()
        else:
            await self.must(
                api.HOLD_JOB,
                api.OnJob(cluster=self.inp.cluster, native_id=native.native_id),
                cluster=self.inp.cluster,
                summary="hold it again",
            )
        looked = await self._looked(native.restarts)
        rung = Rung.FIRST if self.ledger.last is None else Rung.OBSERVED
        if self.ledger.last is not None and self.ledger.last.ended_at is None:
            self.ledger = self.ledger.with_last(ended_at=self.now())
        self.append(rung, looked.native, looked.boots, ordered_at=native.submitted_at)
        self.tell(f"attempt {self.ledger.generation} runs on {', '.join(looked.native.nodes)}")

    async def adopt(self) -> None:
        """Holds it, so that only we start its next attempt, where the policy's mode allows."""
        policy = await self.policy(self.inp.cluster)
        allowed = self.inp.by not in {"watch", ""} or await self.allowed(
            policy.mode("adopt"),
            title=f"Adopt {self.inp.job}",
            why="The job asks for supervision in its comment.",
            steps=("hold it, so that only a proven stop lets the next attempt start",),
            cluster=self.inp.cluster,
        )
        if not allowed:
            self.tell("not adopted: watched only, the scheduler may restart it by itself")
            return
        try:
            adopted = await self.must(
                api.ADOPT_JOB,
                api.Adopt(cluster=self.inp.cluster, native_id=self.native_id, job=self.inp.job),
                cluster=self.inp.cluster,
                summary="hold it and save its script",
            )
        except StepFailed as failed:
            self.facts["Not protected"] = str(failed)
            self.tell(f"cannot be adopted: {failed}")
            return
        self.native, self.adopted = adopted.job, True
        self.tell("adopted: held, so that the scheduler cannot start a second attempt by itself")

    def append(
        self,
        rung: Rung,
        native: NativeJob,
        boots: Mapping[str, str],
        *,
        ordered_at: float,
        cause: str = "",
        result: RecoveryResult | None = None,
        charge: int = 1,
    ) -> None:
        """Opens the next row of the ledger."""
        self.ledger = self.ledger.with_attempt(
            Attempt(
                generation=self.ledger.generation + 1,
                cluster=self.inp.cluster,
                native_id=native.native_id,
                restarts=native.restarts,
                rung=rung,
                cause=cause,
                nodes=native.nodes,
                boots=boots,
                ordered_at=ordered_at,
                running_at=native.started_at or self.now(),
                progress=result.progress if result else Progress(),
                spans=result.spans if result else (),
                charge=charge,
            )
        )
        self.progress = self.ledger.attempts[-1].progress

    # -- looking

    async def _looked(self, restarts: int) -> api.Looked:
        return await self.must(
            api.LOOK,
            api.Look(cluster=self.inp.cluster, native_id=self.native_id, restarts=restarts),
            cluster=self.inp.cluster,
            summary="look at the job",
        )

    async def look(self) -> NativeJob:
        """Live state; keeps what the attempt says of its progress."""
        last = self.ledger.last
        looked = await self._looked(last.restarts if last else 0)
        await self._note(looked)
        return looked.native

    async def look_if_possible(self) -> NativeJob | None:
        """The same for a quiet moment: a cluster that does not answer is looked at again later."""
        last = self.ledger.last
        try:
            looked = await self.act(
                api.LOOK,
                api.Look(cluster=self.inp.cluster, native_id=self.native_id, restarts=last.restarts if last else 0),
                cluster=self.inp.cluster,
                budget=LOOK_BRIEFLY,
                summary="look at the job",
            )
        except StepFailed as failed:
            self.at("watching", waits=f"{self.inp.cluster} to answer again ({failed})"[:300])
            return None
        self.answered()
        await self._note(looked)
        return looked.native

    def look_after(self) -> timedelta:
        """When it is looked at without a signal."""
        last = self.ledger.last
        began = last.running_at if last is not None and last.progress.step is None else None
        return min(LOOK_SOON, LOOK_EVERY) if began is not None and self.now() - began < YOUNG else LOOK_EVERY

    def answered(self) -> None:
        """The cluster could be asked."""

    def mine(self, evidence: Iterable[Evidence]) -> tuple[Evidence, ...]:
        """Evidence about this job, or about a node that its present attempt holds; anything else came too late."""
        last = self.ledger.last
        here = [e for e in evidence if not self.inp.epoch or e.cluster == self.inp.cluster]  # names of nodes repeat
        return tuple(e for e in here if e.node is None or (last is not None and last.on_its_node(e)))

    def waits_held(self) -> bool:
        """The scheduler put it back into the queue, and our hold keeps it there."""
        native, last = self.native, self.ledger.last
        return (
            native is not None
            and native.phase is Phase.PENDING
            and native.held
            and last is not None
            and native.restarts > last.restarts
        )

    async def _note(self, looked: api.Looked) -> None:
        self.progress = looked.progress  # of a job that was over before it was first seen, too
        if self.ledger.last is None:
            return
        boots = looked.boots if looked.native.restarts == self.ledger.last.restarts else {}
        self.ledger = self.ledger.with_last(progress=looked.progress, boots=self.ledger.last.boots or boots)
        saved = looked.progress.saved
        if saved is not None and saved > (self.ledger.complete_checkpoint or -1):
            resets = (await self.policy(self.inp.cluster)).budget_resets_per_day
            self.ledger = record_checkpoint(self.ledger, saved, self.now(), resets)

    async def stalled(self) -> bool:
        """No new step for longer than the policy allows."""
        last = self.ledger.last
        if last is None or last.running_at is None:
            return False
        quiet = self.now() - max(self.progress.seen_at or 0.0, last.running_at)
        return quiet > STALL_LEAST and quiet > (await self.policy(self.inp.cluster)).stall_after

    def stall_evidence(self) -> tuple[Evidence, ...]:
        """Our own observation, as evidence."""
        return (self._own(Kind.JOB_STALLED, f"no new step after {self.progress.step}"),)

    def no_step_evidence(self, result: RecoveryResult) -> tuple[Evidence, ...]:
        """The new attempt runs and does not train."""
        return (self._own(Kind.BAD_RESUME, result.text),)

    def _own(self, kind: Kind, detail: str) -> Evidence:
        return Evidence(
            source=Source.JOB,
            kind=kind,
            cluster=self.inp.cluster,
            job=self.inp.job,
            seen_at=self.now(),
            happened_at=self.now(),
            detail=detail[:1000],
        )

    # -- moving

    async def transfer_input(self, inp: RecoveryInput, want: Order | None) -> RecoveryInput:
        """What a move to another cluster needs beside. Raises StepFailed where the job cannot be submitted again."""
        raise NotImplementedError

    async def run_recovery(
        self, verdict: Verdict, decision: Decision, detected: float, want: Order | None
    ) -> RecoveryResult:
        """Runs the child runbook and returns its value; a failed child is a stuck recovery, never a crash."""
        if self.native is None or self.ledger.last is None:
            return RecoveryResult(ended=RecoveryEnd.STUCK, text="there is no attempt to recover yet")
        in_place = decision.action is Action.RESTART_IN_PLACE
        generation = self.ledger.generation + 1
        if verdict.fault is FaultClass.HARDWARE and verdict.culprit.node:
            await self._ask_heal(verdict)
        kind, word, step = _CHILDREN[decision.action]
        name = f"{job_workflow_id(self.inp.job)}/{word}/{generation}"
        self.at(step, waits=f"`{name}`")
        inp = RecoveryInput(
            job=self.inp.job,
            cluster=self.inp.cluster,
            op=self.op,
            generation=generation,
            native=self.native,
            old=self.ledger.last,
            verdict=verdict,
            decision=decision,
            in_place=in_place,
            requester=want.by if want else "",
            detected_at=detected,
            decided_from=max(detected, self.taken_up),
        )
        try:
            if kind is Runbook.TRANSFER:
                inp = await self.transfer_input(inp, want)
        except (StepFailed, Abandoned) as failed:
            return RecoveryResult(ended=RecoveryEnd.STUCK, text=f"it cannot be moved: {failed}", native=self.native)
        try:
            self.child = await workflow.start_child_workflow(
                kind,
                inp,
                id=name,
                result_type=RecoveryResult,
                static_summary=f"{verdict.title}"[:180],
                static_details=decision.why[:2000],
                search_attributes=self._child_attributes(verdict),
            )
            result: RecoveryResult = await self.child
            if verdict.fault is FaultClass.UNKNOWN and kind is Runbook.FAILOVER and result.old_ended_at is not None:
                await self._ask_heal(verdict, suspect=True)
            return result
        except ChildWorkflowError as error:
            if is_cancelled_exception(error) and workflow.cancellation_reason() is not None:
                raise
            return await self._ended_early(name, error)
        finally:
            self.child = None

    async def _ended_early(self, name: str, error: ChildWorkflowError) -> RecoveryResult:
        """A child that was cancelled or terminated by a person: its effects are read back from the cluster."""
        how = RecoveryEnd.CANCELLED if is_cancelled_exception(error) else RecoveryEnd.STUCK
        state = await self.describe_left_state()
        self.native = await self.look_if_possible() or self.native
        self.facts["Left as"] = state
        return RecoveryResult(ended=how, text=f"{name} was ended ({how}); {state}", native=self.native)

    async def _ask_heal(self, verdict: Verdict, *, suspect: bool = False) -> None:
        """A sick node is repaired; one that is only suspected is checked, once the job has left it."""
        node, what = verdict.culprit.node, "check" if suspect else "repair"
        if not node:
            return
        try:
            await self.act(
                api.REQUEST_HEAL,
                api.HealRequest(
                    cluster=self.inp.cluster,
                    node=node,
                    verdict=verdict,
                    suspect=suspect,
                    by=workflow.info().workflow_id,
                ),
                summary=f"ask for a {what} of {node}",
            )
        except (StepFailed, ActivityError) as failed:
            self.tell(f"the {what} of {node} could not be requested: {failed}")

    def _child_attributes(self, verdict: Verdict) -> TypedSearchAttributes:
        return TypedSearchAttributes(
            [
                SearchAttributePair(attributes.CLUSTER, self.inp.cluster),
                SearchAttributePair(attributes.JOB, self.inp.job),
                SearchAttributePair(attributes.FAULT, str(verdict.fault)),
                SearchAttributePair(attributes.NODE, verdict.culprit.node or ""),
                SearchAttributePair(attributes.STEP, "starting"),
                SearchAttributePair(attributes.NEEDS_HUMAN, False),
            ]
        )

    # -- booking

    def book_recovery(self, result: RecoveryResult, verdict: Verdict, decision: Decision) -> None:
        """Closes the old attempt and, where a new one runs, opens it."""
        self.tell(result.text)
        last = self.ledger.last
        if last is None:
            return
        if result.old_ended_at is not None:
            self.ledger = self.ledger.with_last(ended_at=result.old_ended_at, verdict=verdict, receipt=result.receipt)
        native = result.native
        if native is not None and result.cluster:
            self.moved(native)
        elif native is not None:
            self.native = native
        new = native is not None and (bool(result.cluster) or native.restarts > last.restarts)
        if native is None or not new or (result.ended not in _RUNS_NOW and not result.cluster):
            return
        self.append(
            _rung(result, decision),
            native,
            {},
            ordered_at=result.old_ended_at or self.now(),
            cause=verdict.rule,
            result=result,
            charge=decision.charge,
        )

    def moved(self, native: NativeJob) -> None:
        """The job is another native object in another cluster from here on."""
        raise NotImplementedError

    async def save_report(self, kind: str) -> None:
        """Stores the report; PostgreSQL or SQLite outlives Temporal's retention."""
        report = job_report(self.ledger, self.now(), self.story)
        await self.act(
            api.SAVE_REPORT,
            api.ReportIn(subject=job_workflow_id(self.inp.job), kind=kind, report=report.model_dump_json()),
            summary=f"store the {kind} report",
        )

    async def describe_left_state(self) -> str:
        """Reads the job once more and says what a person finds."""
        try:
            native = (await self._looked(self.ledger.last.restarts if self.ledger.last else 0)).native
        except (StepFailed, ActivityError):
            return f"the state of the job on {self.inp.cluster} could not be read; look with `squeue`"
        release = f"give it back with `runbook release {self.inp.job}`"
        if native.phase is Phase.PENDING and native.held:
            return f"the job stays held in the queue ({native.native_id}); {release}"
        if native.held:
            return f"the job runs on, held against the scheduler's own requeue; {release}"
        return f"the job is {native.phase} and not held by us"


_RUNS_NOW = frozenset({RecoveryEnd.TRAINING, RecoveryEnd.NO_STEP})


def _rung(result: RecoveryResult, decision: Decision) -> Rung:
    """What the attempt counts as; a start that somebody else's requeue asked for costs no try."""
    if decision.charge == 0:
        return Rung.OBSERVED
    if result.cluster:
        return Rung.ACROSS_CLUSTERS
    return Rung.IN_PLACE if result.in_place else Rung.IN_CLUSTER
