"""Ranks that came to one meeting with something else than the others: another operation, another order, other sizes.
Pure.

The rules are those of PyTorch's analyzer (`torchfrtrace`), except that it takes the first rank for right. Here right
is what more than half of the ranks have, and where there is no such half nobody is blamed.
"""

import math
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from fleet.faults.hangs.meetings import Call, GroupId, Meeting, Picture, Track, kind_of
from fleet.faults.hangs.words import listed
from fleet.model import Value

T = TypeVar("T")
Sizes = tuple[tuple[int, ...], ...]

MOST = 10
"""Mismatches told of one group: after the first all others follow."""
_SHOWN = 3
"""Different values told at most."""
_NEAR = 16
"""Numbers before and after in which an operation that was swapped is looked for."""

_ALL_TO_ALL = frozenset({"all_to_all", "all_to_allv", "all_to_all_base", "alltoall", "alltoall_base"})
_NO_INPUT = frozenset({"scatter", "all_gather", "allgather", "barrier"})
"""Only the root gives one; or each may give another size, and their list must be the same."""
_NO_OUTPUT = frozenset({"gather", "reduce_scatter", "barrier"})


class Mismatch(Value):
    """Ranks that do not fit the others at one number of one group."""

    kind: str
    """`order`, `operation`, `sizes` or `types`."""
    group: str
    seq: int
    """Collective sequence number; -1 for a transfer."""
    ranks: tuple[int, ...]
    """Those that differ from more than half; empty where no half agrees."""
    text: str


class _Odd(NamedTuple, Generic[T]):
    """How values of the ranks differ."""

    ranks: tuple[int, ...]
    """Those that have not what more than half have; empty where no half agrees."""
    usual: T | None
    text: str


def mismatches(picture: Picture) -> tuple[Mismatch, ...]:
    """Of every group that is stuck: at the collective that is not over, and in the operations before it. The earliest
    of each group first."""
    found: list[Mismatch] = []
    for meeting in picture.meetings:
        if meeting.pair is not None:
            told = [_ends(meeting)]
        else:
            tracks = picture.tracks[meeting.group]
            before = sorted({seq for track in tracks.values() for seq in track.calls if seq <= meeting.seq})
            told = [_operations(meeting.group, seq, tracks) for seq in before]
            told += [_shapes(meeting)] if told[-1] is None else []
        found += [m for m in told if m is not None][:MOST]
    return tuple(found)


def _operations(group: GroupId, seq: int, tracks: Mapping[int, Track]) -> Mismatch | None:
    calls = {rank: track.calls[seq] for rank, track in tracks.items() if seq in track.calls}
    odd = _odd({rank: call.kinds for rank, call in calls.items()}, " + ".join)
    if odd is None:
        return None
    usual = odd.usual
    swapped = usual is not None and all(_swapped(tracks[rank], seq, usual) for rank in odd.ranks)
    more = "; what the others have there it has under another number, so the order differs" if swapped else ""
    text = f"under number {seq} of group {group.name} {odd.text}{more}"
    return Mismatch(kind="order" if swapped else "operation", group=group.name, seq=seq, ranks=odd.ranks, text=text)


def _swapped(track: Track, seq: int, usual: tuple[str, ...]) -> bool:
    near = range(seq - _NEAR, seq + _NEAR + 1)
    return any(other != seq and track.calls[other].kinds == usual for other in near if other in track.calls)


def _shapes(meeting: Meeting) -> Mismatch | None:
    """Sizes and types at the collective that is not over; the operations are known to agree."""
    calls, told = meeting.calls, ""
    if any(kind in _ALL_TO_ALL for call in calls.values() for kind in call.kinds):
        given = sum(_count(part.input_sizes) for call in calls.values() for part in call.parts)
        taken = sum(_count(part.output_sizes) for call in calls.values() for part in call.parts)
        told = f"the ranks give {given} elements and expect {taken}" if len(calls) == len(meeting.group.ranks) else ""
        if given == taken or not told:
            return None
        return _mismatch(meeting, "sizes", (), told)
    for kind, of in (("sizes", _sizes), ("types", _types)):
        odd = _odd({rank: of(call) for rank, call in calls.items()}, _shown)
        if odd is not None:
            return _mismatch(meeting, kind, odd.ranks, odd.text)
    return None


def _ends(meeting: Meeting) -> Mismatch | None:
    """What is sent must be what is received."""
    parts = {rank: call.parts[0] for rank, call in meeting.calls.items()}
    counts = {rank: (_count(part.input_sizes) or _count(part.output_sizes),) for rank, part in parts.items()}
    odd = _odd(counts, lambda count: f"{count[0]} elements")
    return _mismatch(meeting, "sizes", (), odd.text) if odd else None


def _mismatch(meeting: Meeting, kind: str, ranks: tuple[int, ...], text: str) -> Mismatch:
    return Mismatch(
        kind=kind, group=meeting.group.name, seq=meeting.seq, ranks=ranks, text=f"in {meeting.name} {text}"
    )


def _odd(values: Mapping[int, T], say: Callable[[T], str]) -> _Odd[T] | None:
    """None where all are alike."""
    by_value: dict[T, list[int]] = {}
    for rank, value in sorted(values.items()):
        by_value.setdefault(value, []).append(rank)
    if len(by_value) < 2:
        return None
    order = sorted(by_value.items(), key=lambda item: (-len(item[1]), item[1]))
    usual, many = order[0]
    if len(many) * 2 <= len(values):
        each = [f"{listed(ranks)}: {say(value)}" for value, ranks in order[:_SHOWN]]
        return _Odd((), None, f"the ranks differ ({'; '.join(each)})")
    others = [f"{listed(ranks)}: {say(value)}" for value, ranks in order[1 : 1 + _SHOWN]]
    wrong = tuple(sorted(rank for _, ranks in order[1:] for rank in ranks))
    return _Odd(wrong, usual, f"{'; '.join(others)}; the other {len(many)}: {say(usual)}")


def _sizes(call: Call) -> tuple[Sizes, ...]:
    found: list[Sizes] = []
    for part in call.parts:
        kind = kind_of(part)
        found += [() if kind in _NO_INPUT else part.input_sizes, () if kind in _NO_OUTPUT else part.output_sizes]
    return tuple(found)


def _types(call: Call) -> tuple[tuple[str, ...], ...]:
    """Of the inputs; an operation that only the root feeds has none on the others."""
    return tuple(() if kind_of(part) in _NO_INPUT else part.input_dtypes for part in call.parts)


def _shown(value: object) -> str:
    """Sizes or types for people."""
    return str(value).replace("(", "[").replace(",)", "]").replace(")", "]")[:120]


def _count(sizes: Sizes) -> int:
    """Elements of all tensors together."""
    return sum(math.prod(shape) for shape in sizes)
