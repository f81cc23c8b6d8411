"""Kinds that are shown and never adopted: nothing of ours stops or starts them. On a faulty node they are handled by
policy, like every job that nobody gave into our hands, but under their right names."""

from collections.abc import Mapping
from typing import ClassVar

from activities.backends.kubernetes.api import Raw
from activities.backends.kubernetes.kinds.base import JobKind, KindState, Release, true_conditions
from activities.backends.kubernetes.records import PodRecord, seconds
from fleet.errors import InvalidInputError, RefusedError
from fleet.model import Phase

_ENDS = {"Succeeded": Phase.SUCCEEDED, "Completed": Phase.SUCCEEDED, "Failed": Phase.FAILED}


class Observed(JobKind):
    """Base of these kinds: a name, the label of its pods, and why it is not adopted."""

    observed: ClassVar[bool] = True
    why: ClassVar[str]

    def state(self, raw: Raw) -> KindState:
        ended = next((_ENDS[word] for word in true_conditions(raw) if word in _ENDS), None)
        return KindState(ended=ended, started_at=seconds(raw.get("status", {}).get("startTime")) or None)

    def templates(self, raw: Raw) -> tuple[Raw, ...]:
        del raw
        return ({},)

    def object_of(self, pod: PodRecord) -> str:
        return pod.labels.get(self.label, "")

    def is_of(self, pod: PodRecord, raw: Raw) -> bool:
        del pod, raw
        return True

    def refusal(self, raw: Raw) -> str | None:
        del raw
        return f"a {self.api_kind} is only observed: {self.why}"

    def fill_in(self, raw: Raw) -> Raw:
        raise InvalidInputError(self.refusal(raw) or "")

    def suspend(self, annotations: Mapping[str, str | None]) -> Raw:
        raise RefusedError(self.refusal({}) or "")

    def release(self, raw: Raw, order: Release) -> Raw:
        raise RefusedError(self.refusal(raw) or "")

    def successor(self, raw: Raw, name: str, order: Release) -> Raw:
        raise RefusedError(self.refusal(raw) or "")


class LeaderWorkerSet(Observed):
    """leaderworkerset.x-k8s.io/v1."""

    word: ClassVar[str] = "lws"
    api_version: ClassVar[str] = "leaderworkerset.x-k8s.io/v1"
    api_kind: ClassVar[str] = "LeaderWorkerSet"
    plural: ClassVar[str] = "leaderworkersets"
    label: ClassVar[str] = "leaderworkerset.sigs.k8s.io/name"
    why: ClassVar[str] = "it cannot be suspended and starts its pods again for ever; train in a JobSet or a Job"


class RayCluster(Observed):
    """ray.io/v1."""

    word: ClassVar[str] = "raycluster"
    api_version: ClassVar[str] = "ray.io/v1"
    api_kind: ClassVar[str] = "RayCluster"
    plural: ClassVar[str] = "rayclusters"
    label: ClassVar[str] = "ray.io/cluster"
    why: ClassVar[str] = "nobody knows which jobs run in it and when they are done; train in a RayJob"


class VolcanoJob(Observed):
    """batch.volcano.sh/v1alpha1."""

    word: ClassVar[str] = "volcanojob"
    api_version: ClassVar[str] = "batch.volcano.sh/v1alpha1"
    api_kind: ClassVar[str] = "Job"
    plural: ClassVar[str] = "jobs"
    label: ClassVar[str] = "volcano.sh/job-name"
    why: ClassVar[str] = (
        "its controller restarts tasks by policies of its own, which were not tried; train in a JobSet"
    )


class MpiJob(Observed):
    """kubeflow.org/v2beta1, of the MPI operator."""

    word: ClassVar[str] = "mpijob"
    api_version: ClassVar[str] = "kubeflow.org/v2beta1"
    api_kind: ClassVar[str] = "MPIJob"
    plural: ClassVar[str] = "mpijobs"
    label: ClassVar[str] = "training.kubeflow.org/job-name"
    why: ClassVar[str] = "its launcher and its workers end one by one, which was not tried; train in a PyTorchJob"


class MpiJobV1(MpiJob):
    """kubeflow.org/v1, of the training operator."""

    word: ClassVar[str] = "mpijob-v1"
    api_version: ClassVar[str] = "kubeflow.org/v1"


OBSERVED: tuple[JobKind, ...] = (LeaderWorkerSet(), RayCluster(), VolcanoJob(), MpiJob(), MpiJobV1())
