"""PyTorch's Flight Recorder: one dump of each rank, with the collectives that it enqueued, started and completed.

Shape: `torch/csrc/distributed/c10d/FlightRecorder*`, dump versions 2.4 and later, pickle or JSON. In JSON the numbers
of `pg_status` are texts and frames may be missing.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from fleet.errors import InvalidInputError
from fleet.faults.evidence import Kind, Source
from fleet.faults.sources.plain_pickle import load_plain
from fleet.faults.texts import BROKEN, Findings, Origin, Parsed, decoded, load_json, number, rows, table, whole, word
from fleet.model import Value

MAX_BYTES = 256 * 1024 * 1024
"""Bytes of one dump. PyTorch keeps 2,000 records unless told otherwise, some 10 MB with C++ frames."""
MAX_RECORDS = 50_000
"""Records of one dump; the newest are kept."""
MAX_GROUPS = 10_000
MAX_FRAMES = 64
"""Frames of one record that are kept, innermost first as PyTorch writes them."""
MAX_TENSORS = 64
MAX_RANKS = 200_000

T = TypeVar("T")
State = Literal["scheduled", "started", "completed", "unknown"]


class Frame(Value):
    """One call of the stack that enqueued a collective."""

    name: str
    filename: str = ""
    line: int = 0


class Record(Value):
    """One collective or point-to-point operation, as one rank saw it."""

    record_id: int
    """Position in that rank's ring buffer, counted from its start."""
    pg_id: int = -1
    group: str = ""
    """Name of the process group; the key of `Dump.groups`."""
    group_desc: str = ""
    collective_seq: int = -1
    p2p_seq: int = -1
    op_id: int = -1
    op: str = ""
    """`nccl:all_reduce`, `nccl:send 1->2`, `nccl:coalesced`."""
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    state: State = "unknown"
    created_at: float | None = None
    """Seconds since the epoch, by the rank's clock."""
    started_seen_at: float | None = None
    """When the watchdog noticed the start, seconds since the epoch: later than the start itself."""
    completed_seen_at: float | None = None
    duration_ms: float | None = None
    timeout_ms: float | None = None
    retired: bool = False
    is_p2p: bool = False
    frames: tuple[Frame, ...] = ()

    @property
    def timed_out(self) -> bool:
        """The watchdog gave it up: retired without being completed."""
        return self.retired and self.state != "completed"


class Group(Value):
    """A process group as a dump names it."""

    name: str
    desc: str = ""
    ranks: tuple[int, ...] = ()
    """Global ranks; empty where the dump does not say."""


class GroupStatus(Value):
    """How far one rank is in a group; -1 for never."""

    last_enqueued: int = -1
    last_started: int = -1
    last_completed: int = -1


class Dump(Value):
    """What one rank's file holds. Plain values only, whatever the file was."""

    rank: int | None = None
    """From the file's name, or from the dump where it says so."""
    version: str = ""
    groups: Mapping[str, Group] = {}
    """By name of the group, as `Record.group` has it."""
    status: Mapping[str, GroupStatus] = {}
    """By pg id, as text of `Record.pg_id`."""
    records: tuple[Record, ...] = ()
    """Oldest first."""
    lost: int = 0
    """Records that could not be read or were over the limit."""

    def open_records(self) -> tuple[Record, ...]:
        """Those that are not completed, oldest first."""
        return tuple(r for r in self.records if r.state != "completed")


def rank_of(file_name: str) -> int | None:
    """Rank that ends a dump's file name (`nccl_trace_rank_12`, `dump_3.json`); None where none does."""
    found = re.search(r"(\d{1,9})(?:\.(?:json|pkl|pickle|bin))?$", file_name)
    return int(found.group(1)) if found else None


def read_dump(raw: str | bytes, *, rank: int | None = None) -> Dump:
    """The dump as plain values. Raises InvalidInputError that says why it cannot be read (see `read_flight_dump`,
    which never raises)."""
    document = table(_document(raw))
    if "entries" not in document and "pg_status" not in document:
        raise InvalidInputError("no Flight Recorder dump: neither entries nor pg_status in it")
    if not isinstance(document.get("entries", []), list):
        raise InvalidInputError("a Flight Recorder dump whose entries are no list")
    entries = document.get("entries") or []
    once: _Once = {}
    records = [r for e in entries[-MAX_RECORDS:] if (r := _shared(once, e, lambda e: _record(e, once))) is not None]
    records.sort(key=lambda r: r.record_id)
    return Dump(
        rank=rank if rank is not None else whole(document.get("rank")),
        version=word(document.get("version"), 20),
        groups=_groups(table(document.get("pg_config"))),
        status=_status(table(document.get("pg_status"))),
        records=tuple(records),
        lost=len(entries) - len(records),
    )


def read_flight_dump(raw: str | bytes, origin: Origin) -> tuple[Dump | None, Parsed]:
    """The dump, and evidence of the first collective of each group that is not completed. Never raises; a file that
    cannot be read gives no dump and says so."""
    found = Findings(Source.JOB, origin, lines=1)
    try:
        dump = read_dump(raw, rank=origin.rank)
    except InvalidInputError as error:
        found.cannot_read("a Flight Recorder dump that cannot be read", str(error))
        return None, found.parsed()
    found.lines = len(dump.records) + dump.lost
    found.drop("a record that cannot be read", dump.lost)
    opened: dict[str, Record] = {}
    for record in dump.open_records():
        opened.setdefault(record.group or str(record.pg_id), record)
    found.drop("a completed collective", sum(r.state == "completed" for r in dump.records))
    for name, record in opened.items():
        _tell(found, dump, name, record)
    if not opened:
        what = "every recorded collective is completed" if dump.records else "no collective was recorded"
        found.tell(Kind.FLIGHT_RECORD, "complete", what, rank=dump.rank)
    return dump, found.parsed()


