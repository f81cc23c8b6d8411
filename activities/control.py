"""Judging, deciding, remembering, and talking between runbooks: activities that touch no cluster."""

import time

from temporalio.client import Client, RPCError, WithStartWorkflowOperation, WorkflowExecutionStatus
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCStatusCode

from activities import api, people, people_api, place_api
from activities.judging import remembered
from activities.registry import implements
from activities.runtime import Owner, until
from activities.search import typed
from fleet import attributes
from fleet.baselines import Baseline, baselines
from fleet.decision import Decision, DecisionInput
from fleet.faults.classify import classify
from fleet.faults.evidence import Verdict
from fleet.identity import RUNBOOKS_QUEUE, guard_workflow_id, job_workflow_id, node_workflow_id, ui_page
from fleet.ladder import next_step
from fleet.lemons import WINDOW
from fleet.placement import Placement, place
from fleet.runbooks import (
    Evacuated,
    EvidenceBatch,
    GuardInput,
    HealInput,
    HealRequestNote,
    LeaseAnswer,
    LeaseWish,
    ReceiptNote,
    Runbook,
    Signal,
    Update,
)
from fleet.strikes import Strike, StrikeKind, failure_strikes, our_strike

NO_WAVE = 1_000_000_000
"""More nodes at once than there are: nodes that another cluster owns go to their runbooks there, one by one."""


