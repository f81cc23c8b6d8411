"""Plays the selected scenarios of this folder side by side; each test waits for its own."""

import itertools
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

import workers.worker
import workflows.attempts
import workflows.base
import workflows.evacuation
import workflows.fencing
from clients.embedded import ServerInfo
from tests.require import missing
from tests.runbooks_slurm.scenario import Setup, telling
from tests.runbooks_slurm.stage import Stage
from tests.side_by_side import SideBySide, chosen
from tests.slurm.lab import QUICK, cluster, why_not

LANES = 3
"""Scenarios at a time: two cores are then busy most of the time and no wait is longer than it would be alone."""
DEFAULT_REQUEUE = 120
"""Slurm's default cred_expire, seconds: its own requeue would wait one second more."""
SHORT_WAITS = (
    (workflows.fencing, "PROVE_PATIENCE", 2.0),
    (workflows.fencing, "FENCE_WAITS", (1.0, 2.0)),
    (workflows.evacuation, "LEASE_WAITS", (1.0, 2.0)),
    (workflows.evacuation, "HOLDER_WAITS", (0.5, 1.0)),
    (workflows.base, "ASK_BRIEFLY", timedelta(seconds=4)),
    (workflows.attempts, "LOOK_EVERY", timedelta(seconds=10)),
    (workflows.attempts, "STALL_LEAST", 5.0),
    (workflows.attempts, "LOOK_BRIEFLY", timedelta(seconds=3)),
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
def stage(request: pytest.FixtureRequest, temporal_server: ServerInfo) -> Iterator[SideBySide]:
    """The selected scenarios of this folder, under way."""
    if (why := why_not()) is not None:
        missing("slurm", why)

    @asynccontextmanager
    async def world(item: pytest.Function) -> AsyncIterator[dict[str, Stage]]:
        async with open_stage(item.obj.setup, temporal_server.address) as made, telling(made):
            yield {"stage": made}

    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in SHORT_WAITS:
            assert type(getattr(module, name)) is type(value), name
            patch.setattr(module, name, value)
        playing = SideBySide(chosen(request.session, lambda i: hasattr(i.obj, "setup")), world, LANES)
        yield playing
        playing.close()


@asynccontextmanager
async def open_stage(setup: Setup, address: str) -> AsyncIterator[Stage]:
    """Fresh clusters with Slurm's default requeue delay, and a worker over them."""
    words = [*QUICK, *(word for line in setup.lab for word in ("-o", line))]
    with tempfile.TemporaryDirectory(prefix="runbooks-slurm-") as folder:
        async with AsyncExitStack() as stack:
            opened = [
                cluster(c, nodes=setup.nodes, requeue=DEFAULT_REQUEUE, words=tuple(words)) for c in setup.clusters
            ]
            labs = [await stack.enter_async_context(one) for one in opened]
            stage = await Stage.open(address, Path(folder), f"slurm-{next(_numbers)}", labs)
            stack.push_async_callback(stage.close)
            stage.write_policy(
                power=setup.power, modes=setup.modes, limits=setup.limits, ours=setup.ours, sites=setup.sites
            )
            await stage.start_worker(sites=setup.sites)
            yield stage
