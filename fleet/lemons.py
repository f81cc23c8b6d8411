"""Lemons: nodes and GPUs that come back with trouble again and again over four weeks. Pure.

Seven signals (arXiv 2410.21680, section on lemon nodes), counted for each node and each GPU uuid. That paper's
thresholds are not published and were set by hand on one fleet's distribution; here a value stands out when it is
above the fleet's own quantile, and when its strikes are a day apart or more, for one bad night is an incident and has
its repair.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

from fleet.model import Value
from fleet.strikes import Inventory, Run, Strike, StrikeKind

DAY = 86400.0
WINDOW = 28 * DAY
"""Seconds looked back (arXiv 2410.21680)."""
EPISODE = 1800.0
"""Taken out of the scheduler again this soon is the same time out: a health check drains, then we isolate."""
BLAME = 3600.0
"""A repair, a drain or a job's failure this soon after an XID of one GPU is that GPU's."""
PRIOR_RUNS = 10.0
"""A node's failure rate counts as if so many runs at the fleet's rate had come before: 1 of 1 is no rate."""
BAR = 2.0
"""Points that make a lemon: two signals that agree, one that blames exactly, or one far above the fleet."""


class Signal(StrEnum):
    """What is counted."""

    EXCLUSIONS = "users ruling it out"
    DISTINCT_XIDS = "distinct XIDs"
    REPAIRS = "repairs"
    TAKEN_OUT = "times out of the scheduler"
    MULTI_NODE_FAILS = "multi-node jobs ended"
    SINGLE_NODE_FAILS = "single-node jobs ended"
    SINGLE_NODE_RATE = "single-node failure rate"


POINTS: Mapping[Signal, float] = {
    Signal.EXCLUSIONS: 0.5,  # correlated weakly (arXiv 2410.21680)
    Signal.DISTINCT_XIDS: 1.0,
    Signal.REPAIRS: 1.0,
    Signal.TAKEN_OUT: 0.5,  # maintenance takes nodes out, too
    Signal.MULTI_NODE_FAILS: 1.0,
    Signal.SINGLE_NODE_FAILS: 2.0,  # the blame is exact
    Signal.SINGLE_NODE_RATE: 1.0,
}
_KINDS: Mapping[Signal, StrikeKind] = {
    Signal.EXCLUSIONS: StrikeKind.EXCLUDED,
    Signal.DISTINCT_XIDS: StrikeKind.XID,
    Signal.REPAIRS: StrikeKind.REPAIR,
    Signal.TAKEN_OUT: StrikeKind.TAKEN_OUT,
    Signal.MULTI_NODE_FAILS: StrikeKind.MULTI_NODE_FAIL,
    Signal.SINGLE_NODE_FAILS: StrikeKind.SINGLE_NODE_FAIL,
    Signal.SINGLE_NODE_RATE: StrikeKind.SINGLE_NODE_FAIL,
}

Place = tuple[str, str]
"""Cluster and node."""
Subject = TypeVar("Subject", Place, str)


class Reading(Value):
    """One signal of one subject that stands out."""

    signal: Signal
    value: float
    limit: float
    """The fleet's quantile, of all the others."""
    points: float


class Lemon(Value):
    """A node or a GPU with too much on its record."""

    cluster: str
    node: str
    """Itself, or where the GPU is now."""
    gpu: str | None = None
    """Uuid; None: the node itself."""
    score: float
    readings: tuple[Reading, ...]
    strikes: int
    last_at: float
    """When its newest strike happened."""
    newest: str
    """Key of that strike: a record with another one has grown."""
    notes: tuple[str, ...] = ()
    """What was not counted, and why."""

    @property
    def subject(self) -> str:
        """`CLUSTER/NODE`, or the GPU's uuid."""
        return self.gpu or f"{self.cluster}/{self.node}"

    @property
    def text(self) -> str:
        """In one line, for a person who is asked."""
        where = f"{self.gpu} in {self.cluster}/{self.node}" if self.gpu else self.subject
        said = "; ".join(_said(reading) for reading in self.readings)
        notes = f" ({'; '.join(self.notes)})" if self.notes else ""
        return f"{where}: {said}; {self.score:g} points{notes}"


