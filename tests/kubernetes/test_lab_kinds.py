"""The lab's other controllers (`make test-kinds`): a job of each kind trains, stops, goes on, also in a queue."""

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.kubernetes import kinds
from tests.kubernetes.lab import Cluster
from tests.slurm.waiting import until

pytestmark = [pytest.mark.kubernetes, pytest.mark.kinds]
CONTROLLERS = ("jobset", "kueue", "training-operator", "trainer", "kuberay")
JOB = "train"


@dataclass(frozen=True)
class Kind:
    """How a person handles a kind of job."""

    name: str
    make: Callable[[Cluster, str], Any]
    pods: str
    """Label of its pods; of a RayJob's the operator's, for its cluster has a new name each time."""

    def suspended(self, yes: bool) -> str:
        """A merge patch."""
        wish = {"suspend": yes}
        return json.dumps({"spec": {"runPolicy": wish} if self.name == "pytorchjob" else wish})


KINDS = (
    Kind("pytorchjob", kinds.pytorch_job, f"training.kubeflow.org/job-name={JOB}"),
    Kind("trainjob", kinds.train_job, f"jobset.sigs.k8s.io/jobset-name={JOB}"),
    Kind("rayjob", kinds.ray_job, "app.kubernetes.io/created-by=kuberay-operator"),
)
every = pytest.mark.parametrize("kind", KINDS, ids=[k.name for k in KINDS])


async def create(cluster: Cluster, kind: Kind, **labels: str) -> None:
    made = kind.make(cluster, JOB)
    objects = made if isinstance(made, list) else [made]
    objects[-1]["metadata"]["labels"] = labels
    await cluster.apply(*objects)


async def delete(cluster: Cluster, kind: Kind) -> None:
    await cluster.kubectl("delete", kind.name, JOB, "--cascade=foreground")
    await kinds.is_gone(cluster, JOB, kind.pods)
    await asyncio.to_thread(shutil.rmtree, cluster.checkpoints(JOB))


@every
async def test_a_job_trains_stops_when_suspended_goes_on_and_is_deleted(gamma: Cluster, kind: Kind) -> None:
    await create(gamma, kind)
    await kinds.runs(gamma, JOB)
    await gamma.kubectl("patch", kind.name, JOB, "--type=merge", "-p", kind.suspended(True))
    await kinds.is_gone(gamma, JOB, kind.pods)
    await gamma.kubectl("patch", kind.name, JOB, "--type=merge", "-p", kind.suspended(False))
    await kinds.runs(gamma, JOB)
    await delete(gamma, kind)


@every
async def test_a_job_in_a_queue_is_let_in_stopped_and_let_go_on_by_its_workload(gamma: Cluster, kind: Kind) -> None:
    await gamma.apply(*kinds.queue())
    await create(gamma, kind, **kinds.QUEUED)
    await kinds.runs(gamma, JOB)
    (workload,) = (await gamma.get("workloads.kueue.x-k8s.io"))["items"]
    name = workload["metadata"]["name"]
    assert (workload["metadata"]["ownerReferences"][0]["kind"].lower(), name[: len(kind.name)]) == (kind.name,) * 2
    await gamma.kubectl("patch", "workload", name, "--type=merge", "-p", '{"spec":{"active":false}}')
    await kinds.is_gone(gamma, JOB, kind.pods)
    await gamma.kubectl("patch", "workload", name, "--type=merge", "-p", '{"spec":{"active":true}}')
    await kinds.runs(gamma, JOB)
    await delete(gamma, kind)
    await until(lambda: gamma.get("workloads.kueue.x-k8s.io"), lambda found: not found["items"])


async def test_a_rayjob_ends_as_its_entrypoint_does(gamma: Cluster) -> None:
    job = kinds.ray_job(gamma, JOB)
    job["spec"]["entrypoint"] = job["spec"]["entrypoint"].replace("--steps 100000", "--steps 40")
    worker = job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]
    worker["args"] = ["40" if word == "100000" else word for word in worker["args"]]
    await gamma.apply(job)
    await until(lambda: gamma.get("rayjob", JOB), lambda j: j.get("status", {}).get("jobStatus") == "SUCCEEDED", 60)
    await gamma.kubectl("delete", "rayjob", JOB)
    await kinds.is_gone(gamma, JOB, KINDS[-1].pods)
    await asyncio.to_thread(shutil.rmtree, gamma.checkpoints(JOB))
