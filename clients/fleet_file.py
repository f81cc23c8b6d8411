"""The policy file as a client needs it, and which clusters there are."""

import os
from pathlib import Path

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

from clients import embedded
from clients.errors import usage
from clients.names import name
from fleet.identity import cluster_queue
from fleet.policy import Policy
from fleet.policy_file import parse_policy
from fleet.runbooks import Runbook

FLEET_VARIABLE = "GPU_RUNBOOKS_FLEET"
FILE = "fleet.yaml"


def find_file(given: str | Path | None = None) -> Path | None:
    """`--fleet`, else $GPU_RUNBOOKS_FLEET, else ./fleet.yaml, else fleet.yaml of the state folder; None when none is.

    Raises CliError (usage) when a named file does not exist: a typo must not fall back to another fleet.
    """
    for source, named in (("--fleet", given), (FLEET_VARIABLE, os.environ.get(FLEET_VARIABLE))):
        if named:
            if not Path(named).is_file():
                raise usage(f"{named} (from {source}) is no file; give your fleet.yaml")
            return Path(named)
    return next((path for path in (Path(FILE), embedded.home() / FILE) if path.is_file()), None)


def policy(given: str | Path | None = None) -> Policy | None:
    """The policy, or None when there is no file. Raises InvalidInputError with file, line and what is allowed."""
    path = find_file(given)
    return None if path is None else _parsed(path)


def needed_policy(given: str | Path | None = None) -> Policy:
    """The policy. Raises CliError (usage) when there is no file."""
    found = policy(given)
    if found is None:
        raise usage(f"this needs the policy file: give --fleet FILE or {FLEET_VARIABLE}, or run it beside fleet.yaml")
    return found


def _parsed(path: Path) -> Policy:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise usage(f"{path} cannot be read: {error}") from error
    return parse_policy(text, str(path))


async def known_clusters(client: Client, found: Policy | None) -> tuple[str, ...]:
    """Those of the policy, else those that a `WatchCluster` runs for."""
    if found is not None:
        return tuple(sorted(found.clusters))
    query = f"WorkflowType = '{Runbook.WATCH.value}' AND ExecutionStatus = 'Running'"
    return tuple(sorted([run.id.removeprefix("watch/") async for run in client.list_workflows(query)]))


async def checked_cluster(client: Client, text: str, found: Policy | None) -> str:
    """The cluster's name. Raises CliError (usage) with the known ones when no policy, watch or worker knows it."""
    cluster = name(text, "cluster")
    known = await known_clusters(client, found)
    if cluster in known or (found is None and await _is_polled(client, cluster_queue(cluster))):
        return cluster
    raise usage(
        f"no cluster {cluster!r}; known: {', '.join(known) or 'none (no worker runs and no fleet.yaml is here)'}"
    )


async def _is_polled(client: Client, queue: str) -> bool:
    """Somebody polled it within the last five minutes (the server's memory)."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
    )
    return bool((await client.workflow_service.describe_task_queue(request)).pollers)