class ControlActivities(Owner):
    """Runs on the queue `runbooks`."""

    @property
    def client(self) -> Client:
        """The worker's own client."""
        return self.runtime.client

    # -- judgement

    @implements(api.RECORD_EVIDENCE)
    async def record_evidence(self, arg: api.EvidenceIn) -> api.Nothing:
        """Appends; a repeat is kept once."""
        await self.runtime.store.add_evidence(arg.evidence)
        return api.Nothing()

    @implements(api.JUDGE)
    async def judge(self, arg: api.JudgeIn) -> Verdict:
        """Pure judgement over the evidence and what the store remembers of its subject."""
        now = time.time()
        await self.runtime.store.add_evidence(arg.evidence)
        known = await remembered(self.runtime.store, arg.cluster, arg.evidence, node=arg.node, job=arg.job, now=now)
        tables = self.runtime.tables()
        verdict = classify(arg.evidence, history=known.history, around=known.around, tables=tables, now=now)
        subject = job_workflow_id(arg.job) if arg.job else node_workflow_id(arg.cluster, arg.node or "-")
        await self.runtime.store.save_verdict(subject, verdict)
        return verdict

    @implements(api.DECIDE)
    async def decide(self, arg: DecisionInput) -> Decision:
        """The ladder under today's policy. An attempt that hardware ended is on its node's record from here on."""
        await self.runtime.note(failure_strikes(arg))
        return next_step(arg, self.runtime.policy())

    @implements(place_api.LIST_CLUSTERS)
    async def list_clusters(self, arg: api.Nothing) -> place_api.Clusters:
        """Those of today's policy."""
        policy = self.runtime.policy()
        kinds = {name: one.kind for name, one in policy.clusters.items()}
        return place_api.Clusters(kinds=kinds, streams=policy.copies.files_at_once if policy.sites else 0)

    @implements(place_api.PLACE)
    async def choose_cluster(self, arg: place_api.PlaceAsk) -> Placement:
        """The order of clusters, with a reason for each."""
        return place(arg.request, arg.offers)

    @implements(api.READ_POLICY)
    async def read_policy(self, arg: api.PolicyIn) -> api.PolicyOut:
        """What a runbook needs of the policy now."""
        policy = self.runtime.policy()
        limits = policy.limits
        return api.PolicyOut(
            modes={str(step): mode for step, mode in policy.modes.items()},
            drain_deadline=limits.drain_deadline,
            question_expiry=limits.question_expiry,
            stall_after=limits.stall_after,
            checkpoint_grace=limits.checkpoint_grace,
            step_timeout=limits.step_timeout,
            run_timeout=limits.run_timeout,
            place_timeout=limits.place_timeout,
            cluster_lost_after=limits.cluster_lost_after,
            settle=limits.settle,
            budget_resets_per_day=limits.budget_resets_per_day,
            wave_from=limits.wave_from if policy.owner_of(arg.cluster) == arg.cluster else NO_WAVE,
            signers=policy.signers,
            has_power=_has_power(policy.clusters.get(arg.cluster)),
            evict_others=policy.evicts_others(arg.cluster),
            policy_hash=policy.digest,
        )

    @implements(api.SAVE_REPORT)
    async def save_report(self, arg: api.ReportIn) -> api.Nothing:
        """Appends a report."""
        await self.runtime.store.save_report(arg.subject, arg.kind, arg.report)
        return api.Nothing()

    @implements(api.READ_HISTORY)
    async def read_history(self, arg: api.Subject) -> api.History:
        """What is remembered of a node or a job."""
        subject = job_workflow_id(arg.job) if arg.job else node_workflow_id(arg.cluster, arg.node or "-")
        evidence = (
            await self.runtime.store.evidence_for(arg.cluster, node=arg.node, job=arg.job) if arg.cluster else ()
        )
        reports = await self.runtime.store.reports(subject, arg.limit)
        strikes, figures = await self._record_of(arg.cluster, arg.node) if arg.node and not arg.job else ((), ())
        return api.History(
            strikes=strikes,
            baselines=figures,
            evidence=tuple(evidence)[-arg.limit :],
            verdict=await self.runtime.store.last_verdict(subject),
            reports=tuple(
                api.StoredReport(subject=r.subject, kind=r.kind, report=r.report, at=r.at) for r in reports
            ),
        )

    async def _record_of(self, cluster: str, node: str) -> tuple[tuple[Strike, ...], tuple[Baseline, ...]]:
        """Strikes of four weeks, and the newest figures of the node beside those of the whole fleet."""
        store, now = self.runtime.store, time.time()
        measures = sorted({s.measure for s in await store.samples(0.0, cluster=cluster, node=node)})
        figures = [b for m in measures for b in baselines(await store.samples(0.0, measure=m))]
        own = tuple(b for b in figures if (b.cluster, b.node) == (cluster, node))
        return (await store.record(now - WINDOW, cluster, node)).strikes, own

    # -- guards

    @implements(api.ACQUIRE_LEASE)
    async def acquire_lease(self, arg: api.LeaseIn) -> api.LeaseOut:
        """Asks the cluster's guard, starting it when it does not run. A lease is the node's repair ticket."""
        answer = await self._guard(arg, Update.ACQUIRE)
        if answer.granted:
            await self.runtime.note((our_strike(StrikeKind.REPAIR, arg.cluster, arg.node, arg.op, time.time()),))
        return api.LeaseOut(granted=answer.granted, why=answer.why, mark=answer.mark, marked_at=answer.marked_at)

    @implements(api.RELEASE_LEASE)
    async def release_lease(self, arg: api.LeaseIn) -> api.Nothing:
        """Gives it back."""
        await self._guard(arg, Update.RELEASE)
        return api.Nothing()

    async def _guard(self, arg: api.LeaseIn, update: Update) -> LeaseAnswer:
        start: WithStartWorkflowOperation[object, object] = WithStartWorkflowOperation(
            Runbook.GUARD,
            GuardInput(scope=arg.cluster),
            id=guard_workflow_id(arg.cluster),
            task_queue=RUNBOOKS_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=f"guard of {arg.cluster}",
        )
        answer: LeaseAnswer = await self.client.execute_update_with_start_workflow(
            update,
            LeaseWish(node=arg.node, holder=arg.holder, op=arg.op),
            start_workflow_operation=start,
            result_type=LeaseAnswer,
        )
        return answer

    @implements(api.FIND_ALIVE)
    async def find_alive(self, arg: api.Alive) -> api.Alive:
        """Which of these runbooks still run."""
        return api.Alive(ids=tuple([i for i in arg.ids if await self._runs(i)]))

    async def _runs(self, workflow_id: str) -> bool:
        try:
            seen = await self.client.get_workflow_handle(workflow_id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        return seen.status is WorkflowExecutionStatus.RUNNING

    @implements(api.WAIT_UNFROZEN)
    async def wait_unfrozen(self, arg: api.OnNode) -> api.Nothing:
        """Ends when neither the fleet nor the cluster is frozen."""

        async def open_again() -> bool:
            scopes = ["fleet", arg.cluster] if arg.cluster else ["fleet"]
            return not any([await self.runtime.freeze_of(s) for s in scopes])

        await until(open_again, seconds=float("inf"), every=1.0)
        return api.Nothing()

    # -- between runbooks

    @implements(api.REQUEST_HEAL)
    async def request_heal(self, arg: api.HealRequest) -> api.Told:
        """Starts the node's runbook or tells the one that runs; never two on one node. A Slurm node that is the twin
        of a Kubernetes node is repaired there, and a boot identity of the one side says nothing on the other."""
        owner = self.runtime.policy().owner_of(arg.cluster)
        if owner != arg.cluster:
            seen = tuple(e.model_copy(update={"cluster": owner, "boot": None}) for e in arg.evidence)
            arg = arg.model_copy(update={"cluster": owner, "evidence": seen})
        await start_heal(self.client, arg)
        return api.Told(delivered=True)

    @implements(api.TELL_JOB)
    async def tell_job(self, arg: api.TellJob) -> api.Told:
        """A signal to a job's runbook; one that is gone is no error. What is said of a node that is a twin is said
        alike from either side, so that it is known for the same; a job takes receipts of its own cluster."""
        policy = self.runtime.policy() if arg.cluster else None
        slurm = policy.slurm_on(policy.owner_of(arg.cluster)) if policy else None
        evidence = arg.evidence
        if slurm is not None:
            evidence = tuple(e.model_copy(update={"cluster": slurm, "boot": None}) for e in evidence)
        if arg.signal != Signal.RECEIPT or arg.receipt is None:
            return await self._signal(job_workflow_id(arg.job), arg.signal, EvidenceBatch(evidence=evidence))
        told = api.Told(delivered=False)
        for cluster in filter(None, (slurm, arg.cluster)):
            note = ReceiptNote(cluster=cluster, receipt=arg.receipt)
            told = await self._signal(job_workflow_id(arg.job), arg.signal, note)
        return told

    @implements(api.TELL_NODE)
    async def tell_node(self, arg: api.TellNode) -> api.Told:
        """A job tells a node's runbook that it has left."""
        owner = self.runtime.policy().owner_of(arg.cluster)
        return await self._signal(
            node_workflow_id(owner, arg.node), arg.signal, Evacuated(job=arg.job, text=arg.text)
        )

    async def _signal(self, workflow_id: str, signal: str, payload: object) -> api.Told:
        try:
            await self.client.get_workflow_handle(workflow_id).signal(signal, payload)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return api.Told(delivered=False)
            raise
        return api.Told(delivered=True)

    # -- people

    @implements(people_api.VERIFY_ANSWER)
    async def verify_answer(self, arg: people_api.VerifyIn) -> people_api.Verified:
        """The signature, against the signers that the question carries."""
        return await people.verify_signature(arg.question, arg.answer, unsigned_ok=self.runtime.unsigned_ok)

    @implements(people_api.NOTIFY)
    async def notify(self, arg: people_api.NotifyIn) -> api.Told:
        """Runs the policy's hook; without one nobody is told, and the question says so."""
        return await people.notify(
            arg.question,
            arg.workflow_id,
            arg.link or self._page(arg.workflow_id),
            self.runtime.policy().notify,
            delivery=arg.delivery,
        )

    def _page(self, workflow_id: str) -> str:
        return ui_page(self.runtime.ui, self.client.namespace, workflow_id) if self.runtime.ui else ""


async def start_heal(client: Client, arg: api.HealRequest) -> None:
    """Starts the node's runbook or tells the one that runs."""
    note = HealRequestNote(
        evidence=arg.evidence,
        verdict=arg.verdict,
        fence_for=arg.job if arg.fence else None,
        suspect=arg.suspect,
        by=arg.by,
    )
    await client.start_workflow(
        Runbook.HEAL,
        HealInput(cluster=arg.cluster, node=arg.node, request=note),
        id=node_workflow_id(arg.cluster, arg.node),
        task_queue=RUNBOOKS_QUEUE,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        start_signal=Signal.REQUEST,
        start_signal_args=[note],
        static_summary=(arg.verdict.title if arg.verdict else f"fence of {arg.node} for {arg.job}")[:180],
        search_attributes=typed(
            {
                attributes.CLUSTER: arg.cluster,
                attributes.NODE: arg.node,
                attributes.FAULT: str(arg.verdict.fault) if arg.verdict else "unknown",
                attributes.STEP: "starting",
                attributes.NEEDS_HUMAN: False,
            }
        ),
    )


def _has_power(cluster: object) -> bool:
    return getattr(cluster, "power", None) is not None or getattr(cluster, "kind", "") == "sim"
