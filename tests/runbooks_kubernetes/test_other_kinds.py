"""`make test-kinds`: the same on the controllers that are not in every run."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from clients.embedded import ServerInfo
from tests.kubernetes.lab import Cluster, cluster, why_not, why_not_controllers
from tests.require import missing
from tests.runbooks_kubernetes.conftest import numbered
from tests.runbooks_kubernetes.kinds import PYTORCH_JOB, RAY_JOB, TRAIN_JOB, Kind
from tests.runbooks_kubernetes.stage import Stage
from tests.runbooks_kubernetes.test_kinds import (
    is_cancelled_half_way,
    is_evicted,
    loses_a_gpu,
    loses_a_node,
)
from tests.runbooks_kubernetes.test_lost_gpu import looking

pytestmark = pytest.mark.kinds
CONTROLLERS = ("jobset", "training-operator", "trainer", "kuberay")
KINDS = (PYTORCH_JOB, TRAIN_JOB, RAY_JOB)


@pytest.fixture(scope="module")
def lab() -> Iterator[Cluster]:
    """Three nodes with 8 GPUs each, and the controllers, for the module."""
    if (why := why_not() or why_not_controllers(*CONTROLLERS)) is not None:
        missing("kubernetes", why)
    with asyncio.Runner() as runner:
        opened = cluster("gamma", nodes=3, controllers=CONTROLLERS)
        made = runner.run(opened.__aenter__())
        try:
            yield made
        finally:
            runner.run(opened.__aexit__(None, None, None))


@pytest.fixture
async def shared(temporal_server: ServerInfo, tmp_path: Path, lab: Cluster) -> AsyncIterator[Stage]:
    """A stage on the module's cluster."""
    made = await Stage.open(temporal_server.address, tmp_path, numbered(), lab)
    try:
        await made.start_worker()
        yield made
    finally:
        await made.close()
        kinds = "pytorchjobs,trainjobs,rayjobs,trainingruntimes"
        await lab.kubectl("delete", kinds, "--all", "--cascade=foreground", "--timeout=60s")
        for folder in lab.work.iterdir():
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
async def test_it_outlives_a_lost_gpu_a_lost_node_an_eviction_and_a_runbook_that_is_cancelled(
    shared: Stage, kind: Kind
) -> None:
    native_id = await shared.apply("train", kind=kind)
    async with looking(shared, "train") as seen:
        await shared.trains("train", 1)
        await shared.held_and_saved(native_id)
        await loses_a_gpu(shared, native_id)
        await loses_a_node(shared, native_id)
        await is_evicted(shared, native_id)
        await is_cancelled_half_way(shared, native_id)
    assert {frozenset({number}) for number in range(4)} <= seen
    assert all(len(together) < 2 for together in seen)
