"""The lab's training program: what the runbooks' tests rely on, shown without Slurm."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "deploy/lab/training/train.py"
STALE, TERMINATED = 75, 143


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Poll a condition with a deadline."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.005)


class Start:
    """One start of the program with all its ranks."""

    def __init__(self, folder: Path, *options: str, ranks: int = 2, generation: tuple[int, int] = (0, 0)) -> None:
        self.folder = folder
        self.logs = [folder.parent / f"{folder.name}-{generation}-{time.monotonic_ns()}-{r}" for r in range(ranks)]
        self.ranks = [self._rank(rank, options, generation) for rank in range(ranks)]

    def _rank(self, rank: int, options: tuple[str, ...], generation: tuple[int, int]) -> subprocess.Popen[bytes]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")} | {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(self.logs)),
            "GPU_RUNBOOKS_EPOCH": str(generation[0]),
            "SLURM_RESTART_COUNT": str(generation[1]),
        }
        defaults = ("--steps", "30", "--step-time", "0.01", "--checkpoint-every", "10")
        argv = [sys.executable, str(PROGRAM), "--checkpoint-dir", str(self.folder), *defaults, *options]
        with self.logs[rank].open("wb") as log:
            return subprocess.Popen(argv, env=env, stdout=log, stderr=subprocess.STDOUT)

    def text(self, rank: int = 0) -> str:
        """Return what a rank has printed so far."""
        return self.logs[rank].read_text()

    def losses(self) -> dict[int, str]:
        """Return the loss of each step that this start has finished."""
        return {int(step): loss for step, loss in re.findall(r"^step (\d+)/\d+ loss (\S+) t=", self.text(), re.M)}

    def reaches(self, step: int) -> None:
        """Wait until a step is done."""
        until(lambda: step in self.losses())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every rank."""
        for process in self.ranks:
            process.send_signal(number)

    def codes(self) -> list[int]:
        """Wait for the end and return the exit codes."""
        return [process.wait(20) for process in self.ranks]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Start]]:
    """Start the program on one checkpoint folder, as often as a test likes; nothing outlives the test."""
    starts: list[Start] = []

    def begin(*options: str, ranks: int = 2, generation: tuple[int, int] = (0, 0), folder: str = "c") -> Start:
        starts.append(Start(tmp_path / folder, *options, ranks=ranks, generation=generation))
        return starts[-1]

    yield begin
    for process in (process for one in starts for process in one.ranks):
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """Where the checkpoints of the tests lie."""
    return tmp_path / "c"


def test_the_loss_does_not_depend_on_interruptions_or_on_the_number_of_ranks(start: Callable[..., Start]) -> None:
    whole = start(ranks=1, folder="undisturbed")
    first = start("--step-time", "0.02")
    first.reaches(14)
    first.signal(signal.SIGKILL)
    first.codes()
    second = start()

    assert whole.codes() == [0]
    assert second.codes() == [0, 0]
    assert "starting at step 0 gen=0.0" in first.text()
    assert "resumed from step 10 gen=0.0" in second.text()
    assert "done step 30/30" in second.text()
    assert whole.losses() == first.losses() | second.losses()
    assert min(second.losses()) == 11


def test_a_signal_to_one_rank_makes_all_ranks_save_the_same_step(
    start: Callable[..., Start], checkpoints: Path
) -> None:
    run = start("--steps", "10000", "--checkpoint-every", "10000")
    run.reaches(3)
    run.ranks[1].send_signal(signal.SIGUSR1)
    until(lambda: "saved step" in run.text())

    [folder] = checkpoints.glob("step_*")
    marker = json.loads((folder / "COMPLETE").read_text())
    assert f"saved step {marker['step']} gen=0.0" in run.text()
    assert set(marker["shards"]) == {"rank_0.json", "rank_1.json"}
    assert marker["generation"] == "0.0"