def _said(reading: Reading) -> str:
    if reading.signal is Signal.SINGLE_NODE_RATE:
        return f"{reading.signal} {reading.value:.0%} (fleet {reading.limit:.0%})"
    return f"{reading.signal} {reading.value:g} (fleet {reading.limit:g})"


def find_lemons(
    strikes: Iterable[Strike],
    runs: Iterable[Run],
    inventories: Sequence[Inventory],
    *,
    nodes: Iterable[Place],
    gpus: int,
    now: float,
    quantile: float,
    harmless: frozenset[str] = frozenset(),
) -> tuple[Lemon, ...]:
    """The nodes and GPUs that stand out of the fleet, worst first.

    `nodes` are all nodes of today and `gpus` how many GPUs they have: the quiet ones make the quantile (0 to 1).
    `harmless` are XIDs that speak for a program and not against the hardware. The order of what comes in does not
    matter.
    """
    recent = [s for s in strikes if now - WINDOW <= s.at <= now]
    known = _blamed(_named([s for s in recent if s.kind is not StrikeKind.XID or s.code not in harmless]))
    places = _Places(known, inventories)
    run_count: dict[Place, int] = defaultdict(int)
    for run in runs:
        if now - WINDOW <= run.at <= now:
            run_count[run.cluster, run.node] += 1
    today = sorted(set(nodes))
    of_node, notes = _node_records(known, places, today)
    of_gpu: dict[str, list[Strike]] = defaultdict(list)
    for strike in known:
        if strike.gpu is not None:
            of_gpu[strike.gpu].append(strike)
    rate = _Rate(sum(len(_of(own, StrikeKind.SINGLE_NODE_FAIL)) for own in of_node.values()), sum(run_count.values()))
    found = [
        _lemon(place, None, own, readings, notes.get(place, ()))
        for place, own, readings in _judged(
            of_node, len(today), quantile, lambda place, own: rate.of(own, run_count[place]), rate.expected
        )
    ]
    found += [
        _lemon(place, gpu, own, readings, ())
        for gpu, own, readings in _judged(
            of_gpu,
            max(gpus, len(of_gpu)),
            quantile,
            lambda _, own: rate.of(own, _runs_beside(own, run_count)),
            rate.expected,
        )
        if (place := places.of(gpu)) is not None and place in today
    ]
    return tuple(sorted(found, key=lambda lemon: (-lemon.score, -lemon.last_at, lemon.subject)))


def _lemon(
    place: Place, gpu: str | None, own: Sequence[Strike], readings: tuple[Reading, ...], notes: tuple[str, ...]
) -> Lemon:
    return Lemon(
        cluster=place[0],
        node=place[1],
        gpu=gpu,
        score=sum(r.points for r in readings),
        readings=readings,
        strikes=len(own),
        last_at=own[-1].at,
        newest=own[-1].key,
        notes=notes,
    )


# -- whose strike it is


def _named(strikes: Sequence[Strike]) -> list[Strike]:
    """Strikes that know only a GPU's address get the uuid that was there at that time, as far as any strike tells."""
    seen: dict[tuple[str, str, str], list[Strike]] = defaultdict(list)
    for strike in sorted(strikes, key=lambda s: (s.at, s.key)):
        if strike.gpu is not None and strike.pci is not None:
            seen[strike.cluster, strike.node, strike.pci].append(strike)

    def named(strike: Strike) -> Strike:
        if strike.gpu is not None or strike.pci is None:
            return strike
        there = seen.get((strike.cluster, strike.node, strike.pci), [])
        before = [s for s in there if s.at <= strike.at]
        known = before[-1] if before else there[0] if there else None
        return strike if known is None else strike.model_copy(update={"gpu": known.gpu})

    return sorted((named(s) for s in strikes), key=lambda s: (s.at, s.key))


