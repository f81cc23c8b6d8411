"""Kernel log lines parsed and correlated in one process, beside a plain scan of the same file with one pattern."""

import argparse
import os
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench.machine import resident_mib
from bench.table import Figure
from fleet.errors import InvalidInputError
from fleet.faults.classify import classify
from fleet.faults.evidence import Evidence, Kind
from fleet.faults.kernel_log import KernelLog
from fleet.faults.tables import load_tables
from fleet.model import Value

SUMMARY = "kernel log lines parsed and correlated, beside a plain scan (about a minute)"

RARE = 1000
"""Lines of which one tells something; a node with a thousand such lines in its log is a very sick one."""
SHARE = 5.0
"""Times that a line may cost what a plain scan of it costs: a fifth of its lines a second."""
GROWTH = 8.0
"""MiB that the process may grow after the first fifth of the file."""
BLOCK = 1 << 20
"""Characters read at once: about 10,000 lines, what a collector hands on."""
REMEMBERED = 50
"""Pieces of evidence of earlier blocks that a judgement sees as history."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_PLAIN = re.compile(r"NVRM: Xid \(([^)]*)\): (\d+)")
_NOISE = (
    "usb 1-1: new high-speed USB device number {n} using xhci_hcd",
    "audit: type=1400 audit(1767323045.123:{n}): apparmor=STATUS operation=profile_load comm={word}",
    "IPv6: ADDRCONF(NETDEV_CHANGE): veth{n}: link becomes ready",
    "cni0: port {n}(veth7f3a) entered forwarding state",
    "perf: interrupt took too long ({n} > 2500), lowering kernel.perf_event_max_sample_rate to 79750",
    "systemd[1]: Started Session {n} of user root.",
    "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Quota mode: none. id={n}",
    "mlx5_core 0000:1a:00.1: mlx5_cmd_out_err:838:(pid {n}): ACCESS_REG(0x805) op_mod(0x1) failed, status bad",
    "nvidia-uvm: Loaded the UVM driver, major device number {n}.",
    "CPU{n}: Core temperature/speed normal",
)
_TELLING = (
    "NVRM: Xid (PCI:0000:{gpu}:00): 13, pid={n}, name=python3, Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): x",
    "NVRM: Xid (PCI:0000:{gpu}:00): 31, pid={n}, name=pt_main_thread, Ch 0000000e, intr 00000000. MMU Fault: x",
    "NVRM: Xid (PCI:0000:{gpu}:00): 94, pid={n}, name=python3, Contained: SM (0x1). RST: No, D-RST: No",
    "NVRM: Xid (PCI:0000:{gpu}:00): 45, pid={n}, name=python3, Ch 00000010",
    "NVRM: Xid (PCI:0000:{gpu}:00): 63, pid={n}, Row Remapper: New row marked for remapping, reset gpu to activate.",
    "nvidia-nvswitch3: SXid (PCI:0000:{gpu}:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First) {n}",
    "mlx5_core 0000:{gpu}:00.1 ens{n}: Link down",
    "blk_update_request: I/O error, dev nvme{n}n1, sector 1234 op 0x0:(READ)",
)


class Parsing(Value):
    """One pass over the file."""

    lines: int
    evidence: int
    verdicts: dict[str, int]
    """Rule -> how often it decided a block."""
    seconds: float
    """Processor time."""
    early_mib: float
    """Resident memory after the first fifth."""
    peak_mib: float
    """The most after that."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lines", type=int, default=1_000_000, help="lines of the kernel log")


