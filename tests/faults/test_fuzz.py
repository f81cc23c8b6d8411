"""Junk of every kind, seeded and within a budget: no parser raises, and no junk is ever called well or the user's."""

import random
import time

import pytest

from fleet.faults.classify import classify, explain
from fleet.faults.evidence import Evidence, FaultClass, Kind, Source
from fleet.faults.parse import parse_any, parse_job_log
from tests.faults.making import NOW, TABLES
from tests.faults.test_kernel_log import PREFIXES, SHAPES

BUDGET = 3.0
"""Seconds for each seed."""
PIECES = [
    *(prefix + shape[1] for prefix in PREFIXES for shape in SHAPES[:6]),
    "NVRM: Xid (PCI:",
    "SXid (PCI:0000:c1:00.0): ",
    "NVRM: The NVIDIA GPU 0000:29:00.0",
    "fallen off the bus",
    "Traceback (most recent call last):",
    '  File "a.py", line 1',
    "KeyError: 'x'",
    "CUDA out of memory. Tried to allocate 99999999999 GiB",
    '{"kind": "xid", "code": "79"}',
    "[[[{",
    "\x00\x1b[2J",
    "\u2028\ufeff\ud7ff",
    "9" * 40,
    "(" * 300,
]


def junk(chance: random.Random) -> bytes:
    """A text of true pieces, cut, doubled and with flipped bytes."""
    parts = [chance.choice(PIECES) for _ in range(chance.randrange(1, 60))]
    raw = bytearray(chance.choice(["\n", "\r\n", " ", "\x0b"]).join(parts).encode())
    for _ in range(chance.randrange(0, 40)):
        if raw:
            raw[chance.randrange(len(raw))] = chance.randrange(256)
    start = chance.randrange(0, 20)
    return bytes(raw[start : chance.randrange(start, len(raw) + start + 1)])


@pytest.mark.parametrize("seed", range(4))
def test_no_junk_makes_a_parser_or_the_judgement_raise(seed: int) -> None:
    chance = random.Random(seed)
    end = time.monotonic() + BUDGET
    texts = 0
    while time.monotonic() < end and texts < 150:
        texts += 1
        raw = junk(chance)
        parsed = parse_any(raw, cluster="alpha", node="alpha2", seen_at=NOW, boot="b")
        told = [*parsed.evidence, *parse_job_log(raw, cluster="alpha", job="j", seen_at=NOW)]
        verdict = classify(told, history=parsed.evidence, tables=TABLES, boot="b", now=NOW)
        assert explain(verdict, told)
        assert all(len(e.detail) <= 2000 for e in told)
        if any(e.kind is Kind.UNREADABLE and e.source.value != "job" for e in told):
            assert verdict.fault is not FaultClass.USER
            assert verdict.fault is not FaultClass.INFORMATIONAL
    assert texts > 10


def test_hostile_megabytes_are_read_in_bounded_time() -> None:
    hostile = [
        "NVRM: Xid (" * 90_000,
        "NVRM: Xid (PCI:0000:1b:00): 13, " + "(GPC 1, " * 120_000,
        "[" * 1_000_000,
        "Process 1 has " * 70_000 + "CUDA out of memory",
        "loss " * 200_000,
        "NET/IB : Got completion " * 40_000,
        " " * 1_000_000,
        "2026-01-02T03:04:05 " * 50_000,
    ]
    start = time.monotonic()
    for text in hostile:
        parse_any(text, cluster="alpha", node="alpha2", seen_at=NOW)
        parse_job_log(text, cluster="alpha", job="j", seen_at=NOW)
    assert time.monotonic() - start < 20


def test_a_flood_of_losses_is_read_in_bounded_time() -> None:
    gpus = [f"{n % 65536:04x}:{n % 256:02x}:00" for n in range(20_000)]
    lost = [f"[ {n}.0] NVRM: GPU {gpu}.0: GPU has fallen off the bus." for n, gpu in enumerate(gpus)]
    told = [f"[ {n}.5] NVRM: Xid (PCI:{gpu}): 79, off" for n, gpu in enumerate(gpus)]
    boots = [f"Jan  2 03:04:05 h{n} kernel: Linux version 6.1" for n in range(20_000)]
    start = time.monotonic()
    found = parse_any("\n".join([*lost, *told, *boots]), cluster="alpha", node="alpha2", seen_at=NOW)
    assert time.monotonic() - start < 20
    assert {e.code for e in found.evidence if e.kind is not Kind.UNREADABLE} == {"79"}


def test_a_large_incident_is_judged_in_bounded_time() -> None:
    lines = [
        f"[ {second}.0] NVRM: Xid (PCI:0000:{gpu:02x}:00): {code}, pid={second}, x"
        for second in range(0, 4000, 200)
        for gpu in range(16)
        for code in (13, 31, 45, 94)
    ]
    evidence = parse_any("\n".join(lines), cluster="alpha", node="alpha2", seen_at=NOW).evidence
    assert len(evidence) == len(lines)
    start = time.monotonic()
    verdict = classify(evidence, history=evidence, tables=TABLES, now=NOW)
    assert time.monotonic() - start < 15
    assert verdict.rule == "xid:94"


def test_evidence_with_a_broken_code_is_never_well() -> None:
    for code in ("", "x", "-1", "9" * 50, "７９"):
        e = Evidence(source=Source.KERNEL, kind=Kind.XID, cluster="a", node="n", code=code, seen_at=NOW)
        assert classify([e], tables=TABLES, now=NOW).fault is FaultClass.UNKNOWN