def _blamed(strikes: Sequence[Strike]) -> list[Strike]:
    """What happened to a node right after XIDs of one GPU alone is that GPU's, too."""
    xids: dict[Place, list[Strike]] = defaultdict(list)
    for strike in strikes:
        if strike.kind is StrikeKind.XID:
            xids[strike.cluster, strike.node].append(strike)

    def blamed(strike: Strike) -> Strike:
        if strike.gpu is not None or strike.kind in {StrikeKind.XID, StrikeKind.EXCLUDED}:
            return strike
        there = [x for x in xids[strike.cluster, strike.node] if strike.at - BLAME <= x.at <= strike.at]
        suspects = {x.gpu for x in there}
        return strike.model_copy(update={"gpu": there[0].gpu}) if len(suspects) == 1 else strike

    return [blamed(s) for s in strikes]


class _Places:
    """Where each GPU was seen, and since when each node is the machine that it is."""

    def __init__(self, strikes: Iterable[Strike], inventories: Sequence[Inventory]) -> None:
        self._seen: dict[str, list[tuple[float, Place]]] = defaultdict(list)
        self._lists: dict[Place, list[Inventory]] = defaultdict(list)
        for strike in strikes:
            if strike.gpu is not None:
                self._seen[strike.gpu].append((strike.at, (strike.cluster, strike.node)))
        for inventory in sorted(inventories, key=lambda i: i.at):
            self._lists[inventory.cluster, inventory.node].append(inventory)
            for gpu in inventory.gpus:
                self._seen[gpu].append((inventory.at, (inventory.cluster, inventory.node)))
        for sightings in self._seen.values():
            sightings.sort()

    def of(self, gpu: str) -> Place | None:
        """Where it is as far as known; None when it was taken out and not seen since."""
        at, place = self._seen[gpu][-1]
        return None if any(i.at > at and gpu not in i.gpus for i in self._lists[place]) else place

    def left_at(self, gpu: str, place: Place) -> float | None:
        """When it was first known to have left the place for good; None while it is there."""
        if self.of(gpu) == place:
            return None
        last_here = max((at for at, where in self._seen[gpu] if where == place), default=-math.inf)
        gone = [at for at, where in self._seen[gpu] if at > last_here and where != place]
        gone += [i.at for i in self._lists[place] if i.at > last_here and gpu not in i.gpus]
        return min(gone)

    def machine_since(self, place: Place) -> float:
        """When all its GPUs were others than before, the last time: another machine under the node's name."""
        since, held = -math.inf, frozenset[str]()
        for inventory in self._lists[place]:
            now = frozenset(inventory.gpus)
            if held and now and not held & now:
                since = inventory.at
            held = now or held
        return since


def _node_records(
    strikes: Sequence[Strike], places: _Places, today: Sequence[Place]
) -> tuple[dict[Place, list[Strike]], dict[Place, tuple[str, ...]]]:
    """What counts against each node of today, and what does not any more.

    A strike of a GPU that has left goes with the GPU, unless the node has had strikes since: then the fault stayed
    with the slot.
    """
    by_place: dict[Place, list[Strike]] = {place: [] for place in today}
    for strike in strikes:
        if (place := (strike.cluster, strike.node)) in by_place:
            by_place[place].append(strike)
    kept: dict[Place, list[Strike]] = {}
    notes: dict[Place, tuple[str, ...]] = {}
    for place, own in by_place.items():
        since = places.machine_since(place)
        of_machine = [s for s in own if s.at >= since]
        left = {s.gpu: places.left_at(s.gpu, place) for s in of_machine if s.gpu is not None}
        gone = [s for s in of_machine if s.gpu is not None and _went_along(s, left[s.gpu], of_machine)]
        counted = [s for s in of_machine if s not in gone]
        if counted:
            kept[place] = counted
        said = [f"{len(own) - len(of_machine)} strikes of the machine before not counted"] * (own != of_machine)
        said += [f"{len(gone)} strikes of GPUs that have left not counted"] * bool(gone)
        notes[place] = tuple(said)
    return kept, notes


