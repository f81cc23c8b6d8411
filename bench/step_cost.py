"""What one step costs: the bare call, the same call as a step of a runbook, and as one on an untuned server."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.runtime import Runtime
from bench.stand import end, free_port, until
from bench.steps import Steps, StepsInput
from clients.connection import connect
from fleet.errors import TemporaryError
from fleet.identity import RUNBOOKS_QUEUE
from fleet.model import Value
from workers.server import temporal_binary
from workers.worker import PASS_THROUGH, SLOTS, THROTTLE, make_workers, open_runtime

WARM = 5
"""Steps thrown away: imports, caches and connections."""


class StepTimes(Value):
    """Milliseconds of each step, by the server's clock in the history."""

    whole: tuple[float, ...]
    """From being scheduled until the next step is scheduled (or the runbook ends)."""
    wait: tuple[float, ...]
    """Until a worker has it."""
    work: tuple[float, ...]
    """Until the server has its result."""
    decide: tuple[float, ...]
    """Until the workflow has gone on."""


@asynccontextmanager
async def worker_for(client: Client, fleet: Path, folder: Path, cluster: str) -> AsyncIterator[Runtime]:
    """The product's worker of one cluster, and one with the same settings for this bench's runbook."""
    runtime = await open_runtime(client, fleet, folder, embedded=True)
    runbooks = Worker(
        client,
        task_queue=RUNBOOKS_QUEUE,
        workflows=[Steps],
        workflow_runner=SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASS_THROUGH)
        ),
        max_concurrent_activities=SLOTS,
        max_heartbeat_throttle_interval=THROTTLE,
        default_heartbeat_throttle_interval=THROTTLE,
    )
    (cluster_worker,) = make_workers(runtime, [cluster], runbooks=False)
    try:
        async with runbooks, cluster_worker:
            yield runtime
    finally:
        await runtime.close()


@asynccontextmanager
async def untuned_server(folder: Path) -> AsyncIterator[Client]:
    """The same program with a file and Temporal's own settings. Raises TemporaryError when it does not start."""
    port = free_port()
    words = (
        "server",
        "start-dev",
        "--headless",
        "--port",
        str(port),
        "--db-filename",
        str(folder / "untuned.sqlite"),
    )
    process = await asyncio.create_subprocess_exec(
        *(str(temporal_binary()), *words, "--log-level", "never"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield await _first_answer(f"127.0.0.1:{port}")
    finally:
        await end(process)


async def _first_answer(address: str) -> Client:
    found: list[Client] = []

    async def answers() -> bool:
        with contextlib.suppress(TemporaryError):
            found.append(await connect(address, "default"))
        return bool(found)

    await until(answers, 30, f"the untuned server at {address} to answer")
    return found[0]


async def bare_calls(runtime: Runtime, inp: StepsInput) -> tuple[float, ...]:
    """Milliseconds of each call of the backend, without Temporal."""
    backend = runtime.backend(inp.cluster)
    spent = []
    for _ in range(WARM + inp.count):
        start = time.perf_counter()
        await backend.job(inp.native_id)
        spent.append((time.perf_counter() - start) * 1000)
    return tuple(spent[WARM:])


async def steps(client: Client, inp: StepsInput) -> StepTimes:
    """The same calls, one after the other, as steps of one runbook."""
    more = inp.model_copy(update={"count": inp.count + WARM})
    handle = await client.start_workflow(Steps.run, more, id=f"bench/{uuid.uuid4()}", task_queue=RUNBOOKS_QUEUE)
    await handle.result()
    kinds = {
        EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: "scheduled",
        EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED: "started",
        EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: "completed",
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: "ended",
    }
    at: dict[str, list[float]] = {name: [] for name in kinds.values()}
    for event in (await handle.fetch_history()).events:
        if event.event_type in kinds:
            at[kinds[event.event_type]].append(event.event_time.ToNanoseconds() / 1e6)
    following = at["scheduled"][1:] + at["ended"]
    return StepTimes(
        whole=_between(at["scheduled"], following),
        wait=_between(at["scheduled"], at["started"]),
        work=_between(at["started"], at["completed"]),
        decide=_between(at["completed"], following),
    )


async def runbooks_per_second(client: Client, inp: StepsInput, count: int, at_once: int) -> float:
    """`count` runbooks of one step each, `at_once` open at any time."""
    places = asyncio.Semaphore(at_once)
    one = inp.model_copy(update={"count": 1})

    async def run() -> None:
        async with places:
            await client.execute_workflow(Steps.run, one, id=f"bench/{uuid.uuid4()}", task_queue=RUNBOOKS_QUEUE)

    start = time.perf_counter()
    await asyncio.gather(*(run() for _ in range(count)))
    return count / (time.perf_counter() - start)


def _between(before: list[float], after: list[float]) -> tuple[float, ...]:
    return tuple(b - a for a, b in zip(before, after, strict=True))[WARM:]
