"""One judgement under way: its readings, what is known beside them, and how a rule changes a reading."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fleet.faults.evidence import Evidence, Kind
from fleet.faults.reading import Reading
from fleet.faults.repeats import Gpu, Names, event_time, gpu_names, order, same_gpu_name
from fleet.faults.tables import Tables

JOB_SIDE = {Kind.JOB_EXIT, Kind.LOG_TEXT, Kind.JOB_STALLED, Kind.JOB_REQUEUED, Kind.BAD_RESUME, Kind.HANG}
"""Evidence that is about a job, not about a node."""


@dataclass
class Scene:
    """All readings of one judgement, and what was said on the way. The order of evidence does not matter: every rule
    sees its pieces in the fixed order of `repeats.order`."""

    readings: list[Reading]
    history: Sequence[Evidence]
    tables: Tables
    now: float
    around: Sequence[Evidence] = ()
    """What was seen lately elsewhere in the fleet, and on the nodes of the job: it names nobody by itself."""
    facts: Sequence[Evidence] = ()
    """Circumstances (`Kind.FACT`)."""
    refused: list[str] = field(default_factory=list)
    names: Names = field(default_factory=dict)
    _orders: dict[int, tuple[float, float, str, str]] = field(default_factory=dict)
    """By the identity of a piece; all pieces live as long as the scene."""

    def __post_init__(self) -> None:
        self.names = gpu_names([*(r.evidence for r in self.readings), *self.history, *self.facts])

    @cached_property
    def events(self) -> tuple[Evidence, ...]:
        """What is judged and what was before, each piece once, the oldest first."""
        return self._sorted([*(r.evidence for r in self.readings), *self.history])

    @cached_property
    def seen_around(self) -> tuple[Evidence, ...]:
        """What is judged and what was seen elsewhere, the oldest first."""
        return self._sorted([*(r.evidence for r in self.readings), *self.around])

    @cached_property
    def _xids(self) -> dict[tuple[Gpu | None, str | None, str | None], list[Evidence]]:
        found: dict[tuple[Gpu | None, str | None, str | None], list[Evidence]] = {}
        for e in self.events:
            if e.kind is Kind.XID:
                gpu = self.gpu(e)
                found.setdefault((gpu, None if gpu else e.node, e.code), []).append(e)
        return found

    def xids_on_gpu_of(self, suspect: Evidence, codes: Collection[str], window: float) -> list[Evidence]:
        """XIDs of these codes on the suspect's GPU within the window (seconds); on its node where it names no GPU."""
        gpu = self.gpu(suspect)
        told = [e for code in sorted(codes) for e in self._xids.get((gpu, None if gpu else suspect.node, code), [])]
        return [e for e in told if self.now - window <= self.when(e)]

    def _sorted(self, pieces: Iterable[Evidence]) -> tuple[Evidence, ...]:
        once: dict[tuple[str, str], Evidence] = {}
        for e in sorted(pieces, key=self.order):
            once.setdefault((self.order(e)[2], e.detail), e)
        return tuple(once.values())

    def order(self, e: Evidence) -> tuple[float, float, str, str]:
        """`repeats.order`, made once for each piece: it is asked for again and again."""
        known = self._orders.get(id(e))
        if known is None:
            known = self._orders[id(e)] = order(e, self.now)
        return known

    def by_rule(self, *rules: str) -> list[Reading]:
        """Readings with one of these rules, in the fixed order."""
        found = [r for r in self.readings if r.rule in rules]
        return sorted(found, key=lambda r: self.order(r.evidence))

    def xids(self, *codes: int) -> list[Reading]:
        """Readings of these XIDs, in the fixed order."""
        return self.by_rule(*(f"xid:{code}" for code in codes))

    def change(self, reading: Reading, **changes: Any) -> Reading:
        """Puts a changed reading in its place; `note` is added to its notes."""
        if (note := changes.pop("note", "")) != "":
            changes["notes"] = (*reading.notes, note)
        changed = replace(reading, **changes)
        self.readings[next(i for i, r in enumerate(self.readings) if r is reading)] = changed
        return changed

    def when(self, e: Evidence) -> float:
        """When it happened, as far as known."""
        return event_time(e, self.now)

    def gpu(self, e: Evidence) -> Gpu | None:
        """One name for its GPU."""
        return same_gpu_name(e, self.names)

    def same_gpu(self, one: Evidence, other: Evidence) -> bool:
        """On one GPU, or on one node where one of them does not name its GPU."""
        left, right = self.gpu(one), self.gpu(other)
        return one.node == other.node and (left == right or left is None or right is None)

    def facts_of(self, code: str, *, node: str | None = None, job: str | None = None) -> Iterator[Evidence]:
        """Circumstances of one kind about a node or a job, the oldest first."""
        for fact in sorted(self.facts, key=self.order):
            if fact.code == code and (node is None or fact.node == node) and (job is None or fact.job == job):
                yield fact


def job_nodes(evidence: Iterable[Evidence], job: str | None) -> frozenset[str]:
    """Nodes of the job's attempt, as far as its evidence knows them."""
    return frozenset(node for e in evidence if job is not None and e.job == job for node in e.nodes)
