"""The lab's stand-in for a Ray head: the job server as KubeRay uses it."""

import json
import shlex
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.test_train import until

PROGRAM = Path(__file__).parents[2] / "deploy/lab/training/ray_head.py"
TERMINATED = 143
Ask = Callable[..., Any]
WAITS = [sys.executable, "-c", "import signal; signal.pause()"]


@pytest.fixture
def head() -> Iterator[tuple[subprocess.Popen[bytes], Ask]]:
    """A head that answers, and how to ask it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]

    def ask(path: str, given: object = None) -> Any:
        data = None if given is None else json.dumps(given).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/jobs/{path}", data, timeout=5) as answer:
            return json.load(answer)

    def answers() -> bool:
        try:
            return ask("") == []
        except urllib.error.URLError:
            return False

    with subprocess.Popen([sys.executable, PROGRAM, "--port", str(port)]) as process:
        until(answers)
        yield process, ask
        process.kill()


def submit(ask: Ask, words: list[str], submission: str = "j1") -> None:
    ask("", {"submission_id": submission, "entrypoint": shlex.join(words)})


@pytest.mark.parametrize(("code", "status"), [(0, "SUCCEEDED"), (3, "FAILED")])
def test_a_submitted_entrypoint_runs_and_its_end_is_told(
    head: tuple[subprocess.Popen[bytes], Ask], code: int, status: str
) -> None:
    _, ask = head
    with pytest.raises(urllib.error.HTTPError, match="404"):
        ask("j1")
    submit(ask, [sys.executable, "-c", f"raise SystemExit({code})"])
    until(lambda: ask("j1")["status"] == status)
    assert ask("")[0]["end_time"] >= ask("j1")["start_time"] > 0


def test_one_job_at_a_time_which_can_be_stopped(head: tuple[subprocess.Popen[bytes], Ask]) -> None:
    _, ask = head
    submit(ask, WAITS)
    assert ask("j1")["status"] == "RUNNING"
    with pytest.raises(urllib.error.HTTPError, match="500"):
        submit(ask, WAITS, "j2")
    assert ask("j1/stop", {}) == {"stopped": True}
    until(lambda: ask("j1")["status"] == "STOPPED")
    assert ask("j1/stop", {}) == {"stopped": False}


def test_sigterm_ends_the_entrypoint_and_then_the_head(head: tuple[subprocess.Popen[bytes], Ask]) -> None:
    process, ask = head
    submit(ask, WAITS)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == TERMINATED
