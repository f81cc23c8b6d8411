"""Runbooks as they are listed, found, followed and cancelled."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError, RPCStatusCode

from clients.ask_cluster import missing_worker
from clients.errors import CliError, usage
from clients.names import literal, workflow_id
from clients.shapes import Ended, RunRow
from clients.talk import view_of
from fleet import attributes
from fleet.runbooks import Runbook, View

KINDS = {
    "job": Runbook.SUPERVISE,
    "place": Runbook.PLACE,
    "restart": Runbook.RESTART,
    "failover": Runbook.FAILOVER,
    "transfer": Runbook.TRANSFER,
    "node": Runbook.HEAL,
    "ask": Runbook.ASK,
    "watch": Runbook.WATCH,
    "guard": Runbook.GUARD,
    "lemons": Runbook.LEMONS,
    "lease": Runbook.LEASE,
    "preflight": Runbook.PREFLIGHT,
    "replicas": Runbook.REPLICATE,
}
"""Words of `runbook list --kind`."""
FOLLOW_EVERY = 1.0
"""Seconds between two looks of `watch` and `--wait`; each is one query."""

Handle = WorkflowHandle[object, object]


class Found(NamedTuple):
    """A runbook that Temporal knows."""

    handle: Handle
    row: RunRow


def query_text(
    *,
    kinds: Sequence[Runbook] = tuple(Runbook),
    closed: bool = False,
    needs_human: bool = False,
    cluster: str | None = None,
    under: str | None = None,
) -> str:
    """The visibility query of a list. `under` is a workflow id; its children are meant."""
    parts = [f"WorkflowType IN ({', '.join(literal(k) for k in kinds)})"]
    if not closed:
        parts.append("ExecutionStatus = 'Running'")
    if needs_human:
        parts.append(f"{attributes.NEEDS_HUMAN} = true")
    if cluster is not None:
        parts.append(f"{attributes.CLUSTER} = {literal(cluster)}")
    if under is not None:
        parts.append(f"WorkflowId STARTS_WITH {literal(under + '/')}")
    return " AND ".join(parts)


async def list_runs(client: Client, query: str, limit: int = 200) -> list[RunRow]:
    """Newest first, at most `limit`."""
    rows = [row_of(run) async for run in client.list_workflows(query, limit=limit)]
    return sorted(rows, key=lambda row: row.started_at, reverse=True)


def row_of(run: WorkflowExecution) -> RunRow:
    """What Temporal itself knows of a runbook; needs no worker."""
    kinds = {runbook.value: kind for kind, runbook in KINDS.items()}
    status = run.status or WorkflowExecutionStatus.RUNNING

    def word(key: str) -> str:
        return run.typed_search_attributes.get(SearchAttributeKey.for_keyword(key)) or ""

    running = status is WorkflowExecutionStatus.RUNNING
    needs = run.typed_search_attributes.get(SearchAttributeKey.for_bool(attributes.NEEDS_HUMAN)) or False
    return RunRow(
        id=run.id,
        kind=kinds.get(run.workflow_type, run.workflow_type),
        status={"canceled": "cancelled"}.get(status.name.lower(), status.name.lower()),
        cluster=word(attributes.CLUSTER),
        job=word(attributes.JOB),
        node=word(attributes.NODE),
        step=word(attributes.STEP),
        fault=word(attributes.FAULT),
        needs_human=needs and running,
        started_at=run.start_time.timestamp(),
        ended_at=run.close_time.timestamp() if run.close_time else None,
    )


async def find(client: Client, identity: str) -> Found | None:
    """The newest run of a workflow id; None when Temporal does not know it."""
    handle: Handle = client.get_workflow_handle(identity)
    try:
        return Found(handle, row_of(await handle.describe()))
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise


async def running(client: Client, identity: str) -> Handle | None:
    """The handle while it runs."""
    found = await find(client, identity)
    return found.handle if found is not None and found.row.status == "running" else None


async def needed(client: Client, subject: str) -> Found:
    """The runbook that a person means. Raises CliError (usage) with those that there are."""
    identity = workflow_id(subject)
    found = await find(client, identity)
    if found is not None:
        return found
    kind = Runbook.HEAL if identity.startswith("node/") else Runbook.SUPERVISE
    known = [row.id.partition("/")[2] for row in await list_runs(client, query_text(kinds=[kind]), 10)]
    raise usage(
        f"no runbook {identity}; under way: {', '.join(known) or 'none of its kind'}. "
        "`runbook list --all` shows the ended ones"
    )


class Unattended(CliError):  # noqa: N818 - a state, in the words of the person who waits
    """It was asked to end, and nobody is there to do it."""

    def __init__(self, identity: str) -> None:
        super().__init__("asked to end; takes effect when a worker comes (`runbook worker`)")
        self.identity = identity


class StillRunning(CliError):  # noqa: N818 - a state, in the words of the person who waits
    """It was asked to end and has not, yet."""


# -- following and ending


class Seen(NamedTuple):
    """One look at a runbook that is followed."""

    row: RunRow
    view: View | None
    note: str


async def follow(client: Client, identity: str) -> AsyncIterator[Seen]:
    """Looks again and again; the last one is of the ended runbook. A worker that is away does not end it."""
    while True:
        found = await find(client, identity)
        if found is None:
            raise usage(f"no runbook {identity}")
        view, note = await view_of(found.handle)
        yield Seen(found.row, view, note)
        if found.row.status != "running":
            return
        await asyncio.sleep(FOLLOW_EVERY)


async def ended(found: Found) -> Ended:
    """How an ended runbook ended, in its own words."""
    row = found.row
    if row.status != "completed":
        view, _ = await view_of(found.handle)
        said = view.story[-1] if view is not None and view.story else ""
        return Ended(id=row.id, status=row.status, ok=False, result=said)
    try:
        result = await found.handle.result()
    except WorkflowFailureError as error:  # closed anew between our two looks
        return Ended(id=row.id, status="failed", ok=False, result=str(error.cause))
    text, ok = _judged(result)
    return Ended(id=row.id, status=row.status, ok=ok, result=text)


def _judged(result: object) -> tuple[str, bool]:
    """The result in words, and whether the runbook reached what it was for: an `Ending`, a `RecoveryResult` or the
    `Outcome` of a question, which any answer settles."""
    if not isinstance(result, dict):
        return "" if result is None else str(result), True
    text = str(result.get("text") or result.get("choice") or "")
    return text, bool(result.get("ok", result.get("ended", "training") in {"training", "job_ended"}))


async def wait_closed(client: Client, identity: str, limit: float) -> Found:
    """Waits until it has ended, at most `limit` seconds. Raises CliError when it goes on."""
    try:
        async with asyncio.timeout(limit):
            while True:
                found = await find(client, identity)
                if found is None or found.row.status != "running":
                    break
                await asyncio.sleep(0.1)
    except TimeoutError as error:
        raise StillRunning(
            f"{identity} was asked to end and has not in {limit:.0f} s; it ends when the step it is at notices "
            f"(`runbook watch {identity}`)"
        ) from error
    if found is None:
        raise usage(f"no runbook {identity}")
    return found


async def cancel(client: Client, subject: str, reason: str, limit: float) -> Ended:
    """Cancels and waits for the described, safe state.

    Raises CliError when it has ended already, Unattended when it was asked and no worker answers for it.
    """
    found = await needed(client, subject)
    if found.row.status != "running":
        raise CliError(f"{found.row.id} has ended already ({found.row.status}); there is nothing to cancel")
    await found.handle.cancel(reason=reason)
    _, note = await view_of(found.handle)
    if missing_worker(None) in note:
        raise Unattended(found.row.id)
    return await ended(await wait_closed(client, found.row.id, limit))
