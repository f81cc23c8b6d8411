"""Stories that are over or still going on: reports, what the store remembers, the job's own output."""

import time

from pydantic import ValidationError
from temporalio.client import Client

from activities import api
from clients import jobs, nodes, preflights, runs, talk
from clients.ask_cluster import read
from clients.errors import CliError, usage
from clients.names import subject_of, workflow_id
from clients.shapes import Description, LogLines, Remembered
from fleet.identity import job_workflow_id
from fleet.policy import Policy
from fleet.preflight import Readiness
from fleet.report import Report, job_report


async def reports(
    client: Client, subject: str | None, kind: str | None, limit: int, policy: Policy | None
) -> list[Report]:
    """Of one subject, or the newest of all; oldest first. A job under way gives its report as of now.

    Raises CliError (usage) for a subject that nobody knows.
    """
    live: list[Report] = []
    query = api.Subject(limit=limit)
    if subject is not None:
        identity = workflow_id(subject)
        query = _query(identity, limit)
        live = await _live(client, identity) if kind in {None, "job"} else []
    try:
        history = await read(client, api.READ_HISTORY, query)
    except CliError:
        if not live:
            raise
        return live  # the store is away; what Temporal knows is better than nothing
    stored = [r for r in (_report(s) for s in history.reports) if r is not None]
    if subject is not None and not (stored or live):
        await _known(client, subject, policy)
    wanted = [r for r in stored if kind is None or r.kind == kind]
    return sorted([*(r for r in wanted if not (live and r.kind == "job")), *live], key=lambda r: r.made_at)


async def _known(client: Client, subject: str, policy: Policy | None) -> None:
    """Raises CliError (usage) for a job or a node that neither Temporal nor a cluster knows."""
    identity = workflow_id(subject)
    if await runs.find(client, identity) is not None:
        return
    job, node = subject_of(identity)
    if node is not None:
        await nodes.facts_of(client, f"{node.cluster}/{node.node}", policy)
    elif job is not None:
        await jobs.find_job(client, job, policy)


async def _live(client: Client, identity: str) -> list[Report]:
    found = await runs.find(client, identity)
    if found is None or found.row.status != "running":
        return []
    view, _ = await talk.view_of(found.handle)
    if view is None or view.ledger is None:
        return []
    return [job_report(view.ledger, time.time(), view.story)]


def _report(stored: api.StoredReport) -> Report | None:
    try:
        found = Report.model_validate_json(stored.report)
    except ValidationError:
        return None
    return found.model_copy(update={"kind": stored.kind})


def _query(identity: str, limit: int = 50) -> api.Subject:
    job, node = subject_of(identity)
    if job is not None:
        return api.Subject(job=job, limit=limit)
    if node is not None:
        return api.Subject(cluster=node.cluster, node=node.node, limit=limit)
    raise usage(f"{identity} has no history of its own; give a job or CLUSTER/NODE")


async def describe(client: Client, subject: str) -> Description:
    """A runbook's page, running or ended; else what the store remembers of its subject. Raises CliError (usage)."""
    identity = workflow_id(subject)
    found = await runs.find(client, identity)
    if found is not None:
        view, note = await talk.view_of(found.handle)
        remembered = await _remembered(client, identity) if view is None else None
        return Description(
            run=found.row,
            view=view,
            note=note,
            ui=talk.link(client, identity),
            remembered=remembered,
            readiness=await _readiness(client, identity),
        )
    remembered = await _remembered(client, identity)
    if remembered is None or remembered == Remembered():
        await runs.needed(client, subject)  # raises with what there is
    return Description(run=None, note=f"Temporal knows no runbook {identity} (any more)", remembered=remembered)


async def _readiness(client: Client, identity: str) -> Readiness | None:
    """Of a job's own runbook, not of its children."""
    job, _ = subject_of(identity)
    return await preflights.of_job(client, job) if job is not None and identity == job_workflow_id(job) else None


async def _remembered(client: Client, identity: str) -> Remembered | None:
    if subject_of(identity) == (None, None):
        return None
    try:
        history = await read(client, api.READ_HISTORY, _query(identity))
    except CliError:
        return None
    return Remembered(
        evidence=history.evidence, verdict=history.verdict, reports=tuple(r.kind for r in history.reports)
    )


async def logs(client: Client, text: str, policy: Policy | None) -> LogLines:
    """The last lines of the job's own output."""
    ref = await jobs.find_job(client, text, policy)
    native, _ = await jobs.native_of(client, ref)
    tail = await read(
        client, api.READ_LOG, api.OnJob(cluster=native.cluster, native_id=native.native_id), native.cluster
    )
    return LogLines(job=ref.job, cluster=native.cluster, native_id=native.native_id, lines=tail.lines)
