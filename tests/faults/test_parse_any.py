"""`runbook evidence CLUSTER/NODE FILE`: a kernel log or evidence as JSON, and a count of what was dropped."""

import json
from typing import Any

import pytest

from fleet.faults.evidence import Kind, Source
from fleet.faults.parse import Parsed, parse_any
from tests.faults.making import NOW

XID = {"kind": "xid", "code": "79", "gpu": "0000:ab:00", "source": "node_agent"}


def read(text: str | bytes) -> Parsed:
    return parse_any(text, cluster="alpha", node="alpha2", seen_at=NOW, boot="boot-2")


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(XID),
        json.dumps([XID]),
        json.dumps(XID, indent=2),
        "\ufeff\n " + json.dumps([XID]),
        json.dumps(XID) + "\n\n",
        json.dumps(XID).encode(),
    ],
)
def test_evidence_as_json_is_filled_with_what_the_caller_knows(text: str | bytes) -> None:
    (e,) = read(text).evidence
    assert (e.source, e.kind, e.code, e.cluster, e.node) == (Source.NODE_AGENT, Kind.XID, "79", "alpha", "alpha2")
    assert (e.boot, e.seen_at) == ("boot-2", NOW)


def test_one_object_a_line_is_read_and_a_broken_line_is_told() -> None:
    found = read(f"{json.dumps(XID)}\n{{broken\n{json.dumps(XID | {'code': '48'})}\n")
    assert [e.code for e in found.evidence if e.kind is Kind.XID] == ["79", "48"]
    assert found.evidence[-1].kind is Kind.UNREADABLE
    assert found.dropped == {"broken JSON": 1}
    assert "3 lines" in str(found)
    assert "1 dropped: broken JSON" in str(found)


def test_a_source_that_is_not_named_is_a_persons_word() -> None:
    assert read(json.dumps({"kind": "gpu_lost"})).evidence[0].source is Source.PERSON


@pytest.mark.parametrize(
    "text",
    ["[ 1.5] NVRM: Xid (PCI:0000:ab:00): 79, off", "[Thu Jan  2 03:04:05 2026] NVRM: Xid (PCI:0000:ab:00): 79"],
)
def test_a_kernel_log_that_begins_with_a_bracket_is_no_json(text: str) -> None:
    assert [e.code for e in read(text).evidence] == ["79"]


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (XID | {"node": "alpha3"}, "names another cluster or node"),
        (XID | {"cluster": "beta"}, "names another cluster or node"),
    ],
)
def test_evidence_about_another_node_is_dropped_and_counted(document: dict[str, Any], why: str) -> None:
    found = read(json.dumps([document, XID]))
    assert len(found.evidence) == 1
    assert found.dropped == {why: 1}


@pytest.mark.parametrize(
    "document",
    [
        7,
        "xid",
        None,
        [],
        {},
        {"kind": "frob"},
        XID | {"seen_at": "soon"},
        XID | {"happened_at": float("nan")},
        XID | {"stamp": float("inf")},
        XID | {"code": "seventy-nine"},
        XID | {"detail": "x" * 5000},
    ],
)
def test_what_is_no_evidence_is_told_as_unreadable(document: Any) -> None:
    found = read(json.dumps([document]))
    assert [e.kind for e in found.evidence] == [Kind.UNREADABLE]
    assert sum(found.dropped.values()) == 1


@pytest.mark.parametrize(
    "text", ["{", '[{"kind": "xid", "co', "[{" * 50_000, '{"a":' * 50_000, '{"seen_at": 1' + "0" * 5000 + "}"]
)
def test_truncated_and_hostile_json_is_told_as_unreadable(text: str) -> None:
    found = read(text)
    assert {e.kind for e in found.evidence} == {Kind.UNREADABLE}
    assert found.dropped


def test_control_characters_of_a_detail_are_removed() -> None:
    (e,) = read(json.dumps(XID | {"detail": "a\n\x1b[31mb"})).evidence
    assert e.detail == "a [31mb"


def test_an_empty_text_says_nothing_and_drops_nothing() -> None:
    assert read("") == Parsed()


def test_another_text_gives_no_evidence_and_says_why() -> None:
    found = read("hello\nworld\n")
    assert found.evidence == ()
    assert found.dropped == {"no GPU fault in the line": 2}
