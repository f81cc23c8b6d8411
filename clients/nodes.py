"""Nodes: evidence about one, its repair, and why we think what we think."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from activities import api, wave_api
from clients import runs, talk
from clients.ask_cluster import read
from clients.errors import CliError, usage
from clients.fleet_file import checked_cluster
from clients.names import node_ref
from clients.shapes import EvidenceSent, Started, Why
from fleet.faults.evidence import Culprit, Evidence, FaultClass, Verdict
from fleet.faults.inputs import read_of_node
from fleet.faults.tables import load_tables
from fleet.faults.texts import Origin, Parsed
from fleet.identity import RUNBOOKS_QUEUE, node_workflow_id, watch_workflow_id
from fleet.model import NodeFacts
from fleet.policy import Policy
from fleet.runbooks import EvidenceBatch, HealInput, HealRequestNote, Runbook, Signal, WatchInput

BATCH = 200
"""Pieces of evidence in one signal: at most 0.5 MB of payload, the server's warning line."""
NAME_WITHIN = 5
"""Words at the beginning of a log's line among which its node's name stands: `Nov 30 12:00:01 NODE kernel:`."""
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
    """Parses it here and hands it to the cluster's watch, which judges and routes it. Raises CliError for nothing.

    `text` is CLUSTER/NODE; CLUSTER alone for a log whose lines name their nodes, such as a central syslog.
    """
    if len(raw) > TEXT_LIMIT:
        raise usage(f"the text has {len(raw)} bytes, at most {TEXT_LIMIT} are read; cut it to the time of the fault")
    if not raw.strip():
        raise usage("the text is empty; nothing was sent")
    cluster, slash, node = text.partition("/")
    if slash:
        facts = await facts_of(client, text, policy)
        told = _parsed(raw, cluster, node, facts.boot if facts.responding else None)
    else:
        cluster = await checked_cluster(client, cluster, policy)
        seen = await read(client, wave_api.READ_NODES, wave_api.NodesIn(cluster=cluster), cluster)
        told = await asyncio.to_thread(_parsed_by_node, raw, cluster, seen)
    if not told.evidence:
        why = "; ".join(f"{count} x {reason}" for reason, count in sorted(told.dropped.items()))
        raise CliError(
            f"{told.lines} lines, none of them is evidence ({why or 'nothing known in them'}); nothing sent"
        )
    await hand_over(client, cluster, told.evidence)
    return EvidenceSent(
        id=watch_workflow_id(cluster),
        cluster=cluster,
        node=node,
        sent=len(told.evidence),
        lines=told.lines,
        dropped=dict(told.dropped),
    )


async def hand_over(client: Client, cluster: str, evidence: Sequence[Evidence]) -> None:
    """Evidence to the cluster's watch, which knows each piece by its key: handing it over again changes nothing.

    Needs Temporal and no worker. The cluster's name must be checked before: an unknown one would get a watch.
    """
    for start in range(0, len(evidence), BATCH):
        await _signal_watch(client, cluster, EvidenceBatch(evidence=tuple(evidence[start : start + BATCH])))


def _parsed(raw: bytes, cluster: str, node: str, boot: str | None) -> Parsed:
    origin = Origin(cluster=cluster, node=node, seen_at=time.time(), boot=boot)
    return read_of_node(raw, origin, load_tables())


def _parsed_by_node(raw: bytes, cluster: str, seen: wave_api.NodesSeen) -> Parsed:
    """Each line belongs to the node that one of its first words names."""
    lines: dict[str, list[bytes]] = {}
    dropped: Counter[str] = Counter()
    all_lines = raw.splitlines()
    for line in all_lines:
        words = line.decode(errors="replace").split(maxsplit=NAME_WITHIN)[:NAME_WITHIN]
        node = next((name for word in words if (name := word.rstrip(":")) in seen.boots), None)
        if node is not None:
            lines.setdefault(node, []).append(line)
        elif line.strip():
            dropped["it names no node of the cluster"] += 1
    silent = frozenset(seen.out)
    evidence: list[Evidence] = []
    for node, own in lines.items():
        parsed = _parsed(b"\n".join(own), cluster, node, None if node in silent else seen.boots[node])
        evidence += parsed.evidence
        dropped.update(parsed.dropped)
    return Parsed(evidence=tuple(evidence), lines=len(all_lines), dropped=dict(dropped))


async def _signal_watch(client: Client, cluster: str, batch: EvidenceBatch) -> None:
    await client.start_workflow(
        Runbook.WATCH,
        WatchInput(cluster=cluster),
        id=watch_workflow_id(cluster),
        task_queue=RUNBOOKS_QUEUE,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        start_signal=Signal.EVIDENCE,
        start_signal_args=[batch],
        search_attributes=talk.search_attributes(cluster=cluster),
        static_summary=f"watch over {cluster}",
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
        strikes=dict(Counter(str(strike.kind) for strike in history.strikes)),
        baselines=history.baselines,
    )
