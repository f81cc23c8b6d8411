"""What surrounds a case: its own Temporal server and workers, which somebody starts again whenever they die."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from clients.connection import connect_to, find_target
from clients.embedded import is_alive, read_state
from fleet.errors import FleetError
from fleet.runbooks import VIEW, View
from tests.conftest import FAST_VALUES
from tests.crash.boundary import FREEZES, Case, Fault
from tests.crash.nursery import Nursery, lives
from tests.crash.worker_main import MARKER
from workers.server import ensure_server, stop_server

T = TypeVar("T")
QUERY = timedelta(seconds=10)
"""For one query; a server that dies takes its answer along."""
SLOW = "[TMPRL1101]"
"""The SDK's words for a workflow task that did not yield for 2 s."""
FREEZE = 8.0
"""Seconds that a frozen worker stays so: longer than the heartbeat timeout of 6 s, so that its step is done twice."""


class Crew:
    """The server and the workers of one folder."""

    def __init__(self, folder: Path, case: Case, nursery: Nursery) -> None:
        self.folder = folder
        self.case = case
        self.nursery = nursery
        self.workers: list[int] = []
        self.client: Client
        self.started = {"server": 0, "worker": 0}
        self.over = asyncio.Event()
        """Set when the recovery is over: a worker that slept wakes."""

    # -- keeping alive

    async def start(self) -> None:
        """Server, then worker (two where one will be frozen)."""
        (self.folder / "case.json").write_text(self.case.model_dump_json())
        await self._start_server()
        self.workers = [self._start_worker() for _ in range(2 if self.case.fault in FREEZES else 1)]
        self.client = await connect_to(find_target(state_dir=self.folder))

    async def _start_server(self) -> None:
        await asyncio.to_thread(ensure_server, self.folder, values=FAST_VALUES)
        self.started["server"] += 1

    def _start_worker(self) -> int:
        self.started["worker"] += 1
        return self.nursery.start_worker(self.folder)

    async def keep_alive(self) -> None:
        """As systemd would: whatever died is started again at once."""
        while True:
            info = read_state(self.folder)
            if info is None or not is_alive(info):
                with contextlib.suppress(FleetError):  # it may be killed again before it answers
                    await self._start_server()
            self.workers = [pid if lives(pid) else self._start_worker() for pid in self.workers]
            await asyncio.sleep(0.05)

    async def thaw(self) -> None:
        """Lets the frozen worker go on: after a while, or when the recovery is over."""
        if self.case.fault not in FREEZES:
            return
        pid = await self.until(lambda: asyncio.to_thread(self.hit), "the boundary")
        if self.case.fault is Fault.WORKER_FROZEN:
            await asyncio.sleep(FREEZE)  # the fault itself
        else:
            await self.over.wait()
        os.kill(pid, signal.SIGCONT)

    def hit(self) -> int:
        """Pid of the worker that met the boundary; 0 while none did."""
        marker = self.folder / MARKER
        return int(marker.read_text() or 0) if marker.exists() else 0

    async def recovery_is_over(self) -> None:
        """From here on a sleeping worker may wake; returns when the one that was frozen has ended its late step."""
        self.over.set()
        if self.case.fault in FREEZES:
            late = (self.folder / MARKER).with_suffix(".over")
            await self.until(lambda: asyncio.to_thread(late.exists), "the late step of the frozen worker")

    def end(self) -> None:
        """Nothing is left behind."""
        for pid in self.workers:
            if lives(pid):
                os.kill(pid, signal.SIGKILL)
        if (info := read_state(self.folder)) is not None and is_alive(info):
            os.kill(info.pid, signal.SIGKILL)
        stop_server(self.folder)

    # -- looking

    async def view(self, workflow_id: str) -> View | None:
        """A runbook's view; None while it, its worker or the server is not there."""
        with contextlib.suppress(RPCError):
            handle = self.client.get_workflow_handle(workflow_id)
            seen: View = await handle.query(VIEW, result_type=View, rpc_timeout=QUERY)
            return seen
        return None

    async def is_over(self, workflow_id: str) -> bool:
        """Whether the runbook was there and has ended."""
        with contextlib.suppress(RPCError):
            seen = await self.client.get_workflow_handle(workflow_id).describe()
            return seen.status is not WorkflowExecutionStatus.RUNNING
        return False

    async def until(self, look: Callable[[], Awaitable[T | None]], what: str, seconds: float = 180.0) -> T:
        """Looks until there is something. Raises AssertionError that says what never came."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = await look()
            if found:
                return found
            await asyncio.sleep(0.15)
        raise AssertionError(f"{what} was not seen in {seconds:.0f} s; see {self.folder}")

    async def steps_of(self, workflow_id: str) -> tuple[str, ...]:
        """The activities that the runbook scheduled, in order."""
        history = await self.client.get_workflow_handle(workflow_id).fetch_history()
        return tuple(
            e.activity_task_scheduled_event_attributes.activity_type.name
            for e in history.events
            if e.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
        )

    async def failed_tasks(self) -> tuple[str, ...]:
        """Workflow tasks that failed in any runbook: bugs, or commands that do not fit their history. No bug are a
        message that came while a task was about to close its runbook, and a task that took over 2 s: it was frozen,
        or the machine is overloaded."""
        found = []
        async for execution in self.client.list_workflows():
            history = await self.client.get_workflow_handle(execution.id, run_id=execution.run_id).fetch_history()
            for event in history.events:
                if event.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
                    continue
                told = event.workflow_task_failed_event_attributes
                closing = told.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND
                if not closing and SLOW not in told.failure.message:
                    found.append(f"{execution.id}: {told.failure.message}")
        return tuple(found)

    async def runbooks(self) -> dict[str, str]:
        """Every runbook of the case and how it stands."""
        return {w.id: w.status.name if w.status else "" async for w in self.client.list_workflows()}


@contextlib.asynccontextmanager
async def crew(folder: Path, case: Case, nursery: Nursery) -> AsyncIterator[Crew]:
    """A crew at work, gone afterwards."""
    made = Crew(folder, case, nursery)
    keeping: list[asyncio.Task[None]] = []
    try:
        await made.start()
        keeping = [asyncio.create_task(made.keep_alive()), asyncio.create_task(made.thaw())]
        yield made
    finally:
        for task in keeping:
            task.cancel()
        ended = await asyncio.gather(*keeping, return_exceptions=True)
        await asyncio.to_thread(made.end)
    broken = [e for e in ended if isinstance(e, Exception)]
    if broken:
        raise broken[0]
