"""`make test-kinds`: the same on the controllers that are not in every run."""

import pytest

from fleet.model import Phase
from tests.runbooks_kubernetes.kinds import PYTORCH_JOB, RAY_JOB, TRAIN_JOB, Kind
from tests.runbooks_kubernetes.stage import Stage
from tests.runbooks_kubernetes.test_kinds import (
    evict,
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
        await (is_mended_by_kuberay if kind is RAY_JOB else is_evicted)(shared, native_id)
        await is_cancelled_half_way(shared, native_id)
    assert {frozenset({number}) for number in range(4)} <= seen
    assert all(len(together) < 2 for together in seen)


async def is_mended_by_kuberay(stage: Stage, native_id: str) -> None:
    """KubeRay makes an evicted pod again within the attempt. The program cannot take a rank back into
    a running attempt (Ray Train can), so a person orders another."""
    before = await stage.backend.job(native_id)
    await stage.held_and_saved(native_id)
    old = {p["metadata"]["uid"] for p in (await stage.lab.get("pods"))["items"]}
    await evict(stage, before.nodes[0])

    async def is_whole_again() -> bool:
        new = {p["metadata"]["uid"] for p in (await stage.lab.get("pods"))["items"]} - old
        return bool(new) and stage.attempts_alive("train") == {2: 2}

    await stage.until(is_whole_again, "KubeRay has made its pod again")
    ordered = await stage.cli("start", "restart", "train", "--reason", "it does not go on")
    assert ordered.code == 0, ordered.err

    async def trains() -> bool:
        job = await stage.backend.job(native_id)
        going = job.phase is Phase.RUNNING and job.restarts == 3
        return going and bool((await stage.backend.progress(native_id, 3)).step)

    await stage.until(trains, "its next attempt trains")
