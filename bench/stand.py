"""Where a bench runs: an embedded server of its own in a folder of its own, and the product's own worker process."""

import asyncio
import contextlib
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from clients.connection import connect
from fleet.errors import TemporaryError
from fleet.identity import watch_workflow_id
from fleet.runbooks import VIEW, View
from workers.server import ensure_server, stop_server

REPOSITORY = Path(__file__).resolve().parents[1]
WORKER = "from workers.main import main; main()"
"""`runbook`, by the Python that runs the bench."""
WORKER_STARTS = 60.0
"""Seconds; it takes about 2 s on an idle machine."""


@dataclass(frozen=True)
class Stand:
    """A server, a client, and the processes whose memory and processor time may be read."""

    folder: Path
    client: Client
    server_pid: int

    async def view(self, workflow_id: str) -> View | None:
        """The runbook's own view; None while there is none."""
        try:
            seen: View = await self.client.get_workflow_handle(workflow_id).query(VIEW, result_type=View)
        except RPCError as error:
            if error.status in {RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION}:
                return None
            raise
        return seen

    @asynccontextmanager
    async def worker(self, fleet: Path, *clusters: str) -> AsyncIterator[int]:
        """`runbook worker` for these clusters in a process of its own; gives its pid once their watches run."""
        log = self.folder / "worker.log"
        with log.open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", WORKER, "worker", "--fleet", str(fleet), "--state", str(self.folder)),
                *(word for cluster in clusters for word in ("--cluster", cluster)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=REPOSITORY,
                env={k: v for k, v in os.environ.items() if not k.startswith("TEMPORAL_")},
            )
        try:
            for cluster in clusters:
                await self._watching(process, cluster)
            yield process.pid
        finally:
            await end(process)

    async def _watching(self, process: asyncio.subprocess.Process, cluster: str) -> None:
        async def seen() -> bool:
            return process.returncode is not None or await self.view(watch_workflow_id(cluster)) is not None

        try:
            await until(seen, WORKER_STARTS, f"the watch over {cluster} to run")
        except TemporaryError as error:
            raise TemporaryError(f"{error}; the worker's last words: {self._last_words()}") from error
        if process.returncode is not None:
            raise TemporaryError(f"the worker ended with {process.returncode}: {self._last_words()}")

    def _last_words(self) -> str:
        return (self.folder / "worker.log").read_text(errors="replace")[-1500:]


@asynccontextmanager
async def stand() -> AsyncIterator[Stand]:
    """Starts a server in a new folder with a short path; both are gone afterwards."""
    folder = new_folder()
    try:
        info = await asyncio.to_thread(ensure_server, folder)
        client = await connect(info.address, "default")
        yield Stand(folder=folder, client=client, server_pid=info.pid)
    finally:
        await asyncio.to_thread(stop_server, folder)
        shutil.rmtree(folder, ignore_errors=True)


def new_folder() -> Path:
    """Short, and open to every user: munge wants both for the sockets of a lab below it."""
    folder = Path(tempfile.mkdtemp(prefix="grb"))
    folder.chmod(0o755)
    return folder


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def end(process: asyncio.subprocess.Process) -> None:
    """SIGTERM, and SIGKILL where that does not end it in 15 s."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(15):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def until(look: Callable[[], Awaitable[bool]], seconds: float, what: str, every: float = 0.2) -> None:
    """Looks until it is true. Raises TemporaryError that names what did not happen in `seconds`."""
    deadline = time.monotonic() + seconds
    while not await look():
        if time.monotonic() > deadline:
            raise TemporaryError(f"waited {seconds:.0f} s in vain for {what}")
        await asyncio.sleep(every)


def say(text: str) -> None:
    """How far a bench is, for the person who waits: the figures alone go to standard output."""
    print(text, file=sys.stderr, flush=True)
