"""TrainJob of the Kubeflow trainer (trainer.kubeflow.org/v1alpha1), which makes a JobSet of its own name out of a
runtime. What it lets us change and when it starts pods by itself was measured on 2.2.0 (docs/kubernetes.md)."""

import copy
from collections.abc import Mapping
from typing import ClassVar

from activities.backends.kubernetes.api import Raw
from activities.backends.kubernetes.kinds.base import (
    CHILD,
    JobKind,
    KindState,
    Release,
    add_restart_variable,
    managed_by_others,
    merged,
    set_variables,
    true_conditions,
)
from activities.backends.kubernetes.kinds.jobset import NAME, UID, JobSet
from activities.backends.kubernetes.marks import GATE, GENERATION
from activities.backends.kubernetes.records import PodRecord
from fleet.model import Phase

CONTROLLER = "trainer.kubeflow.org/trainjob-controller"
MANAGER = "gpu-runbooks.io/attempt"
"""Name of our entry in `spec.runtimePatches`; those of others stay."""
KUEUE = "kueue.x-k8s.io/manager"
_SET = JobSet()
_PART = "node"
"""The replicatedJob of the trainers, by the runtimes that come with the trainer."""


class TrainJob(JobKind):
    """`JobKind` of TrainJob."""

    word: ClassVar[str] = "trainjob"
    api_version: ClassVar[str] = "trainer.kubeflow.org/v1alpha1"
    api_kind: ClassVar[str] = "TrainJob"
    plural: ClassVar[str] = "trainjobs"
    label: ClassVar[str] = NAME
    child: ClassVar[JobKind | None] = _SET
    affinity_mutable: ClassVar[bool] = False
    """It takes another affinity, and its JobSet refuses it for ever after."""
    ends_with_a_pod: ClassVar[bool] = True
    has_jobs: ClassVar[bool] = True
    quiet: ClassVar[float | None] = 1.0
    """Its webhook takes changes only once the JobSet counts no pod any more."""

    def state(self, raw: Raw) -> KindState:
        """Its own conditions tell a suspend and an end, and nothing else."""
        true = true_conditions(raw)
        ended, why = None, ""
        if "Complete" in true:
            ended = Phase.SUCCEEDED
        elif "Failed" in true:
            why = str(true["Failed"].get("reason") or "")
            ended = Phase.TIMED_OUT if why == "DeadlineExceeded" else Phase.FAILED
        child = raw.get(CHILD)
        trainer = raw.get("spec", {}).get("trainer") or {}
        return KindState(
            suspended=bool(raw.get("spec", {}).get("suspend")),
            ended=ended,
            reason=why,
            wanted=_SET.state(child).wanted if child else trainer.get("numNodes") or 1,
        )

    def templates(self, raw: Raw) -> tuple[Raw, ...]:
        """As its JobSet has them, with the number that the next JobSet will have."""
        number = _number(raw)
        note: Raw = {"metadata": {"annotations": {GENERATION: number}}} if number else {}
        return tuple(merged(template, note) for template in _SET.templates(raw.get(CHILD) or {}))

    def object_of(self, pod: PodRecord) -> str:
        return pod.labels.get(NAME, "")

    def is_of(self, pod: PodRecord, raw: Raw) -> bool:
        return CHILD not in raw or pod.labels.get(UID) == str(raw[CHILD]["metadata"]["uid"])

    def longest_name(self, raw: Raw) -> int:
        return _SET.longest_name(raw.get(CHILD) or {"spec": {"replicatedJobs": [_a_part(raw)]}})

    def refusal(self, raw: Raw) -> str | None:
        why = managed_by_others(raw, CONTROLLER)
        if why is not None or "uid" not in raw["metadata"]:
            return why  # one that is only to be made has no JobSet yet
        if CHILD not in raw:
            return "its JobSet is not seen, which decides whether its pods are started again by themselves"
        runtime = raw.get("spec", {}).get("runtimeRef") or {}
        why = _SET.refusal({**raw[CHILD], "metadata": {}})
        return f"in its {runtime.get('kind', 'ClusterTrainingRuntime')} {runtime.get('name')}: {why}" if why else None

    def hosts(self, raw: Raw, names: str) -> str:
        return _SET.hosts(raw.get(CHILD) or {}, names)

    def fill_in(self, raw: Raw) -> Raw:
        """Its runtime decides the rest, and is looked at when it is adopted."""
        made = copy.deepcopy(raw)
        add_restart_variable(made["spec"].setdefault("trainer", {}).setdefault("env", []))
        return made

    def add_variables(self, made: Raw, env: Mapping[str, str]) -> None:
        set_variables(made["spec"]["trainer"]["env"], env)

    def prepare(self, raw: Raw, order: Release) -> Raw | None:
        """Its webhook takes runtimePatches only from a suspended object, and not in the request that resumes it."""
        patches = raw["spec"].get("runtimePatches") or []
        ours = _entry(raw, order.generation, gated=order.gated)
        if any({k: v for k, v in one.items() if k != "time"} == ours for one in patches):
            return None
        return {"spec": {"runtimePatches": [*(one for one in patches if one.get("manager") != MANAGER), ours]}}

    def release(self, raw: Raw, order: Release) -> Raw:
        patch: Raw = {"metadata": {"annotations": dict(order.annotations)}}
        return patch if order.suspended else {**patch, "spec": {"suspend": False}}

    def successor(self, raw: Raw, name: str, order: Release) -> Raw:
        """What Kueue wrote for the old one's place is not the new one's."""
        spec = copy.deepcopy(raw["spec"])
        kept = [one for one in spec.get("runtimePatches") or [] if one.get("manager") not in {MANAGER, KUEUE}]
        spec["runtimePatches"] = [*kept, _entry(raw, order.generation, gated=False)]
        return self.made_of(raw, name, order, {**spec, "suspend": True})


def _entry(raw: Raw, generation: int, *, gated: bool) -> Raw:
    """Our entry in its runtimePatches, for every part that its status names."""
    pod: Raw = {"metadata": {"annotations": {GENERATION: str(generation)}}}
    if gated:
        pod["spec"] = {"schedulingGates": [{"name": GATE}]}
    names = [one["name"] for one in raw.get("status", {}).get("jobsStatus") or []] or [_PART]
    parts = [{"name": name, "template": {"spec": {"template": pod}}} for name in names]
    return {"manager": MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": parts}}}}


def _number(raw: Raw) -> str:
    """The attempt in our entry; empty without one."""
    for one in raw.get("spec", {}).get("runtimePatches") or []:
        if one.get("manager") == MANAGER:
            parts = one["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
            return str(parts[0]["template"]["spec"]["template"]["metadata"]["annotations"].get(GENERATION, ""))
    return ""


def _a_part(raw: Raw) -> Raw:
    nodes = (raw.get("spec", {}).get("trainer") or {}).get("numNodes") or 1
    return {"name": _PART, "template": {"spec": {"completions": nodes}}}
