"""A private Slurm cluster for the tests that are marked `slurm`; a missing lab is a visible skip, or a failure."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from tests.slurm.lab import Cluster, cluster, why_not

Opener = Callable[..., AbstractAsyncContextManager[Cluster]]


@pytest.fixture(scope="session")
def lab() -> Opener:
    """Starts clusters; skips where the lab cannot run, fails where `GPU_RUNBOOKS_REQUIRE` names slurm."""
    why = why_not()
    if why is not None:
        if "slurm" in os.environ.get("GPU_RUNBOOKS_REQUIRE", "").replace(",", " ").split():
            pytest.fail(f"slurm is required (GPU_RUNBOOKS_REQUIRE): {why}")
        pytest.skip(why)
    return cluster


@pytest.fixture
async def alpha(lab: Opener) -> AsyncIterator[Cluster]:
    """A fresh cluster of four nodes with a short requeue delay."""
    async with lab("alpha", nodes=4) as made:
        yield made
