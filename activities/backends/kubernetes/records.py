"""Pods and nodes as they are kept: the few fields that a decision needs."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from activities.backends.kubernetes.api import Raw
from activities.backends.kubernetes.marks import (
    CORDON_REASON,
    GATE,
    GENERATION,
    ISOLATED,
    OUT_OF_SERVICE,
    PROGRESS,
    PROOF,
    SLURM_NODE,
    Isolation,
    isolation_of,
)
from fleet.model import NodeCondition, Value

INDEX = "batch.kubernetes.io/job-completion-index"
_JOB_LABELS = (
    "batch.kubernetes.io/",
    "jobset.sigs.k8s.io/",
    "trainer.kubeflow.org/",
    "training.kubeflow.org/",
    "ray.io/",
    "leaderworkerset.sigs.k8s.io/",
    "volcano.sh/",
)
"""Prefixes of the labels by which a pod is found to belong to a job, and its rank in it."""
_RANK = (
    "jobset.sigs.k8s.io/replicatedjob-name",
    "jobset.sigs.k8s.io/job-index",
    "training.kubeflow.org/replica-type",
    "training.kubeflow.org/replica-index",
    INDEX,
)
"""Labels and annotations that together name a rank, where a kind numbers its ranks."""
MIRROR = "kubernetes.io/config.mirror"
_LOST = frozenset({"DeletionByTaintManager", "DeletionByPodGC"})
"""Reasons of a pod's DisruptionTarget condition that speak of a lost node (kubernetes, Pod disruption conditions)."""


_KUBELETS_OWN = frozenset({"Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"})
"""Conditions that the kubelet and the cloud's route controller write (kubernetes, Node Status)."""


TOPOLOGY = (
    "nvidia.com/gpu.clique",
    "accelerator.topograph.run/domain",
    "network.topology.nvidia.com/accelerator",
    "fabric.topograph.run/tier-0",
    "network.topology.nvidia.com/leaf",
    "fabric.topograph.run/tier-1",
    "network.topology.nvidia.com/spine",
    "topology.kubernetes.io/zone",
)
"""Labels that name what a node hangs on, the nearest first: NVLink domain, leaf, spine, zone (GPU feature discovery;
NVIDIA topograph from 1.0 and up to 0.5; kubernetes, well-known labels)."""


class PodRecord(Value):
    """One pod at one reading."""

    namespace: str
    name: str
    uid: str
    owner_kind: str = ""
    owner_name: str = ""
    owner_uid: str = ""
    node: str = ""
    phase: str = ""
    reason: str = ""
    labels: Mapping[str, str] = {}
    """Those of the kinds of jobs only."""
    rank: str = ""
    """Which of its job's pods it is: a pod that is made anew for the same rank has the same; without numbers, its
    own name."""
    index: int = 0
    generation: int = 0
    gpus: int = 0
    deleted: bool = False
    deleted_at: float = 0.0
    """When the grace of its deletion ends or ended; 0 where nobody deleted it."""
    finalizers: tuple[str, ...] = ()
    mirror: bool = False
    """The image of a static pod: its kubelet runs it from a file, whatever happens to the object."""
    local_data: bool = False
    """Has an emptyDir volume, which goes with the pod."""
    grace: float = 30.0
    created: float = 0.0
    started: float | None = None
    waiting: str = ""
    """Why the scheduler or the kubelet has not started it."""
    running: bool = False
    """A container of it is said to run."""
    exit_code: int | None = None
    finished: float | None = None
    node_lost: bool = False
    """It was taken away because its node was given up."""
    disruption: str = ""
    """Why it was evicted, preempted or otherwise taken away: whatever code it ends with, its work is not done."""
    ours: bool = False
    """Carries our finalizer."""
    progress: str = ""
    """What its owner wrote into the annotation `gpu-runbooks.io/progress`."""
    slurmd: bool = False
    """A slurmd of Slinky runs in it."""
    gated: bool = False
    """It waits for us to place it."""
    containers: tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        """By its kubelet's own word: no container runs any more, and none will. The pod garbage collector also sets
        a final phase, of pods whose node is gone, but leaves the containers' last state as it was."""
        return self.phase in {"Succeeded", "Failed"} and not self.running

    @property
    def has_started(self) -> bool:
        return self.running or self.phase in {"Running", "Succeeded", "Failed", "Unknown"}


