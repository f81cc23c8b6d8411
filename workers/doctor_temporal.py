"""What the Temporal server must have: our namespace and search attributes, workers on every queue, running guards."""

import time
from collections.abc import Awaitable, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

from temporalio.api.enums.v1 import IndexedValueType, TaskQueueType, WorkerVersioningMode
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    GetSystemInfoRequest,
)
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from clients import guards
from clients.ask_cluster import missing_worker
from clients.connection import Target
from fleet.attributes import ATTRIBUTES
from fleet.errors import TemporaryError
from fleet.identity import RUNBOOKS_QUEUE, cluster_queue, guard_workflow_id, watch_workflow_id
from workers.doctor_checks import Area, Check

T = TypeVar("T")
ANSWER_LIMIT = timedelta(seconds=5)
"""One call; a server that is up answers in milliseconds."""
POLL_FRESH = 75.0
"""Seconds: a worker that lives begins a poll of its queue at least once a minute (Temporal's long poll)."""
_KINDS = {
    "workflows": TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    "activities": TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
}
_temporal = Area("temporal")


async def look_at_temporal(
    client: Client, target: Target, clusters: Sequence[str], *, approvers: int | None, fix: bool
) -> tuple[Check, ...]:
    """Everything, in the order in which one would mend it. `approvers`: how many fleet.yaml lists."""
    steps = [
        ("server", lambda: server(client, target)),
        ("answers", lambda: _now(answers(target.embedded, approvers))),
        ("namespace", lambda: namespace(client)),
        ("search attributes", lambda: search_attributes(client, fix=fix)),
        ("workers", lambda: workers(client, clusters)),
        ("runbooks", lambda: runbooks(client, clusters)),
        ("freeze", lambda: freezes(client, clusters)),
    ]
    found: list[Check] = []
    for name, look in steps:
        found += await _temporal.tried(name, lambda look=look: _worded(look()))  # type: ignore[misc]
    return tuple(found)


async def _now(value: T) -> T:
    return value


async def _worded(call: Awaitable[T]) -> T:
    """Temporal's own errors as ours, so that one check that cannot be made does not hide the others."""
    try:
        return await call
    except RPCError as error:
        raise TemporaryError(f"the server refused to say: {error.message}") from error


async def server(client: Client, target: Target) -> Check:
    info = await client.workflow_service.get_system_info(GetSystemInfoRequest(), timeout=ANSWER_LIMIT)
    kind = "embedded, for one person" if target.embedded else "yours"
    return _temporal.ok("server", f"{info.server_version} at {target.address} (from {target.source}), {kind}")


def answers(embedded: bool, approvers: int | None) -> Check:
    """Whose answers to questions count, said loudly when anybody's do."""
    if approvers:
        return _temporal.ok("answers", f"only signed ones of the {approvers} approvers of fleet.yaml count")
    if embedded:
        return _temporal.warn(
            "answers",
            "UNSIGNED ANSWERS COUNT: whoever has an account on this machine can approve anything",
            "list approvers in fleet.yaml before this is more than a lab",
        )
    return _temporal.warn(
        "answers",
        "nobody can approve: this is not the embedded server, only signed answers count, and no approver is listed",
        "list approvers with their SSH keys in fleet.yaml",
    )


async def namespace(client: Client) -> Check:
    try:
        seen = await client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=client.namespace), timeout=ANSWER_LIMIT
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return _temporal.fail(
            "namespace",
            f"{client.namespace} does not exist",
            f"temporal operator namespace create --namespace {client.namespace}, or give --namespace",
        )
    days = seen.config.workflow_execution_retention_ttl.ToTimedelta() / timedelta(days=1)
    return _temporal.ok(
        "namespace", f"{client.namespace}, ended runbooks are kept {days:g} days (the store: for ever)"
    )


async def search_attributes(client: Client, *, fix: bool) -> Check:
    request = ListSearchAttributesRequest(namespace=client.namespace)
    seen = (await client.operator_service.list_search_attributes(request, timeout=ANSWER_LIMIT)).custom_attributes
    missing = {name: kind for name, kind in ATTRIBUTES.items() if name not in seen}
    if not missing:
        return _temporal.ok("search attributes", f"all {len(ATTRIBUTES)} are registered")
    if fix:
        await register(client, missing)
        return _temporal.ok("search attributes", f"registered now: {', '.join(missing)}")
    return _temporal.fail(
        "search attributes", f"not registered: {', '.join(missing)}; no runbook can start", "runbook doctor --fix"
    )


async def register(client: Client, attributes: Mapping[str, str]) -> None:
    """Registers them in the client's namespace; needs the server's operator rights."""
    kinds = {
        "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
        "Bool": IndexedValueType.INDEXED_VALUE_TYPE_BOOL,
    }
    await client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(
            namespace=client.namespace, search_attributes={name: kinds[kind] for name, kind in attributes.items()}
        ),
        timeout=ANSWER_LIMIT,
    )


