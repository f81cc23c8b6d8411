"""Jobs in a queue of Kueue. Kueue owns their `suspend`: it takes back at once what others write there, and some kinds
end for good by that (docs/kubernetes.md). So they are stopped and started through their Workload, which also keeps
their place in the queue.

A Workload has a copy of each pod template, with which Kueue overwrites labels, annotations, node selector,
tolerations and gates of the object's own template whenever it stops it. So what the next attempt needs is written
there, too.
"""

import copy
from collections.abc import Iterable

from activities.backends.kubernetes.api import Raw
from activities.backends.kubernetes.kinds.base import set_gate, set_number
from activities.backends.kubernetes.marks import RESTARTS
from activities.backends.kubernetes.records import conditions_of
from fleet.errors import TemporaryError

PREFIX = "kueue.x-k8s.io/"
QUEUE = f"{PREFIX}queue-name"
"""Label of the job object: its LocalQueue."""
JOB_UID = f"{PREFIX}job-uid"
"""Label of a Workload: uid of its job object."""
_ADMISSION = frozenset({f"{PREFIX}podset", f"{PREFIX}cluster-queue-name", f"{PREFIX}local-queue-name"})
"""Labels that Kueue gives to the pod template of what it starts."""
GROUP = "kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
"""Of a Workload, the best first: 0.17 serves both and stores the first, 0.14 and before serve the second only."""


def workloads_path(version: str, namespace: str = "", name: str = "") -> str:
    """Of all Workloads, of one namespace's, or of one."""
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{GROUP}/{version}{where}/workloads" + (f"/{name}" if name else "")


def path_of(workload: Raw) -> str:
    """Where that Workload was read."""
    meta = workload["metadata"]
    return workloads_path(workload["apiVersion"].rpartition("/")[2], meta["namespace"], meta["name"])


def owner_uid(workload: Raw) -> str:
    """uid of the job object that it stands for."""
    meta = workload["metadata"]
    owner: Raw = next((o for o in meta.get("ownerReferences") or [] if o.get("controller")), {})
    return str((meta.get("labels") or {}).get(JOB_UID) or owner.get("uid", ""))


def by_owner(workloads: Iterable[Raw]) -> dict[str, Raw]:
    """The newest of each job object, by its uid."""
    return {owner_uid(one): one for one in sorted(workloads, key=lambda w: str(w["metadata"]["creationTimestamp"]))}


def is_active(workload: Raw) -> bool:
    """Whether Kueue may start it; it may only wait for its quota."""
    return workload.get("spec", {}).get("active") is not False


def has_quota(workload: Raw | None) -> bool:
    """It has quota: it runs, is about to, or its pods are still counted."""
    return conditions_of(workload or {}).get("QuotaReserved", {}).get("status") == "True"


def waits_for(workload: Raw | None) -> str:
    """Why it does not run, in Kueue's words."""
    if has_quota(workload):
        return "admitted by Kueue"
    reserved = conditions_of(workload or {}).get("QuotaReserved", {})
    return " ".join(w for w in (reserved.get("reason", "queued"), reserved.get("message", "")) if w)[:200]


def deactivation(number: int) -> Raw:
    """Patch that stops it: Kueue suspends the object. The number of the next attempt goes with it, for the object's
    annotation is a second write."""
    return {"metadata": {"annotations": {RESTARTS: str(number)}}, "spec": {"active": False}}


def next_attempt(workload: Raw, generation: int, gated: bool) -> Raw | None:
    """Patch of its copies of the pod templates for that attempt; None when they say so, or it was started already.
    Raises TemporaryError while it has quota: it cannot change then."""
    sets = copy.deepcopy(workload["spec"]["podSets"])
    for one in sets:
        template = one["template"]
        set_number(template, generation)
        set_gate(template, gated)
    if sets == workload["spec"]["podSets"] or is_active(workload):
        return None
    if has_quota(workload):
        raise TemporaryError(f"workload {workload['metadata']['name']}: Kueue still counts its pods", 0.5)
    return {"spec": {"podSets": sets}}


def activation() -> Raw:
    """Patch that lets Kueue start it."""
    return {"spec": {"active": True}}


def restore(template: Raw, workload: Raw | None, place: int) -> None:
    """Makes the pod template with that place what it was before Kueue started it: it never starts an object in whose
    template another admission's labels or nodes are left."""
    meta, spec = template.setdefault("metadata", {}), template.setdefault("spec", {})
    sets = (workload or {}).get("spec", {}).get("podSets") or []
    if place >= len(sets):
        meta["labels"] = {k: v for k, v in (meta.get("labels") or {}).items() if k not in _ADMISSION}
        return
    was = sets[place]["template"]
    for target, part, keys in (
        (meta, "metadata", ("labels", "annotations")),
        (spec, "spec", ("nodeSelector", "tolerations", "schedulingGates")),
    ):
        for key in keys:
            target.pop(key, None)
            if (was.get(part) or {}).get(key):
                target[key] = copy.deepcopy(was[part][key])
