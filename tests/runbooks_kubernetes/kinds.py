"""The supervised training of the scenarios, as every kind of job."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from activities.backends.kubernetes.kinds.base import JobKind
from activities.backends.kubernetes.kinds.batch_job import BatchJob
from activities.backends.kubernetes.kinds.jobset import JobSet
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

    @property
    def name(self) -> str:
        return f"{self.kind.word}{'-in-a-queue' if self.queued else ''}"

    def objects(self, cluster: Cluster, job: str, **more: Any) -> list[Raw]:
        """What a researcher applies; `more` goes to `make`."""
        made = self.make(cluster, job, **more)
        found = made if isinstance(made, list) else [made]
        found[-1]["metadata"]["labels"] = dict(kinds.QUEUED) if self.queued else {}
        return found


JOB = Kind(BatchJob(), Cluster.training_job)
JOBSET = Kind(JobSet(), kinds.jobset)
QUEUED_JOB = Kind(BatchJob(), Cluster.training_job, queued=True)
QUEUED_JOBSET = Kind(JobSet(), kinds.jobset, queued=True)
