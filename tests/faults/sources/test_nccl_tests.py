"""nccl-tests: wrong values are a suspicion, the largest size gives a figure, a run that broke off neither."""

import json
from typing import Any

import pytest

from fleet.faults.classify import classify
from fleet.faults.evidence import FaultClass, Kind
from fleet.faults.sources.nccl_tests import read_nccl_tests
from fleet.faults.texts import Origin, Parsed
from tests.faults.making import NOW, TABLES

ORIGIN = Origin(cluster="alpha", node="alpha2", seen_at=NOW)
HEAD = """# Collective test starting: all_reduce_perf
# nThread 1 nGpus 8 minBytes 1048576 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
# Using devices
#  Rank  0 Group  0 Pid 4711 on alpha2 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
SMALL = "     1048576      262144   float   sum   -1    45.10   23.25   40.69    {}    44.90   23.35   40.87    {}\n"
LARGE = "  8589934592  2147483648   float   sum   -1  31000.0  277.10  471.30    {}  31050.0  276.65  470.80    {}\n"
TAIL = "# Out of bounds values : {} {}\n# Avg bus bandwidth    : 255.91\n#\n"


def run(*wrong: Any, bounds: str = "OK", count: int = 0) -> str:
    a, b = wrong or (0, 0)
    return HEAD + SMALL.format(a, a) + LARGE.format(b, b) + TAIL.format(count, bounds)


def read(text: str | bytes) -> Parsed:
    return read_nccl_tests(text, ORIGIN)


def test_the_largest_size_gives_the_figure_and_not_the_average() -> None:
    (e,) = read(run()).evidence
    assert (e.kind, e.code, e.value, e.node) == (Kind.MEASURED, "nccl.busbw", 470.8, "alpha2")
    assert e.detail.startswith("all_reduce_perf: bus bandwidth 471.3 and 470.8 GB/s at 8589934592 bytes")
    assert classify([e], tables=TABLES, now=NOW).fault is FaultClass.INFORMATIONAL


@pytest.mark.parametrize("before", ["0: ", "12:", "[1,0]<stdout>:", "   [1,0]<stdout>:"])
def test_what_a_launcher_writes_before_each_line_does_no_harm(before: str) -> None:
    text = "".join(before + line for line in run(0, 7).splitlines(keepends=True))
    assert read(text).evidence == read(run(0, 7)).evidence


@pytest.mark.parametrize("text", [run(0, 7), run(7, 0), run(bounds="FAILED", count=7)])
def test_wrong_values_are_a_suspicion_of_the_hardware(text: str) -> None:
    found = read(text).evidence
    assert (found[0].kind, found[0].code) == (Kind.CHECK_FAILED, "nccl wrong results")
    assert classify(found, tables=TABLES, now=NOW).fault is FaultClass.HARDWARE


def test_results_that_were_not_checked_are_counted_and_not_wrong() -> None:
    found = read(run("N/A", "N/A"))
    assert [e.kind for e in found.evidence] == [Kind.MEASURED]
    assert found.dropped["a size whose results were not checked"] == 2


def test_words_of_nccl_and_of_the_launcher_between_the_rows_do_no_harm() -> None:
    noisy = run().replace(
        LARGE.format(0, 0), f"a:1:2 [0] NCCL INFO Channel 00/0\nb:1:2 [0] NCCL WARN x\n{LARGE.format(0, 0)}"
    )
    assert [(e.kind, e.value) for e in read(noisy).evidence] == [(Kind.MEASURED, 470.8)]
    assert read(noisy).dropped["no row of results"] == 2


def in_json(*wrong: int, **more: Any) -> str:
    sizes = [
        {
            "size": size,
            "out_of_place": {"time": 9.0, "alg_bw": bw / 2, "bus_bw": bw, "nwrong": bad},
            "in_place": {"time": 9.0, "alg_bw": bw / 2, "bus_bw": bw - 1, "nwrong": 0},
        }
        for size, bw, bad in zip((1048576, 8589934592), (40.0, 471.0), wrong or (0, 0), strict=True)
    ]
    return json.dumps({"results": sizes, "average_bus_bandwidth": {"bandwidth": 255.9}, **more})


def test_the_json_form_reads_as_the_text_does() -> None:
    (e,) = read(in_json()).evidence
    assert (e.kind, e.value) == (Kind.MEASURED, 470.0)
    assert [e.kind for e in read(in_json(3, 0)).evidence] == [Kind.CHECK_FAILED, Kind.MEASURED]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD, "without one row"),
        ("", "without one row"),
        (HEAD + SMALL.format(0, 0), "ends before its summary"),
        (run()[:-60], "ends before its summary"),
        (HEAD + "alpha2: Test NCCL failure common.cu:958 'unhandled system error'\n", "error of NCCL or CUDA"),
        (in_json()[:80], "cut off"),
        ("{}", "without one row"),
        (bytes(range(128, 256)) * 30, "binary"),
    ],
)
def test_a_run_that_broke_off_is_unreadable_and_no_pass(text: str | bytes, says: str) -> None:
    found = read(text).evidence
    assert any(e.kind is Kind.UNREADABLE and says in e.detail for e in found)
    assert classify(found, tables=TABLES, now=NOW).fault is FaultClass.UNKNOWN


@pytest.mark.parametrize(
    "text", ["hello\n" * 5, "1 2 3\n", "9" * 100_000, "1048576 " * 200_000, '{"results": [7, {"size": "x"}, []]}']
)
def test_another_text_is_no_result(text: str) -> None:
    assert {e.kind for e in read(text).evidence} == {Kind.UNREADABLE}
