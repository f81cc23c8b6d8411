"""What an order would do: live facts through Temporal, then the very code that would decide. Nothing is changed."""

import time

from temporalio.client import Client

from activities import api
from clients import jobs, runs, talk
from clients.ask_cluster import read
from clients.nodes import cluster_of, ordered_verdict
from clients.shapes import DryRun
from fleet.decision import Action, Decision, DecisionInput
from fleet.faults.evidence import Culprit, FaultClass, Verdict
from fleet.identity import guard_workflow_id, job_workflow_id, node_workflow_id
from fleet.ladder import next_step, unusable
from fleet.ledger import Ledger
from fleet.model import NativeJob
from fleet.plans import MOVES, PlannedStep, decided_steps, heal_steps, observed_ledger, when
from fleet.policy import Policy, Step
from fleet.runbooks import Lease


async def move(
    client: Client,
    ref: jobs.JobRef,
    want: Action,
    by: str,
    reason: str,
    exclude: tuple[str, ...],
    policy: Policy,
) -> DryRun:
    """A restart or a failover of a job."""
    native, kept = await jobs.native_of(client, ref)
    ledger = kept or observed_ledger(ref.job, native)
    verdict = Verdict(
        fault=FaultClass.UNKNOWN,
        culprit=Culprit(job=ref.job),
        rule="order",
        title=f"{by} ordered it: {reason}",
        confidence=1.0,
    )
    own = ledger.last.nodes if ledger.last else ()
    free = await read(
        client,
        api.COUNT_FREE,
        api.NeedsNodes(
            cluster=ref.cluster,
            native_id=native.native_id,
            exclude=(*unusable(ledger, verdict), *exclude),
            own=own,
        ),
        ref.cluster,
    )
    decision = next_step(
        DecisionInput(
            cluster=ref.cluster,
            verdict=verdict,
            ledger=ledger,
            at=time.time(),
            free_nodes=free.free,
            nodes_wanted=native.nodes_wanted,
            want=want,
            exclude=exclude,
        ),
        policy,
    )
    return _job_plan(ref, native, ledger, decision, adopted=kept is None)


def _job_plan(ref: jobs.JobRef, native: NativeJob, ledger: Ledger, decision: Decision, *, adopted: bool) -> DryRun:
    notes = []
    if adopted:
        notes.append(f"{ref.job} is not supervised: the order adopts it (held, its script saved), by your word")
    if native.phase.ended:
        notes.append(f"the job has ended ({native.phase})")
    moves = decision.action in MOVES
    return DryRun(
        id=job_workflow_id(ref.job),
        action=decision.action.value,
        why=decision.why,
        mode=decision.mode if moves else "",
        when=when(decision.mode) if moves else "",
        exclude=decision.exclude,
        delay=decision.delay,
        tries_left=decision.budget_left if moves else None,
        policy_hash=decision.policy_hash,
        steps=tuple(
            PlannedStep(step=str(n), mode="", when="", text=text)
            for n, text in enumerate(decided_steps(decision, native, ledger), 1)
        ),
        notes=tuple(notes),
    )


async def heal(client: Client, text: str, by: str, reason: str, policy: Policy) -> DryRun:
    """A node's repair."""
    facts, view = await cluster_of(client, text, policy)
    holders = await read(client, api.READ_HOLDERS, api.OnNode(cluster=facts.cluster, node=facts.node), facts.cluster)
    verdict = ordered_verdict(facts.node, by, reason)
    identity = node_workflow_id(facts.cluster, facts.node)
    notes = []
    if await runs.running(client, identity) is not None:
        notes.append(f"{identity} is under way already: the order would be refused")
    return DryRun(
        id=identity,
        action="heal",
        why=verdict.title,
        mode="",
        when="",
        policy_hash=policy.digest,
        steps=heal_steps(
            facts,
            {(h.name or h.job.native_id): h.name is not None for h in holders.jobs},
            rung=verdict.first_rung,
            modes={step.value: policy.mode(step.value).value for step in Step},
            out=tuple(lease.node for lease in await _leases(client, facts.cluster)),
            limit=policy.nodes_out(len(view.nodes)),
        ),
        notes=tuple(notes),
    )


async def _leases(client: Client, cluster: str) -> tuple[Lease, ...]:
    handle = await runs.running(client, guard_workflow_id(cluster))
    if handle is None:
        return ()
    view, _ = await talk.view_of(handle)
    return view.leases if view is not None else ()
