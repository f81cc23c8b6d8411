"""Where the ranks of a job meet: every collective and every transfer that somebody still waits in, who came, who did
not. Pure.

Collectives are matched by group and sequence number, as PyTorch's own analyzer does (`torchfrtrace`). The numbers of
transfers run apart, so those are matched by their two ends. A rank's ring buffer holds its newest records only: a
number below what it holds is one that it has passed.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fleet.faults.sources.flight_recorder import MAX_RANKS, Dump, GroupStatus, Record, State

WORLD = "default_pg"
"""Description that PyTorch gives the group of all ranks."""
KEPT = 64
"""Completed collectives of each group that are kept of one rank: enough to see an order that differs."""

_TRANSFER = re.compile(r"(send|recv) (\d{1,9})(->|<-)(\d{1,9})$")
_BATCH = "coalesced"


class GroupId(NamedTuple):
    """A process group. Two of one name and other ranks are two: names count up in each process."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """What one rank enqueued under one number: one operation, or a batch of them."""

    parts: tuple[Record, ...]
    state: State

    @property
    def open(self) -> bool:
        return self.state != "completed"

    @property
    def kinds(self) -> tuple[str, ...]:
        """`all_reduce`, of each part; the record that closes a batch is no operation."""
        return tuple(kind for kind in map(kind_of, self.parts) if kind != _BATCH) or (_BATCH,)

    @property
    def since(self) -> float | None:
        """When it was enqueued, seconds since the epoch by the rank's clock."""
        return self.parts[0].created_at

    @property
    def place(self) -> str:
        """`train.py:87`, the innermost frame that is no library's; empty where none was recorded."""
        frames = [f for part in self.parts for f in part.frames if f.filename]
        own = [f for f in frames if not re.search(r"/(site|dist)-packages/|/torch/", f.filename)]
        return f"{(own or frames)[0].filename.rsplit('/', 1)[-1]}:{(own or frames)[0].line}" if frames else ""


@dataclass
class Track:
    """One rank's way through one group's collectives."""

    calls: dict[int, Call] = field(default_factory=dict)
    """By sequence number; the newest ones."""
    reached: int = -1
    """The highest number that it enqueued."""

    @property
    def first_open(self) -> int | None:
        return min((seq for seq, call in self.calls.items() if call.open), default=None)


@dataclass(frozen=True, eq=False)
class Meeting:
    """One collective, or one transfer, that is not over."""

    group: GroupId
    desc: str
    seq: int
    """Collective sequence number; -1 for a transfer."""
    pair: tuple[int, int] | None
    """Global ranks (from, to) of a transfer."""
    calls: Mapping[int, Call]
    """By rank, of those that enqueued it and still hold the record."""
    missing: tuple[int, ...]
    """Ranks whose dump shows that they have not enqueued it, the one furthest behind first."""
    silent: tuple[int, ...]
    """Ranks of which there is no dump."""
    ahead: frozenset[int] = frozenset()
    """Ranks that have passed it and wait in a later one of the same group."""

    @property
    def waiting(self) -> tuple[int, ...]:
        """Ranks that have not come out of it."""
        return tuple(sorted(rank for rank, call in self.calls.items() if call.open))

    @property
    def holds(self) -> frozenset[int]:
        """Ranks that cannot go on in this group."""
        return frozenset(self.waiting) | self.ahead

    @property
    def full(self) -> bool:
        """Everybody came."""
        return not self.missing and not self.silent

    @property
    def since(self) -> float | None:
        return min((c.since for c in self.calls.values() if c.open and c.since is not None), default=None)

    @property
    def op(self) -> str:
        """As most ranks enqueued it."""
        if self.pair is not None:
            return "transfer"
        return Counter(" + ".join(call.kinds) for _, call in sorted(self.calls.items())).most_common(1)[0][0]

    @property
    def name(self) -> str:
        """`all_reduce 12 of group dp (1)`, `the transfer from rank 3 to rank 4 in group pp (2)`."""
        group = f"{self.desc} ({self.group.name})" if self.desc else self.group.name
        if self.pair is not None:
            return f"the transfer from rank {self.pair[0]} to rank {self.pair[1]} in group {group}"
        return f"{self.op} {self.seq} of group {group}"


