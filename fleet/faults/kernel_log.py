"""A node's kernel log -> evidence. Pure, never raises, and never silent about a line it cannot read."""

import bisect
import math
import re
from collections import Counter
from dataclasses import dataclass, field

from fleet.faults.evidence import EARLIER_BOOT, Evidence, Fact, Kind, Source
from fleet.faults.stamps import HEAD, Prefix, read_prefix
from fleet.faults.tables import KernelTextRow, Tables, load_tables
from fleet.faults.texts import DETAIL, Parsed, clean, decoded, digest, junk, unreadable
from fleet.faults.xid_text import pci_address, signature

SIBLING_SECONDS = 5.0
"""Lines of one XID on one GPU within this many seconds are one fault (H100 and A100 field study, "two GPUs")."""
ANY_GPU = "any"
SAME_LOSS_SECONDS = 300.0
"""A "fallen off the bus" line this close to an XID 79 of its GPU is the same loss (NVSentinel)."""
MAX_EVENTS = 2000
"""Events taken from one log; what is over it is counted and said."""
MAX_PER_GPU_AND_CODE = 50
MAX_NAMES = 10_000
"""Hosts, and addresses of GPUs, that one log may name; more is no log of a node or a cluster."""

SLICE = 1 << 15
"""Characters looked at once. Most slices hold no line of ours and are never split into lines."""
MAX_TEMPLATES = 4096
"""Kinds of lines remembered; more than a kernel writes in a day."""
MAX_TEMPLATE = 256
"""Bytes of a kind that is remembered: with `MAX_TEMPLATES` at most 1 MB."""

NOT_OURS = "no GPU fault in the line"

_MARKS = (
    "Xid",
    "Linux version ",
    "-- Boot ",
    "-- Reboot --",
    "GPU at PCI",
    "fallen off",
    "NVIDIA GPU",
    "device handle for GPU",
    "GPU reset executed",
)
_NOT_IN_TEMPLATE = bytes(set(range(256)) - set(b"ghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ:-\n"))
_XID = re.compile(r"NVRM: {0,4}Xid {0,4}\(([^()]{0,160})\) {0,4}: {0,4}(\d{1,5})(?!\w)(.{0,1200})")
_SXID = re.compile(r"SXid {0,4}\(([^()]{0,160})\) {0,4}: {0,4}0{0,4}(\d{1,6})(?!\w)(.{0,1200})")
_OF_A_GPU = {Kind.XID, Kind.GPU_LOST}
_MARK = re.compile(r"NVRM: {0,4}Xid|SXid {0,4}\(")
_MAP = re.compile(r"NVRM: GPU at PCI:([0-9a-fA-F:.]{7,20}): (GPU-[0-9a-fA-F-]{8,60})")
_BOOTED = re.compile(r"^(?:-- Boot \w{1,64} --|-- Reboot --|Linux version \d)")
_OFF_BUS = re.compile(r"fallen off the bus", re.IGNORECASE)
_LONG_FORM = re.compile(r"The NVIDIA GPU ([0-9a-fA-F:.]{7,20})")
_RESET = re.compile(r"GPU reset executed: (GPU-[0-9a-fA-F-]{8,60})(?:, success: (true|false))?\s{0,9}$")
_RESETTERS = {"kernel", "nvsentinel-gpu-reset"}
"""Who may say that a GPU was reset: no line of the driver does, and NVSentinel writes its own."""
_LOOK_UP = re.compile(r"Unable to determine the device handle for GPU ?([0-9a-fA-F:.]{7,20})")


@dataclass(frozen=True)
class _Found:
    """One line that says something, with its place in the log. `pci` is the device that the line is about."""

    kind: Kind
    code: str | None
    pci: str | None
    prefix: Prefix
    line: str
    index: int
    uuid: str | None = None
    """uuid of the GPU, where the line itself has it."""


@dataclass
class _Reading:
    """What has been read so far."""

    texts: list[tuple[KernelTextRow, re.Pattern[str]]] = field(default_factory=list)
    marks: tuple[str, ...] = _MARKS
    lines: int = 0
    found: list[_Found] = field(default_factory=list)
    uuids: dict[str, str] = field(default_factory=dict)
    waiting: list[tuple[str | None, int]] = field(default_factory=list)
    """GPUs named by the first line of a three-line message, with the line's place."""
    dropped: Counter[str] = field(default_factory=Counter)
    unreadable: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    hosts: set[str] = field(default_factory=set)
    boots: dict[str | None, int] = field(default_factory=dict)
    """Where the log itself says that a host booted for the last time: host -> line; None for every host."""

    def earlier(self, found: "_Found") -> bool:
        """The line stands before the last boot of its host."""
        return found.index < max(self.boots.get(found.prefix.host, -1), self.boots.get(None, -1))

    def cannot_read(self, why: str, line: str) -> None:
        self.unreadable[why] += 1
        self.examples.setdefault(why, clean(line)[:120])


