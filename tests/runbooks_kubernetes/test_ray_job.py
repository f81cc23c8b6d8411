"""A RayJob on the real KubeRay (`make test-kinds`)."""

import pytest

from fleet.model import Phase
from tests.runbooks_kubernetes.kinds import RAY_JOB
from tests.runbooks_kubernetes.stage import Stage
from tests.runbooks_kubernetes.test_kinds import evict, outlives_everything

pytestmark = pytest.mark.kinds
CONTROLLERS = ("kuberay",)


async def test_it_outlives_a_lost_gpu_a_lost_node_an_eviction_and_a_runbook_that_is_cancelled(shared: Stage) -> None:
    await outlives_everything(shared, RAY_JOB, is_mended_by_kuberay)


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
