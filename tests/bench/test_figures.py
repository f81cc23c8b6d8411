"""What the benches make of their readings: pure functions on made-up readings. Nothing is timed."""

import argparse
import random
from datetime import datetime
from pathlib import Path

import pytest

from bench import copying, overhead, parse, placement, recovery
from bench.overhead import History, StepCost
from bench.parked import Parked
from bench.recovery import Recovered
from bench.sides import comment, started_at, xid_79
from bench.step_cost import StepTimes
from bench.table import Figure
from fleet.errors import InvalidInputError
from fleet.faults.parse import parse_any
from fleet.ledger import Attempt, Rung, Span, Stage

LOG = """\
[2026-11-30T13:00:00.100] sched: Allocate JobId=7 NodeList=alpha[1-2] #CPUs=2 Partition=gpu
[2026-11-30T13:00:05.000] sched: Allocate JobId=70 NodeList=alpha[3-4] #CPUs=2 Partition=gpu
[2026-11-30T13:00:10.000] requeue job JobId=7 due to failure of node alpha2
[2026-11-30T13:02:11.250] sched/backfill: _start_job: Started JobId=7 in gpu on alpha[3-4]
[2026-11-30T13:05:00.000] sched: Allocate JobId=7 NodeList=alpha[1-2] #CPUs=2 Partition=gpu
"""


def at(text: str) -> float:
    return datetime.fromisoformat(f"2026-11-30T{text}").timestamp()


def run_of(receipt: float, running: float, step: float, lost: int = 2) -> Recovered:
    stages = {Stage.FENCE: receipt / 10}
    return Recovered(
        node="alpha2",
        fault_at=100.0,
        receipt_at=100.0 + receipt,
        running_at=100.0 + running,
        step_at=100.0 + step,
        lost=lost,
        stages=stages,
    )


def named(figures: tuple[Figure, ...], name: str) -> Figure:
    (found,) = [f for f in figures if f.name == name]
    return found


def test_the_start_after_the_fault_is_found_in_the_controllers_log_whoever_scheduled_it() -> None:
    assert started_at(LOG, "7", at("13:00:10.000")) == pytest.approx(at("13:02:11.250"))
    assert started_at(LOG, "7", 0.0) == pytest.approx(at("13:00:00.100"))
    assert started_at(LOG, "70", 0.0) == pytest.approx(at("13:00:05.000"))


def test_a_job_that_did_not_start_again_has_no_time() -> None:
    assert started_at(LOG, "7", at("13:05:00.000")) is None
    assert started_at(LOG, "0", 0.0) is None


def test_goals_of_recovery_hold_for_the_worst_run_and_count_from_the_receipt() -> None:
    alone = Recovered(node="beta2", fault_at=50.0, running_at=171.0, step_at=174.0, lost=5)
    good = recovery.figures([run_of(4.0, 5.0, 6.0), run_of(4.0, 6.5, 9.0)], alone, "alone")
    running, step = good[0], good[1]
    assert [running.value, running.other_value] == pytest.approx([2.5, 121.0])
    assert [step.value, step.other_value] == pytest.approx([5.0, 124.0])
    assert (running.met, step.met) == (True, True)
    assert named(good, "fault to RUNNING, median").value == pytest.approx(5.0)
    assert named(good, "stage fence, median").value == pytest.approx(0.4)
    slow = recovery.figures([run_of(4.0, 5.0, 6.0), run_of(4.0, 7.1, 14.1)], alone, "alone")
    assert (slow[0].met, slow[1].met) == (False, False)


def test_a_run_without_a_receipt_misses_the_goals() -> None:
    alone = Recovered(node="beta2", fault_at=50.0, running_at=171.0, step_at=174.0, lost=5)
    nothing = run_of(4.0, 5.0, 6.0).model_copy(update={"receipt_at": 0.0})
    assert [f.met for f in recovery.figures([nothing], alone, "alone")[:2]] == [False, False]


def test_spans_of_one_stage_are_added_and_open_ones_left_out() -> None:
    spans = (
        Span(stage=Stage.STOP, start=1.0, end=2.5, note="checkpoint"),
        Span(stage=Stage.STOP, start=3.0, end=3.5),
        Span(stage=Stage.FENCE, start=4.0),
    )
    attempt = Attempt(generation=2, cluster="alpha", native_id="7", restarts=1, rung=Rung.IN_CLUSTER, spans=spans)
    assert recovery.stage_seconds(attempt) == {Stage.STOP: pytest.approx(2.0)}


def test_both_jobs_say_the_same_but_for_the_opt_in() -> None:
    ours, alone = comment("a", True).split(), comment("a", False).split()
    assert set(ours) - set(alone) == {"gpu-runbooks.io/supervise"}
    assert set(alone) <= set(ours)


def test_the_fault_of_each_run_is_dated_for_the_same_undated_line_would_be_taken_for_one_event() -> None:
    (one,) = parse_any(xid_79("alpha2"), cluster="alpha", node="alpha2", seen_at=0.0).evidence
    assert (one.code, one.node) == ("79", "alpha2")
    assert one.happened_at is not None