def _went_along(strike: Strike, left_at: float | None, own: Sequence[Strike]) -> bool:
    faults = {StrikeKind.XID, StrikeKind.SINGLE_NODE_FAIL, StrikeKind.MULTI_NODE_FAIL}
    if left_at is None:
        return False
    return not any(s.at > left_at and s.gpu != strike.gpu and s.kind in faults for s in own)


# -- counting


class _Rate:
    """Failures of single-node jobs by runs, with the fleet's rate as what is expected of a node without a past."""

    def __init__(self, failed: int, ran: int) -> None:
        self.expected = min(1.0, failed / max(ran, failed, 1))

    def of(self, own: Sequence[Strike], ran: int) -> float:
        failed = len(_of(own, StrikeKind.SINGLE_NODE_FAIL))
        return (failed + PRIOR_RUNS * self.expected) / (max(ran, failed) + PRIOR_RUNS)


def _of(own: Sequence[Strike], kind: StrikeKind) -> list[Strike]:
    return [s for s in own if s.kind is kind]


def _runs_beside(own: Sequence[Strike], run_count: Mapping[Place, int]) -> int:
    return sum(run_count.get(place, 0) for place in {(s.cluster, s.node) for s in own})


def _count(signal: Signal, own: Sequence[Strike]) -> int:
    of_kind = _of(own, _KINDS[signal])
    if signal in {Signal.EXCLUSIONS, Signal.DISTINCT_XIDS}:
        return len({s.code for s in of_kind})
    if signal is Signal.TAKEN_OUT:
        times = sorted(s.at for s in of_kind)
        return sum(1 for n, at in enumerate(times) if n == 0 or at - times[n - 1] > EPISODE)
    return len(of_kind)


def _came_back(signal: Signal, own: Sequence[Strike]) -> bool:
    """At least twice, a day or more apart."""
    times = [s.at for s in _of(own, _KINDS[signal])]
    return _count(signal, own) > 1 and max(times) - min(times) >= DAY


def _judged(
    records: Mapping[Subject, Sequence[Strike]],
    population: int,
    quantile: float,
    rate: Callable[[Subject, Sequence[Strike]], float],
    quiet_rate: float,
) -> Iterator[tuple[Subject, Sequence[Strike], tuple[Reading, ...]]]:
    """The subjects whose signals make enough points. Subjects without a record count as quiet."""
    readings: dict[Subject, list[Reading]] = {subject: [] for subject in records}
    for signal in Signal:
        of_rate = signal is Signal.SINGLE_NODE_RATE
        values: dict[Subject, float] = {
            subject: rate(subject, own) if of_rate else float(_count(signal, own)) for subject, own in records.items()
        }
        quiet: list[float] = [quiet_rate if of_rate else 0.0] * (population - len(values))
        ranked = sorted([*values.values(), *quiet])
        for subject, value in values.items():
            own, limit = records[subject], _quantile_of_others(ranked, value, quantile)
            if value > limit and _came_back(signal, own):
                far = not of_rate and value > 2 * max(limit, 1.0)
                points = POINTS[signal] * (2 if far else 1)
                readings[subject].append(Reading(signal=signal, value=value, limit=limit, points=points))
    for subject, told in readings.items():
        if sum(reading.points for reading in told) >= BAR:
            yield subject, records[subject], tuple(told)


def _quantile_of_others(ranked: Sequence[float], own: float, quantile: float) -> float:
    """The value that `quantile` of the others do not exceed (nearest rank): in a small fleet its own value would be
    its limit. 0 where there are no others."""
    others = len(ranked) - 1
    if others < 1:
        return 0.0
    rank = max(math.ceil(quantile * others - 1e-9), 1) - 1
    return ranked[rank] if rank < bisect_left(ranked, own) else ranked[rank + 1]
