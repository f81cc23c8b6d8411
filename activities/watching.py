"""One watching activity per cluster: changes become signals to the runbooks they concern."""

import asyncio
import time
from datetime import timedelta

from temporalio import activity
from temporalio.client import RPCError, WorkflowExecutionStatus
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory, WorkflowAlreadyStartedError
from temporalio.service import RPCStatusCode

from activities import api
from activities.backends.port import Change
from activities.nodes import node_evidence
from activities.registry import implements
from activities.runtime import Owner
from activities.search import typed
from activities.wave_api import PIECES
from fleet import attributes
from fleet.faults.evidence import Evidence
from fleet.identity import RUNBOOKS_QUEUE, fleet_name, job_workflow_id, newest_submissions, watch_workflow_id
from fleet.model import NativeJob, NodeFacts, NodeState, Phase
from fleet.runbooks import FINGERPRINT_MEMO, LEFT_MEMO, EvidenceBatch, Runbook, Signal, SuperviseInput
from fleet.strikes import Run, Strike, job_strikes, single_runs


class WatchActivities(Owner):
    """Runs on the cluster's queue, next to the cluster."""

    @implements(api.WATCH)
    async def watch(self, arg: api.WatchIn) -> api.WatchOut:
        """The full picture first, then changes, for `seconds`. Nothing is kept here: a restart sends it all again.

        So it ends at once when its worker is told to stop; that worker's grace is for steps that write.
        """
        watching = asyncio.create_task(self._watch(arg))
        stopping = asyncio.create_task(activity.wait_for_worker_shutdown())
        try:
            await asyncio.wait({watching, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not watching.done():
                raise ApplicationError(
                    "this worker stops; the next one begins with the full picture",
                    type=api.ERROR_TEMPORARY,
                    category=ApplicationErrorCategory.BENIGN,
                    next_retry_delay=timedelta(seconds=0.1),
                )
            return watching.result()
        finally:
            watching.cancel()
            stopping.cancel()
            await asyncio.gather(watching, stopping, return_exceptions=True)

    async def _watch(self, arg: api.WatchIn) -> api.WatchOut:
        deadline = time.monotonic() + arg.seconds
        told = _Told()
        count = 0
        async for change in self.runtime.backend(arg.cluster).watch():
            await self._tell(arg.cluster, change, told)
            count += len(change.jobs) + len(change.nodes)
            if time.monotonic() > deadline:
                break
        return api.WatchOut(changes=count)

    async def _tell(self, cluster: str, change: Change, told: "_Told") -> None:
        for job in told.newest(change.jobs):
            if job.tokens.supervise or job.key or job.adopted:
                await self._tell_job(cluster, job)
        await self.runtime.note(*told.record(change, time.time()))
        evidence = tuple(e for n in change.nodes for e in told.news(n, resync=change.resync))
        watch = self.runtime.client.get_workflow_handle(watch_workflow_id(cluster))
        for start in range(0, len(evidence), PIECES):
            await watch.signal(Signal.EVIDENCE, EvidenceBatch(evidence=evidence[start : start + PIECES]))

    async def _tell_job(self, cluster: str, job: NativeJob) -> None:
        """Signals the job's runbook; one that asks for supervision and has none gets it."""
        name = fleet_name(job)
        try:
            await self.runtime.client.get_workflow_handle(job_workflow_id(name)).signal(Signal.CHANGED, job)
            return
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
        if job.phase.ended or job.phase is Phase.ABSENT or not job.tokens.supervise:
            return  # over, or purged from the controller since: nobody can supervise it any more
        if await self._is_over(name, job):
            return
        await self._supervise(cluster, name, job)

    async def _is_over(self, name: str, job: NativeJob) -> bool:
        """A closed runbook of this very job was ended by a person or gave it up, or the job has left this object when
        it moved to another cluster: hands off."""
        try:
            seen = await self.runtime.client.get_workflow_handle(job_workflow_id(name)).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        kept = await seen.memo_value(FINGERPRINT_MEMO, default="", type_hint=str)
        left: list[str] = await seen.memo_value(LEFT_MEMO, default=[], type_hint=list[str])
        return seen.status is not WorkflowExecutionStatus.RUNNING and job.fingerprint in {kept, *left}

    async def _supervise(self, cluster: str, name: str, job: NativeJob) -> None:
        try:
            await self.runtime.client.start_workflow(
                Runbook.SUPERVISE,
                SuperviseInput(job=name, cluster=cluster, native_id=job.native_id, fingerprint=job.fingerprint),
                id=job_workflow_id(name),
                task_queue=RUNBOOKS_QUEUE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                start_signal=Signal.CHANGED,
                start_signal_args=[job],
                memo={FINGERPRINT_MEMO: job.fingerprint},
                static_summary=f"{job.name} of {job.user or 'somebody'} on {cluster} ({job.native_id})",
                search_attributes=typed(
                    {
                        attributes.CLUSTER: cluster,
                        attributes.JOB: name,
                        attributes.STEP: "starting",
                        attributes.NEEDS_HUMAN: False,
                    }
                ),
            )
        except WorkflowAlreadyStartedError:
            activity.logger.info("%s has a runbook already", name)


class _Told:
    """Which troubles this watch has told and put on record, so that each is told once."""

    def __init__(self) -> None:
        self._open: dict[str, str] = {}
        self._down: set[str] = set()
        self._noted: set[str] = set()
        self._epochs: dict[str, int] = {}

    def newest(self, jobs: tuple[NativeJob, ...]) -> tuple[NativeJob, ...]:
        """Without what is left of a job of which this cluster has, or had, a later submission."""
        current = newest_submissions(jobs)
        for job in current:
            if job.tokens.epoch:
                name = fleet_name(job)
                self._epochs[name] = max(self._epochs.get(name, 0), job.tokens.epoch)
        return tuple(job for job in current if job.tokens.epoch >= self._epochs.get(fleet_name(job), 0))

    def record(self, change: Change, now: float) -> tuple[tuple[Strike, ...], tuple[Run, ...]]:
        """What the change puts on record of nodes by jobs without a runbook, each thing once."""
        for facts in change.nodes:
            given_up = facts.state is NodeState.DOWN and not facts.responding
            (self._down.add if given_up else self._down.discard)(facts.node)
        strikes = {s.key: s for s in job_strikes(change.jobs, self._down, now)}
        runs = {r.key: r for r in single_runs(change.jobs, now)}
        new = (strikes.keys() | runs.keys()) - self._noted
        self._noted |= new
        return (
            tuple(strike for key, strike in strikes.items() if key in new),
            tuple(run for key, run in runs.items() if key in new),
        )

    def news(self, facts: NodeFacts, *, resync: bool) -> tuple[Evidence, ...]:
        """New trouble of a node. One seen happening gets a time; one found at a resync has none, so that
        telling it again after the next resync is recognised as a repeat."""
        now = time.time()
        found = node_evidence(facts, now)
        kind = ";".join(f"{e.kind}:{e.code}:{facts.boot}:{e.detail}" for e in found)
        if self._open.get(facts.node, "") == kind:
            return ()
        self._open[facts.node] = kind
        return tuple(
            e
            if e.happened_at is not None
            else e.model_copy(update={"happened_at": None if resync else now, "raw_hash": kind[:200]})
            for e in found
        )