def _tell(found: Findings, dump: Dump, name: str, record: Record) -> None:
    group = dump.groups.get(record.group)
    size = f" of {len(group.ranks)} ranks" if group and group.ranks else ""
    status = dump.status.get(str(record.pg_id), GroupStatus())
    place = f" at {record.frames[0].filename}:{record.frames[0].line}" if record.frames else ""
    detail = (
        f"{record.op or 'an operation'} {record.collective_seq} of group {name}"
        f" ({record.group_desc or 'unnamed'}{size}) is {record.state}{', timed out' if record.timed_out else ''};"
        f" last enqueued {status.last_enqueued}, started {status.last_started},"
        f" completed {status.last_completed}{place}"
    )
    code = "timed_out" if record.timed_out else record.state
    found.tell(Kind.FLIGHT_RECORD, code, detail, rank=dump.rank, happened_at=record.created_at)


def _document(raw: str | bytes) -> Any:
    if len(raw) > MAX_BYTES:
        raise InvalidInputError(f"longer than {MAX_BYTES} bytes; this is no Flight Recorder dump")
    head = raw[:100].lstrip() if raw else raw
    if not head:
        raise InvalidInputError("an empty file: the rank began to write its dump and did not end")
    if isinstance(raw, bytes) and raw[:1] == b"\x80":
        return load_plain(raw)
    document = load_json(decoded(raw))
    if document is BROKEN:
        raise InvalidInputError("neither a pickle nor JSON, or cut off")
    return document


_Once = dict[int, Any]
"""Values already read, by identity of what they were read from: the parts that a pickle shares (its frames; in a
hostile file everything) cost their own size once."""


def _shared(once: _Once, value: Any, read: Callable[[Any], T]) -> T:
    if id(value) not in once or not isinstance(value, list | dict | tuple):
        once[id(value)] = read(value)
    found: T = once[id(value)]
    return found


def _record(value: Any, once: _Once) -> Record | None:
    entry = table(value)
    record_id = whole(entry.get("record_id"))
    if record_id is None:
        return None
    names = rows(entry.get("process_group"))
    state = entry.get("state")
    return Record(
        record_id=record_id,
        pg_id=_or(whole(entry.get("pg_id")), -1),
        group=word(names[0]) if names else "",
        group_desc=word(names[1]) if len(names) > 1 else "",
        collective_seq=_or(whole(entry.get("collective_seq_id")), -1),
        p2p_seq=_or(whole(entry.get("p2p_seq_id")), -1),
        op_id=_or(whole(entry.get("op_id")), -1),
        op=word(entry.get("profiling_name")),
        input_sizes=_shared(once, entry.get("input_sizes"), _sizes),
        output_sizes=_shared(once, entry.get("output_sizes"), _sizes),
        input_dtypes=_shared(once, entry.get("input_dtypes"), _words),
        output_dtypes=_shared(once, entry.get("output_dtypes"), _words),
        state=state if state in ("scheduled", "started", "completed") else "unknown",
        created_at=_seconds(entry.get("time_created_ns")),
        started_seen_at=_seconds(entry.get("time_discovered_started_ns")),
        completed_seen_at=_seconds(entry.get("time_discovered_completed_ns")),
        duration_ms=number(entry.get("duration_ms")),
        timeout_ms=number(entry.get("timeout_ms")),
        retired=entry.get("retired") is True,
        is_p2p=entry.get("is_p2p") is True,
        frames=_shared(once, entry.get("frames"), lambda frames: _frames(frames, once)),
    )


def _frames(value: Any, once: _Once) -> tuple[Frame, ...]:
    return tuple(_shared(once, frame, _frame) for frame in rows(value)[:MAX_FRAMES])


def _frame(raw: Any) -> Frame:
    value = table(raw)
    return Frame(
        name=word(value.get("name")), filename=word(value.get("filename"), 300), line=_or(whole(value.get("line")), 0)
    )


def _groups(config: Mapping[str, Any]) -> dict[str, Group]:
    found: dict[str, Group] = {}
    for key, value in list(config.items())[:MAX_GROUPS]:
        one = table(value)
        name = word(one.get("name")) or word(key)
        found[name] = Group(name=name, desc=word(one.get("desc")), ranks=_ranks(one.get("ranks")))
    return found


def _ranks(value: Any) -> tuple[int, ...]:
    """From a list, or from a text that holds one, as PyTorch writes it."""
    if isinstance(value, str):
        value = re.findall(r"\d{1,9}", value[: MAX_RANKS * 8])
    return tuple(rank for item in rows(value)[:MAX_RANKS] if (rank := whole(item)) is not None)


def _status(value: Mapping[str, Any]) -> dict[str, GroupStatus]:
    found: dict[str, GroupStatus] = {}
    for key, entry in list(value.items())[:MAX_GROUPS]:
        one = table(entry)
        found[word(key)] = GroupStatus(
            last_enqueued=_or(whole(one.get("last_enqueued_collective")), -1),
            last_started=_or(whole(one.get("last_started_collective")), -1),
            last_completed=_or(whole(one.get("last_completed_collective")), -1),
        )
    return found


def _sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    shapes = [rows(shape)[:16] for shape in rows(value)[:MAX_TENSORS]]
    return tuple(tuple(_or(whole(size), -1) for size in shape) for shape in shapes)


def _words(value: Any) -> tuple[str, ...]:
    return tuple(word(item, 40) for item in rows(value)[:MAX_TENSORS])


def _seconds(value: Any) -> float | None:
    nanoseconds = whole(value)
    return nanoseconds / 1e9 if nanoseconds is not None and nanoseconds > 0 else None


def _or(value: int | None, other: int) -> int:
    return other if value is None else value