class _Sieve:
    """Passes on the lines that may hold a mark; tens of marks are looked for once for each kind of line.

    What is left of a line without its digits, small hexadecimal letters and most signs is its template. A kernel
    writes few of them, and a line without a mark's template in its own cannot hold the mark.
    """

    def __init__(self, marks: tuple[str, ...]) -> None:
        self.marks = tuple({_template(mark) for mark in marks})
        self.plain: set[bytes] = set()
        """Templates without a mark, at most `MAX_TEMPLATES`."""

    def read(self, reading: "_Reading", text: str) -> None:
        """Lines end at newlines only (other separators may stand in a process name); one slice is split at a time."""
        start = 0
        while start < len(text):
            end = text.find("\n", start + SLICE)
            end = len(text) if end < 0 else end + 1
            self._slice(reading, text[start:end])
            start = end

    def _slice(self, reading: "_Reading", text: str) -> None:
        templates = _template(text.removesuffix("\n")).split(b"\n")
        plain = self.plain
        odd = [at for at, template in enumerate(templates) if template not in plain]
        odd = [at for at in odd if not templates[at] or not self._is_plain(templates[at])]
        if odd:
            lines = text.split("\n")
            for at in odd:
                _read_line(reading, lines[at].rstrip("\r"), reading.lines + at)
        if skipped := len(templates) - len(odd):
            reading.dropped[NOT_OURS] += skipped
        reading.lines += len(templates)

    def _is_plain(self, template: bytes) -> bool:
        if template in self.plain:
            return True
        for mark in self.marks:
            if mark in template:
                return False
        if len(self.plain) >= MAX_TEMPLATES:
            self.plain.clear()
        if len(template) <= MAX_TEMPLATE:
            self.plain.add(template)
        return True


def _template(text: str) -> bytes:
    return text.encode("utf-8", errors="replace").translate(None, _NOT_IN_TEMPLATE)


class KernelLog:
    """A node's kernel log that is read piece by piece, as it grows. Memory stays within one piece's events.

    A piece ends at a line's end. What one piece says (the map of addresses to uuids, boots, an unfinished message)
    holds for the next; sibling lines are merged within a piece only.
    """

    def __init__(self, *, cluster: str, node: str, tables: Tables | None = None) -> None:
        self.cluster = cluster
        self.node = node
        rows = (tables or load_tables()).kernel_texts.values()
        texts = [(row, row.compiled) for row in rows]
        self._state = _Reading(texts=texts, marks=(*_MARKS, *dict.fromkeys(row.mark for row in rows)))
        self._sieve = _Sieve(self._state.marks)

    def read(self, text: str | bytes, *, seen_at: float, boot: str | None = None) -> Parsed:
        """Evidence of one piece in its order, sibling lines merged, and a count of all that was dropped."""
        reading = self._state
        before = reading.lines
        reading.found, reading.dropped, reading.unreadable, reading.examples = [], Counter(), Counter(), {}
        plain = decoded(text)
        if why := junk(plain):
            reading.cannot_read(why, "")
        self._sieve.read(reading, plain)
        own = _only_this_node(reading, self.node)
        merged = _bounded(reading, _merged(reading, own))
        told = [_evidence(reading, found, count, self.cluster, self.node, seen_at, boot) for found, count in merged]
        for why, count in sorted(reading.unreadable.items()):
            detail = f"{count} x {why}: {reading.examples[why]}"
            told.append(unreadable(self.cluster, self.node, seen_at, boot, why=why, detail=detail))
            reading.dropped[why] += count
        return Parsed(evidence=tuple(told), lines=reading.lines - before, dropped=dict(reading.dropped))


def read_kernel_log(
    text: str | bytes,
    *,
    cluster: str,
    node: str,
    seen_at: float,
    boot: str | None = None,
    tables: Tables | None = None,
) -> Parsed:
    """Evidence in the log's order, sibling lines merged, and a count of all that was dropped."""
    return KernelLog(cluster=cluster, node=node, tables=tables).read(text, seen_at=seen_at, boot=boot)


