"""batch/v1 Job with completionMode Indexed. What it lets us change and when it starts pods by itself was measured on
1.34 (docs/kubernetes.md)."""

import copy
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

CONTROLLER = "kubernetes.io/job-controller"
NAME_LABEL = "batch.kubernetes.io/job-name"
_CONTROLLERS = frozenset({"batch.kubernetes.io/controller-uid", NAME_LABEL, "controller-uid", "job-name"})
"""Labels that the apiserver writes into a template, of the object's own uid."""
_WANTED = (
    ("completionMode", "Indexed", "each rank needs its index"),
    ("backoffLimit", 0, "its controller would start a failed pod again by itself"),
    ("podReplacementPolicy", "Failed", "its controller would start a second copy while the first still ends"),
)


class BatchJob(JobKind):
    """`JobKind` of batch/v1 Job."""

    word: ClassVar[str] = "job"
    api_version: ClassVar[str] = "batch/v1"
    api_kind: ClassVar[str] = "Job"
    plural: ClassVar[str] = "jobs"
    label: ClassVar[str] = NAME_LABEL

    def state(self, raw: Raw) -> KindState:
        spec, status = raw.get("spec", {}), raw.get("status", {})
        true = true_conditions(raw)
        ended, why = None, ""
        if "Complete" in true:
            ended = Phase.SUCCEEDED
        elif "Failed" in true:
            why = str(true["Failed"].get("reason", ""))
            ended = Phase.TIMED_OUT if why == "DeadlineExceeded" else Phase.FAILED
        return KindState(
            suspended=bool(spec.get("suspend")),
            has_run=bool(status.get("startTime")),
            ending=ended is None and bool({"FailureTarget", "SuccessCriteriaMet"} & true.keys()),
            ended=ended,
            reason=why,
            wanted=pods_at_a_time(spec),
            succeeded=int(status.get("succeeded") or 0),
            started_at=seconds(status.get("startTime")) or None,
        )

    def templates(self, raw: Raw) -> tuple[Raw, ...]:
        return (raw.get("spec", {}).get("template", {}),)

    def object_of(self, pod: PodRecord) -> str:
        return pod.owner_name if pod.owner_kind == self.api_kind else ""

    def refusal(self, raw: Raw) -> str | None:
        return managed_by_others(raw, CONTROLLER) or spec_refusal(raw.get("spec", {}), "spec")

    def hosts(self, raw: Raw, names: str) -> str:
        """They are found by a Service that its pods name as their subdomain, never without one."""
        del raw
        return rf"{names}-\d+(?=\.)"

    def fill_in(self, raw: Raw) -> Raw:
        made = copy.deepcopy(raw)
        fill_in_spec(made["spec"])
        note_restarts(made["spec"]["template"])
        return made

    def reopen(self, raw: Raw) -> Raw | None:
        return {"status": {"startTime": None}} if raw.get("status", {}).get("startTime") else None

    def release(self, raw: Raw, order: Release) -> Raw:
        template = template_patch(self.templates(raw)[0], order, 0)
        spec: Raw = {"template": template} if order.suspended else {"suspend": False, "template": template}
        return {"metadata": {"annotations": dict(order.annotations)}, "spec": spec}

    def successor(self, raw: Raw, name: str, order: Release) -> Raw:
        spec = {k: v for k, v in copy.deepcopy(raw["spec"]).items() if k != "selector"}
        set_number(spec["template"], order.generation)
        meta = spec["template"]["metadata"]
        meta.pop("creationTimestamp", None)
        meta["labels"] = {k: v for k, v in (meta.get("labels") or {}).items() if k not in _CONTROLLERS}
        return self.made_of(raw, name, order, {**spec, "suspend": True, "manualSelector": None}, drop=_CONTROLLERS)


# -- the spec of a Job, wherever it stands


def spec_refusal(spec: Raw, at: str) -> str | None:
    """The field to change where a Job with this spec could start a pod again by itself. `at`: where the spec stands
    in its object."""
    for field, wanted, why in _WANTED:
        if spec.get(field) != wanted:
            return f"set {at}.{field}: {wanted} (is {spec.get(field, 'not set')}): {why}"
    if spec.get("completions") != spec.get("parallelism"):
        return f"set {at}.completions and {at}.parallelism to the same number: all ranks run at a time"
    if spec.get("template", {}).get("spec", {}).get("restartPolicy") != "Never":
        return f"set {at}.template.spec.restartPolicy: Never: a kubelet would start a failed rank again by itself"
    return None


def fill_in_spec(spec: Raw) -> None:
    """What supervision needs, where the owner left it open. Raises InvalidInputError."""
    if not isinstance(spec.get("template"), dict):
        raise InvalidInputError("the manifest needs a pod template")
    for field, wanted, _ in _WANTED:
        spec.setdefault(field, wanted)
    spec.setdefault("completions", spec.get("parallelism", 1))
    spec.setdefault("parallelism", spec["completions"])
    spec["template"].setdefault("spec", {}).setdefault("restartPolicy", "Never")


def pods_at_a_time(spec: Raw) -> int:
    """Pods that a Job with this spec runs together."""
    parallel: int = spec.get("parallelism", 1)
    return min(parallel, spec.get("completions") or parallel)
