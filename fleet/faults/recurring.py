"""What comes again: on one GPU, link, slot, network port or node. Repetition raises, it never lowers."""

from collections.abc import Iterable

from fleet.faults.evidence import Culprit, Evidence, FaultClass, Kind
from fleet.faults.link_readings import link_event_row
from fleet.faults.reading import Reading, Tier
from fleet.faults.repeats import BURST_GAP, TIMES, WINDOW, bursts, repeated
from fleet.faults.scene import Scene
from fleet.faults.tables import Rung, worst_rung
from fleet.faults.xid_text import link_registers, number, place

STICKY = frozenset({"74", "79", "95", "109", "119"})
"""XIDs that the driver writes again and again for one fault (NVSentinel)."""
STICKY_GAP = 3 * 3600.0
"""Seconds of silence that end a burst of a sticky one (NVSentinel)."""
PERSISTENT = 5
"""Bursts of one fatal XID on one GPU within a day after which no repair of ours is tried again (NVSentinel)."""
CONTAINED_TIMES = 5
"""Bursts of contained memory errors (94) on one GPU within a day that ask for a reset. Ours, as for fatal XIDs."""
WEEK = 7 * 86400.0
MONTH = 28 * 86400.0
NODE_TIMES = 5
"""Incidents of one node within a week after which a person must look (NVSentinel: 5 remediations in 7 days)."""
INCIDENT_GAP = 3 * 3600.0
"""Seconds of silence between two incidents of a node."""
LINK_GAP = 5.0
"""Seconds within which errors of one link are one (the merge of sibling lines)."""
FLAPS_HOUR, FLAPS_DAY = 3, 5
"""Flaps of one port within an hour (NVSentinel) or a day (Azure) that make it a fault."""

_AGAIN: dict[str, tuple[float, Rung]] = {
    "119": (WINDOW, "power_cycle"),
    "120": (WINDOW, "power_cycle"),
    "48": (WEEK, "person"),
    "64": (WEEK, "person"),
    "95": (WEEK, "person"),
    "140": (WEEK, "person"),
}
"""XID -> (window in seconds, rung for its second burst on one GPU): a firmware that hangs again after a reset wants a
power cycle, memory that fails again after one the RMA path (fault taxonomy 3.2 and 9.6)."""
_DETAIL_OF_48 = {"171", "172"}
_FATAL = {Tier.GPU_GONE, Tier.MEMORY, Tier.LINK, Tier.FIRMWARE, Tier.OTHER_HARDWARE}


def recurring(scene: Scene) -> None:
    """All rules of repetition, in an order in which a later one sees what an earlier one raised."""
    for rule in (_alone_on_one_gpu, _link_counts, _ports, _again, _slot, _node):
        rule(scene)


def _alone_on_one_gpu(scene: Scene) -> None:
    """A program's XID (13, 31) or one that passes by itself, in two bursts on one GPU alone within a day: the GPU is
    suspect. Contained memory errors (94) count from `CONTAINED_TIMES` on."""
    counted: dict[tuple[object, ...], int] = {}
    for r in list(scene.readings):
        e = r.evidence
        least = _least(r)
        if e.kind is not Kind.XID or least is None:
            continue
        name = (e.code, scene.gpu(e), place(e.detail))
        if name not in counted:
            counted[name] = repeated(e, scene.events, scene.names, scene.now)
        times = counted[name]
        if times < least:
            continue
        scene.refused.append(f"{r.fault}: {r.short} came {times} times within a day on this GPU alone")
        scene.change(
            r,
            tier=Tier.OTHER_HARDWARE,
            fault=FaultClass.HARDWARE,
            rule=f"repeat:{e.code}",
            phrase=f"{r.phrase}, {times} times within a day on this GPU alone",
            first_rung="reset",
            confidence=0.7,
            culprit=Culprit(node=e.node, gpu=e.gpu),
        )


def _least(r: Reading) -> int | None:
    """Bursts from which the reading of an XID counts against the GPU; None where repetition says nothing."""
    if r.rule in {"xid:13", "xid:31"} and r.tier is Tier.APP_XID:
        return TIMES
    if r.rule == "xid:94" and r.tier is Tier.CONTAINED:
        return CONTAINED_TIMES
    passes = r.tier is Tier.TRANSIENT and r.rule.startswith("xid:") and not r.notes
    return TIMES if passes else None  # a note: its text was decoded, or the fleet has a row of its own


def _link_counts(scene: Scene) -> None:
    """Bits of an XID 74 that count only from the second or third error of their link within a day, and reasons of a
    lost NVLink that want more when they come again."""
    for r in scene.xids(74):
        registers = link_registers(r.evidence.detail)
        if registers is None or r.fault is not FaultClass.HARDWARE:
            continue
        rows = [row for spot, row in scene.tables.link_bits.items() if spot[1] in registers.bits(spot[0])]
        own = [row for row in rows if row.effect == "own" and row.fault is FaultClass.HARDWARE]
        needs = min((row.times for row in own), default=1)
        if needs == 1 or any(row.effect != "own" for row in rows):
            continue
        spots = {(row.word, row.bit) for row in own}
        near = scene.xids_on_gpu_of(r.evidence, {"74"}, WINDOW)
        told = [e for e in near if _same_link(e, registers.link, spots)]
        times = bursts(told, scene.now, LINK_GAP)
        if times < needs:
            note = f"{times} of {needs} errors within a day from which it counts"
            scene.change(r, tier=Tier.TRANSIENT, fault=FaultClass.TRANSIENT, first_rung="none", note=note)
    for r in scene.xids(149):
        row, _ = link_event_row(r.evidence.detail, scene.tables)
        if row is None or row.again_rung == row.first_rung:
            continue
        told = [
            e
            for e in scene.xids_on_gpu_of(r.evidence, {"149"}, WINDOW)
            if link_event_row(e.detail, scene.tables)[0] == row
        ]
        if (times := bursts(told, scene.now)) >= TIMES:
            scene.change(r, first_rung=row.again_rung, note=f"{times} times within a day on this GPU")