def _read_line(reading: _Reading, line: str, index: int) -> None:
    for mark in reading.marks:
        if mark in line:
            break
    else:
        if line.strip():
            reading.dropped[NOT_OURS] += 1
        return
    prefix = read_prefix(line[:HEAD])
    if "GPU reset executed" in line and (prefix.tag in _RESETTERS or prefix.tag is None):
        _read_reset(reading, line[:4096], prefix, index)
        return
    if prefix.tag is not None and prefix.tag != "kernel" and "Unable to determine" not in line:
        reading.dropped["written by a program, not by the kernel"] += 1
        return
    if prefix.host and len(reading.hosts) < MAX_NAMES:
        reading.hosts.add(prefix.host)
    marks = [found.start() for found in _MARK.finditer(line)]
    if marks:
        for start, end in zip(marks, [*marks[1:], len(line)], strict=True):
            _read_mark(reading, line[start : min(end, start + 1500)], prefix, index)
    elif _BOOTED.match(prefix.message):
        if prefix.host in reading.boots or len(reading.boots) < MAX_NAMES:
            reading.boots[prefix.host] = index
    else:
        _read_other(reading, line[:4096], prefix, index)


def _read_mark(reading: _Reading, part: str, prefix: Prefix, index: int) -> None:
    """An XID or SXid of the driver, or a line that looks like one and cannot be read."""
    kind, pattern = (Kind.XID, _XID) if part.startswith("NVRM") else (Kind.SXID, _SXID)
    found = pattern.match(part)
    if found is None or int(found.group(2)) == 0:
        reading.cannot_read(f"a line with the mark of an {kind.upper()} but without its shape", part)
        return
    line = clean(part[: found.end()])
    code = str(int(found.group(2)))
    reading.found.append(_Found(kind, code, pci_address(found.group(1)), prefix, line, index))


def _read_other(reading: _Reading, line: str, prefix: Prefix, index: int) -> None:
    """The lines without a number: the map of addresses to uuids, and the losses."""
    if found := _MAP.search(line):
        pci = pci_address(found.group(1))
        if pci and (pci in reading.uuids or len(reading.uuids) < MAX_NAMES):
            reading.uuids[pci] = found.group(2)
        return
    long_form = _LONG_FORM.search(line)
    if long_form and not _OFF_BUS.search(line):
        reading.waiting = [*reading.waiting[-16:], (pci_address(long_form.group(1)), index)]
        return
    if _OFF_BUS.search(line):
        pci = pci_address(long_form.group(1) if long_form else line) or _waiting_gpu(reading, index)
        reading.found.append(_Found(Kind.GPU_LOST, "fallen_off_bus", pci, prefix, clean(line), index))
    elif found := _LOOK_UP.search(line):
        lost = _Found(Kind.GPU_LOST, "look_up_failed", pci_address(found.group(1)), prefix, clean(line), index)
        reading.found.append(lost)
    elif row_and_device := _text_row(reading, line):
        row, device = row_and_device
        reading.found.append(_Found(Kind.KERNEL_TEXT, row.id, device, prefix, clean(line), index))
    else:
        reading.dropped[NOT_OURS] += 1


def _read_reset(reading: _Reading, line: str, prefix: Prefix, index: int) -> None:
    """A reset of a GPU that its own program confirms; one that failed ends nothing."""
    found = _RESET.search(line)
    if found is None or found.group(2) == "false":
        reading.dropped["a GPU reset that is not confirmed"] += 1
        return
    pci = next((pci for pci, uuid in reading.uuids.items() if uuid == found.group(1)), None)
    reading.found.append(_Found(Kind.FACT, Fact.GPU_RESET, pci, prefix, clean(line), index, uuid=found.group(1)))


def _text_row(reading: _Reading, line: str) -> tuple[KernelTextRow, str | None] | None:
    """The first row that matches, and the device that it names."""
    for row, pattern in reading.texts:
        if row.mark in line and (found := pattern.search(line)):
            device = next((name for name in found.groupdict().values() if name), None)
            return row, pci_address(device or "") or device
    return None


def _waiting_gpu(reading: _Reading, index: int) -> str | None:
    """GPU of the three-line message that ends here: its first line stands at most six lines up."""
    reading.waiting = [(pci, at) for pci, at in reading.waiting if index - at <= 6]
    return reading.waiting.pop(0)[0] if reading.waiting else None


def _only_this_node(reading: _Reading, node: str) -> list[_Found]:
    """Drops other hosts' lines from a collected log, if the log names this node at all (host names may differ)."""
    short = node.split(".")[0]
    if short not in {host.split(".")[0] for host in reading.hosts}:
        return reading.found
    own = [f for f in reading.found if f.prefix.host is None or f.prefix.host.split(".")[0] == short]
    if others := len(reading.found) - len(own):
        reading.dropped["another host's line"] += others
    return own


