"""A real cluster, a real Temporal server and a worker over both, for each test of this folder."""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clients.embedded import ServerInfo
from tests.kubernetes.lab import cluster, why_not
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
