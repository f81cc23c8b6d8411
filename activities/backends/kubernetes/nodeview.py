"""A node as the port shows it. Pure, save for the memory of when each boot was first seen."""

import math

from activities.backends.kubernetes.records import NodeRecord
from fleet.model import BOOT_MARGIN, NodeCondition, NodeFacts, NodeState

REBOOT_WITHIN = 600.0
"""Seconds after which a reboot of ours that was asked for and not seen does not colour the node's state any more."""


SILENT_AFTER = 3600.0
"""Seconds without a heartbeat after which an agent's word counts for nothing: node-problem-detector writes every 5
minutes (its --k8s-exporter-heartbeat-period), a condition that outlived its agent stays for ever."""


class BootTimes:
    """When each node's present boot began. Kubernetes gives a boot's identity and no time of it.

    A boot that follows another one before this process's eyes began when it was first seen; so did one that differs
    from what the node's isolation mark remembers. Else it began at the latest when the node last became Ready.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, float]] = {}

    def of(self, record: NodeRecord, now: float) -> float:
        if not record.boot:
            return 0.0
        boot, at = self._known.get(record.name, ("", 0.0))
        if boot == record.boot:
            return at
        mark = record.isolation
        if boot:
            at = now
        elif mark is not None and mark.boot and mark.boot != record.boot:
            at = max(record.ready_since, mark.at + 2 * BOOT_MARGIN)
        else:
            at = record.ready_since or record.created
        self._known[record.name] = (record.boot, at)
        return at


def node_facts(cluster: str, record: NodeRecord, jobs: tuple[str, ...], boots: BootTimes, at: float) -> NodeFacts:
    """`jobs` are the native ids of what holds it."""
    mark = record.isolation
    rebooting = reboots(record, at)
    return NodeFacts(
        cluster=cluster,
        node=record.name,
        state=state_of(record, bool(jobs), rebooting=rebooting),
        responding=record.ready and not rebooting,
        boot=record.boot,
        booted_at=boots.of(record, at),
        gpus=record.gpus,
        gpus_expected=record.gpus_declared,
        reason=record.text if record.cordoned or mark is not None else "",
        op=mark.op if mark is not None else None,
        drained=record.cordoned or mark is not None,
        jobs=jobs,
        conditions=tuple(_heard(condition, record, at) for condition in record.conditions),
        read_at=at,
    )


def same_until(record: NodeRecord, at: float) -> float:
    """Epoch seconds at which the same record begins to be shown differently by itself; infinity for never."""
    ends = [last + SILENT_AFTER for last in record.heartbeats.values()]
    if record.isolation is not None:
        ends.append(record.isolation.reboot_at + REBOOT_WITHIN)
    return min((end for end in ends if end > at), default=math.inf)


class LastFacts:
    """What each node was shown as last, so that of many nodes only those that changed are looked at again."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[NodeRecord, tuple[str, ...], float, NodeFacts]] = {}

    def of(self, cluster: str, record: NodeRecord, jobs: tuple[str, ...], boots: BootTimes, at: float) -> NodeFacts:
        """`node_facts` without the time of reading; the very same value while nothing about the node changes."""
        known = self._known.get(record.name)
        if known is not None and known[0] is record and known[1] == jobs and at < known[2]:
            return known[3]
        made = node_facts(cluster, record, jobs, boots, at).model_copy(update={"read_at": 0.0})
        self._known[record.name] = (record, jobs, same_until(record, at), made)
        return made


def _heard(condition: NodeCondition, record: NodeRecord, at: float) -> NodeCondition:
    last = record.heartbeats.get(condition.type, 0.0)
    if not last or at - last < SILENT_AFTER:
        return condition
    return condition.model_copy(
        update={"status": "Unknown", "detail": f"{condition.status} when it last wrote, {int(last)} (epoch seconds)"}
    )


def reboots(record: NodeRecord, at: float) -> bool:
    """A reboot of ours is under way: the cluster goes on calling a switched-off node Ready for a while."""
    mark = record.isolation
    return (
        mark is not None
        and bool(mark.reboot_from)
        and mark.reboot_from == record.boot
        and at - mark.reboot_at < REBOOT_WITHIN
    )


def state_of(record: NodeRecord, busy: bool, *, rebooting: bool) -> NodeState:
    if rebooting:
        return NodeState.REBOOTING
    if record.given_up:
        return NodeState.DOWN
    if not record.ready:
        return NodeState.UNKNOWN
    if record.cordoned or record.isolation is not None:
        return NodeState.DRAINING if busy else NodeState.DRAINED
    return NodeState.UP