# -- workers


async def workers(client: Client, clusters: Sequence[str]) -> tuple[Check, ...]:
    """Who polls each queue, and whether a versioned worker gets any work."""
    found = []
    for queue, kinds, cluster in (
        (RUNBOOKS_QUEUE, ("workflows", "activities"), None),
        *((cluster_queue(name), ("activities",), name) for name in clusters),
    ):
        seen = {kind: await _describe(client, queue, kind) for kind in kinds}
        found.append(polled(queue, cluster, seen, time.time()))
        found += [check for answer in seen.values() if (check := versioned(queue, answer)) is not None][:1]
    return tuple(found)


def polled(queue: str, cluster: str | None, seen: Mapping[str, DescribeTaskQueueResponse], now: float) -> Check:
    """The server remembers pollers for five minutes; only one that polled within the last minute lives."""
    name = f"worker of {queue}"
    lost = []
    for kind, answer in seen.items():
        ages = [now - poller.last_access_time.ToMilliseconds() / 1000 for poller in answer.pollers]
        if not ages or min(ages) > POLL_FRESH:
            lost.append(
                f"nobody polls {queue} for {kind}" + (f" ({min(ages):.0f} s ago was the last)" if ages else "")
            )
    if lost:
        return _temporal.fail(name, "; ".join(lost), missing_worker(cluster).partition(": ")[2])
    who = sorted({poller.identity for answer in seen.values() for poller in answer.pollers})
    return _temporal.ok(name, f"polled by {', '.join(who)}")


def versioned(queue: str, answer: DescribeTaskQueueResponse) -> Check | None:
    """A version gets no work until it is set current; None where worker versioning is not used."""
    options = [poller.deployment_options for poller in answer.pollers]
    mode = WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
    versions = {option.build_id for option in options if option.worker_versioning_mode == mode}
    if not versions:
        return None
    current = answer.versioning_info.current_deployment_version
    shown = f"{current.deployment_name}:{current.build_id}" if current.build_id else "none"
    if current.build_id in versions:
        return _temporal.ok(f"version on {queue}", f"current is {shown}")
    return _temporal.fail(
        f"version on {queue}",
        f"workers of build {', '.join(sorted(versions))} poll, current is {shown}: they get no new work",
        "temporal worker deployment set-current-version",
    )


async def _describe(client: Client, queue: str, kind: str) -> DescribeTaskQueueResponse:
    request = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=_KINDS[kind]
    )
    return await client.workflow_service.describe_task_queue(request, timeout=ANSWER_LIMIT)


# -- runbooks that always run


async def runbooks(client: Client, clusters: Sequence[str]) -> tuple[Check, ...]:
    """The watches and the guards. A worker starts them; one that ended was ended by somebody."""
    ids = [*(watch_workflow_id(name) for name in clusters), *map(guard_workflow_id, ("fleet", *clusters))]
    return tuple([await _runs(client, workflow_id) for workflow_id in ids])


async def _runs(client: Client, workflow_id: str) -> Check:
    seen = await described(client, workflow_id)
    if seen is None or seen.status is not WorkflowExecutionStatus.RUNNING:
        state = "was never started" if seen is None or seen.status is None else f"is {seen.status.name.lower()}"
        return _temporal.fail(
            workflow_id, f"{workflow_id} {state}", "a worker starts it: `runbook dev` or `runbook worker`"
        )
    troubles = [
        f"{step.activity_type.name} fails, try {step.attempt}: {step.last_failure.message}"
        for step in seen.raw_description.pending_activities
        if step.attempt > 1 and step.last_failure.message
    ]
    if troubles:
        return _temporal.warn(
            workflow_id, "; ".join(troubles)[:500], "it is tried again and again; see its cluster's checks"
        )
    return _temporal.ok(workflow_id, "runs")


async def described(client: Client, workflow_id: str) -> WorkflowExecutionDescription | None:
    """The newest run with this id; None when there is none."""
    try:
        return await client.get_workflow_handle(workflow_id).describe(rpc_timeout=ANSWER_LIMIT)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise


async def freezes(client: Client, clusters: Sequence[str]) -> Check:
    held = {scope: freeze for scope in ("fleet", *clusters) if (freeze := await guards.current(client, scope))}
    if not held:
        return _temporal.ok("freeze", "nothing is frozen")
    said = "; ".join(f"{scope} by {freeze.by}: {freeze.reason}" for scope, freeze in held.items())
    todo = " and ".join(f"runbook unfreeze{'' if s == 'fleet' else ' ' + s} --reason ..." for s in held)
    return _temporal.warn("freeze", f"FROZEN, no runbook changes anything: {said}", f"when it is over: {todo}")
