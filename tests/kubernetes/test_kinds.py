"""The adapter with JobSet and Kueue on their real controllers, beyond what every backend must do (tests/contract)."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from activities.backends.kubernetes import marks
from activities.backends.kubernetes.backend import KubernetesBackend
from activities.backends.kubernetes.kinds.base import gates_of
from activities.backends.kubernetes.settings import KubernetesSettings
from fleet.errors import RefusedError
from fleet.identity import TOKEN_PREFIX
from fleet.model import NativeJob, Phase
from fleet.orders import StartOrder, StopQuery
from tests.kubernetes import kinds
from tests.kubernetes.accounts import kubeconfig_of
from tests.kubernetes.lab import NODE_GRACE, Cluster
from tests.slurm.waiting import until

pytestmark = pytest.mark.kubernetes
CONTROLLERS = ("jobset", "kueue")
KUEUE = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
QUEUED = ("job", "jobset")


@pytest.fixture
async def backend(gamma: Cluster) -> AsyncIterator[KubernetesBackend]:
    """Our eyes and hands on the cluster; its jobs and queues are gone afterwards."""
    settings = KubernetesSettings(
        kubeconfig=str(await kubeconfig_of(gamma, "repair")), node_down_after=NODE_GRACE + 2, settle=2.0
    )
    made = KubernetesBackend(gamma.name, settings)
    watching = asyncio.create_task(watch(made))
    try:
        await until(made.capacity, lambda c: len(c.free_nodes) == 2, 120)
        yield made
        await made.give_back_all()
        await gamma.kubectl("delete", "jobs,jobsets", "--all", "--wait=false")
        for kind in ("localqueue", "clusterqueue", "resourceflavor", "workloadpriorityclass"):
            await gamma.kubectl("delete", kind, "--all", "--wait=false")
        for folder in gamma.work.iterdir():
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await made.close()


async def watch(backend: KubernetesBackend) -> None:
    """A worker's watch, which places the pods that come later than a start."""
    async for _ in backend.watch():
        pass


def manifest(gamma: Cluster, word: str, name: str, **how: Any) -> dict[str, Any]:
    """A job that asks for supervision."""
    made = gamma.training_job(name, **how) if word == "job" else kinds.jobset(gamma, name, **how)
    made["metadata"]["labels"] = {f"{TOKEN_PREFIX}supervise": "true"}
    return made


async def trains(backend: KubernetesBackend, native_id: str, restarts: int) -> NativeJob:
    await until(lambda: backend.progress(native_id, restarts), lambda p: p.step is not None, 120)
    return await until(lambda: backend.job(native_id), lambda j: j.phase is Phase.RUNNING, 60)


async def stopped(backend: KubernetesBackend, job: NativeJob) -> None:
    """Stops it and waits for the receipts."""
    boots = {node: (await backend.node(node)).boot for node in job.nodes}
    asked = StopQuery(native_id=job.native_id, restarts=job.restarts, boots=boots, ordered=True, since=time.time())
    await backend.stop(job.native_id, job.restarts)
    await until(lambda: backend.job(job.native_id), lambda j: j.phase is Phase.PENDING and j.held, 60)
    await until(lambda: backend.prove_stopped(asked), lambda p: not p.unproven, 30)


@pytest.mark.parametrize("word", QUEUED)
async def test_a_preemption_is_no_failure_and_keeps_the_number_that_its_ranks_see(
    gamma: Cluster, backend: KubernetesBackend, word: str
) -> None:
    flavor, queue, way = kinds.queue()
    queue["spec"]["preemption"] = {"withinClusterQueue": "LowerPriority"}
    urgent = {**KUEUE, "kind": "WorkloadPriorityClass", "metadata": {"name": "urgent"}, "value": 1000}
    job = manifest(gamma, word, "llm")
    job["metadata"]["labels"] |= kinds.QUEUED
    await gamma.apply(flavor, queue, way, urgent, job)
    native_id = f"{word}/default/llm"
    await trains(backend, native_id, 0)
    await stopped(backend, (await backend.adopt(native_id)).job)
    await backend.start_attempt(StartOrder(native_id=native_id, restarts=1))
    await trains(backend, native_id, 1)
    await backend.settle_attempt(native_id)

    rival = gamma.training_job("rival")
    rival["metadata"]["labels"] = {**kinds.QUEUED, "kueue.x-k8s.io/priority-class": "urgent"}
    await gamma.apply(rival)
    await kinds.runs(gamma, "rival")
    waits = await backend.job(native_id)
    assert (waits.phase, waits.held, waits.restarts) == (Phase.PENDING, False, 1)
    assert "in queue training" in waits.reason
    assert await gamma.ranks_alive("llm") == 0

    await gamma.kubectl("delete", "job", "rival")
    await kinds.runs(gamma, "llm")
    again = await until(lambda: backend.job(native_id), lambda j: j.phase is Phase.RUNNING, 60)
    assert (again.restarts, again.held) == (1, True)
    pods = [p for p in (await gamma.get("pods"))["items"] if "llm" in p["metadata"]["name"]]
    running = [p for p in pods if p["status"]["phase"] == "Running"]
    assert {p["metadata"]["annotations"][marks.GENERATION] for p in running} == {"1"}


@pytest.mark.parametrize("queued", [False, True])
async def test_a_jobset_that_is_kept_away_from_a_node_is_placed_by_a_gate_which_goes_when_it_is_given_back(
    gamma: Cluster, backend: KubernetesBackend, queued: bool
) -> None:
    made = manifest(gamma, "jobset", "llm", nodes=1)
    if queued:
        await gamma.apply(*kinds.queue())
        made["metadata"]["labels"] |= kinds.QUEUED
    await gamma.apply(made)
    job = await trains(backend, "jobset/default/llm", 0)
    await stopped(backend, (await backend.adopt(job.native_id)).job)
    await backend.start_attempt(StartOrder(native_id=job.native_id, restarts=1, exclude=job.nodes))
    moved = await trains(backend, job.native_id, 1)
    assert not set(moved.nodes) & set(job.nodes)
    assert moved.excluded == job.nodes
    (inner,) = (await gamma.get("jobs"))["items"]
    assert gates_of(inner["spec"]["template"]) == [marks.GATE]

    await stopped(backend, (await backend.settle_attempt(job.native_id)))
    await backend.give_back(job.native_id)
    await trains(backend, job.native_id, 2)
    (inner,) = (await gamma.get("jobs"))["items"]
    assert gates_of(inner["spec"]["template"]) == []
    for template in (await gamma.get("jobset", "llm"))["spec"]["replicatedJobs"]:
        assert gates_of(template["template"]["spec"]["template"]) == []


async def test_a_jobset_that_would_run_again_by_itself_is_refused_and_left_as_it_is(
    gamma: Cluster, backend: KubernetesBackend
) -> None:
    loose = manifest(gamma, "jobset", "loose", nodes=1)
    loose["spec"]["failurePolicy"] = {"maxRestarts": 3}
    await gamma.apply(loose)
    before = await gamma.get("jobset", "loose")
    with pytest.raises(RefusedError, match=r"set spec\.failurePolicy\.maxRestarts: 0 \(is 3\)"):
        await backend.adopt("jobset/default/loose")
    after = await gamma.get("jobset", "loose")
    assert after["spec"] == before["spec"]
    assert not [key for key in after["metadata"].get("annotations", {}) if key.startswith(TOKEN_PREFIX)]
