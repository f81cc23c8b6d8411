"""A job of several processes hangs, its ranks leave dumps, and `runbook diagnose hang` names the one that is waited
for."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.faults.sources.flight_recorder import read_dump
from tests.training.test_train import Start, start, until

__all__ = ["start"]  # the fixture
RANKS = 4
NODES = "alpha1,alpha2"


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    """Where the ranks leave their dumps."""
    return tmp_path / "dumps"


def hung(start: Callable[..., Start], dumps: Path, *options: str) -> Start:
    """Without checkpoints: a rank that is stopped at a save keeps the others waiting there, in no collective."""
    words = ("--steps", "10000", "--checkpoint-every", "10000", "--dumps", str(dumps), "--dump-after", "0.3")
    return start(*words, "--fault-rank", "2", *options, ranks=RANKS)


def wait_for_dumps(run: Start, dumps: Path, *ranks: int) -> None:
    """Until these ranks have told that they wait in the step after the last one that was done: on a busy machine any
    step may take so long that they write."""

    def told() -> bool:
        step = max(run.losses(), default=0) + 1
        files = [dumps / f"nccl_trace_rank_{rank}" for rank in ranks]
        return all(
            f.exists() and [r.collective_seq for r in read_dump(f.read_bytes()).open_records()] == [step]
            for f in files
        )

    until(told)


def wait_stopped(process: subprocess.Popen[bytes], file: Path) -> None:
    """Until it stands still as a whole; what it may have written before is removed."""
    until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    file.unlink(missing_ok=True)


def diagnosed(dumps: Path, *options: str) -> dict[str, Any]:
    argv = ["-c", "from workers.main import main; main()", "diagnose", "hang", str(dumps), "--nodes", NODES]
    done = subprocess.run(
        [sys.executable, *argv, *options, "-o", "json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_rank_that_stands_still_in_its_own_code_is_named_as_missing(
    start: Callable[..., Start], dumps: Path
) -> None:
    run = hung(start, dumps, "--hang-from-step", "7")
    wait_for_dumps(run, dumps, 0, 1, 3)
    until((dumps / "nccl_trace_rank_2").exists)
    found = diagnosed(dumps)

    assert (found["rule"], found["class"]) == ("hang:missing_rank", "unknown")
    assert found["culprit"]["node"] == "alpha2"
    assert [(s["rank"], s["node"], s["local"]) for s in found["suspects"]] == [(2, "alpha2", 0)]
    (wait,) = found["waits"]
    assert (wait["seq"], wait["waiting"], wait["missing"]) == (7, [0, 1, 3], [2])
    assert wait["place"].startswith("train.py:")
    assert "hanging on purpose at step 7 rank=2" in run.text(2)


def test_a_rank_whose_process_is_stopped_is_named_as_the_one_without_a_dump(
    start: Callable[..., Start], dumps: Path
) -> None:
    run = hung(start, dumps)
    run.reaches(3)
    run.ranks[2].send_signal(signal.SIGSTOP)
    wait_stopped(run.ranks[2], dumps / "nccl_trace_rank_2")
    wait_for_dumps(run, dumps, 0, 1, 3)
    found = diagnosed(dumps)

    assert (found["rule"], found["culprit"]["node"]) == ("hang:no_dump", "alpha2")
    assert [s["rank"] for s in found["suspects"]] == [2]
    assert (found["dumped"], found["ranks"]) == (RANKS - 1, RANKS)
    assert found["waits"][0]["waiting"] == [0, 1, 3]


def test_a_rank_that_stops_itself_is_named_by_the_same_rule(start: Callable[..., Start], dumps: Path) -> None:
    run = hung(start, dumps, "--hang-from-step", "5", "--hang-how", "stop")
    wait_stopped(run.ranks[2], dumps / "nccl_trace_rank_2")
    wait_for_dumps(run, dumps, 0, 1, 3)
    found = diagnosed(dumps)

    assert (found["rule"], [s["rank"] for s in found["suspects"]]) == ("hang:no_dump", [2])
    assert found["waits"][0]["seq"] == 5


def test_a_signal_makes_one_rank_write_and_the_training_goes_on(start: Callable[..., Start], dumps: Path) -> None:
    run = start("--steps", "10000", "--dumps", str(dumps), "--dump-after", "60")
    run.reaches(3)
    run.ranks[1].send_signal(signal.SIGUSR2)
    until((dumps / "nccl_trace_rank_1").exists)
    step = max(run.losses())
    run.reaches(step + 3)

    assert [p.name for p in dumps.glob("nccl_*")] == ["nccl_trace_rank_1"]


def test_ranks_hang_on_the_node_that_was_named_and_nowhere_else(start: Callable[..., Start], dumps: Path) -> None:
    run = start("--dumps", str(dumps), "--dump-after", "60", "--hang-from-step", "2", "--hang-node", "another-node")

    assert run.codes() == [0, 0]
    assert not list(dumps.glob("nccl_*"))