@dataclass(frozen=True)
class Picture:
    """All that the dumps of one job say together."""

    tracks: Mapping[GroupId, Mapping[int, Track]]
    descs: Mapping[GroupId, str]
    meetings: tuple[Meeting, ...]
    world: tuple[int, ...]
    """All ranks of the job, as far as anything names them."""


def kind_of(record: Record) -> str:
    """`all_reduce` of `nccl:all_reduce`."""
    return record.op.rpartition(":")[2]


def essential(dump: Dump) -> Dump:
    """The dump without what no judgement needs: of each group's completed collectives the newest `KEPT`."""
    left: Counter[str] = Counter()
    kept = []
    for record in reversed(dump.records):
        if record.state == "completed":
            left[record.group] += 1
            if left[record.group] > KEPT:
                continue
        kept.append(record)
    return dump.model_copy(update={"records": tuple(reversed(kept))})


def world_size(dumps: Mapping[int, Dump]) -> int:
    """How many ranks the job has at least, by the dumps' names and their groups."""
    named = (
        max(group.ranks) for dump in dumps.values() for group in dump.groups.values() if _believable(group.ranks)
    )
    return 1 + max((*dumps, *named), default=-1)


def picture(dumps: Mapping[int, Dump], world: int = 0) -> Picture:
    """Compares the dumps (by rank). `world`: how many ranks the job has, where the caller knows; else the groups
    tell."""
    names = _names(dumps)
    tracks: dict[GroupId, dict[int, Track]] = defaultdict(dict)
    transfers: dict[tuple[GroupId, tuple[int, int]], dict[int, Call]] = defaultdict(dict)
    descs: dict[GroupId, str] = {}
    for rank, dump in sorted(dumps.items()):
        for name, calls in _calls(dump).items():
            group = names[rank].get(name, GroupId(name, ()))
            descs.setdefault(group, next((p.group_desc for c in calls for p in c.parts if p.group_desc), ""))
            tracks[group][rank] = _track(dump, calls)
            for pair, call in _transfers(calls, group):
                transfers[group, pair].setdefault(rank, call)
    everyone = {
        *range(world),
        *dumps,
        *(r for known in names.values() for group in known.values() for r in group.ranks),
    }
    found = [
        m for group, by_rank in tracks.items() if (m := _collective(group, descs[group], by_rank, dumps, everyone))
    ]
    found += [_transfer(group, descs[group], pair, calls, dumps) for (group, pair), calls in transfers.items()]
    found.sort(key=lambda m: (m.since is None, m.since or 0.0, m.group, m.seq, m.pair or ()))
    return Picture(tracks=tracks, descs=descs, meetings=tuple(found), world=tuple(sorted(everyone)))


def _names(dumps: Mapping[int, Dump]) -> dict[int, dict[str, GroupId]]:
    """rank -> name -> group. A dump that does not say who is in a group takes the word of another that does."""
    said: dict[str, Counter[tuple[int, ...]]] = defaultdict(Counter)
    for _, dump in sorted(dumps.items()):
        for name, group in dump.groups.items():
            if _believable(group.ranks):
                said[name][group.ranks] += 1
    found: dict[int, dict[str, GroupId]] = {}
    for rank, dump in dumps.items():
        known = {name: GroupId(name, group.ranks) for name, group in dump.groups.items() if _believable(group.ranks)}
        for name in {r.group for r in dump.records} - set(known):
            known[name] = GroupId(name, next((r for r, _ in said[name].most_common() if rank in r), ()))
        found[rank] = known
    return found


