"""batch/v1 Job with completionMode Indexed. What it lets us change and when it starts pods by itself was measured on
1.34 (docs/kubernetes.md)."""

import copy
from collections.abc import Mapping, Sequence

from activities.backends.kubernetes.api import Raw
from activities.backends.kubernetes.kinds.base import KindState, Release
from activities.backends.kubernetes.marks import FIRST, GENERATION
from activities.backends.kubernetes.records import seconds
from fleet.model import Phase

NAME_LABEL = "batch.kubernetes.io/job-name"
_CONTROLLERS = ("batch.kubernetes.io/controller-uid", NAME_LABEL, "controller-uid", "job-name")
"""Labels that the apiserver writes into a template, of the object's own uid."""
RESTART_ENV = "GPU_RUNBOOKS_RESTART"
"""Environment variable in which a submitted job's containers find the number of their attempt."""
_WANTED = (
    ("completionMode", "Indexed", "each rank needs its index"),
    ("backoffLimit", 0, "its controller would start a failed pod again by itself"),
    ("podReplacementPolicy", "Failed", "its controller would start a second copy while the first still ends"),
)


class BatchJob:
    """`JobKind` of batch/v1 Job."""

    word = "job"
    owner = "Job"

    def path(self, namespace: str = "", name: str = "") -> str:
        where = f"/namespaces/{namespace}" if namespace else ""
        return f"/apis/batch/v1{where}/jobs" + (f"/{name}" if name else "")

    def state(self, raw: Raw) -> KindState:
        spec, status = raw.get("spec", {}), raw.get("status", {})
        true = {c["type"]: c for c in status.get("conditions", []) if c.get("status") == "True"}
        ended, why = None, ""
        if "Complete" in true:
            ended = Phase.SUCCEEDED
        elif "Failed" in true:
            why = str(true["Failed"].get("reason", ""))
            ended = Phase.TIMED_OUT if why == "DeadlineExceeded" else Phase.FAILED
        parallel = spec.get("parallelism", 1)
        return KindState(
            suspended=bool(spec.get("suspend")),
            has_run=bool(status.get("startTime")),
            ending=ended is None and bool({"FailureTarget", "SuccessCriteriaMet"} & true.keys()),
            ended=ended,
            reason=why,
            wanted=min(parallel, spec.get("completions") or parallel),
            started_at=seconds(status.get("startTime")) or None,
        )

    def template(self, raw: Raw) -> Raw:
        found: Raw = raw.get("spec", {}).get("template", {})
        return found

    def pods_of(self, names: Sequence[str]) -> str:
        return f"{NAME_LABEL} in ({','.join(names)})"

    def refusal(self, raw: Raw) -> str | None:
        spec = raw.get("spec", {})
        owner = next((o for o in raw["metadata"].get("ownerReferences", []) if o.get("controller")), None)
        if owner is not None:
            return f"it belongs to the {owner['kind']} {owner['name']}, which acts on it and would undo what we do"
        if "kueue.x-k8s.io/queue-name" in raw["metadata"].get("labels", {}):
            return "Kueue starts and stops it (label kueue.x-k8s.io/queue-name); this release supervises no such job"
        if spec.get("managedBy", "kubernetes.io/job-controller") != "kubernetes.io/job-controller":
            return f"{spec['managedBy']} manages it (spec.managedBy); hands off"
        for field, wanted, why in _WANTED:
            if spec.get(field) != wanted:
                return f"set spec.{field}: {wanted} (is {spec.get(field)}): {why}"
        if spec.get("completions") != spec.get("parallelism"):
            return "set spec.completions and spec.parallelism to the same number: all ranks run at a time"
        if self.template(raw).get("spec", {}).get("restartPolicy") != "Never":
            return "set spec.template.spec.restartPolicy: Never: a kubelet would start a failed rank again by itself"
        return None

    def fill_in(self, raw: Raw) -> Raw:
        made = copy.deepcopy(raw)
        spec = made["spec"]
        for field, wanted, _ in _WANTED:
            spec.setdefault(field, wanted)
        spec.setdefault("completions", spec.get("parallelism", 1))
        spec.setdefault("parallelism", spec["completions"])
        pod = spec["template"].setdefault("spec", {})
        pod.setdefault("restartPolicy", "Never")
        for container in pod.get("containers", []):
            env = container.setdefault("env", [])
            known = {e.get("name") for e in env}
            source = {"fieldRef": {"fieldPath": f"metadata.annotations['{GENERATION}']"}}
            env += [{"name": RESTART_ENV, "valueFrom": source}] if RESTART_ENV not in known else []
        notes = spec["template"].setdefault("metadata", {}).setdefault("annotations", {})
        notes[GENERATION] = "0"
        return made

    def suspend(self, annotations: Mapping[str, str | None]) -> Raw:
        return {"metadata": {"annotations": dict(annotations)}, "spec": {"suspend": True}}

    def reopen(self, raw: Raw) -> Raw | None:
        return {"status": {"startTime": None}} if raw.get("status", {}).get("startTime") else None

    def release(self, raw: Raw, order: Release) -> Raw:
        template: Raw = {"metadata": {"annotations": {GENERATION: str(order.generation)}}}
        has = self.template(raw).get("spec", {}).get("affinity", {}) or {}
        if order.node_affinity or has.get("nodeAffinity"):
            affinity = {**has, "nodeAffinity": order.node_affinity}
            left = {k: v for k, v in affinity.items() if v}
            template["spec"] = {"affinity": _replacing(has, left) if left else None}
        return {
            "metadata": {"annotations": dict(order.annotations)},
            "spec": {"suspend": False, "template": template},
        }

    def successor(self, raw: Raw, name: str, order: Release) -> Raw:
        meta = raw["metadata"]
        notes = {**meta.get("annotations", {}), **order.annotations}
        spec = {k: v for k, v in copy.deepcopy(raw["spec"]).items() if k != "selector"}
        template = spec["template"]
        labels = template.get("metadata", {}).get("labels", {}) or {}
        template["metadata"] = {
            **{k: v for k, v in template.get("metadata", {}).items() if k != "creationTimestamp"},
            "labels": {k: v for k, v in labels.items() if k not in _CONTROLLERS},
            "annotations": {**template["metadata"].get("annotations", {}), GENERATION: str(order.generation)},
        }
        first = meta.get("labels", {}).get(FIRST, meta["name"])
        own = {k: v for k, v in meta.get("labels", {}).items() if k not in _CONTROLLERS}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": name,
                "namespace": meta["namespace"],
                "labels": {**own, FIRST: first},
                "annotations": {
                    k: v for k, v in notes.items() if v is not None and not k.startswith("kubectl.kubernetes.io/")
                },
            },
            "spec": {**spec, "suspend": True, "manualSelector": None},
        }


def _replacing(old: Mapping[str, object], new: Mapping[str, object]) -> Raw:
    """A merge patch that makes `old` into `new`: what is gone must be named with null."""
    patch: Raw = dict.fromkeys(old.keys() - new.keys(), None)
    for key, value in new.items():
        before = old.get(key)
        patch[key] = (
            _replacing(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
        )
    return patch
