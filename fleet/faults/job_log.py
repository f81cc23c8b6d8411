"""Lines of a job's own output -> evidence: the first failing rank's exception, and what the table knows. Pure."""

import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from fleet.faults.evidence import Evidence, Kind, Source
from fleet.faults.patterns import LINE_LIMIT
from fleet.faults.tables import Tables, TextRow, load_tables
from fleet.faults.texts import DETAIL, clean, decoded, digest, junk, unreadable

MAX_LINES = 200_000
"""Lines read at most: the newest. A bound on work, for a job's log has none."""
OTHER_PROCESS_GIB = 1.0
"""Memory of another process on the GPU above which an out-of-memory is a leftover's fault. Ours: a context alone
takes about half a GiB."""

_RANK = re.compile(r"^\s{0,6}(?:(\d{1,6}): |\[rank(\d{1,6})\]:? ?|\[[a-z]{1,20}(\d{1,6})\]:)")
_HOST = re.compile(r"^([A-Za-z0-9][\w.-]{0,200}):\d{1,10}:\d{1,10} \[\d{1,3}\] ")
_START = re.compile(r"^Traceback \(most recent call last\):")
_END = re.compile(r"^[A-Za-z_][\w.]{0,200}(?::|$)")
_CHAIN = re.compile(r"^(?:During handling of the above exception|The above exception was the direct cause)")
_STEP = re.compile(r"\b[Ss]tep[ =:]{1,3}(\d{1,12})\b(?!\.\d)")
_SIZE = r"(\d{1,9}(?:\.\d{1,4})?) (KiB|MiB|GiB|TiB)"
_OTHER = re.compile(rf"Process \d{{1,10}} has {_SIZE} memory in use")
_WANTED = re.compile(rf"Tried to allocate {_SIZE}")
_FRAGMENTS = re.compile(rf"{_SIZE} (?:is )?reserved by PyTorch but unallocated")
_TOTAL = re.compile(rf"total capacity of {_SIZE}")
_FREE = re.compile(rf"of which {_SIZE} is free")
_OWN_SHARE = re.compile(rf"this process has {_SIZE} memory in use")
_LOSS = re.compile(
    r"(?<![\w.])(?:lm |train(?:ing)?[ _])?loss['\"]?[ :=]{1,4}(\d{1,9}\.\d{1,12}(?:[eE][+-]?\d{1,3})?)"
)
_GID = re.compile(r"(?:local|remote)Gids?[\s:]{0,3}([0-9a-fA-F:.]{4,60})")
_ROOT = re.compile(r"^\s{0,8}Root Cause \(first observed failure\):")
_FACT = re.compile(r"^\s{0,8}(host|rank|exitcode)\s{1,8}: ([\w.-]{1,200})")
_GIB = {"KiB": 2.0**-20, "MiB": 2.0**-10, "GiB": 1.0, "TiB": 2.0**10}


UNEXPLAINED_GIB = 2.0
"""Memory of a GPU that neither the process nor a named other one holds, above which an out-of-memory is a leftover's
fault. Ours: contexts of other ranks that a container does not see take less."""
SMALLER = 0.9
"""Share of the largest GPU of the same job below which a GPU lacks memory (XID 168, a MIG instance)."""
JUMP = 5.0
"""Times the median of the last losses that make a jump (ByteRobust: loss or gradient norm five times)."""
LOSSES = 20
"""Losses whose median a new one is compared with; half of them must be there."""
BY_NODE = frozenset({"file_not_found", "import_error", "no_space", "dataloader_shm", "cuda_ecc", "stale_handle"})
"""Rows of which it matters on how many nodes they are seen: one piece of evidence for each node."""
MAX_PLACES = 64
"""Nodes, or pairs of ends, of one row that are told apart."""


@dataclass
class _Stack:
    """A traceback being read, of one rank's stream."""

    place: str = ""
    chained: bool = False


@dataclass
class _Hit:
    """The first line that matched one row."""

    row: TextRow
    code: str
    line: str
    index: int
    rank: int | None
    host: str | None
    place: str = ""
    step: str | None = None
    count: int = 1


@dataclass
class _Reading:
    tables: Tables
    lines: list[tuple[TextRow, re.Pattern[str]]]
    exceptions: list[tuple[TextRow, re.Pattern[str]]]
    any_line: re.Pattern[str]
    hits: dict[str, _Hit] = field(default_factory=dict)
    stacks: dict[int | None, _Stack] = field(default_factory=dict)
    step: str | None = None
    root: dict[str, str] | None = None
    """Facts of torchelastic's summary block, once it began."""
    root_at: int = 0
    capacities: list[tuple[float, _Hit]] = field(default_factory=list)
    """Total memory of each GPU that an out-of-memory names, in GiB."""
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=LOSSES))
    nodes: frozenset[str] = frozenset()
    rank_nodes: Mapping[int, str] = field(default_factory=dict)

    def node_of(self, rank: int | None, host: str | None) -> str | None:
        """A log may name any host; only the job's own nodes count."""
        node = self.rank_nodes.get(rank) if rank is not None else None
        return node or (host if host in self.nodes or host in self.rank_nodes.values() else None)


