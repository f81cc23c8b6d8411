"""Jobs in a queue of Kueue. Kueue owns their `suspend`: it takes back at once what others write there, and some kinds
end for good by that (docs/kubernetes.md). So they are stopped and started through their Workload, which also keeps
their place in the queue."""

from collections.abc import Mapping

from activities.backends.kubernetes.api import Raw
from activities.backends.kubernetes.marks import RESTARTS

QUEUE = "kueue.x-k8s.io/queue-name"
"""Label of the job object: its LocalQueue."""
JOB_UID = "kueue.x-k8s.io/job-uid"
"""Label of a Workload: uid of its job object."""
API_VERSION = "kueue.x-k8s.io/v1beta1"


def workloads_path(namespace: str = "", name: str = "") -> str:
    """Of all Workloads, of one namespace's, or of one."""
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{API_VERSION}{where}/workloads" + (f"/{name}" if name else "")


def owner_uid(workload: Raw) -> str:
    """uid of the job object that it stands for."""
    meta = workload["metadata"]
    owner: Raw = next((o for o in meta.get("ownerReferences") or [] if o.get("controller")), {})
    return str((meta.get("labels") or {}).get(JOB_UID) or owner.get("uid", ""))


def is_active(workload: Raw) -> bool:
    """Whether Kueue may start it; it may only wait for its quota."""
    return workload.get("spec", {}).get("active") is not False


def waits_for(workload: Raw | None) -> str:
    """Why it does not run, in Kueue's words."""
    conditions = (workload or {}).get("status", {}).get("conditions") or []
    by_type: Mapping[str, Raw] = {c["type"]: c for c in conditions}
    reserved = by_type.get("QuotaReserved", {})
    if reserved.get("status") == "True":
        return "admitted by Kueue"
    return " ".join(w for w in (reserved.get("reason", "queued"), reserved.get("message", "")) if w)[:200]


def deactivation(number: int) -> Raw:
    """Patch that stops it: Kueue suspends the object. The number of the next attempt goes with it, for the object's
    annotation is a second write."""
    return {"metadata": {"annotations": {RESTARTS: str(number)}}, "spec": {"active": False}}


def activation() -> Raw:
    """Patch that lets Kueue start it."""
    return {"spec": {"active": True}}
