"""Talking to a runbook: queries, updates and starts, each with a limit and words for what is missing."""

import asyncio
from collections.abc import Awaitable, Mapping
from datetime import timedelta
from typing import TypeVar

from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from clients import embedded
from clients.ask_cluster import missing_worker
from clients.connection import is_embedded
from clients.errors import CliError
from fleet import attributes
from fleet.identity import RUNBOOKS_QUEUE, ui_page
from fleet.model import Value
from fleet.runbooks import NOT_ALLOWED, VIEW, Runbook, Update, View

Answer = TypeVar("Answer", bound=Value)
Result = TypeVar("Result")

UPDATE_LIMIT = 20.0
"""Seconds for an update: a busy worker takes tens of milliseconds, verifying a signature less than a second."""
QUERY_LIMIT = timedelta(seconds=5)
"""A query that no worker answers in this time is given up; what the server knows is shown instead."""


class Refused(CliError):  # noqa: N818 - what the runbook said, not a fault of ours
    """The runbook said no, in its own words."""

    not_allowed = False
    """It concerns the person, not what was asked."""


def search_attributes(cluster: str = "", job: str = "", node: str = "") -> TypedSearchAttributes:
    """Filters of a runbook that we start; empty ones are left out."""
    pairs = [
        SearchAttributePair(SearchAttributeKey.for_keyword(key), value)
        for key, value in ((attributes.CLUSTER, cluster), (attributes.JOB, job), (attributes.NODE, node))
        if value
    ]
    return TypedSearchAttributes(
        [*pairs, SearchAttributePair(SearchAttributeKey.for_keyword(attributes.STEP), "new")]
    )


async def view_of(handle: WorkflowHandle[object, object]) -> tuple[View | None, str]:
    """What the runbook shows of itself; None and why when no worker can say."""
    try:
        return await handle.query(VIEW, result_type=View, rpc_timeout=QUERY_LIMIT), ""
    except WorkflowQueryFailedError as error:
        return None, f"the runbook cannot say: {error}"
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise
        return None, f"no worker answers for it ({missing_worker(None)})"


async def update(
    handle: WorkflowHandle[object, object], kind: Update, arg: Value, gives: type[Answer], *, identity: str
) -> Answer:
    """Tells a running runbook something; `identity` makes a repeated call count once. Raises Refused."""
    return await _limited(handle.execute_update(kind, arg, id=identity, result_type=gives), kind)


async def update_with_start(
    client: Client,
    kind: Update,
    arg: Value,
    gives: type[Answer],
    *,
    identity: str,
    runbook: Runbook,
    workflow_id: str,
    start: Value,
    attributes: TypedSearchAttributes,
    summary: str,
    memo: Mapping[str, str] | None = None,
) -> Answer:
    """The same, and starts the runbook first when it does not run. Raises Refused."""
    operation: WithStartWorkflowOperation[object, object] = WithStartWorkflowOperation(
        runbook,
        start,
        id=workflow_id,
        task_queue=RUNBOOKS_QUEUE,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        search_attributes=attributes,
        static_summary=summary[:180],
        memo=memo,
    )
    call = client.execute_update_with_start_workflow(
        kind, arg, start_workflow_operation=operation, id=identity, result_type=gives
    )
    return await _limited(call, kind)


async def _limited(call: Awaitable[Result], kind: Update) -> Result:
    try:
        async with asyncio.timeout(UPDATE_LIMIT):
            return await call
    except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
        raise CliError(
            f"no worker took the {kind} in {UPDATE_LIMIT:.0f} s ({missing_worker(None)}). It may still be taken when "
            "one comes: look with `runbook describe`"
        ) from error
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        refused = Refused(cause.message if isinstance(cause, ApplicationError) else str(cause))
        refused.not_allowed = isinstance(cause, ApplicationError) and cause.type == NOT_ALLOWED
        raise refused from error


def link(client: Client, workflow_id: str) -> str:
    """The runbook's page in the embedded server's UI; empty elsewhere, for nobody knows where that UI is."""
    info = embedded.running()
    if info is None or not is_embedded(client):
        return ""
    return ui_page(info.ui, client.namespace, workflow_id)