def parse_job_log(
    lines: Iterable[str | bytes] | str | bytes,
    *,
    cluster: str,
    job: str,
    seen_at: float,
    attempt: int | None = None,
    rank_nodes: Mapping[int, str] | None = None,
    nodes: Collection[str] = (),
    tables: Tables | None = None,
) -> tuple[Evidence, ...]:
    """One piece of evidence for each row of the table that a line matches, the earliest line first.

    torchelastic's summary adds one for the end of its root cause: the first failure by its own clock of one second,
    which is a word and no proof.

    `code` is the row's id, `stamp` the line's number, `rank` the rank if the line names it (`srun -l`, torch).
    `attempt` (the restart count) tells the same words of two attempts apart.
    `rank_nodes` (rank -> node) names the node of a failing rank, `nodes` are all nodes of the attempt. Never raises;
    what is no text says so.
    """
    reading = _begin(tables or load_tables())
    reading.nodes, reading.rank_nodes = frozenset(nodes), rank_nodes or {}
    texts = _newest(lines)
    for index, text in enumerate(texts):
        _read_line(reading, text[:LINE_LIMIT], index)
    _smaller_gpu(reading)
    hits = sorted(reading.hits.values(), key=lambda hit: (hit.index, hit.code))
    told = [_evidence(reading, hit, cluster, job, seen_at, attempt) for hit in hits]
    if reading.root and "exitcode" in reading.root:
        told.append(_summary(reading, cluster, job, seen_at, attempt))
    if why := junk("\n".join(texts[:200])[:65536]):
        one = unreadable(cluster, None, seen_at, None, why=why, detail=f"{len(texts)} lines of the job's log: {why}")
        told.append(one.model_copy(update={"source": Source.JOB, "job": job}))
    return tuple(told)


def _begin(tables: Tables) -> _Reading:
    rows = [(row, row.compiled) for row in tables.texts.values()]
    lines = [(row, pattern) for row, pattern in rows if row.where == "line"]
    return _Reading(
        tables=tables,
        lines=lines,
        exceptions=[(row, pattern) for row, pattern in rows if row.where == "exception"],
        any_line=re.compile("|".join(f"(?:{row.pattern})" for row, _ in lines) or r"(?!)"),
    )


def _newest(lines: Iterable[str | bytes] | str | bytes) -> list[str]:
    if isinstance(lines, str | bytes):
        lines = decoded(lines).split("\n")
    return [decoded(line).rstrip("\r\n") for line in list(lines)[-MAX_LINES:]]


def _read_line(reading: _Reading, text: str, index: int) -> None:
    rank, host, line = _prefix(text)
    if _ROOT.match(line):
        reading.root, reading.root_at = {}, index
    elif reading.root is not None and (fact := _FACT.match(line)):
        reading.root.setdefault(fact.group(1), fact.group(2))
    if found := _STEP.search(line):
        reading.step = found.group(1)
    source = rank in reading.stacks and line.startswith((" ", "\t"))  # a frame quotes the program, nothing happened
    ended, place = _traceback(reading, rank, line)
    row = None if source else _row(reading, line, ended=ended) or _jump(reading, line)
    if row is None:
        return
    code = _oom_kind(line) if row.id == "torch_oom" else row.id
    hit = _Hit(row, code, clean(line), index, rank, host, place, reading.step)
    if row.id == "torch_oom" and (total := _TOTAL.search(line)):
        reading.capacities.append((_gib(*total.groups()), hit))
    name = _name(reading, hit)
    first = reading.hits.get(name)
    if first is not None:
        first.count += 1
    else:
        reading.hits[name] = hit


def _name(reading: _Reading, hit: _Hit) -> str:
    """What makes a hit one of its own: the row; for some rows the node, for a path between two ports its ends."""
    name = hit.code
    if hit.code in BY_NODE:
        name = f"{hit.code} {reading.node_of(hit.rank, hit.host) or ''}".strip()
    elif hit.code == "ib_retry_exceeded":
        name = f"{hit.code} {' '.join(_GID.findall(hit.line))}".strip()
    if name == hit.code or name in reading.hits:
        return name
    places = sum(1 for known in reading.hits if known.startswith(f"{hit.code} "))
    return name if places < MAX_PLACES else hit.code


