"""One activity run by itself: how a client reads a cluster (and gives things back) without touching it.

The cluster's worker does the work, so what is missing is usually that worker; the error then names it.
"""

import asyncio
import secrets
from datetime import timedelta
from typing import TypeVar

from temporalio.client import ActivityFailureError, Client
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError, TimeoutType
from temporalio.exceptions import TimeoutError as StepTimeoutError

from activities import api
from activities.api import Activity
from clients.errors import CliError
from fleet.identity import RUNBOOKS_QUEUE, cluster_queue, data_queue
from fleet.model import Value

In = TypeVar("In", bound=Value)
Out = TypeVar("Out", bound=Value)

WORKER_LIMIT = 10.0
"""Seconds until a queue counts as one that nobody polls; a worker takes a task in milliseconds."""
READ_LIMIT = 30.0
"""Seconds that a person waits for one read, retries included."""
_RETRY = RetryPolicy(initial_interval=timedelta(milliseconds=500), maximum_interval=timedelta(seconds=5))


async def read(
    client: Client, spec: Activity[In, Out], arg: In, cluster: str | None = None, *, site: str = ""
) -> Out:
    """Runs `spec` once on the cluster's queue, on the site's, or on `runbooks` without one.

    A mutating step may take its whole budget, a read 30 s. Raises CliError that names the missing worker, or holds
    the activity's own words.
    """
    queue = data_queue(site) if site else cluster_queue(cluster) if cluster else RUNBOOKS_QUEUE
    limit = spec.budget if spec.mutates or spec.budget > timedelta(seconds=600) else timedelta(seconds=READ_LIMIT)
    try:
        result: Out = await client.execute_activity(
            spec.name,
            arg,
            id=f"cli/{spec.name}/{secrets.token_hex(8)}",
            task_queue=queue,
            result_type=spec.gives,
            start_to_close_timeout=min(spec.start_to_close, limit),
            schedule_to_close_timeout=limit + timedelta(seconds=WORKER_LIMIT),
            schedule_to_start_timeout=timedelta(seconds=WORKER_LIMIT),
            heartbeat_timeout=api.HEARTBEAT,
            retry_policy=_RETRY,
            summary="asked by runbook",
        )
    except ActivityFailureError as error:
        raise CliError(_why(spec.name, error.cause, cluster, site)) from error
    return result


async def read_each(
    client: Client, spec: Activity[In, Out], args: dict[str, In]
) -> tuple[dict[str, Out], dict[str, str]]:
    """The same on several clusters at once; a cluster that cannot be asked does not hide the others' answers."""
    names = list(args)
    found = await asyncio.gather(*(read(client, spec, args[n], n) for n in names), return_exceptions=True)
    answers: dict[str, Out] = {}
    failed: dict[str, str] = {}
    for cluster, answer in zip(names, found, strict=True):
        if isinstance(answer, CliError):
            failed[cluster] = str(answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            answers[cluster] = answer
    return answers, failed


def missing_worker(cluster: str | None, site: str = "") -> str:
    """What to say when nobody polls a queue."""
    queue = data_queue(site) if site else cluster_queue(cluster) if cluster else RUNBOOKS_QUEUE
    option = f" --data {site}" if site else f" --cluster {cluster}" if cluster else ""
    return f"no worker polls {queue}: start `runbook worker{option}`"


def _why(step: str, cause: BaseException | None, cluster: str | None, site: str) -> str:
    if isinstance(cause, StepTimeoutError):
        if cause.type is TimeoutType.SCHEDULE_TO_START:
            return missing_worker(cluster, site)
        if not isinstance(cause.cause, ApplicationError):
            return f"{step.replace('_', ' ')} did not end in time; {cluster or site or 'its worker'} may be down"
        cause = cause.cause
    if isinstance(cause, ApplicationError):
        return cause.message.removeprefix(f"{step}: ")
    return f"{step.replace('_', ' ')} failed: {cause}"