class NodeRecord(Value):
    """One node at one reading."""

    name: str
    uid: str = ""
    version: str = ""
    """resourceVersion of the object as it was read."""
    taints: tuple[Mapping[str, Any], ...] = ()
    ready: bool = False
    given_up: bool = False
    """Its kubelet has been silent for so long that the cluster calls it lost (Ready is Unknown)."""
    ready_since: float = 0.0
    created: float = 0.0
    boot: str = ""
    gpus: int = 0
    gpus_declared: int = 0
    """Capacity, or what a label of the GPU feature discovery says."""
    gpu_model: str = ""
    """What the label of the GPU feature discovery says, such as `NVIDIA-H100-80GB-HBM3`."""
    domain: str = ""
    """Value of the nearest of the `TOPOLOGY` labels that it has."""
    hostname: str = ""
    """Label `kubernetes.io/hostname`."""
    cordoned: bool = False
    isolation: Isolation | None = None
    conditions: tuple[NodeCondition, ...] = ()
    """Those that other agents than the kubelet write."""
    heartbeats: Mapping[str, float] = {}
    """When each of them was last written."""
    out_of_service: str = ""
    """Op of ours that put the taint of this name on it; empty where the taint is another's, or not there."""
    text: str = ""
    """Our reason, or what others wrote about theirs."""
    cordon_reason: str = ""
    """What Slinky's operator shall write as Slurm's reason."""


def seconds(text: Any) -> float:
    """`2026-11-30T17:42:07Z` -> seconds since the epoch; 0.0 for none."""
    if not isinstance(text, str) or not text:
        return 0.0
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0


def quantity(value: Any) -> int:
    """A whole number of devices; anything else counts as none."""
    text = str(value or 0)
    return int(text) if text.isdigit() else 0


def conditions_of(raw: Raw) -> dict[str, Raw]:
    """The conditions of an object's status, by type."""
    return {c["type"]: c for c in raw.get("status", {}).get("conditions") or []}


def pod_gpus(spec: Raw, resource: str) -> int:
    """Devices that a pod asks for: extended resources have equal limits and requests."""
    found = 0
    for container in spec.get("containers", []):
        resources = container.get("resources", {})
        found += quantity({**resources.get("limits", {}), **resources.get("requests", {})}.get(resource))
    return found


def pod_record(raw: Raw, resource: str) -> PodRecord:
    meta, spec, status = raw["metadata"], raw.get("spec", {}), raw.get("status", {})
    owner: Raw = next((o for o in meta.get("ownerReferences", []) if o.get("controller")), {})
    notes = {**meta.get("labels", {}), **meta.get("annotations", {})}
    states = [
        c.get("state", {}) for c in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    ]
    main = [c.get("state", {}) for c in status.get("containerStatuses", [])]
    ends = [s["terminated"] for s in main if s.get("terminated")]
    bad = next((e for e in sorted(ends, key=lambda e: e.get("finishedAt") or "") if e.get("exitCode")), None)
    end = bad or (ends[0] if ends else {})
    disruption: Raw = next(
        (c for c in status.get("conditions", []) if c["type"] == "DisruptionTarget" and c["status"] == "True"), {}
    )
    return PodRecord(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        owner_kind=owner.get("kind", ""),
        owner_name=owner.get("name", ""),
        owner_uid=owner.get("uid", ""),
        node=spec.get("nodeName", ""),
        phase=status.get("phase", ""),
        reason=str(status.get("reason") or disruption.get("reason") or end.get("reason") or ""),
        labels={k: v for k, v in (meta.get("labels") or {}).items() if k.startswith(_JOB_LABELS)},
        rank="/".join(notes[key] for key in _RANK if key in notes) or meta["name"],
        index=quantity(notes.get(INDEX) or notes.get("training.kubeflow.org/replica-index")),
        generation=quantity(notes.get(GENERATION)),
        gpus=pod_gpus(spec, resource),
        deleted="deletionTimestamp" in meta,
        deleted_at=seconds(meta.get("deletionTimestamp")),
        finalizers=tuple(meta.get("finalizers", [])),
        mirror=MIRROR in meta.get("annotations", {}),
        local_data=any("emptyDir" in volume for volume in spec.get("volumes", [])),
        grace=float(spec.get("terminationGracePeriodSeconds") or 0),
        created=seconds(meta.get("creationTimestamp")),
        started=seconds(status.get("startTime")) or None,
        waiting=_waiting(status, main),
        running=any("running" in s for s in states),
        exit_code=end.get("exitCode") if len(ends) == len(main) or bad else None,
        finished=seconds(end.get("finishedAt")) or None,
        node_lost=disruption.get("reason") in _LOST or status.get("reason") == "NodeLost",
        disruption=str(disruption.get("reason", "")),
        progress=str(notes.get(PROGRESS, ""))[:500],
        slurmd=SLURM_NODE in (meta.get("labels") or {}),
        gated=any(g["name"] == GATE for g in spec.get("schedulingGates") or []),
        ours=PROOF in meta.get("finalizers", []),
        containers=tuple(c["name"] for c in spec.get("containers", [])),
    )


