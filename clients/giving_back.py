"""`runbook release`: gives back holds, marks and reservations of ours. Works under a freeze, except for a node."""

import asyncio

from temporalio.client import Client

from activities import api
from clients import guards, jobs, runs
from clients.ask_cluster import read
from clients.errors import CliError, Exit, usage
from clients.fleet_file import checked_cluster, known_clusters
from clients.names import is_workflow_id
from clients.nodes import facts_of
from clients.shapes import GivenBack
from fleet.identity import job_workflow_id, node_workflow_id
from fleet.model import NativeJob, NodeFacts
from fleet.policy import Policy
from fleet.runbooks import Runbook

CANCEL_LIMIT = 120.0
"""Seconds that a cancelled runbook may take to describe what it leaves."""


async def release(client: Client, text: str, by: str, reason: str, policy: Policy | None) -> GivenBack:
    """A node when the cluster has one of that name, else a job."""
    if "/" not in text or text.startswith("job/"):
        return await release_job(client, text, f"{by}: {reason}", policy)
    if is_workflow_id(text):
        text = text.removeprefix("node/")
    await checked_cluster(client, text.partition("/")[0], policy)
    try:
        return await release_node(client, text, by, reason, policy)
    except CliError as error:
        if error.code is not Exit.USAGE:
            raise
        no_node = error
    try:
        return await release_job(client, text, f"{by}: {reason}", policy)
    except CliError as error:
        if error.code is not Exit.USAGE:
            raise
        raise usage(f"{no_node}; and it is no job of that cluster either") from error


async def release_job(client: Client, text: str, reason: str, policy: Policy | None) -> GivenBack:
    """Ends its supervision and lets the scheduler have it again, held or not."""
    ref = await jobs.find_job(client, text, policy)
    native, _ = await jobs.native_of(client, ref)
    cancelled, said = await _cancel(client, job_workflow_id(ref.job), reason)
    after = await read(
        client, api.GIVE_BACK_JOB, api.OnJob(cluster=ref.cluster, native_id=native.native_id), ref.cluster
    )
    return GivenBack(
        subject=job_workflow_id(ref.job),
        cancelled=cancelled,
        lines=(*said, _job_line(native, after)),
        changed=bool(cancelled) or native.held != after.held,
    )


def _job_line(before: NativeJob, after: NativeJob) -> str:
    name = f"{after.cluster}/{after.native_id} ({after.name})"
    if not before.held and not after.held:
        return f"{name} is {after.phase} and was not held"
    if after.held:
        return f"{name} is {after.phase} and still held: {after.reason or 'by somebody else'}"
    return f"{name} is {after.phase} and no longer held; the scheduler may restart it by itself"


async def release_node(client: Client, text: str, by: str, reason: str, policy: Policy | None) -> GivenBack:
    """Ends its repair and takes our mark away, by this person's word instead of a passed check."""
    facts = await facts_of(client, text, policy)
    identity = node_workflow_id(facts.cluster, facts.node)
    await guards.drop(client, facts.cluster, (facts.node,), by, reason)  # before its runbook: else it is started anew
    cancelled, said = await _cancel(client, identity, reason)
    facts = await read(client, api.READ_NODE, api.OnNode(cluster=facts.cluster, node=facts.node), facts.cluster)
    if facts.op is None:
        whose = f"drained by somebody else ('{facts.reason}')" if facts.foreign_drain else f"{facts.state}"
        line = f"{text} carries no mark of ours; it is {whose} and was left alone"
        return GivenBack(subject=identity, cancelled=cancelled, lines=(*said, line), changed=bool(cancelled))
    after = await read(
        client,
        api.RELEASE_NODE,
        api.OnNode(cluster=facts.cluster, node=facts.node, op=facts.op, text=f"{by}: {reason}"[:120]),
        facts.cluster,
    )
    return GivenBack(
        subject=identity, cancelled=cancelled, lines=(*said, _node_line(text, facts, after)), changed=True
    )


def _node_line(text: str, before: NodeFacts, after: NodeFacts) -> str:
    if after.op is not None:
        return f"{text} still carries our mark gpu-runbooks:{after.op} and is {after.state}"
    return f"{text} is {after.state}; our mark gpu-runbooks:{before.op} is gone, unchecked, by your word"


async def release_all(client: Client, reason: str, policy: Policy | None) -> GivenBack:
    """Ends every wave, then every job's and node's runbook, then gives back all of ours in every known cluster."""
    cancelled: list[str] = []
    lines: list[str] = []
    failed: list[str] = []
    clusters = await known_clusters(client, policy)
    for cluster in clusters:  # first: a wave would start runbooks anew
        try:
            dropped = await guards.drop(client, cluster, (), "release --all", reason)
        except CliError as error:
            failed.append(f"{cluster}: {error}")
        else:
            lines += [f"{cluster}: {dropped.nodes} nodes taken out of its waves"] if dropped.nodes else []
    for kind in (Runbook.SUPERVISE, Runbook.HEAL):  # jobs first: a node's repair waits for them
        rows = await runs.list_runs(client, runs.query_text(kinds=[kind]), 10_000)
        ends = await asyncio.gather(*(_cancel(client, row.id, reason) for row in rows), return_exceptions=True)
        for row, end in zip(rows, ends, strict=True):
            if isinstance(end, CliError):
                failed.append(str(end))
            elif isinstance(end, BaseException):
                raise end
            else:
                cancelled += end[0]
                lines += [f"{row.id}: {line}" for line in end[1]]
    if not clusters:
        raise CliError("no cluster is known, so nothing was given back there: give --fleet FILE or start a worker")
    for cluster in clusters:
        try:
            given = await read(client, api.GIVE_BACK_ALL, api.OnNode(cluster=cluster, node=""), cluster)
        except CliError as error:
            failed.append(f"{cluster}: {error}")
        else:
            lines += [f"{cluster}: {line}" for line in given.lines] or [f"{cluster}: nothing of ours was left"]
    return GivenBack(
        subject="all",
        cancelled=tuple(cancelled),
        lines=tuple(lines),
        failed=tuple(failed),
        changed=bool(cancelled or lines),
    )


async def _cancel(client: Client, identity: str, reason: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Cancels a running runbook and waits for its last words; nothing for one that does not run."""
    handle = await runs.running(client, identity)
    if handle is None:
        return (), ()
    await handle.cancel(reason=reason)
    end = await runs.ended(await runs.wait_closed(client, identity, CANCEL_LIMIT))
    return (identity,), (end.result,) if end.result else ()