def run(options: argparse.Namespace) -> tuple[tuple[Figure, ...], tuple[str, ...]]:
    """Measures. Raises InvalidInputError for too few lines to say anything."""
    if options.lines < 1000:
        raise InvalidInputError("--lines: give at least 1000; fewer say nothing about a line's cost")
    with tempfile.TemporaryDirectory(prefix="bench-parse-") as folder:
        file = Path(folder) / "kernel.log"
        with file.open("w", encoding="utf-8") as out:
            out.writelines(log_lines(options.lines))
        scans = [scan(file)]
        ours = parse(file)
        scans.append(scan(file))
        size = file.stat().st_size
    found, plain = scans[0][0], min(seconds for _, seconds in scans)
    each, plain_each = ours.seconds / ours.lines * 1e6, plain / ours.lines * 1e6
    figures = (
        Figure(
            name="a line parsed and correlated",
            value=each,
            unit="us",
            other="one pattern, searched in each line",
            other_value=plain_each,
            at_most=SHARE * plain_each,
        ),
        Figure(name="lines a second", value=1e6 / each, unit="", other="one pattern", other_value=1e6 / plain_each),
        Figure(
            name="memory grown since the first fifth",
            value=ours.peak_mib - ours.early_mib,
            unit="MiB",
            at_most=GROWTH,
        ),
        Figure(name="resident memory", value=ours.peak_mib, unit="MiB"),
    )
    rules = ", ".join(f"{rule} {count}" for rule, count in Counter(ours.verdicts).most_common(4))
    notes = (
        f"{ours.lines:,} lines, {size / 1e6:.0f} MB, one in {RARE:,} tells something: {ours.evidence:,} pieces of "
        f"evidence; the plain scan finds {found:,} lines",
        f"{sum(ours.verdicts.values())} judgements, one a block of {BLOCK // 2**20} MiB with the last {REMEMBERED} "
        f"pieces as history ({rules})",
        "processor time of this process, reading the file included; the plain scan is the faster of one before "
        "and one after",
    )
    return figures, notes


def log_lines(count: int) -> Iterator[str]:
    """A node's kernel log in three layouts, the same in every run; one line in `RARE` tells something."""
    chance = random.Random(6)  # noqa: S311 - a made-up log, no secret
    names = ["".join(chance.choices(_LETTERS, k=6)) for _ in range(300)]
    yield "[    0.000001] NVRM: GPU at PCI:0000:1b:00: GPU-5f0c1d2e-0001-4abc-9def-000000000001\n"
    for n in range(1, count):
        at = n / 20
        text = chance.choice(_TELLING if n % RARE == RARE // 2 else _NOISE)
        word = chance.choice(names)
        message = text.format(n=n % 4096, word=word, gpu=chance.choice(("1b", "43", "52", "9d")))
        layout = n % 3
        prefix = f"[{at:12.6f}] " if layout else f"4,{n},{int(at * 1e6)},-;"
        yield f"{f'<4>{prefix}' if layout == 2 else prefix}{message}\n"


def scan(file: Path) -> tuple[int, float]:
    """(lines that match, processor seconds) of the plain way: one pattern searched in each line."""
    start = time.process_time()
    search = _PLAIN.search
    with file.open(encoding="utf-8") as lines:
        found = sum(1 for line in lines if search(line))
    return found, time.process_time() - start


def parse(file: Path) -> Parsing:
    """Reads the file as a collector would, block by block, and judges each block."""
    tables = load_tables()
    start = time.process_time()
    log = KernelLog(cluster="alpha", node="alpha1", tables=tables)
    whole, read, lines, evidence = file.stat().st_size, 0, 0, 0
    verdicts: Counter[str] = Counter()
    history: list[Evidence] = []
    early = peak = 0.0
    with file.open(encoding="utf-8") as source:
        while block := source.read(BLOCK):
            block += source.readline()
            parsed = log.read(block, seen_at=0.0, boot="b")
            told = [e for e in parsed.evidence if e.kind is not Kind.UNREADABLE]
            verdicts[classify(told, history=history, tables=tables, boot="b", now=0.0).rule] += 1
            history = [*history, *told][-REMEMBERED:]
            read, lines, evidence = read + len(block), lines + parsed.lines, evidence + len(told)
            resident = resident_mib(os.getpid())
            early = early or (resident if read >= whole / 5 else 0.0)
            peak = max(peak, resident) if early else 0.0
    seconds = time.process_time() - start
    return Parsing(
        lines=lines,
        evidence=evidence,
        verdicts=dict(verdicts),
        seconds=seconds,
        early_mib=early,
        peak_mib=peak,
    )
