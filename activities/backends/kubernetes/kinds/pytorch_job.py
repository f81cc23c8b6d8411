"""PyTorchJob of the training operator (kubeflow.org/v1). What it lets us change and when it starts pods by itself was
measured on 1.9.3 (docs/kubernetes.md)."""

import copy
from collections.abc import Mapping
from typing import ClassVar

from activities.backends.kubernetes.api import Raw
from activities.backends.kubernetes.kinds.base import (
    JobKind,
    KindState,
    Release,
    managed_by_others,
    note_restarts,
    set_number,
    template_patch,
    true_conditions,
)
from activities.backends.kubernetes.records import PodRecord, seconds
from fleet.errors import InvalidInputError
from fleet.model import Phase

OPERATOR = "kubeflow.org/training-operator"
_ROLES = ("Master", "Worker")


class PyTorchJob(JobKind):
    """`JobKind` of PyTorchJob."""

    word: ClassVar[str] = "pytorchjob"
    api_version: ClassVar[str] = "kubeflow.org/v1"
    api_kind: ClassVar[str] = "PyTorchJob"
    plural: ClassVar[str] = "pytorchjobs"
    label: ClassVar[str] = "training.kubeflow.org/job-name"
    quiet: ClassVar[float | None] = 1.0
    """Resumed while an old pod is there, also in its controller's own picture, it is Failed for good."""

    def state(self, raw: Raw) -> KindState:
        policy, status = _policy(raw), raw.get("status", {})
        true = true_conditions(raw)
        ended = None
        if "Failed" in true:
            late = "longer than specified deadline" in str(true["Failed"].get("message", ""))
            ended = Phase.TIMED_OUT if late else Phase.FAILED
        elif "Succeeded" in true:
            ended = Phase.SUCCEEDED
        return KindState(
            suspended=bool(policy.get("suspend")),
            has_run=bool(status.get("startTime")),
            ended=ended,
            wanted=sum(_roles(raw)[role].get("replicas", 1) for role in _roles(raw)) or 1,
            started_at=seconds(status.get("startTime")) or None,
        )

    def templates(self, raw: Raw) -> tuple[Raw, ...]:
        return tuple(role.get("template", {}) for role in _roles(raw).values()) or ({},)

    def object_of(self, pod: PodRecord) -> str:
        return pod.owner_name if pod.owner_kind == self.api_kind else ""

    def longest_name(self, raw: Raw) -> int:
        """Its pods' Services are called `NAME-worker-N`."""
        del raw
        return 51

    def refusal(self, raw: Raw) -> str | None:
        policy = _policy(raw)
        why = managed_by_others({"metadata": raw["metadata"], "spec": policy}, OPERATOR)
        if why is not None:
            return why
        if raw.get("spec", {}).get("elasticPolicy"):
            return "take spec.elasticPolicy away: ranks of an elastic job come and go by themselves"
        for role, spec in _roles(raw).items():
            has = spec.get("restartPolicy", "OnFailure")
            if has != "Never":
                field = f"spec.pytorchReplicaSpecs.{role}.restartPolicy"
                return f"set {field}: Never (is {has}): a failed rank would be started again alone, or wait for ever"
        if policy.get("cleanPodPolicy") == "All":
            return "set spec.runPolicy.cleanPodPolicy: Running (is All): a failed rank's log would go with its pod"
        if policy.get("backoffLimit") is not None:
            return "take spec.runPolicy.backoffLimit away: a failed rank's log would go with its pod"
        return None

    def hosts(self, raw: Raw, names: str) -> str:
        """Of the Services that its controller makes, one for each pod."""
        roles = "|".join(_roles(raw)).lower()
        return rf"{names}-(?:{roles})-\d+" if roles else ""

    def fill_in(self, raw: Raw) -> Raw:
        made = copy.deepcopy(raw)
        if not _roles(made):
            raise InvalidInputError("the manifest needs spec.pytorchReplicaSpecs with a Master or a Worker")
        made["spec"].setdefault("runPolicy", {}).setdefault("cleanPodPolicy", "Running")
        for role in _roles(made).values():
            role.setdefault("replicas", 1)
            role.setdefault("restartPolicy", "Never")
            note_restarts(role.setdefault("template", {}))
        return made

    def suspend(self, annotations: Mapping[str, str | None]) -> Raw:
        return {"metadata": {"annotations": dict(annotations)}, "spec": {"runPolicy": {"suspend": True}}}

    def reopen(self, raw: Raw) -> Raw | None:
        return {"status": {"startTime": None}} if raw.get("status", {}).get("startTime") else None

    def release(self, raw: Raw, order: Release) -> Raw:
        roles = {
            role: {"template": template_patch(spec.get("template", {}), order, number)}
            for number, (role, spec) in enumerate(_roles(raw).items())
        }
        spec: Raw = {"pytorchReplicaSpecs": roles}
        if not order.suspended:
            spec["runPolicy"] = {"suspend": False}
        return {"metadata": {"annotations": dict(order.annotations)}, "spec": spec}

    def successor(self, raw: Raw, name: str, order: Release) -> Raw:
        spec = copy.deepcopy(raw["spec"])
        spec["runPolicy"] = {**spec.get("runPolicy", {}), "suspend": True}
        for role in _ROLES:
            if role in spec["pytorchReplicaSpecs"]:
                set_number(spec["pytorchReplicaSpecs"][role].setdefault("template", {}), order.generation)
        return self.made_of(raw, name, order, spec)


def _policy(raw: Raw) -> Raw:
    found: Raw = raw.get("spec", {}).get("runPolicy") or {}
    return found


def _roles(raw: Raw) -> Mapping[str, Raw]:
    """Its roles by name, always in the same order."""
    specs: Raw = raw.get("spec", {}).get("pytorchReplicaSpecs") or {}
    return {role: specs[role] for role in _ROLES if specs.get(role)}
