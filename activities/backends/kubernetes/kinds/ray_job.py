"""RayJob of KubeRay (ray.io/v1), whose pods belong to a RayCluster that it makes for each run, under a random name.
What it lets us change and when it starts pods by itself was measured on 1.6.0 (docs/kubernetes.md)."""

import copy
import re
from collections.abc import Sequence
from typing import ClassVar

from activities.backends.kubernetes.api import Raw
from activities.backends.kubernetes.kinds.base import (
    JobKind,
    KindState,
    Release,
    managed_by_others,
    merged,
    note_restarts,
    set_number,
    template_patch,
)
from activities.backends.kubernetes.records import PodRecord, seconds
from fleet.errors import InvalidInputError
from fleet.model import Phase

CLUSTER_LABEL = "ray.io/cluster"
OPERATOR = "ray.io/kuberay-operator"
_OF_CLUSTER = re.compile(r"(?P<job>.+)-[a-z0-9]{5}")
"""A RayCluster's name is its RayJob's with a random tail (ray-operator, GenerateRayClusterName)."""
_SUBMITS = ("K8sJobMode", "HTTPMode", "SidecarMode")


class RayJob(JobKind):
    """`JobKind` of RayJob."""

    word: ClassVar[str] = "rayjob"
    api_version: ClassVar[str] = "ray.io/v1"
    api_kind: ClassVar[str] = "RayJob"
    plural: ClassVar[str] = "rayjobs"
    label: ClassVar[str] = CLUSTER_LABEL
    quiet: ClassVar[float | None] = 0.0
    """Resumed while old pods end, it makes a second RayCluster at once."""

    def state(self, raw: Raw) -> KindState:
        """Nothing in it says whether it ever ran: one that was made suspended has a start time, too."""
        spec, status = raw.get("spec", {}), raw.get("status", {})
        word = status.get("jobDeploymentStatus", "")
        return KindState(
            suspended=bool(spec.get("suspend")),
            ending=word == "Retrying",
            ended=_end(word, status),
            reason=" ".join(str(w) for w in (status.get("reason"), status.get("message")) if w)[:200],
            wanted=1 + sum(_pods(group) for group in _workers(raw)),
            started_at=seconds(status.get("startTime")) or None,
        )

    def templates(self, raw: Raw) -> tuple[Raw, ...]:
        """Of the groups of workers, which have the GPUs, and of the head."""
        head = (raw.get("spec", {}).get("rayClusterSpec") or {}).get("headGroupSpec") or {}
        return (*(group.get("template", {}) for group in _workers(raw)), head.get("template", {}))

    def object_of(self, pod: PodRecord) -> str:
        found = _OF_CLUSTER.fullmatch(pod.labels.get(CLUSTER_LABEL, ""))
        return found["job"] if found else ""

    def is_of(self, pod: PodRecord, raw: Raw) -> bool:
        """A suspended one has forgotten the name of its RayCluster."""
        cluster = raw.get("status", {}).get("rayClusterName", "")
        return not cluster or pod.labels.get(CLUSTER_LABEL) == cluster

    def pods_of(self, names: Sequence[str]) -> str:
        del names  # their RayClusters' names are random
        return CLUSTER_LABEL

    def longest_name(self, raw: Raw) -> int:
        """ray-operator, MaxRayJobNameLength."""
        del raw
        return 47

    def refusal(self, raw: Raw) -> str | None:
        spec, why = raw.get("spec", {}), managed_by_others(raw, OPERATOR)
        if why is not None:
            return why
        if spec.get("clusterSelector") or not spec.get("rayClusterSpec"):
            return "give it a RayCluster of its own (spec.rayClusterSpec): a shared one cannot be stopped for one job"
        if spec.get("backoffLimit"):
            return (
                f"set spec.backoffLimit: 0 (is {spec['backoffLimit']}): KubeRay would start a failed job again itself"
            )
        if not spec.get("shutdownAfterJobFinishes"):
            return "set spec.shutdownAfterJobFinishes: true: else KubeRay fails a job that is suspended, for good"
        mode = spec.get("submissionMode", "K8sJobMode")
        if mode not in _SUBMITS:
            return f"set spec.submissionMode: HTTPMode (is {mode}): nobody would submit its next attempt"
        if spec["rayClusterSpec"].get("enableInTreeAutoscaling"):
            return "take spec.rayClusterSpec.enableInTreeAutoscaling away: its ranks would come and go by themselves"
        return None

    def fill_in(self, raw: Raw) -> Raw:
        made = copy.deepcopy(raw)
        spec = made["spec"]
        if not isinstance(spec.get("rayClusterSpec"), dict):
            raise InvalidInputError("the manifest needs spec.rayClusterSpec")
        spec.setdefault("shutdownAfterJobFinishes", True)
        spec["rayClusterSpec"]["headGroupSpec"].setdefault("template", {})
        for group in _workers(made):
            group.setdefault("template", {})
        for template in self.templates(made):
            note_restarts(template)
        return made

    def release(self, raw: Raw, order: Release) -> Raw:
        """A list is replaced whole by a merge patch, so the groups of workers go with all that they have."""
        *workers, head = (template_patch(t, order, number) for number, t in enumerate(self.templates(raw)))
        cluster: Raw = {"headGroupSpec": {"template": head}}
        if workers:
            cluster["workerGroupSpecs"] = [
                {**group, "template": merged(group.get("template", {}), patch)}
                for group, patch in zip(_workers(raw), workers, strict=True)
            ]
        spec: Raw = {"rayClusterSpec": cluster}
        if not order.suspended:
            spec["suspend"] = False
        return {"metadata": {"annotations": dict(order.annotations)}, "spec": spec}

    def successor(self, raw: Raw, name: str, order: Release) -> Raw:
        made = self.made_of(raw, name, order, {**copy.deepcopy(raw["spec"]), "suspend": True})
        made["spec"].pop("jobId", None)
        for template in self.templates(made):
            set_number(template, order.generation)
        return made


def _workers(raw: Raw) -> Sequence[Raw]:
    found: Sequence[Raw] = (raw.get("spec", {}).get("rayClusterSpec") or {}).get("workerGroupSpecs") or ()
    return found


def _pods(group: Raw) -> int:
    """Pods of a group of workers. Without a number KubeRay takes the smallest that is allowed, which may be 0."""
    replicas = group.get("replicas", group.get("minReplicas")) or 0
    return int(replicas) * int(group.get("numOfHosts") or 1)


def _end(word: str, status: Raw) -> Phase | None:
    if word == "Complete":
        return Phase.CANCELLED if status.get("jobStatus") == "STOPPED" else Phase.SUCCEEDED
    if word == "Failed":
        late = status.get("reason") in {"DeadlineExceeded", "PreRunningDeadlineExceeded"}
        return Phase.TIMED_OUT if late else Phase.FAILED
    return Phase.FAILED if word == "ValidationFailed" else None
