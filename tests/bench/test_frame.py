"""The frame of the benches: exit codes, the promise of `-o json`, and what counts as a met goal. Nothing is timed."""

import argparse
import json

import pytest

from bench.__main__ import BENCHES, MET, MISSED, NOT_MEASURED, USAGE, main
from bench.machine import cpu_seconds, resident_mib
from bench.table import Figure, quantile
from fleet.errors import PermanentError


class Tiny:
    """A bench that gives what it is told to."""

    SUMMARY = "a tiny bench"

    def __init__(self, *figures: Figure, error: Exception | None = None) -> None:
        self.figures = figures
        self.error = error
        self.seen: argparse.Namespace | None = None

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--runs", type=int, default=3)

    def run(self, options: argparse.Namespace) -> tuple[tuple[Figure, ...], tuple[str, ...]]:
        self.seen = options
        if self.error is not None:
            raise self.error
        return self.figures, ("one note",)


def fast(at_most: float | None = None) -> Figure:
    return Figure(name="call", value=2.0, unit="ms", other="the slow way", other_value=8.0, at_most=at_most)


def test_a_met_goal_ends_with_zero_and_shows_the_other_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiny"], {"tiny": Tiny(fast(at_most=2.0))}) == MET
    shown = capsys.readouterr().out
    for words in ("call", "2 ms", "8 ms", "the slow way", "1/4", "met: at most 2 ms", "one note", "cores"):
        assert words in shown


def test_one_missed_goal_among_met_ones_ends_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Tiny(fast(at_most=3.0), fast(at_most=1.9), fast())
    assert main(["tiny"], {"tiny": bench}) == MISSED
    assert "MISSED: at most 1.9 ms" in capsys.readouterr().out


def test_a_missed_goal_ends_with_one_in_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiny", "-o", "json"], {"tiny": Tiny(fast(at_most=1.0))}) == MISSED
    assert json.loads(capsys.readouterr().out)["goal_met"] is False


def test_a_bench_that_measured_nothing_has_not_met_its_goal() -> None:
    assert main(["tiny"], {"tiny": Tiny()}) == MISSED


def test_json_keys_are_the_promise(capsys: pytest.CaptureFixture[str]) -> None:
    main(["tiny", "-o", "json"], {"tiny": Tiny(fast(at_most=5.0), Figure(name="bare", value=1.0, unit="s"))})
    said = json.loads(capsys.readouterr().out)
    assert list(said) == ["bench", "machine", "figures", "notes", "goal_met"]
    assert list(said["machine"]) == [
        "cores",
        "memory_gib",
        "cpu",
        "kernel",
        "python",
        "temporal_server",
        "temporal_sdk",
        "slurm",
        "load_before",
    ]
    assert said["figures"][0] == {
        "name": "call",
        "value": 2.0,
        "unit": "ms",
        "other": "the slow way",
        "other_value": 8.0,
        "at_most": 5.0,
        "ratio": 0.25,
        "met": True,
    }
    assert [said["figures"][1][key] for key in ("other_value", "ratio", "met")] == [None, None, None]
    assert said["machine"]["cores"] >= 1
    assert said["machine"]["memory_gib"] > 0


def test_an_unknown_name_ends_with_two_and_lists_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing"], {"tiny": Tiny(fast())}) == USAGE
    said = capsys.readouterr().err
    assert "'nothing'" in said
    assert "tiny" in said
    assert "a tiny bench" in said


def test_no_name_ends_with_two_and_help_with_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], {"tiny": Tiny(fast())}) == USAGE
    assert "tiny" in capsys.readouterr().err
    assert main(["--help"], {"tiny": Tiny(fast())}) == MET
    assert "tiny" in capsys.readouterr().out


def test_a_wrong_option_ends_with_two_and_measures_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Tiny(fast())
    assert main(["tiny", "--runs", "many"], {"tiny": bench}) == USAGE
    assert main(["tiny", "--jump"], {"tiny": bench}) == USAGE
    assert bench.seen is None
    assert "--jump" in capsys.readouterr().err


def test_its_own_options_reach_the_bench() -> None:
    bench = Tiny(fast())
    main(["tiny", "--runs", "7"], {"tiny": bench})
    assert bench.seen is not None
    assert bench.seen.runs == 7


def test_what_cannot_be_measured_here_is_no_missed_goal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiny"], {"tiny": Tiny(error=PermanentError("install slurmctld"))}) == NOT_MEASURED
    assert "install slurmctld" in capsys.readouterr().err


def test_every_bench_of_ours_can_be_listed_and_asked_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == MET
    listed = capsys.readouterr().out
    for name in BENCHES:
        assert name in listed
        assert main([name, "--help"]) == MET
        assert "-o {table,json}" in capsys.readouterr().out


def test_a_quantile_is_a_measured_value() -> None:
    values = [float(v) for v in range(100, 0, -1)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile(values, 1.0), quantile(values, 0.0)) == (
        50.0,
        99.0,
        100.0,
        1.0,
    )
    assert quantile([3.0], 0.99) == 3.0
    with pytest.raises(ValueError, match="nothing was measured"):
        quantile([], 0.5)


def test_a_process_that_works_uses_processor_time_and_memory() -> None:
    import os

    before = cpu_seconds(os.getpid())
    while cpu_seconds(os.getpid()) - before < 0.02:
        sum(range(10_000))
    assert resident_mib(os.getpid()) > 5