def test_sigterm_ends_it_with_143_and_no_further_checkpoint(start: Callable[..., Start], checkpoints: Path) -> None:
    run = start("--steps", "10000", "--checkpoint-every", "10000")
    run.reaches(3)
    run.signal(signal.SIGTERM)

    assert run.codes() == [TERMINATED, TERMINATED]
    assert not list(checkpoints.glob("step_*"))


def test_a_dead_peer_stops_the_others_until_sigterm(start: Callable[..., Start]) -> None:
    run = start("--steps", "10000")
    run.reaches(3)
    run.ranks[1].kill()
    run.ranks[1].wait()
    time.sleep(0.1)  # a step that was under way may end
    before = run.losses()
    time.sleep(0.3)  # thirty steps' time

    assert run.losses() == before
    assert run.ranks[0].poll() is None
    run.ranks[0].terminate()
    assert run.ranks[0].wait(20) == TERMINATED


def test_an_incomplete_or_spoiled_checkpoint_is_passed_over_for_an_older_one(
    start: Callable[..., Start], checkpoints: Path
) -> None:
    start().codes()
    (checkpoints / "step_00000030.g0.0/COMPLETE").unlink()
    (checkpoints / "step_00000020.g0.0/rank_1.json").write_text("{}")
    run = start()

    assert run.codes() == [0, 0]
    assert "skipping step_00000030.g0.0: no COMPLETE marker" in run.text()
    assert "skipping step_00000020.g0.0: rank_1.json is not the file that was saved" in run.text()
    assert "resumed from step 10 gen=0.0" in run.text()


@pytest.mark.parametrize("newer", [(0, 1), (1, 0)])
def test_a_late_writer_refuses_and_cannot_replace_the_newest_checkpoint(
    start: Callable[..., Start], checkpoints: Path, newer: tuple[int, int]
) -> None:
    old = start("--steps", "10000", ranks=1)
    old.reaches(11)
    new = start("--steps", "200", "--step-time", "0", ranks=1, generation=newer)

    assert old.codes() == [STALE]
    assert new.codes() == [0]
    text = f"refusing to write: generation (0,0) is older than ({newer[0]},{newer[1]})"
    assert text in old.text()
    after = start("--steps", "201", ranks=1, generation=(2, 0))
    assert after.codes() == [0]
    assert "resumed from step 200 gen=2.0" in after.text()


def test_an_older_generation_does_not_even_start(start: Callable[..., Start]) -> None:
    start(generation=(0, 3)).codes()
    late = start(generation=(0, 2))

    assert late.codes() == [STALE, STALE]
    assert "refusing to write: generation (0,2) is older than (0,3)" in late.text()


@pytest.mark.parametrize(
    ("options", "number", "code"),
    [
        (("--no-signal-handler",), signal.SIGUSR1, -signal.SIGUSR1),
        (("--no-signal-handler",), signal.SIGTERM, -signal.SIGTERM),
        (("--ignore-sigterm",), signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_signals_kill_where_the_options_say_so(
    start: Callable[..., Start], options: tuple[str, ...], number: signal.Signals, code: int
) -> None:
    run = start("--steps", "10000", *options, ranks=1)
    run.reaches(2)
    if "--ignore-sigterm" in options:
        run.signal(signal.SIGTERM)
        run.reaches(max(run.losses()) + 5)
    run.signal(number)

    assert run.codes() == [code]


def test_faults_on_purpose_end_the_rank_that_was_named(start: Callable[..., Start]) -> None:
    failing = start("--fail-at-step", "5", "--exit-code", "42", ranks=1)
    raising = start("--raise-at-step", "5", ranks=1, folder="d")

    assert failing.codes() == [42]
    assert max(failing.losses()) == 4
    assert raising.codes() == [1]
    assert "Traceback (most recent call last):" in raising.text()
    assert "RuntimeError: loss is NaN at step 5 on rank 0" in raising.text()
