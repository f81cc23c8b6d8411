"""What an order would do: live facts through Temporal, then the very code that would decide. Nothing is changed.

What the order itself would be refused for is refused here in the same words.
"""

import time

from temporalio.client import Client

from activities import api
from clients import guards, jobs, runs, talk
from clients.ask_cluster import read
from clients.errors import CliError
from clients.nodes import cluster_of, ordered_verdict
from clients.shapes import DryRun
from fleet.decision import Decision, DecisionInput
from fleet.faults.evidence import Culprit, FaultClass, Verdict
from fleet.identity import guard_workflow_id, job_workflow_id, node_workflow_id
from fleet.ladder import next_step, unusable
from fleet.ledger import Ledger
from fleet.model import NativeJob
from fleet.plans import MOVES, PlannedStep, decided_steps, heal_steps, observed_ledger, when
from fleet.policy import Policy, Step
from fleet.runbooks import Lease, Runbook
from fleet.transfer import Moves, moves_of


async def move(client: Client, ref: jobs.JobRef, want: jobs.Wanted, policy: Policy) -> DryRun:
    """A restart, a failover or a transfer of a job. Raises CliError when the order would be refused."""
    native, kept = await jobs.native_of(client, ref)
    await _refused(ref, native)
    ledger = kept or observed_ledger(ref.job, native)
    verdict = Verdict(
        fault=FaultClass.UNKNOWN,
        culprit=Culprit(job=ref.job),
        rule="order",
        title=f"{want.by} ordered it: {want.reason}",
        confidence=1.0,
    )
    own = ledger.last.nodes if ledger.last else ()
    free = await read(
        client,
        api.COUNT_FREE,
        api.NeedsNodes(
            cluster=ref.cluster,
            native_id=native.native_id,
            exclude=(*unusable(ledger, verdict), *want.exclude),
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
            want=want.action,
            exclude=want.exclude,
            moves=await _moves(ref, native, want.to),
            opted_in=native.tokens.transfer,
        ),
        policy,
    )
    frozen = await _freeze(client, ref.cluster)
    return _job_plan(ref, native, ledger, decision, adopted=kept is None, frozen=frozen)


async def _moves(ref: jobs.JobRef, native: NativeJob, to: str) -> Moves:
    """What its runbook knows of where it could go; a job without one could go where its own script runs."""
    view = (await talk.view_of(ref.handle))[0] if ref.handle is not None else None
    known = (view.moves if view is not None else None) or moves_of(None, native)
    return known.model_copy(update={"clusters": (to,)}) if to else known


async def _refused(ref: jobs.JobRef, native: NativeJob) -> None:
    """Raises CliError where the job's runbook would refuse the order, or nothing is left to move."""
    if ref.handle is None:
        jobs.refuse_ended(ref, native)
        return
    seen = await ref.handle.describe()
    for child in seen.raw_description.pending_children:
        if child.workflow_type_name in {Runbook.RESTART, Runbook.FAILOVER, Runbook.TRANSFER}:
            raise CliError(f"{child.workflow_id} is under way already; cancel it first")


async def _freeze(client: Client, cluster: str) -> str:
    """In words, when the fleet or the cluster is frozen; else empty."""
    for scope in (guards.FLEET, cluster):
        held = await guards.current(client, scope)
        if held is not None:
            lift = "runbook unfreeze" if scope == guards.FLEET else f"runbook unfreeze {scope}"
            return f"{scope} is frozen by {held.by}: {held.reason}; it would wait for `{lift}`"
    return ""


def _once_unfrozen(when: str, frozen: str) -> str:
    """What a freeze makes of the moment: the question is asked all the same, the change waits."""
    if not frozen or when in {"", "never"}:
        return when
    return "after the unfreeze" if when == "at once" else f"{when} and the unfreeze"


def _job_plan(
    ref: jobs.JobRef, native: NativeJob, ledger: Ledger, decision: Decision, *, adopted: bool, frozen: str
) -> DryRun:
    notes = []
    if adopted:
        notes.append(f"{ref.job} is not supervised: the order adopts it (held, its script saved), by your word")
    if native.phase.ended:
        notes.append(f"the job has ended ({native.phase})")
    if frozen:
        notes.append(frozen)
    moves = decision.action in MOVES
    return DryRun(
        id=job_workflow_id(ref.job),
        action=decision.action.value,
        why=decision.why,
        mode=decision.mode if moves else "",
        when=_once_unfrozen(when(decision.mode), frozen) if moves else "",
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
    """A node's repair. Raises CliError when one is under way."""
    facts, view = await cluster_of(client, text, policy)
    holders = await read(client, api.READ_HOLDERS, api.OnNode(cluster=facts.cluster, node=facts.node), facts.cluster)
    verdict = ordered_verdict(facts.node, by, reason)
    identity = node_workflow_id(facts.cluster, facts.node)
    if await runs.running(client, identity) is not None:
        raise CliError(f"{identity} is under way already: `runbook describe {text}`")
    frozen = await _freeze(client, facts.cluster)
    return DryRun(
        id=identity,
        action="heal",
        why=verdict.title,
        mode="",
        when=_once_unfrozen("at once", frozen) if frozen else "",
        policy_hash=policy.digest,
        steps=heal_steps(
            facts,
            {(h.name or h.job.native_id): h.name is not None for h in holders.jobs},
            rung=verdict.first_rung,
            modes={step.value: policy.mode(step.value).value for step in Step},
            out=tuple(lease.node for lease in await _leases(client, facts.cluster)),
            limit=policy.nodes_out(len(view.nodes)),
        ),
        notes=(frozen,) if frozen else (),
    )


async def _leases(client: Client, cluster: str) -> tuple[Lease, ...]:
    handle = await runs.running(client, guard_workflow_id(cluster))
    if handle is None:
        return ()
    view, _ = await talk.view_of(handle)
    return view.leases if view is not None else ()
