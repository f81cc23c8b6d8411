"""How often one fault came back on one GPU: bursts in 24 hours, across boots and jobs."""

from collections.abc import Iterable, Mapping, Sequence

from fleet.faults.evidence import Evidence, Kind
from fleet.faults.xid_text import place

WINDOW = 24 * 3600.0
"""Seconds in which repeats count (NVSentinel's rules for 13 and 31)."""
BURST_GAP = 180.0
"""Seconds of silence that end a burst (NVSentinel)."""
TIMES = 2
"""Bursts on one GPU that make a program's XID a suspicion of the hardware (NVIDIA Xid catalog, workflows 13, 31)."""

_OTHER_CLOCK = 30 * 86400.0
"""Two stamps further apart than this come from different clocks (seconds since boot against a date)."""

Gpu = tuple[str, str]
Names = Mapping[Gpu, str]


def event_time(e: Evidence, now: float) -> float:
    """When it happened, as far as known; never in the future, for clocks differ."""
    return min(e.happened_at if e.happened_at is not None else e.seen_at, now)


def order(e: Evidence, now: float) -> tuple[float, float, str, str]:
    """A total order that does not depend on how the evidence came in."""
    return event_time(e, now), e.stamp or 0.0, e.key, e.model_dump_json()


def gpu_names(events: Iterable[Evidence]) -> Names:
    """(node, PCI address) -> uuid, wherever one piece of evidence knows both; the newest word counts."""
    known = [e for e in events if e.pci and e.gpu and e.gpu != e.pci]
    known.sort(key=lambda e: order(e, e.seen_at))
    return {(e.node or "", e.pci or ""): e.gpu or "" for e in known}


def same_gpu_name(e: Evidence, names: Names) -> Gpu | None:
    """One name for a GPU, whether the evidence has its uuid or its address; None where it has neither."""
    if e.gpu is None:
        return None
    uuid = names.get((e.node or "", e.gpu), e.gpu)
    return ("", uuid) if uuid.startswith("GPU-") else (e.node or "", uuid)


def repeated(suspect: Evidence, events: Sequence[Evidence], names: Names, now: float) -> int:
    """Bursts of the suspect's XID that hit its GPU alone within `WINDOW`; 0 where the rule cannot hold.

    A burst that hits other GPUs of the node or the job as well is the program's. So is a code that follows one job
    to other GPUs. XID 13 counts only at one place (GPC and TPC); a line without a place cannot count.
    """
    gpu = same_gpu_name(suspect, names)
    spot = place(suspect.detail)
    if gpu is None or (suspect.code == "13" and spot is None):
        return 0
    same_code = [
        e
        for e in events
        if e.kind is Kind.XID and e.code == suspect.code and now - WINDOW <= event_time(e, now) <= now
    ]
    here = [e for e in same_code if same_gpu_name(e, names) == gpu]
    elsewhere = [e for e in same_code if same_gpu_name(e, names) not in {gpu, None}]
    jobs = {e.job for e in here if e.job}
    if len(jobs) == 1 and any(e.job in jobs for e in elsewhere):
        return 0
    if suspect.code == "13":
        here = [e for e in here if place(e.detail) == spot]
    alone = [e for e in here if not any(_together(e, other, now) for other in elsewhere)]
    return bursts(alone, now)


def _together(one: Evidence, other: Evidence, now: float) -> bool:
    related = one.node == other.node or (one.job is not None and one.job == other.job)
    return related and _apart(one, other, now) <= BURST_GAP


def bursts(events: Iterable[Evidence], now: float, gap: float = BURST_GAP) -> int:
    """How often it came, events at most `gap` seconds apart taken as one."""
    found = 0
    last: Evidence | None = None
    for e in sorted(events, key=lambda e: order(e, now)):
        if last is None or _apart(last, e, now) > gap:
            found += 1
        last = e
    return found


def _apart(one: Evidence, other: Evidence, now: float) -> float:
    """Seconds between two events, by the best clock that both have."""
    if one.happened_at is not None and other.happened_at is not None:
        return abs(one.happened_at - other.happened_at)
    comparable = one.node == other.node and one.boot == other.boot
    if comparable and one.stamp is not None and other.stamp is not None:
        gap = abs(one.stamp - other.stamp)
        if gap < _OTHER_CLOCK:
            return gap
        if one.detail == other.detail:
            return 0.0  # one line, told by two logs
    return abs(event_time(one, now) - event_time(other, now))
