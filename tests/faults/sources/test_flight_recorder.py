"""Flight Recorder dumps: both forms read alike, and a file of a job can neither run anything nor cost without end."""

import builtins
import json
import pickle
import time
from typing import Any

import pytest

from fleet.errors import InvalidInputError
from fleet.faults.classify import classify
from fleet.faults.evidence import FaultClass, Kind, Source
from fleet.faults.sources.flight_recorder import rank_of, read_dump, read_flight_dump
from fleet.faults.sources.plain_pickle import load_plain
from fleet.faults.texts import Origin
from tests.faults.making import NOW, TABLES
from tests.faults.sources.dumps import dump, record, torch_pickle

ORIGIN = Origin(cluster="alpha", job="train-7", seen_at=NOW, rank=3)
STUCK = dump([record(1), record(2), record(3, "started", retired=True)])


def in_json(document: dict[str, Any]) -> bytes:
    """PyTorch's JSON form: numbers of the status as texts, no frames."""
    status = {k: {n: str(v) for n, v in one.items()} for k, one in document["pg_status"].items()}
    bare = [{k: v for k, v in e.items() if k != "frames"} for e in document["entries"]]
    return json.dumps(document | {"pg_status": status, "entries": bare}).encode()


def test_pickle_of_torch_pickle_of_python_and_json_read_alike() -> None:
    ours = read_dump(torch_pickle(STUCK), rank=3)
    assert ours == read_dump(pickle.dumps(STUCK), rank=3) == read_dump(pickle.dumps(STUCK, protocol=2), rank=3)
    without = [r.model_copy(update={"frames": ()}) for r in ours.records]
    assert ours.model_copy(update={"records": tuple(without)}) == read_dump(in_json(STUCK), rank=3)


def test_a_dump_holds_what_the_rank_saw() -> None:
    found = read_dump(torch_pickle(STUCK), rank=3)
    assert (found.rank, found.version, found.lost) == (3, "2.4", 0)
    assert found.groups["0"].ranks == (0, 1, 2, 3)
    assert found.status["0"].model_dump() == {"last_enqueued": 3, "last_started": 3, "last_completed": 2}
    (stuck,) = found.open_records()
    assert (stuck.op, stuck.collective_seq, stuck.state, stuck.timed_out) == ("nccl:all_reduce", 3, "started", True)
    assert (stuck.input_sizes, stuck.input_dtypes, stuck.timeout_ms) == (((1024, 70000),), ("Float",), 600000)
    assert (stuck.frames[0].filename, stuck.frames[0].line) == ("/home/user/train.py", 87)
    assert stuck.created_at == 1_760_000_003.0
    assert stuck.completed_seen_at is None


def test_records_stand_in_the_order_of_their_ring_buffer() -> None:
    turned = [record(5, record_id=5), record(3, record_id=3), record(4, record_id=4)]
    assert [r.record_id for r in read_dump(torch_pickle(dump(turned))).records] == [3, 4, 5]


def test_the_first_open_collective_of_each_group_is_told() -> None:
    other = record(1, "scheduled", record_id=9, process_group=("7", "tensor"), pg_id=2)
    found, parsed = read_flight_dump(
        torch_pickle(dump([record(2, "started"), record(3, "scheduled"), other])), ORIGIN
    )
    assert found is not None
    first, second = parsed.evidence
    assert (first.kind, first.code, first.rank, first.job) == (Kind.FLIGHT_RECORD, "started", 3, "train-7")
    assert "all_reduce 2 of group 0 (default_pg of 4 ranks) is started" in first.detail
    assert "train.py:87" in first.detail
    assert (second.code, "group 7 (tensor)" in second.detail) == ("scheduled", True)
    verdict = classify(parsed.evidence, tables=TABLES, now=NOW)
    assert (verdict.fault, verdict.rule) == (FaultClass.UNKNOWN, "flight_record:open")


def test_a_timed_out_collective_says_so() -> None:
    _, parsed = read_flight_dump(torch_pickle(STUCK), ORIGIN)
    assert [e.code for e in parsed.evidence] == ["timed_out"]
    assert parsed.dropped == {"a completed collective": 2}


def test_a_rank_without_an_open_collective_says_that_and_blames_nobody() -> None:
    _, parsed = read_flight_dump(torch_pickle(dump([record(1), record(2)])), ORIGIN)
    assert [e.code for e in parsed.evidence] == ["complete"]
    assert classify(parsed.evidence, tables=TABLES, now=NOW).fault is FaultClass.INFORMATIONAL


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("traces/nccl_trace_rank_12", 12),
        ("comm_lib_trace_rank_0", 0),
        ("dump_3.json", 3),
        ("dump-7.pkl", 7),
        ("notes.txt", None),
        ("", None),
    ],
)
def test_the_rank_stands_at_the_end_of_the_files_name(name: str, rank: int | None) -> None:
    assert rank_of(name) == rank


