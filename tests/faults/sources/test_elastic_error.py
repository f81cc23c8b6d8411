"""torchelastic's error files: both forms of the message, and no verdict from what cannot be read."""

import json
from typing import Any

import pytest

from fleet.faults.classify import classify
from fleet.faults.evidence import Evidence, FaultClass, Kind, Source
from fleet.faults.sources.elastic_error import read_elastic_error
from fleet.faults.texts import Origin
from tests.faults.making import NOW, TABLES

ORIGIN = Origin(cluster="alpha", job="train-7", node="alpha2", rank=5, seen_at=NOW)
STACK = (
    "Traceback (most recent call last):\n"
    '  File "/opt/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 357, in wrapper\n'
    "    return f(*args, **kwargs)\n"
    '  File "/home/user/train.py", line 87, in step\n'
    "    loss = table[key]\n"
)


def error_file(message: Any, **more: Any) -> str:
    return json.dumps({"message": message, **more})


def raised(said: str, stack: str | None = None) -> str:
    callstack = STACK + said + "\n" if stack is None else stack
    extra = {"py_callstack": callstack, "timestamp": str(int(NOW) - 60)}
    return error_file({"message": said, "extraInfo": extra, "errorCode": 1})


def only(text: str | bytes) -> Evidence:
    (e,) = read_elastic_error(text, ORIGIN).evidence
    return e


@pytest.mark.parametrize(
    ("said", "code", "fault"),
    [
        ("KeyError: 'tok'", "python_deterministic", FaultClass.USER),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "cuda_ecc", FaultClass.HARDWARE),
        ("OSError: [Errno 116] Stale file handle", "stale_handle", FaultClass.TRANSIENT),
        ("mycode.OddError: boom", "python_exception", FaultClass.USER),
        ("torch.distributed.DistBackendError: NCCL error in: x", "dist_backend", FaultClass.UNKNOWN),
    ],
)
def test_an_exceptions_file_is_judged_by_its_last_line_not_by_torchelastics_word(
    said: str, code: str, fault: FaultClass
) -> None:
    e = only(raised(said))
    assert (e.kind, e.code, e.rank, e.node, e.job, e.source) == (
        Kind.LOG_TEXT,
        code,
        5,
        "alpha2",
        "train-7",
        Source.JOB,
    )
    assert e.happened_at == int(NOW) - 60
    assert "train.py:87" in e.detail
    assert classify([e], tables=TABLES, now=NOW).fault is fault


def test_a_file_without_a_call_stack_is_judged_by_its_message() -> None:
    assert only(raised("KeyError: 'tok'", stack="")).code == "python_deterministic"
    assert only(error_file({"message": "KeyError: 'tok'"})).code == "python_deterministic"


def test_a_cut_call_stack_is_judged_by_what_is_left() -> None:
    assert only(raised("KeyError: 'tok'", stack=STACK[60:] + "KeyError: 'tok'\n")).code == "python_deterministic"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("Signal 9 (SIGKILL) received by PID 4711", "SIGKILL"),
        ("Signal 15 (SIGTERM) received by PID 4711", "SIGTERM"),
        ("Signal 6 (SIGABRT) received by PID 4711", "SIGABRT"),
        ("Signal 11 (SIGSEGV) received by PID 4711", "SIGSEGV"),
    ],
)
def test_a_bare_message_of_a_signal_is_an_exit_and_never_a_verdict_by_itself(said: str, code: str) -> None:
    e = only(error_file(said, timestamp=int(NOW) - 5))
    assert (e.kind, e.code, e.happened_at, e.rank) == (Kind.JOB_EXIT, code, int(NOW) - 5, 5)
    assert classify([e], tables=TABLES, now=NOW).fault is FaultClass.UNKNOWN


def test_a_bare_message_of_another_kind_is_told_and_unlisted() -> None:
    e = only(error_file("the launcher gave up", timestamp="soon"))
    assert (e.kind, e.code, e.happened_at) == (Kind.LOG_TEXT, "unlisted", None)
    assert classify([e], tables=TABLES, now=NOW).fault is FaultClass.UNKNOWN


def test_two_ranks_of_one_exception_are_two_pieces() -> None:
    other = Origin(cluster="alpha", job="train-7", node="alpha3", rank=6, seen_at=NOW)
    keys = {e.key for o in (ORIGIN, other) for e in read_elastic_error(raised("KeyError: 1"), o).evidence}
    assert len(keys) == 2


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "{",
        raised("KeyError: 'tok'")[:120],
        "[]",
        "{}",
        error_file(""),
        error_file({}),
        error_file(7),
        error_file({"message": "", "extraInfo": {"py_callstack": "\n\n"}}),
        error_file({"message": {"a": 1}, "extraInfo": 7}),
        b"\xff\xfe\x00\x01",
        "[" * 100_000,
    ],
)
def test_what_cannot_be_read_says_so(raw: str | bytes) -> None:
    found = read_elastic_error(raw, ORIGIN)
    assert [e.kind for e in found.evidence] == [Kind.UNREADABLE]
    assert sum(found.dropped.values()) == 1
    assert classify(found.evidence, tables=TABLES, now=NOW).fault is FaultClass.UNKNOWN


def test_a_megabyte_of_call_stack_is_read_at_its_end() -> None:
    long = "Traceback (most recent call last):\n" + '  File "a.py", line 1, in f\n' * 40_000 + "KeyError: 'tok'\n"
    assert only(raised("KeyError: 'tok'", stack=long)).code == "python_deterministic"
