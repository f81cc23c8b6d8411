"""Hypothesis spoils true texts of every kind: no reader raises, none takes long, and none calls junk the user's."""

import contextlib
import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from fleet.errors import InvalidInputError
from fleet.faults.classify import classify, explain
from fleet.faults.evidence import FaultClass, Kind
from fleet.faults.inputs import INPUTS, read_input, recognise
from fleet.faults.patterns import LINE_LIMIT, safe_pattern
from fleet.faults.sources.plain_pickle import load_plain
from fleet.faults.texts import Origin
from tests.faults.making import NOW, TABLES
from tests.faults.samples import IN_JSON, SAMPLES

ORIGIN = Origin(cluster="alpha", node="alpha2", job="train-7", rank=3, seen_at=NOW, boot="boot-2")
BUDGET = settings(
    max_examples=30,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
"""The same examples in every run: a failure here is a defect, never luck."""

KEYS = sorted({key for kind in IN_JSON for key in re.findall(r'"(\w[\w ]*)":', SAMPLES[kind].decode())})
KEYS += ["entries", "pg_config", "pg_status", "record_id", "frames", "jobs", "nodes", "results", "items", "state"]
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(KEYS)
documents = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=20,
)


@st.composite
def spoiled(draw: st.DrawFn, kind: str) -> bytes:
    """A true text with bytes changed, cut out, doubled, or cut off."""
    raw = bytearray(SAMPLES[kind])
    for _ in range(draw(st.integers(0, 8))):
        at = draw(st.integers(0, max(len(raw) - 1, 0)))
        match draw(st.integers(0, 3)):
            case 0:
                raw[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case 1:
                del raw[at : at + draw(st.integers(1, 20))]
            case 2:
                raw[at:at] = raw[at : at + draw(st.integers(1, 60))]
            case _:
                raw[at:at] = draw(st.binary(max_size=8))
    return bytes(raw[: draw(st.integers(0, len(raw)))]) if draw(st.booleans()) else bytes(raw)


def look(raw: str | bytes, kind: str) -> None:
    """What must hold for any text at all."""
    parsed = read_input(raw, ORIGIN, TABLES, kind)[1]
    assert all(len(e.detail) <= 2000 and len(e.code or "") <= 200 for e in parsed.evidence)
    assert [e.model_validate_json(e.model_dump_json()) for e in parsed.evidence] == list(parsed.evidence)
    verdict = classify(parsed.evidence, tables=TABLES, boot="boot-2", now=NOW)
    assert explain(verdict, parsed.evidence)
    if parsed.evidence and all(e.kind is Kind.UNREADABLE for e in parsed.evidence):
        assert verdict.fault is FaultClass.UNKNOWN
    assert read_input(raw, ORIGIN, TABLES, kind)[1] == parsed


@pytest.mark.parametrize("kind", INPUTS)
def test_a_spoiled_text_makes_no_reader_raise(kind: str) -> None:
    @BUDGET
    @seed(1)
    @given(spoiled(kind))
    def check(raw: bytes) -> None:
        look(raw, kind)
        recognise(raw)

    check()


@pytest.mark.parametrize("kind", [*IN_JSON, "flight_recorder", "slurm", "nccl_tests"])
def test_any_document_with_the_right_keys_makes_no_reader_raise(kind: str) -> None:
    @BUDGET
    @seed(2)
    @given(documents)
    def check(document: Any) -> None:
        look(json.dumps(document), kind)

    check()


@BUDGET
@given(
    st.lists(
        st.sampled_from([bytes([n]) for n in range(256)] + [b"\x80\x02", b"X\x01\x00\x00\x00a", b"q\x00", b"h\x00"]),
        max_size=60,
    )
)
def test_no_stream_makes_the_pickle_reader_raise_anything_else(parts: list[bytes]) -> None:
    with contextlib.suppress(InvalidInputError):
        load_plain(b"".join(parts))


pieces = st.sampled_from(["a", "b", ".", "[ab]", "(a)", "(?:a|b)", "(a+)", "(a?)"])
repeats = st.sampled_from(["", "", "*", "+", "?", "{0,80}", "{3}", "{2,}", "+?", "{0,4}"])


@settings(BUDGET, max_examples=150)
@given(st.lists(st.tuples(pieces, repeats), min_size=1, max_size=6))
def test_a_pattern_that_is_taken_is_quick_on_the_lines_that_hurt_most(parts: list[tuple[str, str]]) -> None:
    text = "".join(piece + repeat for piece, repeat in parts) + "c"
    try:
        pattern = safe_pattern(text)
    except InvalidInputError:
        return
    for line in ("a" * LINE_LIMIT, "ab" * (LINE_LIMIT // 2)):
        assert pattern.search(line) is None