def _merged(reading: _Reading, found: list[_Found]) -> list[tuple[_Found, int]]:
    """Sibling lines as one event, and a loss that an XID 79 already tells as none."""
    losses = _Losses(reading, found)
    open_bursts: dict[tuple[object, ...], tuple[int, float | None]] = {}
    events: list[tuple[_Found, int]] = []
    for one in found:
        if one.code == "fallen_off_bus" and losses.tell(one):
            continue
        name = (one.kind, one.pci, reading.earlier(one), *signature(one.code or "", one.line))
        burst = open_bursts.get(name)
        if burst is not None and _close(burst[1], one.prefix.stamp, SIBLING_SECONDS):
            first, count = events[burst[0]]
            better = "(GPC " in one.line and "(GPC " not in first.line
            events[burst[0]] = (one if better else first, count + 1)
            open_bursts[name] = (burst[0], one.prefix.stamp)
            continue
        open_bursts[name] = (len(events), one.prefix.stamp)
        events.append((one, 1))
    return events


def _close(left: float | None, right: float | None, seconds: float) -> bool:
    """Close in time; without stamps nothing proves a second event, so it is the same one."""
    return left is None or right is None or abs(left - right) <= seconds


class _Losses:
    """The times of a log's XIDs 79, by GPU and side of the last boot."""

    def __init__(self, reading: _Reading, found: list[_Found]) -> None:
        self._reading = reading
        self._stamps: dict[tuple[str | None, bool], list[float]] = {}
        for xid in (f for f in found if f.kind is Kind.XID and f.code == "79"):
            for gpu in {xid.pci, ANY_GPU}:
                times = self._stamps.setdefault((gpu, reading.earlier(xid)), [])
                times.append(xid.prefix.stamp if xid.prefix.stamp is not None else math.nan)
        self._unknown = {name for name, times in self._stamps.items() if any(map(math.isnan, times))}
        for times in self._stamps.values():
            times[:] = sorted(t for t in times if not math.isnan(t))

    def tell(self, loss: _Found) -> bool:
        """An XID 79 of its GPU stands near the line; a GPU or a time that nobody knows counts as the same."""
        gpus = {ANY_GPU} if loss.pci is None else {loss.pci, None}
        return any(self._near((gpu, self._reading.earlier(loss)), loss.prefix.stamp) for gpu in gpus)

    def _near(self, name: tuple[str | None, bool], stamp: float | None) -> bool:
        if name in self._unknown:
            return True
        times = self._stamps.get(name, [])
        if stamp is None:
            return bool(times)
        at = bisect.bisect_left(times, stamp - SAME_LOSS_SECONDS)
        return at < len(times) and times[at] <= stamp + SAME_LOSS_SECONDS


def _bounded(reading: _Reading, events: list[tuple[_Found, int]]) -> list[tuple[_Found, int]]:
    """At most `MAX_EVENTS`, and of one code on one GPU the newest `MAX_PER_GPU_AND_CODE`; the rest is said."""
    seen: Counter[tuple[Kind, str | None, str | None, bool]] = Counter()
    kept: list[tuple[_Found, int]] = []
    for one, count in reversed(events):
        name = (one.kind, one.code, one.pci, reading.earlier(one))
        seen[name] += 1
        if seen[name] > MAX_PER_GPU_AND_CODE:
            reading.dropped[f"over {MAX_PER_GPU_AND_CODE} events of one code on one GPU"] += 1
        elif len(kept) >= MAX_EVENTS:
            reading.cannot_read(f"over the limit of {MAX_EVENTS} events", one.line)
        else:
            kept.append((one, count))
    return kept[::-1]


def _evidence(
    reading: _Reading, found: _Found, count: int, cluster: str, node: str, seen_at: float, boot: str | None
) -> Evidence:
    return Evidence(
        source=Source.KERNEL,
        kind=found.kind,
        cluster=cluster,
        node=node,
        gpu=found.uuid or (reading.uuids.get(found.pci or "", found.pci) if found.kind in _OF_A_GPU else None),
        code=found.code,
        boot=EARLIER_BOOT if reading.earlier(found) else boot,
        seen_at=seen_at,
        happened_at=found.prefix.happened_at,
        detail=found.line[:DETAIL],
        raw_hash=digest(f"{found.prefix.stamp}|{found.line}"),
        pci=found.pci,
        stamp=found.prefix.stamp,
        count=count,
    )