def times(whole: float) -> StepTimes:
    return StepTimes(whole=(whole,) * 9 + (whole * 3,), wait=(1.0,), work=(2.0,), decide=(3.0,))


def test_the_goal_of_overhead_holds_for_the_median_step() -> None:
    def p50(whole: float) -> Figure:
        cost = StepCost(bare=(0.5,), tuned=times(whole), untuned=times(100.0), rate=20.0, rate_untuned=10.0)
        return named(overhead.step_figures(cost), "one step, p50")

    assert (p50(60.0).met, p50(60.1).met) == (True, False)
    assert p50(60.0).ratio == pytest.approx(120.0)


def test_every_figure_of_overhead_has_a_name_of_its_own() -> None:
    cost = StepCost(bare=(0.5,), tuned=times(30.0), untuned=times(100.0), rate=20.0, rate_untuned=10.0)
    histories = [History(kind=k, events=50, size=2048) for k in ("SuperviseJob", "HealNode")]
    parked = Parked(
        count=200,
        seconds=60.0,
        adopted_in=20.0,
        adopted_cpu=10.0,
        worker_mib=150.0,
        worker_mib_empty=100.0,
        worker_cpu=0.1,
        worker_cpu_empty=0.01,
        server_mib=300.0,
        server_cpu=0.1,
        server_cpu_empty=0.01,
        loop_cpu=0.05,
    )
    figures = (
        *overhead.step_figures(cost),
        *overhead.history_figures(histories),
        *overhead.parked_figures(parked),
    )
    assert len({f.name for f in figures}) == len(figures)
    assert named(figures, "worker memory for each parked runbook").value == pytest.approx(256.0)
    assert named(figures, "history of HealNode, size").value == pytest.approx(2.0)
    assert named(figures, "worker CPU for each job adopted").value == pytest.approx(50.0)
    assert overhead.notes(argparse.Namespace(steps=10), parked)


def test_the_goal_of_placement_holds_for_the_median_decision() -> None:
    def p50(median: float) -> Figure:
        ours = (1.0,) * 4 + (median,) * 4 + (500.0,)
        return named(placement.figures(ours, (0.5,), (0.1,)), "one decision from every node's state, p50")

    assert [p50(50.0).met, p50(50.1).met] == [True, False]


def test_both_ways_of_placement_decide_over_the_same_nodes() -> None:
    fleet = placement.made_fleet(random.Random(1), 4, 130)
    jobs = [placement.made_job(random.Random(seed), seed) for seed in range(20)]

    assert sum(map(len, fleet.values())) == 130
    for job in jobs:
        ours, plain = placement.decide(job, fleet), placement.greedy(job, fleet)
        assert len(ours.candidates) == len(fleet)
        assert plain is not None or ours.choice is None, "what the loop cannot place has too few nodes anywhere"


def test_the_kernel_log_of_the_bench_is_the_same_in_every_run_and_tells_something_rarely(tmp_path: Path) -> None:
    lines = list(parse.log_lines(5000))
    assert lines == list(parse.log_lines(5000))
    assert len(lines) == 5000
    file = tmp_path / "kernel.log"
    file.write_text("".join(lines))
    found = parse.parse(file)
    assert (found.lines, found.evidence) == (5000, 5000 // parse.RARE)
    assert sum(found.verdicts.values()) == 1
    matching, _ = parse.scan(file)
    assert 0 < matching <= found.evidence


def test_a_line_may_cost_five_times_a_plain_scan_of_it_and_memory_stays_flat() -> None:
    figures, notes = parse.run(argparse.Namespace(lines=2000))
    cost = named(figures, "a line parsed and correlated")
    assert cost.at_most == pytest.approx(5 * (cost.other_value or 0))
    assert named(figures, "memory grown since the first fifth").at_most == parse.GROWTH
    assert "2,000 lines" in notes[0]
    with pytest.raises(InvalidInputError, match="at least 1000"):
        parse.run(argparse.Namespace(lines=10))


def test_the_goal_of_a_copy_is_a_share_of_the_raw_way_in_the_same_run() -> None:
    pairs = [
        copying.Pair(raw=raw, ours=ours, publish=0.1, prove=1.0)
        for raw, ours in ((19.0, 20.0), (1.0, 9.0), (38.0, 30.0))
    ]
    copied, proven, published = copying.figures("s3", 2 << 30, pairs)
    assert (copied.value, copied.other_value, copied.met) == (20.0, 19.0, True)
    assert (proven.value, published.value) == (1.0, 0.1)
    assert (proven.met, published.met) == (None, None)
    slower = [pair.model_copy(update={"ours": pair.raw / copying.SHARE + 0.1}) for pair in pairs]
    assert copying.figures("s3", 2 << 30, slower)[0].met is False


def test_one_whole_file_copied_again_after_a_kill_misses_the_goal() -> None:
    killed = copying.Killed(kills=20, again=0, whole=3.0, tries=9.0)
    assert copying.kill_figures("local", killed)[0].met is True
    assert copying.kill_figures("local", killed.model_copy(update={"again": 1}))[0].met is False