def _believable(ranks: tuple[int, ...]) -> bool:
    """A dump is the job's own word, and may name a rank beyond all counts."""
    return bool(ranks) and min(ranks) >= 0 and max(ranks) < MAX_RANKS


def _calls(dump: Dump) -> dict[str, list[Call]]:
    """By group: the records that share a number are one call, with the state of the record that closes the batch."""
    together: dict[tuple[str, bool, int], list[Record]] = defaultdict(list)
    for record in dump.records:
        seq = record.p2p_seq if record.is_p2p else record.collective_seq
        together[record.group, record.is_p2p, seq].append(record)
    found: dict[str, list[Call]] = defaultdict(list)
    for (name, transfers, _), records in together.items():
        closing = next((r for r in reversed(records) if kind_of(r) == _BATCH), None)
        if closing is None and transfers:  # transfers outside a batch are calls of their own
            found[name] += [Call((r,), r.state) for r in records]
        else:
            found[name].append(Call(tuple(records), closing.state if closing else _least([r.state for r in records])))
    return found


def _least(states: list[State]) -> State:
    order: tuple[State, ...] = ("unknown", "scheduled", "started", "completed")
    return min(states, key=order.index)


def _track(dump: Dump, calls: list[Call]) -> Track:
    own = {call.parts[0].collective_seq: call for call in calls if not call.parts[0].is_p2p}
    ids = {str(call.parts[0].pg_id) for call in calls}
    if len(own) < len(calls):  # the status of a group with transfers counts those, too
        ids = set()
    status = [dump.status.get(pg_id, GroupStatus()).last_enqueued for pg_id in ids]
    return Track(calls=own, reached=max((*own, *status), default=-1))


def _transfers(calls: Iterable[Call], group: GroupId) -> Iterable[tuple[tuple[int, int], Call]]:
    """Open ones, oldest first, with the global ranks of their ends."""
    for call in calls:
        for part in call.parts:
            found = _TRANSFER.search(part.op)
            if found is None or not call.open:
                continue
            mine, peer = int(found[2]), int(found[4])
            ends = (mine, peer) if found[1] == "send" else (peer, mine)
            if group.ranks and max(ends) < len(group.ranks):  # the dump counts within the group
                ends = (group.ranks[ends[0]], group.ranks[ends[1]])
            yield ends, Call((part,), call.state)


def _collective(
    group: GroupId, desc: str, by_rank: Mapping[int, Track], dumps: Mapping[int, Dump], everyone: set[int]
) -> Meeting | None:
    """The earliest one that is not over in this group; None where all are."""
    opened = [track.first_open for track in by_rank.values() if track.first_open is not None]
    if not opened:
        return None
    seq = min(opened)
    expected = group.ranks or tuple(sorted(everyone if desc == WORLD else by_rank))
    reached = {rank: by_rank[rank].reached if rank in by_rank else -1 for rank in expected if rank in dumps}
    calls = {rank: track.calls[seq] for rank, track in by_rank.items() if seq in track.calls}
    missing = [rank for rank, far in reached.items() if rank not in calls and far < seq]
    return Meeting(
        group=group,
        desc=desc,
        seq=seq,
        pair=None,
        calls=calls,
        missing=tuple(sorted(missing, key=lambda rank: (reached[rank], rank))),
        silent=tuple(rank for rank in expected if rank not in dumps),
        ahead=frozenset(r for r, t in by_rank.items() if t.first_open is not None and t.first_open > seq),
    )


def _transfer(
    group: GroupId, desc: str, pair: tuple[int, int], calls: Mapping[int, Call], dumps: Mapping[int, Dump]
) -> Meeting:
    return Meeting(
        group=group,
        desc=desc,
        seq=-1,
        pair=pair,
        calls=calls,
        missing=tuple(rank for rank in pair if rank in dumps and rank not in calls),
        silent=tuple(rank for rank in pair if rank not in dumps),
    )