def _waiting(status: Raw, states: list[Raw]) -> str:
    for state in states:
        if state.get("waiting", {}).get("reason"):
            return str(state["waiting"]["reason"])
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("reason", ""))
    return ""


def node_record(raw: Raw, resource: str) -> NodeRecord:
    meta, spec, status = raw["metadata"], raw.get("spec", {}), raw.get("status", {})
    notes, labels = meta.get("annotations", {}), meta.get("labels", {})
    ready: Raw = next((c for c in status.get("conditions", []) if c["type"] == "Ready"), {})
    others = [c for c in status.get("conditions", []) if c["type"] not in _KUBELETS_OWN]
    isolation = isolation_of(notes)
    declared = max(quantity(status.get("capacity", {}).get(resource)), quantity(labels.get(f"{resource}.count")))
    return NodeRecord(
        name=meta["name"],
        uid=meta["uid"],
        version=meta.get("resourceVersion", ""),
        taints=tuple(spec.get("taints") or ()),
        ready=ready.get("status") == "True",
        given_up=ready.get("status") == "Unknown",
        ready_since=seconds(ready.get("lastTransitionTime")),
        created=seconds(meta.get("creationTimestamp")),
        boot=status.get("nodeInfo", {}).get("bootID", ""),
        gpus=quantity(status.get("allocatable", {}).get(resource)),
        gpus_declared=max(declared, isolation.gpus if isolation else 0),
        gpu_model=labels.get(f"{resource}.product", ""),
        domain=next((labels[key] for key in TOPOLOGY if labels.get(key)), ""),
        hostname=labels.get("kubernetes.io/hostname", meta["name"]),
        cordoned=bool(spec.get("unschedulable")),
        isolation=isolation,
        conditions=tuple(
            NodeCondition(
                type=c["type"],
                status=c.get("status", "Unknown"),
                detail=": ".join(w for w in (c.get("reason"), c.get("message")) if w)[:300],
                since=seconds(c.get("lastTransitionTime")),
            )
            for c in others
        ),
        heartbeats={c["type"]: seconds(c.get("lastHeartbeatTime")) for c in others},
        out_of_service=notes.get(OUT_OF_SERVICE, ""),
        text=notes[ISOLATED] if isolation else _their_words(raw),
        cordon_reason=notes.get(CORDON_REASON, ""),
    )


def _their_words(raw: Raw) -> str:
    """What others wrote about a cordon: annotations that are called a reason, and their taints."""
    notes = raw["metadata"].get("annotations", {})
    said = [text for key, text in sorted(notes.items()) if "reason" in key.rpartition("/")[2].lower()]
    taints = [
        f"{t['key']}={t.get('value', '')}".rstrip("=")
        for t in raw.get("spec", {}).get("taints", [])
        if "node.kubernetes.io/" not in t["key"]
    ]
    return "; ".join([*said, *taints])[:300]