def _same_link(e: Evidence, link: int, spots: set[tuple[int, int]]) -> bool:
    registers = link_registers(e.detail)
    return (
        registers is not None and registers.link == link and any(bit in registers.bits(word) for word, bit in spots)
    )


def _ports(scene: Scene) -> None:
    """One flap of a network port is bad luck; many are the port's fault."""
    for rule in ("kernel:nic_link_down", "text:ib_port_error"):
        for r in scene.by_rule(rule):
            e = r.evidence
            if e.node is None:
                continue
            same = [o for o in scene.events if (o.kind, o.code, o.node, o.pci) == (e.kind, e.code, e.node, e.pci)]
            hour = sum(o.count for o in same if scene.now - 3600.0 <= scene.when(o))
            day = sum(o.count for o in same if scene.now - WINDOW <= scene.when(o))
            if hour < FLAPS_HOUR and day < FLAPS_DAY:
                continue
            times = f"{hour} times within an hour" if hour >= FLAPS_HOUR else f"{day} times within a day"
            scene.change(
                r,
                tier=Tier.OTHER_HARDWARE,
                fault=FaultClass.HARDWARE,
                rule=f"repeat:{e.code}",
                phrase=f"{r.phrase}, {times} on one port",
                first_rung="reboot",
                confidence=0.7,
                culprit=Culprit(node=e.node),
            )


def _again(scene: Scene) -> None:
    """A fatal XID that came again on its GPU after a repair, and one that comes without end."""
    counted: dict[tuple[object, ...], tuple[int, int]] = {}
    for r in list(scene.readings):
        e, code = r.evidence, r.evidence.code or ""
        fatal = r.tier in _FATAL and r.fault is FaultClass.HARDWARE and r.rule == f"xid:{code}"
        if e.kind is not Kind.XID or not fatal:
            continue
        window, rung = _AGAIN.get(code, (0.0, r.first_rung))
        name = (code, scene.gpu(e) or e.node)
        if name not in counted:
            codes = {"48", *_DETAIL_OF_48} if code == "48" else {code}
            gap = STICKY_GAP if code in STICKY else BURST_GAP
            day = bursts(scene.xids_on_gpu_of(e, codes, WINDOW), scene.now, gap)
            counted[name] = day, bursts(scene.xids_on_gpu_of(e, codes, window), scene.now, STICKY_GAP)
        day, again = counted[name]
        if day >= PERSISTENT:
            note = f"{day} times within a day on this GPU: repairs do not hold, the vendor must look"
            scene.change(r, first_rung="person", note=note)
        elif window and again >= TIMES:
            note = f"{again} times within {window / 86400:.0f} days on this GPU: the repair before did not hold"
            scene.change(r, first_rung=worst_rung(r.first_rung, rung), note=note)


def _slot(scene: Scene) -> None:
    """The same fatal XID at one slot with another GPU in it before: the slot, its riser or power, not the GPU."""
    for r in list(scene.readings):
        e = r.evidence
        uuid = _uuid(scene, e)
        if e.kind is not Kind.XID or r.tier not in _FATAL or not e.pci or uuid is None:
            continue
        earlier = {
            other
            for o in scene.history
            if o.kind is Kind.XID
            and (o.code, o.node, o.pci) == (e.code, e.node, e.pci)
            and scene.now - MONTH <= scene.when(o)
            and (other := o.gpu if o.gpu and o.gpu.startswith("GPU-") else None) is not None
            and other != uuid
        }
        if earlier:
            note = f"another GPU ({', '.join(sorted(earlier)[:3])}) had it in the same slot {e.pci}: riser or power"
            scene.change(r, rule="slot", first_rung="person", culprit=Culprit(node=e.node), note=note)


def _uuid(scene: Scene, e: Evidence) -> str | None:
    name = scene.gpu(e)
    return name[1] if name is not None and name[1].startswith("GPU-") else None


def _node(scene: Scene) -> None:
    """A node that is in trouble again and again is no case for one more reboot, whatever part of it says so."""
    incidents: dict[str | None, int] = {}
    for r in list(scene.readings):
        e = r.evidence
        if e.node is None or r.fault is not FaultClass.HARDWARE or r.tier > Tier.NODE:
            continue
        if e.node not in incidents:
            incidents[e.node] = bursts(_troubles(scene, e.node), scene.now, INCIDENT_GAP)
        if incidents[e.node] >= NODE_TIMES:
            note = f"{incidents[e.node]} incidents of {e.node} within 7 days: a person must look"
            scene.change(r, first_rung="person", note=note)


def _troubles(scene: Scene, node: str) -> Iterable[Evidence]:
    """What was seen on the node within a week and is hardware by the code alone."""
    for e in scene.events:
        if e.node != node or scene.when(e) < scene.now - WEEK:
            continue
        row = scene.tables.xid.get(number(e.code)) if e.kind is Kind.XID else None
        if e.kind in {Kind.GPU_LOST, Kind.NODE_DOWN} or (row is not None and row.fault is FaultClass.HARDWARE):
            yield e
