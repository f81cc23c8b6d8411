"""The worker process: wires policy, store, backends and client, and runs activities and runbooks."""

import asyncio
import concurrent.futures
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path

import structlog
from pydantic import ValidationError
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.worker import Interceptor, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.backends.factory import make_backend
from activities.control import ControlActivities
from activities.copies import CopyActivities
from activities.hangs import HangActivities
from activities.jobs import JobActivities
from activities.leases import LeaseActivities
from activities.lemons import LemonControlActivities, LemonNodeActivities
from activities.nodes import NodeActivities
from activities.placing import PlacingActivities
from activities.preflights import PreflightClusterActivities, PreflightControlActivities
from activities.registry import implementations
from activities.runtime import Runtime
from activities.search import typed
from activities.sites import SiteActivities
from activities.store import AsyncHistoryStore, sqlite_url
from activities.transfer import MoveActivities
from activities.watching import WatchActivities
from activities.waves import WaveControlActivities, WaveNodeActivities
from clients.embedded import running
from fleet import attributes
from fleet.identity import RUNBOOKS_QUEUE, cluster_queue, data_queue, guard_workflow_id, watch_workflow_id
from fleet.runbooks import GuardInput, Runbook, WatchInput
from workers.schedules import make_schedules
from workflows.all import ALL
from workflows.base import Abandoned, StepFailed

log = structlog.get_logger()

THROTTLE = timedelta(seconds=2)
"""How late a cancel may reach an activity; Temporal's default is a minute."""
GRACE = timedelta(seconds=5)
"""How long running steps may finish when the worker is asked to stop."""
STOP_LIMIT = 30.0
"""Seconds after which a stopping worker is not waited for any more."""
COPIES = 8
"""Copies at once per site: each hashes and has several files in flight; the rest waits its turn."""
SLOTS = 200
"""Activities at once per queue: they wait for clusters, they do not compute."""

PASS_THROUGH = ("pydantic", "pydantic_core", "fleet", "activities", "structlog", "annotated_types", "yaml")
"""Modules the workflow sandbox does not load again: values and pure functions (checked by tests/workflows)."""


async def open_runtime(client: Client, policy_file: Path, state_dir: Path, *, embedded: bool) -> Runtime:
    """The shared parts of one worker's activities. Raises InvalidInputError for a broken policy."""
    server = running(state_dir) if embedded else None
    return Runtime(
        policy_file=policy_file,
        client=client,
        make_backend=make_backend,
        store=await AsyncHistoryStore.open(store_url(policy_file, state_dir)),
        unsigned_ok=embedded,
        ui=server.ui if server is not None else "",
    )


def store_url(policy_file: Path, state_dir: Path) -> str:
    """The policy's store, a relative file lying beside the policy; else a file in the state folder."""
    from fleet.policy_file import parse_policy

    url = parse_policy(policy_file.read_text(encoding="utf-8"), str(policy_file)).store
    if url is None:
        return sqlite_url(state_dir / "history.sqlite")
    head = "sqlite:///"
    if url.startswith(head) and not url.startswith(head + "/"):
        return sqlite_url(policy_file.parent / url.removeprefix(head))
    return url


def make_workers(
    runtime: Runtime,
    clusters: Sequence[str],
    *,
    runbooks: bool,
    sites: Sequence[str] = (),
    interceptors: Sequence[Interceptor] = (),
) -> list[Worker]:
    """One worker for the runbooks, one per cluster, and one per site whose data it moves."""
    worker = partial(
        Worker,
        runtime.client,
        max_heartbeat_throttle_interval=THROTTLE,
        default_heartbeat_throttle_interval=THROTTLE,
        graceful_shutdown_timeout=GRACE,
        interceptors=interceptors,
    )
    made: list[Worker] = []
    if runbooks:
        made.append(
            worker(
                task_queue=RUNBOOKS_QUEUE,
                workflows=list(ALL),
                activities=[
                    *implementations(ControlActivities(runtime)),
                    *implementations(WaveControlActivities(runtime)),
                    *implementations(LemonControlActivities(runtime)),
                    *implementations(MoveActivities(runtime)),
                    *implementations(LeaseActivities(runtime)),
                    *implementations(PreflightControlActivities(runtime)),
                ],
                workflow_runner=SandboxedWorkflowRunner(
                    restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASS_THROUGH)
                ),
                workflow_failure_exception_types=[StepFailed, Abandoned, ValidationError],
                max_concurrent_activities=SLOTS,
            )
        )
    owners = (
        JobActivities(runtime),
        PlacingActivities(runtime),
        NodeActivities(runtime),
        HangActivities(runtime),
        WatchActivities(runtime),
        WaveNodeActivities(runtime),
        LemonNodeActivities(runtime),
        PreflightClusterActivities(runtime),
    )
    made.extend(
        worker(
            task_queue=cluster_queue(cluster),
            activities=[f for owner in owners for f in implementations(owner)],
            max_concurrent_activities=SLOTS,
        )
        for cluster in clusters
    )
    movers = (CopyActivities(runtime), SiteActivities(runtime))
    made.extend(
        worker(
            task_queue=data_queue(site),
            activities=[f for owner in movers for f in implementations(owner)],
            max_concurrent_activities=COPIES,
        )
        for site in sites
    )
    return made


async def start_watching(client: Client, clusters: Sequence[str]) -> None:
    """Starts the watch and the guards; those that run already go on."""
    for cluster in clusters:
        await client.start_workflow(
            Runbook.WATCH,
            WatchInput(cluster=cluster),
            id=watch_workflow_id(cluster),
            task_queue=RUNBOOKS_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=f"watch over {cluster}",
            search_attributes=typed({attributes.CLUSTER: cluster, attributes.STEP: "starting"}),
        )
    for scope in ("fleet", *clusters):
        await client.start_workflow(
            Runbook.GUARD,
            GuardInput(scope=scope),
            id=guard_workflow_id(scope),
            task_queue=RUNBOOKS_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=f"guard of {scope}",
            search_attributes=typed({attributes.STEP: "starting"}),
        )


async def run_worker(
    runtime: Runtime,
    clusters: Sequence[str],
    *,
    runbooks: bool = True,
    sites: Sequence[str] = (),
    interceptors: Sequence[Interceptor] = (),
    stop: asyncio.Event | None = None,
) -> None:
    """Runs until `stop` is set or SIGTERM or SIGINT comes; running steps get a grace."""
    stop = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(max_workers=64, thread_name_prefix="blocking"))
    workers = make_workers(runtime, clusters, runbooks=runbooks, sites=sites, interceptors=interceptors)
    running = AsyncExitStack()
    try:
        for worker in workers:
            await running.enter_async_context(worker)
        if runbooks:
            await start_watching(runtime.client, clusters)
            await make_schedules(runtime.client, runtime.policy())
        log.info("worker is ready", clusters=list(clusters), runbooks=runbooks)
        await stop.wait()
        log.info("worker stops; running steps may finish")
    finally:
        await _stop(workers, running)
    await runtime.close()


async def _stop(workers: Sequence[Worker], running: AsyncExitStack) -> None:
    """All together: one grace, not one after another. A worker that does not end is left to the process's exit:
    its steps are run again elsewhere after their heartbeat time-out, which is what a crash costs too."""

    async def end() -> None:
        await asyncio.gather(*(worker.shutdown() for worker in workers if worker.is_running))
        await running.aclose()

    ending = asyncio.create_task(end())
    await asyncio.wait({ending}, timeout=STOP_LIMIT)
    if ending.done():
        ending.result()
        return
    log.error("a worker did not stop in time and is left behind", seconds=STOP_LIMIT)
