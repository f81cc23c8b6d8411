"""One cause behind many faults: a roll-out, a switch, power, storage. N nodes with one code are not N faults."""

import re
from collections.abc import Iterable

from fleet.faults.evidence import Evidence, FaultClass, Kind
from fleet.faults.reading import NOBODY, Reading, Tier
from fleet.faults.scene import Scene

COMMON_NODES = 5
"""Nodes with one code within `COMMON_SECONDS` that have a common cause. Ours: NVSentinel's runbook tells of seven
within minutes; among 1,000 nodes five independent faults of one kind within an hour are as good as impossible."""
COMMON_SECONDS = 3600.0
STORAGE_NODES = 2
"""Nodes (or jobs whose node nobody knows) that get no answer within `STORAGE_SECONDS`: an outage of the storage.
Ours."""
STORAGE_SECONDS = 900.0

_COUNTED = {Kind.XID, Kind.SXID, Kind.GPU_LOST, Kind.CHECK_FAILED, Kind.NODE_CONDITION, Kind.NODE_DOWN}
_SOFTWARE_TOO = {Tier.FIRMWARE, Tier.OTHER_HARDWARE}
"""Faults that a driver or its configuration makes as well: firmware that hangs, failed checks, conditions."""
_STORAGE = {"nfs_silent", "lustre_silent", "stale_handle"}
_STORAGE_WORDS = re.compile(
    r"\b(?:mounts?|nfs|lustre|gpfs|beegfs|weka|ceph|fsx|stale file handle|kill task failed)\b",
    re.IGNORECASE,
)
_WAITS_FOR_IT = {
    "kernel:nfs_silent",
    "kernel:lustre_silent",
    "text:stale_handle",
    "kernel:hung_task",
    "kernel:soft_lockup",
    "text:file_not_found",
    "text:os_error",
    "text:dataloader_timeout",
    "one_node",
}


def common_causes(scene: Scene) -> None:
    """Looks at what was seen elsewhere in the fleet at the same time."""
    _storage_outage(scene)
    _same_code_on_many_nodes(scene)


def _same_code_on_many_nodes(scene: Scene) -> None:
    """The same code on many nodes within an hour. What a roll-out can do waits for a person, who is told once; a GPU
    or a node that is gone is gone for whatever reason, so its verdict stays and names the common cause."""
    counted: dict[tuple[Kind, str | None], int] = {}
    for r in list(scene.readings):
        e = r.evidence
        if e.kind not in _COUNTED or r.fault is not FaultClass.HARDWARE or e.node is None:
            continue
        code = e.code if e.kind in {Kind.XID, Kind.SXID, Kind.NODE_CONDITION, Kind.CHECK_FAILED} else None
        name = (e.kind, code)
        if name not in counted:
            counted[name] = len({o.node for o in _near(scene, e, COMMON_SECONDS) if _alike(o, name)} - {None})
        nodes = counted[name]
        if nodes < COMMON_NODES:
            continue
        cause = "one common cause (roll-out, switch, power)"
        note = f"the same on {COMMON_NODES} nodes or more within an hour: {cause}, not as many faults"
        if r.tier not in _SOFTWARE_TOO:
            scene.change(r, note=note)
            continue
        scene.refused.append(f"hardware: {r.short} alone is refused, {note}")
        scene.change(
            r,
            rule=f"common_cause:{e.code or e.kind}",
            phrase=f"{r.phrase}; {note}",
            first_rung="person",
            confidence=0.6,
            culprit=NOBODY,
        )


def sample(evidence: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Of many nodes' evidence as much as tells a common cause: `COMMON_NODES` nodes for each code."""
    told: dict[tuple[Kind, str | None], dict[str, Evidence]] = {}
    for e in evidence:
        nodes = told.setdefault((e.kind, e.code), {})
        if e.kind in _COUNTED and e.node and len(nodes) < COMMON_NODES:
            nodes.setdefault(e.node, e)
    return tuple(e for nodes in told.values() for e in nodes.values())


def _alike(e: Evidence, name: tuple[Kind, str | None]) -> bool:
    return e.kind is name[0] and (name[1] is None or e.code == name[1])


def _storage_outage(scene: Scene) -> None:
    """Storage that is silent on several nodes is an outage of the storage: nodes that wait for it, and checks of
    mounts that fail for it, are well and are not taken out of service."""
    silent = [e for e in scene.seen_around if e.code in _STORAGE and e.kind in {Kind.KERNEL_TEXT, Kind.LOG_TEXT}]
    for r in list(scene.readings) if silent else []:
        near = [o for o in silent if abs(scene.when(o) - scene.when(r.evidence)) <= STORAGE_SECONDS]
        nodes = {o.node or f"job {o.job}" for o in near}
        if len(nodes) < STORAGE_NODES or not _waits_for_storage(r):
            continue
        if r.fault is not FaultClass.TRANSIENT:
            scene.refused.append(f"{r.fault}: {r.short} is refused, storage is silent in {len(nodes)} places")
        scene.change(
            r,
            tier=Tier.TRANSIENT,
            fault=FaultClass.TRANSIENT,
            rule="storage_outage",
            phrase=f"{r.phrase}; storage is silent in {len(nodes)} places, so it is an outage of the storage",
            first_rung="none",
            confidence=0.6,
            culprit=NOBODY,
            elsewhere=False,
        )


def _waits_for_storage(r: Reading) -> bool:
    if r.rule in _WAITS_FOR_IT:
        return True
    told_by_node = r.tier in {Tier.NODE, Tier.OTHER_HARDWARE, Tier.UNREAD} and r.evidence.kind is not Kind.XID
    return told_by_node and bool(_STORAGE_WORDS.search(f"{r.evidence.code} {r.evidence.detail}"))


def _near(scene: Scene, e: Evidence, seconds: float) -> list[Evidence]:
    at = scene.when(e)
    return [o for o in scene.seen_around if abs(scene.when(o) - at) <= seconds]