def _jump(reading: _Reading, line: str) -> TextRow | None:
    """The row of a loss that jumps, by the numbers of the log itself."""
    found = _LOSS.search(line)
    if found is None:
        return None
    loss, known = float(found.group(1)), sorted(reading.losses)
    usual = known[len(known) // 2] if len(known) * 2 >= LOSSES else 0.0
    if usual > 0.0 and loss > JUMP * usual:
        return reading.tables.texts.get("loss_jump")
    reading.losses.append(loss)
    if (hit := reading.hits.get("loss_jump")) is not None and _LOSS.search(hit.line):
        del reading.hits["loss_jump"]  # it came back by itself
    return None


def _smaller_gpu(reading: _Reading) -> None:
    """One GPU of the job that has less memory than the others ran out first: it is the GPU, not the program."""
    sizes = [total for total, _ in reading.capacities]
    row = reading.tables.texts.get("torch_oom_small_gpu")
    if row is None or not sizes or min(sizes) >= SMALLER * max(sizes):
        return
    _, hit = min(reading.capacities, key=lambda one: one[0])
    reading.hits[row.id] = replace(hit, row=row, code=row.id, count=1)


def _prefix(text: str) -> tuple[int | None, str | None, str]:
    """Rank and host that the line names, and the line without them (`srun -l`, then torch's own)."""
    rank: int | None = None
    for _ in range(2):
        found = _RANK.match(text)
        if found is None:
            break
        rank = int(next(group for group in found.groups() if group))
        text = text[found.end() :]
    host = _HOST.match(text)
    return rank, host.group(1) if host else None, text


def _traceback(reading: _Reading, rank: int | None, line: str) -> tuple[bool, str]:
    """(the line ends a traceback, `file:line` of its last frame)."""
    if _START.match(line):
        reading.stacks[rank] = _Stack()
        return False, ""
    stack = reading.stacks.get(rank)
    if stack is None:
        return False, ""
    if line.startswith((" ", "\t")):
        frame = re.match(r'\s+File "([^"]{1,300})", line (\d{1,9})', line)
        if frame:
            stack.place = f"{frame.group(1).rsplit('/', 1)[-1]}:{frame.group(2)}"
        return False, ""
    if not line or _CHAIN.match(line):
        return False, ""
    del reading.stacks[rank]
    return bool(_END.match(line)), stack.place


def _row(reading: _Reading, line: str, *, ended: bool) -> TextRow | None:
    """The first row that matches; a traceback's last line always has one."""
    if reading.any_line.search(line):
        return next((row for row, pattern in reading.lines if pattern.search(line)), None)
    if not ended:
        return None
    return next((row for row, pattern in reading.exceptions if pattern.search(line)), None)


def _oom_kind(line: str) -> str:
    """Whose memory it is: the job's own, another process's, or the allocator's fragments."""
    others = sum(_gib(number, unit) for number, unit in _OTHER.findall(line))
    if others >= OTHER_PROCESS_GIB or _unexplained(line) - others >= UNEXPLAINED_GIB:
        return "torch_oom_other_process"
    wanted, fragments = _WANTED.search(line), _FRAGMENTS.search(line)
    if wanted and fragments and _gib(*fragments.groups()) >= _gib(*wanted.groups()):
        return "torch_oom_fragmented"
    return "torch_oom"


def _unexplained(line: str) -> float:
    """GiB that are neither free nor this process's own; 0 where the message does not say all three."""
    sizes = [pattern.search(line) for pattern in (_TOTAL, _FREE, _OWN_SHARE)]
    if not all(sizes):
        return 0.0
    total, free, own = (_gib(*found.groups()) for found in sizes if found)
    return total - free - own


def _gib(number: str, unit: str) -> float:
    return float(number) * _GIB[unit]


def _summary(reading: _Reading, cluster: str, job: str, seen_at: float, attempt: int | None) -> Evidence:
    root = reading.root or {}
    rank = int(root["rank"]) if re.fullmatch(r"\d{1,6}", root.get("rank", "")) else None
    node = reading.node_of(rank, root.get("host"))
    detail = f"torchelastic's root cause: rank {root.get('rank', '?')} ended with {root['exitcode']}"
    detail += f" on {root.get('host', 'an unnamed host')}"
    return Evidence(
        source=Source.JOB,
        kind=Kind.JOB_EXIT,
        cluster=cluster,
        node=node,
        job=job,
        code=root["exitcode"][:20],
        seen_at=seen_at,
        detail=clean(detail)[:DETAIL],
        raw_hash=digest(f"{attempt}|{detail}"),
        stamp=float(reading.root_at),
        rank=rank,
        nodes=tuple(sorted(reading.nodes)),
    )


def _evidence(reading: _Reading, hit: _Hit, cluster: str, job: str, seen_at: float, attempt: int | None) -> Evidence:
    node = reading.node_of(hit.rank, hit.host)
    where = f" (rank {hit.rank})" if hit.rank is not None else ""
    place = f" at {hit.place}" if hit.place else ""
    step = f", last step seen {hit.step}" if hit.step else ""
    return Evidence(
        source=Source.JOB,
        kind=Kind.LOG_TEXT,
        cluster=cluster,
        node=node,
        job=job,
        code=hit.code,
        seen_at=seen_at,
        detail=f"{hit.line[:DETAIL]}{place}{where}{step}",
        raw_hash=digest(f"{attempt}|{hit.line}"),
        stamp=float(hit.index),
        rank=hit.rank,
        count=hit.count,
        nodes=tuple(sorted(reading.nodes)),
    )
