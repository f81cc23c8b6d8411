"""Nodes: evidence about one, its repair, and why we think what we think."""

import time
from collections.abc import Sequence

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from activities import api
from clients import runs, talk
from clients.ask_cluster import read
from clients.errors import CliError, usage
from clients.fleet_file import checked_cluster
from clients.names import node_ref
from clients.shapes import EvidenceSent, Started, Why
from fleet.faults.evidence import Culprit, FaultClass, Verdict
from fleet.faults.parse import parse_any
from fleet.identity import RUNBOOKS_QUEUE, node_workflow_id, watch_workflow_id
from fleet.model import NodeFacts, NodeRef
from fleet.policy import Policy
from fleet.runbooks import EvidenceBatch, HealInput, HealRequestNote, Runbook, Signal, WatchInput

BATCH = 200
"""Pieces of evidence in one signal: at most 0.5 MB of payload, the server's warning line."""
TEXT_LIMIT = 64 * 1024 * 1024
"""Bytes read of one text; a day of a busy node's kernel log is a tenth of it."""


async def facts_of(client: Client, text: str, policy: Policy | None) -> NodeFacts:
    """The node, live. Raises CliError (usage) with the known names for an unknown cluster or node."""
    facts, _ = await cluster_of(client, text, policy)
    return facts


async def cluster_of(client: Client, text: str, policy: Policy | None) -> tuple[NodeFacts, api.ClusterView]:
    """The node and its whole cluster, live."""
    ref = node_ref(text)
    cluster = await checked_cluster(client, ref.cluster, policy)
    view = await read(client, api.READ_CLUSTER, api.PolicyIn(cluster=cluster), cluster)
    return _node_in(view, cluster, ref.node), view


async def check_nodes(client: Client, cluster: str, nodes: Sequence[str]) -> None:
    """Raises CliError (usage) with the known names for one that the cluster does not have."""
    if nodes:
        view = await read(client, api.READ_CLUSTER, api.PolicyIn(cluster=cluster), cluster)
        for node in nodes:
            _node_in(view, cluster, node)


def _node_in(view: api.ClusterView, cluster: str, node: str) -> NodeFacts:
    for facts in view.nodes:
        if facts.node == node:
            return facts
    known = sorted(f.node for f in view.nodes)
    shown = ", ".join(known[:30]) + (f" and {len(known) - 30} more" if len(known) > 30 else "")
    raise usage(f"no node {node!r} in {cluster}; known: {shown or 'none'}")


# -- evidence


async def send_evidence(client: Client, text: str, raw: bytes, policy: Policy | None) -> EvidenceSent:
    """Parses it here and hands it to the cluster's watch, which judges and routes it. Raises CliError for nothing."""
    ref = node_ref(text)
    if len(raw) > TEXT_LIMIT:
        raise usage(f"the text has {len(raw)} bytes, at most {TEXT_LIMIT} are read; cut it to the time of the fault")
    if not raw.strip():
        raise usage("the text is empty; nothing was sent")
    facts = await facts_of(client, text, policy)
    parsed = parse_any(
        raw, cluster=ref.cluster, node=ref.node, seen_at=time.time(), boot=facts.boot if facts.responding else None
    )
    dropped = dict(parsed.dropped)
    if not parsed.evidence:
        why = "; ".join(f"{count} x {reason}" for reason, count in sorted(dropped.items()))
        raise CliError(
            f"{parsed.lines} lines, none of them is evidence ({why or 'nothing known in them'}); nothing sent"
        )
    for start in range(0, len(parsed.evidence), BATCH):
        await _signal_watch(client, ref, EvidenceBatch(evidence=parsed.evidence[start : start + BATCH]))
    return EvidenceSent(
        id=watch_workflow_id(ref.cluster),
        cluster=ref.cluster,
        node=ref.node,
        sent=len(parsed.evidence),
        lines=parsed.lines,
        dropped=dropped,
    )


async def _signal_watch(client: Client, ref: NodeRef, batch: EvidenceBatch) -> None:
    await client.start_workflow(
        Runbook.WATCH,
        WatchInput(cluster=ref.cluster),
        id=watch_workflow_id(ref.cluster),
        task_queue=RUNBOOKS_QUEUE,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        start_signal=Signal.EVIDENCE,
        start_signal_args=[batch],
        search_attributes=talk.search_attributes(cluster=ref.cluster),
        static_summary=f"watch over {ref.cluster}",
    )


# -- repair


def ordered_verdict(node: str, by: str, reason: str) -> Verdict:
    """A person's order to repair a node counts as a hardware verdict; modes and limits still hold."""
    return Verdict(
        fault=FaultClass.HARDWARE,
        culprit=Culprit(node=node),
        rule="order",
        title=f"{by} ordered it: {reason}",
        confidence=1.0,
    )


async def heal(client: Client, text: str, by: str, reason: str, policy: Policy | None) -> Started:
    """Starts the node's repair. Raises CliError with the id of the one under way."""
    facts = await facts_of(client, text, policy)
    identity = node_workflow_id(facts.cluster, facts.node)
    request = HealRequestNote(verdict=ordered_verdict(facts.node, by, reason), by=by)
    try:
        await client.start_workflow(
            Runbook.HEAL,
            HealInput(cluster=facts.cluster, node=facts.node, request=request),
            id=identity,
            task_queue=RUNBOOKS_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            search_attributes=talk.search_attributes(cluster=facts.cluster, node=facts.node),
            static_summary=f"{text}: {reason}"[:180],
        )
    except WorkflowAlreadyStartedError as error:
        raise CliError(f"{identity} is under way already: `runbook describe {text}`") from error
    return Started(id=identity, state="started", text=f"repair of {text} started", ui=talk.link(client, identity))


# -- why


async def why(client: Client, text: str, policy: Policy | None) -> Why:
    """The verdict on a node: its runbook's, else the one that the store remembers, with the evidence on record.

    Raises CliError (usage) for a node of which nothing is known and that the cluster does not have.
    """
    ref = node_ref(text)
    await checked_cluster(client, ref.cluster, policy)
    found = await runs.find(client, node_workflow_id(ref.cluster, ref.node))
    view = (await talk.view_of(found.handle))[0] if found is not None else None
    history = await read(client, api.READ_HISTORY, api.Subject(cluster=ref.cluster, node=ref.node))
    live = view is not None and view.verdict is not None
    verdict = view.verdict if view is not None and view.verdict is not None else history.verdict
    if found is None and verdict is None and not history.evidence:
        await facts_of(client, text, policy)
    over = found is not None and found.row.status != "running"
    return Why(
        cluster=ref.cluster,
        node=ref.node,
        source="runbook" if live else "store" if verdict or history.evidence else "nothing",
        step=view.step if view is not None else "",
        result=(await runs.ended(found)).result if found is not None and over else "",
        ended_at=found.row.ended_at if found is not None else None,
        verdict=verdict,
        evidence=history.evidence,
    )
