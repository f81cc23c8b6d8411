"""Plays the selected scenarios of this folder side by side; each test waits for its own."""

import asyncio
import itertools
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

import workers.worker
import workflows.evacuation
import workflows.recovery
from clients.embedded import ServerInfo
from tests.require import missing
from tests.runbooks_slurm.scenario import Setup, play
from tests.runbooks_slurm.stage import Stage
from tests.slurm.lab import cluster, why_not

LANES = 3
"""Scenarios at a time: two cores are then busy most of the time and no wait is longer than it would be alone."""
DEFAULT_REQUEUE = 120
"""Slurm's default cred_expire, seconds: its own requeue would wait one second more."""
QUICK = ("KillWait=2", "SlurmdTimeout=6")
"""The waits of Slurm that a scenario would only sit out."""
SHORT_WAITS = (
    (workflows.recovery, "PROVE_PATIENCE", 2.0),
    (workflows.recovery, "FENCE_WAITS", (1.0, 2.0)),
    (workflows.evacuation, "LEASE_WAITS", (1.0, 2.0)),
    (workflows.evacuation, "HOLDER_WAITS", (0.5, 1.0)),
    (workers.worker, "GRACE", timedelta(seconds=0.1)),
)
"""Waits of ours between two looks; what is looked for stays the same."""
HERE = Path(__file__).parent

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="package")
def playing(request: pytest.FixtureRequest, temporal_server: ServerInfo) -> Iterator[dict[str, "Future[float]"]]:
    """Node id -> the scenario under way; its value is the seconds that it took."""
    if (why := why_not()) is not None:
        missing("slurm", why)

    @asynccontextmanager
    async def stage(setup: Setup) -> AsyncIterator[Stage]:
        async with open_stage(setup, temporal_server.address) as made:
            yield made

    async def run(item: pytest.Function) -> float:
        async with lanes:
            began = time.monotonic()
            callspec = getattr(item, "callspec", None)
            params = dict(callspec.params) if callspec else {}
            await play(item.function.body, item.function.setup, stage, params)
            return time.monotonic() - began

    chosen = [i for i in request.session.items if isinstance(i, pytest.Function) and hasattr(i.function, "body")]
    lanes, loop = asyncio.Semaphore(LANES), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="scenarios")
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in SHORT_WAITS:
            assert type(getattr(module, name)) is type(value), name
            patch.setattr(module, name, value)
        futures = {item.nodeid: asyncio.run_coroutine_threadsafe(run(item), loop) for item in chosen}
        thread.start()
        yield futures
        for future in futures.values():
            future.cancel()
        asyncio.run_coroutine_threadsafe(_others_have_ended(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _others_have_ended() -> None:
    """After a cancel the scenarios take their clusters down."""
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)


@pytest.fixture
def played(request: pytest.FixtureRequest, playing: dict[str, "Future[float]"]) -> Callable[[], None]:
    """Waits for the test's own scenario and raises what it raised."""

    def wait() -> None:
        print(f"{request.node.name}: {playing[request.node.nodeid].result():.1f} s")  # noqa: T201 - shown by -rP

    return wait


@asynccontextmanager
async def open_stage(setup: Setup, address: str) -> AsyncIterator[Stage]:
    """Fresh clusters with Slurm's default requeue delay, and a worker over them."""
    words = [word for line in (*QUICK, *setup.lab) for word in ("-o", line)]
    with tempfile.TemporaryDirectory(prefix="runbooks-slurm-") as folder:
        async with AsyncExitStack() as stack:
            opened = [
                cluster(c, nodes=setup.nodes, requeue=DEFAULT_REQUEUE, words=tuple(words)) for c in setup.clusters
            ]
            labs = [await stack.enter_async_context(one) for one in opened]
            stage = await Stage.open(address, Path(folder), f"slurm-{next(_numbers)}", labs)
            stack.push_async_callback(stage.close)
            stage.write_policy(power=setup.power, modes=setup.modes, limits=setup.limits, ours=setup.ours)
            await stage.start_worker()
            yield stage
