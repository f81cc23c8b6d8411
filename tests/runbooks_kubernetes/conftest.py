"""A real cluster, a real Temporal server and a worker over both, for each test of this folder."""

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from clients.embedded import ServerInfo
from tests.kubernetes import kinds
from tests.kubernetes.lab import Cluster, cluster, why_not, why_not_controllers
from tests.require import missing
from tests.runbooks_kubernetes.stage import Stage

_numbers = itertools.count(1)
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.kubernetes)


def numbered() -> str:
    """Name of a Temporal namespace that no test had before."""
    return f"kubernetes-{next(_numbers)}"


@pytest.fixture
async def stage(temporal_server: ServerInfo, tmp_path: Path) -> AsyncIterator[Stage]:
    """Three nodes with 8 GPUs each; nothing of it is left afterwards."""
    if (why := why_not()) is not None:
        missing("kubernetes", why)
    async with cluster("gamma", nodes=3) as lab:
        made = await Stage.open(temporal_server.address, tmp_path, numbered(), lab)
        try:
            await made.start_worker()
            yield made
        finally:
            await made.close()


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Four nodes with 8 GPUs each and the module's `CONTROLLERS`, for the module; with Kueue a queue of all GPUs."""
    controllers = request.module.CONTROLLERS
    if (why := why_not() or why_not_controllers(*controllers)) is not None:
        missing("kubernetes", why)
    with asyncio.Runner() as runner:
        opened = cluster("gamma", nodes=4, controllers=controllers)
        made = runner.run(opened.__aenter__())
        try:
            if "kueue" in controllers:
                runner.run(made.apply(*kinds.queue(32)))
            yield made
        finally:
            runner.run(opened.__aexit__(None, None, None))


@pytest.fixture
async def shared(temporal_server: ServerInfo, tmp_path: Path, lab: Cluster) -> AsyncIterator[Stage]:
    """A stage on the module's cluster; no job of it is left there."""
    made = await Stage.open(temporal_server.address, tmp_path, numbered(), lab)
    try:
        await made.start_worker()
        yield made
    finally:
        await made.close()
        served = set((await lab.kubectl("api-resources", "-o", "name")).split())
        names = [n for n in served if n.partition(".")[0] in kinds.NAMES]
        await lab.kubectl("delete", ",".join(names), "--all", "--cascade=foreground", "--timeout=60s")
        for folder in lab.work.iterdir():
            shutil.rmtree(folder, ignore_errors=True)
