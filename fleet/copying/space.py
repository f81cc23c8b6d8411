"""Whether a copy fits and how long it takes: arithmetic over what a store tells; and what is replicated."""

import math
from collections.abc import Iterable
from itertools import pairwise

from pydantic import Field

from fleet.model import Value

PER_FILE = 0.05
"""Seconds that a small file costs beside its bytes: one or two round trips to a store in another region."""


class Space(Value):
    """What a target tells of its room."""

    free: int | None = Field(default=None, ge=0)
    """Bytes that a writer like us may still use there, quota included where the store tells it; None: unknown."""
    source: str
    """Who says so, or why nobody does."""


class Fits(Value):
    """The judgement on the room."""

    ok: bool | None
    """None: nobody knows; the copy may end in a full target, which leaves a staging area to go on from."""
    text: str


def judge_space(needed: int, space: Space, headroom: float) -> Fits:
    """Whether `needed` bytes fit and leave `headroom` percent of what was free."""
    if space.free is None:
        return Fits(ok=None, text=f"{size_text(needed)} needed, free space unknown: {space.source}")
    usable = math.floor(space.free * (1 - headroom / 100))
    told = f"{size_text(needed)} needed, {size_text(space.free)} free by {space.source}"
    if needed <= usable:
        return Fits(ok=True, text=told)
    return Fits(
        ok=False, text=f"{told}: {size_text(needed - usable)} short with a headroom of {headroom:g}%; make room there"
    )


def seconds_for(size: int, files: int, rate: float | None, at_once: int) -> float | None:
    """Seconds at `rate` bytes a second, files `at_once` at a time; None without a rate."""
    if not rate:
        return None
    return size / rate + files * PER_FILE / at_once


def size_text(size: float) -> str:
    """Bytes for people: `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the loop ends at TiB")


def due_replicas(steps: Iterable[int], copied: Iterable[int], every: int) -> tuple[int, ...]:
    """Steps of the complete checkpoints of a source that are to be copied in the background, the newest only.

    `every`: each k-th complete checkpoint; 0 = none. Counted from the newest one that was copied; the first is due at
    once. What was skipped meanwhile stays skipped: a failover wants the newest. A trainer keeps few of them, so those
    that it deleted meanwhile are counted by the steps between two that are there; where there is only one, it is due.
    """
    ordered = sorted(set(steps))
    newest = max(copied, default=None)
    if every <= 0 or not ordered or (newest is not None and ordered[-1] <= newest):
        return ()
    apart = min((two - one for one, two in pairwise(ordered)), default=0)
    if newest is None or not apart or ordered[-1] - newest >= every * apart:
        return (ordered[-1],)
    return (ordered[-1],) if sum(step > newest for step in ordered) >= every else ()
