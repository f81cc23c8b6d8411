"""Private Slurm clusters for the tests that ask for `alpha` or `lab`; a missing lab is a visible skip, or a failure.
These tests mostly wait, so a few of them are played side by side."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.require import missing
from tests.side_by_side import SideBySide, chosen
from tests.slurm.lab import Cluster, cluster, why_not

Opener = Callable[..., AbstractAsyncContextManager[Cluster]]
AT_ONCE = 3
"""Tests at a time."""
HERE = Path(__file__).parent


@pytest.fixture(scope="package")
def lab(request: pytest.FixtureRequest) -> Iterator[SideBySide]:
    """For the test's body it starts clusters."""
    if (why := why_not()) is not None:
        missing("slurm", why)
    playing = SideBySide(
        chosen(request.session, lambda i: i.path.parent == HERE and "lab" in i.fixturenames), _world, AT_ONCE
    )
    yield playing
    playing.close()


@pytest.fixture
def alpha(lab: SideBySide) -> SideBySide:
    """For the test's body it is a fresh cluster of four nodes with a short requeue delay."""
    return lab


@asynccontextmanager
async def _world(item: pytest.Function) -> AsyncIterator[dict[str, Any]]:
    async with AsyncExitStack() as stack:
        alpha = await stack.enter_async_context(cluster("alpha", nodes=4)) if "alpha" in item.fixturenames else None
        yield {"lab": cluster, "alpha": alpha}
