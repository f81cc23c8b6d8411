"""`make test-kinds`: the same on the controllers that are not in every run."""

import pytest

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
