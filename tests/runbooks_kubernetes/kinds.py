"""The supervised training of the scenarios, as every kind of job."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from activities.backends.kubernetes.kinds.base import JobKind
from activities.backends.kubernetes.kinds.batch_job import BatchJob
from activities.backends.kubernetes.kinds.jobset import JobSet
from activities.backends.kubernetes.kinds.pytorch_job import PyTorchJob
from activities.backends.kubernetes.kinds.ray_job import RayJob
from activities.backends.kubernetes.kinds.train_job import TrainJob
from tests.kubernetes import kinds
from tests.kubernetes.lab import Cluster

Raw = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """How a job of that kind is made."""

    kind: JobKind
    make: Callable[..., Raw | list[Raw]]
    """Of the cluster and the job's name: two ranks of `Cluster.training_job`, or `nodes`. The last object is the job,
    those before are what it needs."""
    queued: bool = False
    """It waits in `tests.kubernetes.kinds.queue`."""
    saves_on_signal: bool = True
    """Process 1 of its containers is the training program."""

    @property
    def name(self) -> str:
        return f"{self.kind.word}{'-in-a-queue' if self.queued else ''}"

    def objects(self, cluster: Cluster, job: str, **more: Any) -> list[Raw]:
        """What a researcher applies; `more` goes to `make`."""
        made = self.make(cluster, job, **more)
        found = made if isinstance(made, list) else [made]
        found[-1]["metadata"]["labels"] = dict(kinds.QUEUED) if self.queued else {}
        return found

    def change(self, objects: list[Raw], change: Callable[[list[str]], list[str]], env: Raw) -> None:
        """Other words for the training program, and one more variable for its containers."""
        described = objects[0]["spec"]["template"] if self.kind.child else objects[-1]
        for template in (self.kind.child or self.kind).templates(described):
            container = template["spec"]["containers"][0]
            container["args"] = change(container["args"]) if container["args"] else []
            if env["name"] not in {one["name"] for one in container["env"]}:
                container["env"].append(env)
        if "entrypoint" in objects[-1]["spec"]:
            program, *words = shlex.split(objects[-1]["spec"]["entrypoint"])
            objects[-1]["spec"]["entrypoint"] = shlex.join([program, *change(words)])


JOB = Kind(BatchJob(), Cluster.training_job)
JOBSET = Kind(JobSet(), kinds.jobset)
QUEUED_JOB = Kind(BatchJob(), Cluster.training_job, queued=True)
QUEUED_JOBSET = Kind(JobSet(), kinds.jobset, queued=True)
PYTORCH_JOB = Kind(PyTorchJob(), kinds.pytorch_job)
TRAIN_JOB = Kind(TrainJob(), kinds.train_job)
RAY_JOB = Kind(RayJob(), kinds.ray_job, saves_on_signal=False)