class _Hostile:
    def __init__(self, function: Any, *words: Any) -> None:
        self.call = (function, words)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_hostile_pickle_runs_nothing_and_is_unreadable(protocol: int) -> None:
    ran: list[str] = []
    builtins._ran = ran.append  # type: ignore[attr-defined]
    try:
        raw = pickle.dumps({"entries": [_Hostile(eval, "__import__('builtins')._ran('x')")]}, protocol=protocol)
        found, parsed = read_flight_dump(raw, ORIGIN)
    finally:
        del builtins._ran  # type: ignore[attr-defined]
    assert ran == []
    assert found is None
    assert [(e.kind, e.source, e.rank) for e in parsed.evidence] == [(Kind.UNREADABLE, Source.JOB, 3)]
    assert classify(parsed.evidence, tables=TABLES, now=NOW).fault is FaultClass.UNKNOWN


def test_the_name_that_a_pickle_asked_for_is_told() -> None:
    with pytest.raises(InvalidInputError, match=r"nothing of it ran: it names builtins\.eval"):
        load_plain(pickle.dumps(_Hostile(eval, "1"), protocol=4))


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80\x02}r\xff\xff\xff\x7f.",  # one memo index that the standard reader pays with gigabytes
        b"\x80\x02" + b"]" + b"q\x00" + b"(h\x00h\x00e" * 40 + b".",
        b"\x80\x04\x96\xff\xff\xff\xff\xff\xff\xff\x7f.",  # a bytearray of 2**63
        b"\x80\x02X\xff\xff\xff\xff.",
        b"\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\xff.",
        b"\x80\x02" + b"(" * 100_000 + b".",
        b"\x80\x02}(" + b")q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"Nu.",  # a key that would hash for hours
        b"\x80\x02\x8a\xff" + b"\x01" * 255 + b".",
        b"\x80\x02]" + b"a" * 10 + b".",
        b"\x80\x02.",
        b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R.",
        b"\x80\x02(cos\nsystem\no.",
        b"\x80\x02P17\n.",
        b"\x80\x02c" + b"x" * 1000,
        b"\x80\x02ctorch.jit._pickle\nbuild_intlist\nK\x01\x85R.",
    ],
)
def test_a_crafted_pickle_is_cheap_and_unreadable(raw: bytes) -> None:
    start = time.monotonic()
    found, parsed = read_flight_dump(raw, ORIGIN)
    assert time.monotonic() - start < 2
    assert found is None
    assert [e.kind for e in parsed.evidence] == [Kind.UNREADABLE]


def test_records_that_share_one_part_cost_it_once() -> None:
    frames = [{"name": "f" * 200, "filename": "x" * 300, "line": n} for n in range(60)]
    one = record(1, "started", frames=frames, input_sizes=[[1] * 16] * 60)
    start = time.monotonic()
    found = read_dump(torch_pickle(dump([one] * 40_000)))
    assert time.monotonic() - start < 5
    assert len(found.records) == 40_000
    assert all(r is found.records[0] for r in found.records)


@pytest.mark.parametrize("cut", [0, 1, 2, 40, 400, -1])
@pytest.mark.parametrize("raw", [torch_pickle(STUCK), in_json(STUCK)])
def test_a_cut_dump_is_unreadable(raw: bytes, cut: int) -> None:
    found, parsed = read_flight_dump(raw[:cut], ORIGIN)
    assert found is None
    assert [e.kind for e in parsed.evidence] == [Kind.UNREADABLE]
    assert sum(parsed.dropped.values()) == 1


@pytest.mark.parametrize(
    "raw",
    [b"{}", b"[]", b"7", b"null", b'{"entries": 7}', b"\xff\xfe\x00", b"hello", "[" * 100_000, '{"a":' * 100_000],
)
def test_what_is_no_dump_is_unreadable(raw: bytes | str) -> None:
    found, parsed = read_flight_dump(raw, ORIGIN)
    assert found is None
    assert [e.kind for e in parsed.evidence] == [Kind.UNREADABLE]


def test_a_broken_record_is_counted_and_the_others_are_read() -> None:
    broken = [7, {}, {"record_id": "x"}, record(4, "frobbed", input_sizes="no", frames=[7, {}], process_group=None)]
    found, parsed = read_flight_dump(json.dumps(dump([record(1)]) | {"entries": [record(1), *broken]}), ORIGIN)
    assert found is not None
    assert (found.lost, [r.state for r in found.records]) == (3, ["completed", "unknown"])
    assert parsed.dropped["a record that cannot be read"] == 3
