"""Objects as the apiserver gives them, for tests of what is made of them."""

from typing import Any

from activities.backends.kubernetes.jobview import JobObject
from activities.backends.kubernetes.kinds.batch_job import BatchJob
from activities.backends.kubernetes.records import NodeRecord, PodRecord, pod_record

Raw = dict[str, Any]
RESOURCE = "nvidia.com/gpu"


def a_job(name: str = "llm", *, notes: Raw | None = None, template: Raw | None = None, **spec: Any) -> Raw:
    """A Job that may be supervised; `spec` changes fields of its spec."""
    pod = {
        "metadata": {"annotations": {}, "labels": {"app": "llm", "batch.kubernetes.io/job-name": name}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "rank", "resources": {"limits": {RESOURCE: "8"}}}],
        },
    }
    base = {
        "completionMode": "Indexed",
        "completions": 2,
        "parallelism": 2,
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": f"uid-{name}"}},
        "template": template or pod,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": "training",
            "uid": f"uid-{name}",
            "resourceVersion": "7",
            "creationTimestamp": "2026-11-30T12:00:00Z",
            "annotations": notes or {},
            "labels": {"gpu-runbooks.io/supervise": "true"},
        },
        "spec": {**base, **spec},
        "status": {"startTime": "2026-11-30T12:00:01Z"},
    }


def an_object(raw: Raw) -> JobObject:
    return JobObject(BatchJob(), raw)


def a_pod(job: str = "llm", index: int = 0, **about: Any) -> PodRecord:
    """A running pod on `n<index>`; `state` is its container's, `phase` the pod's, `generation` its attempt."""
    meta: Raw = {
        "name": f"{job}-{index}-abcde",
        "namespace": "training",
        "uid": f"pod-{job}-{index}-{about.get('generation', 0)}",
        "ownerReferences": [{"kind": "Job", "name": job, "uid": f"uid-{job}", "controller": True}],
        "annotations": {
            "batch.kubernetes.io/job-completion-index": str(index),
            "gpu-runbooks.io/generation": str(about.get("generation", 0)),
        },
        "creationTimestamp": "2026-11-30T12:00:02Z",
    }
    if about.get("deleted"):
        meta["deletionTimestamp"] = "2026-11-30T12:30:00Z"
    state = about.get("state", {"running": {"startedAt": "2026-11-30T12:00:03Z"}})
    raw = {
        "metadata": meta,
        "spec": {
            "nodeName": about.get("node", f"n{index}"),
            "containers": [{"name": "rank", "resources": {"limits": {RESOURCE: "8"}}}],
            "terminationGracePeriodSeconds": 5,
        },
        "status": {
            "phase": about.get("phase", "Running"),
            "startTime": "2026-11-30T12:00:02Z",
            "containerStatuses": [{"name": "rank", "state": state}],
            "conditions": about.get("conditions", []),
        },
    }
    return pod_record(raw, RESOURCE)


def ended(code: int) -> Raw:
    """A container's state after its kubelet reported the end."""
    return {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": "2026-11-30T12:30:01Z"}}


def nodes(*given_up: str) -> dict[str, NodeRecord]:
    """Three nodes, of which some are called lost."""
    return {n: NodeRecord(name=n, ready=n not in given_up, given_up=n in given_up) for n in ("n0", "n1", "n2")}
