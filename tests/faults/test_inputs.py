"""Every kind of text: recognised by how it begins, and no bad text is ever taken for "all is well"."""

import json
import pickle
import random

import pytest

from fleet.errors import InvalidInputError
from fleet.faults.classify import classify
from fleet.faults.evidence import Evidence, FaultClass, Kind
from fleet.faults.inputs import INPUTS, OF_A_NODE, read_input, read_of_node, recognise
from fleet.faults.texts import Origin
from tests.faults.making import NOW, TABLES, judge, kernel, xid
from tests.faults.samples import FLIGHT, IN_JSON, SAMPLES

ORIGIN = Origin(cluster="alpha", node="alpha2", job="train-7", seen_at=NOW, boot="boot-2")


def read(raw: str | bytes, kind: str) -> tuple[Evidence, ...]:
    return read_input(raw, ORIGIN, TABLES, kind)[1].evidence


def test_there_is_a_sample_of_each_kind() -> None:
    assert set(SAMPLES) == set(INPUTS)


@pytest.mark.parametrize("kind", INPUTS)
def test_a_text_is_recognised_and_gives_evidence(kind: str) -> None:
    found, parsed = read_input(SAMPLES[kind], ORIGIN, TABLES)
    assert found == kind
    assert parsed.evidence
    assert not [e for e in parsed.evidence if e.kind is Kind.UNREADABLE]


@pytest.mark.parametrize("kind", IN_JSON)
def test_a_text_that_is_cut_off_is_recognised_and_told_as_unreadable(kind: str) -> None:
    cut = SAMPLES[kind][: len(SAMPLES[kind]) * 4 // 5]
    assert recognise(cut) == kind
    assert {e.kind for e in read(cut, kind)} == {Kind.UNREADABLE}


def test_indented_json_and_marks_before_it_do_no_harm() -> None:
    for kind in IN_JSON:
        assert recognise("\ufeff\n" + json.dumps(json.loads(SAMPLES[kind]), indent=2)) == kind
    assert recognise(json.dumps(FLIGHT)) == "flight_recorder"


@pytest.mark.parametrize("raw", ["", "hello\nworld\n", b"\x00\x01\x02" * 99, "{}", '{"a": 1}', "<html>"])
def test_a_text_of_no_known_kind_is_refused_and_never_guessed(raw: str | bytes) -> None:
    with pytest.raises(InvalidInputError, match="name its kind: kernel_log, job_log"):
        read_input(raw, ORIGIN, TABLES)


def test_an_unknown_kind_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InvalidInputError, match="no kind 'dmesg'; known: kernel_log"):
        read_input("x", ORIGIN, TABLES, "dmesg")


class _Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("1/0",)


BAD = {
    "binary junk": bytes(random.Random(1).randrange(256) for _ in range(4000)),
    "invalid utf-8": b"\xff\xfe\xfd" * 700,
    "a line of a megabyte": b"x" * 1_000_000,
    "a hostile pickle": pickle.dumps([_Hostile()]),
    "deep nesting": b"[" * 200_000,
    "json of another shape": b'{"a": [1, {"b": null}]}',
    "nul bytes": b"\x00" * 5000,
}


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("bad", BAD)
def test_a_bad_text_ends_as_unknown_or_is_dropped_with_a_counted_reason(kind: str, bad: str) -> None:
    parsed = read_input(BAD[bad], ORIGIN, TABLES, kind)[1]
    verdict = classify(parsed.evidence, tables=TABLES, boot="boot-2", now=NOW)
    assert verdict.fault is FaultClass.UNKNOWN
    logs = {"kernel_log", "job_log", "evidence"}  # a line that says nothing is no fault of a log
    assert any(e.kind is Kind.UNREADABLE for e in parsed.evidence) or (kind in logs and not parsed.evidence)


@pytest.mark.parametrize("kind", ["kernel_log", "evidence", *sorted(OF_A_NODE)])
def test_what_is_about_a_node_is_read_for_it_whatever_its_kind(kind: str) -> None:
    told = read_of_node(SAMPLES[kind], ORIGIN, TABLES).evidence
    assert told
    assert {e.node for e in told} == {"alpha2"}
    assert not [e for e in told if e.kind is Kind.UNREADABLE]


@pytest.mark.parametrize("kind", ["slurm", "job_log", "flight_recorder", "elastic_error"])
def test_what_is_about_a_job_is_no_evidence_about_a_node(kind: str) -> None:
    told = read_of_node(SAMPLES[kind], ORIGIN, TABLES).evidence
    assert {e.kind for e in told} <= {Kind.UNREADABLE}


# -- clocks, order, repeats, boots


def test_clocks_five_minutes_apart_change_no_verdict_of_one_node() -> None:
    early, late = xid(79, ago=330), xid(79, ago=30)
    for pair in ((early, xid(45, ago=30)), (late, xid(45, ago=330))):
        assert judge(*pair).rule == "xid:79"


def test_a_clock_that_is_ahead_of_ours_makes_no_evidence_void() -> None:
    assert judge(xid(79, ago=-300)).rule == "xid:79"


def test_events_out_of_order_give_the_same_verdict() -> None:
    events = kernel("45, pid=1, x", "48, DBE", "63, Row Remapper: x", "94, Contained. RST: No, D-RST: No", "31, Ch 1")
    wanted = judge(*events)
    for seed in range(20):
        random.Random(seed).shuffle(events)
        assert judge(*events) == wanted


def test_an_event_that_comes_a_thousand_times_is_one_fault() -> None:
    lines = "\n".join(f"[ {n / 1000 + 5:.6f}] NVRM: Xid (PCI:0000:ab:00): 31, pid=7, Ch 1" for n in range(1000))
    (e,) = read(lines, "kernel_log")
    assert e.count == 1000
    assert judge(e).rule == judge(*[e] * 1000).rule == "xid:31"
    assert judge(*[e] * 1000) == judge(e)


def test_evidence_from_before_the_last_boot_is_void_and_says_so() -> None:
    text = "[ 900.0] NVRM: Xid (PCI:0000:ab:00): 79, off\n[ 0.0] Linux version 6.1\n[ 5.0] usb 1-1: new device\n"
    verdict = judge(*read(text, "kernel_log"))
    assert (verdict.fault, verdict.rule) == (FaultClass.UNKNOWN, "no_evidence")
    assert "void: xid 79" in verdict.refused[0]
