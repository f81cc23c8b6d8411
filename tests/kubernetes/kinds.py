"""The job of `Cluster.training_job`, two ranks on two nodes, as every other kind; and a Kueue queue for them."""

import asyncio
import copy
import shlex
from typing import Any

from tests.kubernetes.lab import Cluster
from tests.slurm.waiting import until

Raw = dict[str, Any]
NAMES = ("jobs", "jobsets", "pytorchjobs", "trainjobs", "trainingruntimes", "rayjobs")
"""Resources that the jobs below are made of."""
QUEUE = "training"
QUEUED = {"kueue.x-k8s.io/queue-name": QUEUE}
"""Label of a job that waits for its turn in `queue`."""
_RAY = {"ray.io/overwrite-container-cmd": "true"}
"""Annotation without which `ray start` takes the place of the pods' own commands."""


def queue(gpus: int = 16) -> list[Raw]:
    """One ClusterQueue of that many GPUs, all of the cluster's, and the way to it from the default namespace."""
    quota = {"name": "default", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": gpus}]}
    groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": [quota]}]
    api = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    return [
        {**api, "kind": "ResourceFlavor", "metadata": {"name": "default"}},
        {
            **api,
            "kind": "ClusterQueue",
            "metadata": {"name": QUEUE},
            "spec": {"namespaceSelector": {}, "resourceGroups": groups},
        },
        local_queue("default"),
    ]


def local_queue(namespace: str) -> Raw:
    """The way to the queue from a namespace."""
    meta = {"name": QUEUE, "namespace": namespace}
    spec = {"clusterQueue": QUEUE}
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": meta, "spec": spec}


def jobset(cluster: Cluster, name: str, **changes: Any) -> Raw:
    """A JobSet of one Job, whose failure fails it. `changes` go to `Cluster.training_job`."""
    job = {"name": "ranks", "replicas": 1, "template": {"spec": cluster.training_job(name, **changes)["spec"]}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": [job]},
    }


def pytorch_job(cluster: Cluster, name: str, **policy: Any) -> Raw:
    """A PyTorchJob of a master and one worker; the controller gives RANK and WORLD_SIZE. `policy` changes its run
    policy."""
    pod = _pod(cluster, name, "pytorch")
    pod["containers"][0]["env"] = []
    master, worker = (
        {"replicas": 1, "restartPolicy": "Never", "template": {"spec": copy.deepcopy(pod)}} for _ in range(2)
    )
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "Running", **policy},
            "pytorchReplicaSpecs": {"Master": master, "Worker": worker},
        },
    }


def train_job(cluster: Cluster, name: str) -> list[Raw]:
    """A TrainJob and the runtime of its own that describes its pods."""
    job = cluster.training_job(name)["spec"]
    job["template"] = {"metadata": {"annotations": {}}, "spec": _pod(cluster, name, "node")}
    steps = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    template = {"metadata": {"labels": steps}, "spec": job}
    runtime = {
        "mlPolicy": {"numNodes": 2},
        "template": {"spec": {"replicatedJobs": [{"name": "node", "template": template}]}},
    }
    api = {"apiVersion": "trainer.kubeflow.org/v1alpha1"}
    return [
        {**api, "kind": "TrainingRuntime", "metadata": {"name": name}, "spec": runtime},
        {
            **api,
            "kind": "TrainJob",
            "metadata": {"name": name},
            "spec": {"runtimeRef": {"name": name, "kind": "TrainingRuntime"}},
        },
    ]


def ray_job(cluster: Cluster, name: str) -> Raw:
    """A RayJob whose entrypoint is rank 0, in the lab's stand-in for a head, and whose worker is rank 1."""
    pod, worker = _pod(cluster, name, "ray-head"), _pod(cluster, name, "ray-worker")
    head = pod["containers"][0]
    entrypoint = shlex.join([*head["command"], *head["args"]])
    head["command"], head["args"] = ["/usr/bin/python3", "-u", "/training/ray_head.py"], []
    for container, rank in ((head, "0"), (worker["containers"][0], "1")):
        container["env"] = [{"name": "RANK", "value": rank}, {"name": "WORLD_SIZE", "value": "2"}]
        container["ports"] = [{"name": "dashboard", "containerPort": 8265}] if rank == "0" else []
    for spec in (pod, worker):
        del spec["restartPolicy"]
    group = {"groupName": "ranks", "replicas": 1, "minReplicas": 1, "maxReplicas": 1, "rayStartParams": {}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name, "annotations": _RAY},
        "spec": {
            "submissionMode": "HTTPMode",
            "entrypoint": entrypoint,
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": {
                "headGroupSpec": {"rayStartParams": {}, "template": {"spec": pod}},
                "workerGroupSpecs": [{**group, "template": {"spec": worker}}],
            },
        },
    }


def _pod(cluster: Cluster, name: str, container: str) -> Raw:
    """Spec of a rank's pod, with another name for its container."""
    pod: Raw = cluster.training_job(name)["spec"]["template"]["spec"]
    pod["containers"][0]["name"] = container
    return pod


async def runs(cluster: Cluster, name: str) -> None:
    """Waits until both ranks of the job train, counted on the machine."""
    await until(lambda: cluster.ranks_alive(name), lambda alive: alive == 2, 60)
    folder = cluster.checkpoints(name)
    before = len(list(folder.glob("step_*/COMPLETE")))
    await until(lambda: asyncio.to_thread(lambda: len(list(folder.glob("step_*/COMPLETE")))), lambda n: n > before)


async def is_gone(cluster: Cluster, name: str, selector: str) -> None:
    """Waits until no rank is left on the machine and no pod in the apiserver."""
    await until(lambda: cluster.ranks_alive(name), lambda alive: alive == 0, 60)
    await until(lambda: cluster.get("pods", "-l", selector), lambda found: not found["items"])
