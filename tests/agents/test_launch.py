"""Real launchers, guards and ranks: what is killed or frozen, and what runs on."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agents.guard import now
from fleet.lease import LEASE_LOST
from tests.temporal.waiting import state_of, wait

REPOSITORY = Path(__file__).resolve().parents[2]
STUBBORN = "trap '' TERM; setsid sleep 1000 & (sleep 1001 &); sleep 1002 & wait"
"""Ranks that take no TERM: one in a session of its own, one whose parent is gone."""
POLITE = "trap 'echo TERM >> said; exit 3' TERM; echo up >> said; while :; do sleep 0.05; done"
LONG = 60.0
"""Seconds of a lease that does not run out in a test."""


class Play:
    """One launcher as a process, its server a file, its ranks found by a word in their environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"MARK={uuid.uuid4().hex}"
        self.process: subprocess.Popen[bytes] | None = None
        self.server("up")

    def server(self, answer: str) -> None:
        (self.folder / "server.new").write_text(answer)
        (self.folder / "server.new").rename(self.folder / "server")

    def start(self, *command: str, term: float = LONG, grace: float = 0.3, wait_for: float = LONG) -> None:
        name, _, value = self.mark.partition("=")
        words = [str(self.folder), str(term), str(grace), str(wait_for), "--", *command]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.agents.launcher_main", *words],
                cwd=self.folder,
                env={**os.environ, name: value, "PYTHONPATH": str(REPOSITORY)},
                stderr=log,
                start_new_session=True,
            )

    def started(self, *command: str, ranks: int = 1, **terms: float) -> None:
        self.start(*command, **terms)
        wait(lambda: len(self.ranks()) >= ranks)

    @property
    def launcher(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def guard(self) -> int:
        (guard,) = [p for p in self._ours() if p != self.launcher and self._is_launcher(p)]
        return guard

    def ranks(self) -> list[int]:
        """Every process of the play but launcher and guard: the truth, from outside."""
        return [p for p in self._ours() if not self._is_launcher(p)]

    def code(self) -> int:
        assert self.process is not None
        return self.process.wait(30)

    def said(self, name: str = "said") -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def end(self) -> None:
        for pid in self._ours():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait(30)

    def _is_launcher(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            return b"launcher_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        return False

    def _ours(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if self.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    play = Play(tmp_path)
    yield play
    play.end()


def freeze(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
        wait(lambda pid=pid: state_of(pid) == "T")  # type: ignore[misc]


def gone(play: Play) -> Callable[[], bool]:
    return lambda: not play.ranks()


# -- as if the launcher was not there


@pytest.mark.parametrize(
    ("script", "code"), [("exit 7", 7), ("exit 0", 0), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_the_exit_code_is_that_of_the_command(play: Play, script: str, code: int) -> None:
    play.start("sh", "-c", script)
    assert play.code() == code
    assert play.said("left") == f"ended with code {code}"


@pytest.mark.parametrize(("words", "code"), [(("/nowhere/train",), 127), (("/etc/passwd",), 126)])
def test_a_command_that_cannot_be_started_has_the_code_of_a_shell(
    play: Play, words: tuple[str, ...], code: int
) -> None:
    play.start(*words)
    assert play.code() == code
    assert words[0] in play.said("log")


def test_a_signal_reaches_the_command_once_and_changes_nothing_else(play: Play) -> None:
    script = "trap 'echo USR1 >> said' USR1; echo up >> said; while :; do sleep 0.05; done"
    play.started("sh", "-c", script)
    wait(lambda: play.said() == "up\n")
    os.kill(play.launcher, signal.SIGUSR1)
    wait(lambda: "USR1" in play.said())
    os.kill(play.launcher, signal.SIGTERM)
    assert play.code() == 143
    assert play.said() == "up\nUSR1\n"


def test_what_a_command_leaves_running_ends_with_it(play: Play) -> None:
    play.start("sh", "-c", "setsid sleep 1000 & exit 5")
    assert play.code() == 5
    assert play.ranks() == []


# -- the lease


def test_nothing_starts_without_a_lease(play: Play) -> None:
    play.server("down")
    play.start("sh", "-c", "echo up >> said", wait_for=0.5)
    assert play.code() == LEASE_LOST
    assert play.said() == ""
    assert "the command is not started" in play.said("log")


def test_told_to_end_while_it_waits_for_a_lease_it_starts_nothing(play: Play) -> None:
    play.server("down")
    play.start("sh", "-c", "echo up >> said")
    wait(lambda: "no lease yet" in play.said("log"))
    os.kill(play.launcher, signal.SIGTERM)
    assert play.code() == 143
    assert play.said() == ""


def test_an_outage_shorter_than_the_term_is_not_felt(play: Play) -> None:
    play.started("sh", "-c", POLITE, term=20.0)
    play.server("down")
    wait(lambda: "cannot be renewed" in play.said("log"))
    play.server("up")
    wait(lambda: play.said("log").count("the lease holds") == 2)
    assert play.ranks()
    assert "TERM" not in play.said()


def test_a_lease_that_cannot_be_renewed_ends_the_ranks_with_a_grace(play: Play) -> None:
    play.started("sh", "-c", POLITE, term=2.0, grace=LONG)
    play.server("down")
    assert play.code() == LEASE_LOST
    assert play.said() == "up\nTERM\n"
    assert play.ranks() == []


def test_ranks_that_take_no_term_and_their_orphans_are_killed_after_the_grace(play: Play) -> None:
    play.started("sh", "-c", STUBBORN, ranks=4, term=3.0)
    play.server("down")
    wait(gone(play))
    assert play.code() == LEASE_LOST


def test_a_lease_that_is_taken_back_ends_the_ranks_long_before_its_term(play: Play) -> None:
    play.started("sh", "-c", STUBBORN, ranks=4, term=6.0)
    play.server("back")
    begun = now()
    assert play.code() == LEASE_LOST
    assert now() - begun < 6.0
    assert play.ranks() == []
    assert play.said("left") == "ended for want of a lease"


# -- who watches


def test_a_killed_launcher_takes_all_ranks_with_it(play: Play) -> None:
    play.started("sh", "-c", STUBBORN, ranks=4)
    os.kill(play.launcher, signal.SIGKILL)
    wait(gone(play))


def test_a_launcher_killed_with_its_whole_group_takes_all_ranks_with_it(play: Play) -> None:
    play.started("sh", "-c", STUBBORN, ranks=4)
    os.killpg(play.launcher, signal.SIGKILL)
    wait(gone(play))


def test_a_killed_guard_takes_all_ranks_with_it(play: Play) -> None:
    play.started("sh", "-c", STUBBORN, ranks=4)
    os.kill(play.guard, signal.SIGKILL)
    assert play.code() == 128 + signal.SIGKILL
    assert play.ranks() == []


def test_a_frozen_launcher_renews_nothing_and_its_guard_ends_the_ranks(play: Play) -> None:
    play.started("sh", "-c", STUBBORN, ranks=4, term=3.0)
    freeze(play.launcher)
    wait(gone(play))
    os.kill(play.launcher, signal.SIGCONT)
    assert play.code() == LEASE_LOST


def test_a_frozen_guard_is_stood_in_for_by_its_launcher(play: Play) -> None:
    play.started("sh", "-c", STUBBORN, ranks=4, term=3.0)
    freeze(play.guard)
    play.server("down")
    assert play.code() == LEASE_LOST
    assert play.ranks() == []


def test_ranks_that_thaw_with_their_launcher_after_the_lease_get_no_grace(play: Play) -> None:
    term, grace = 3.0, 0.4
    play.started("sh", "-c", POLITE, term=term, grace=grace)
    wait(lambda: play.said() == "up\n")
    frozen = [play.launcher, play.guard, *play.ranks()]
    freeze(*frozen)
    thaw_at = now() + term + grace  # the last renewal was before this
    while now() < thaw_at:
        time.sleep(0.05)
    for pid in [play.guard, play.launcher, *frozen[2:]]:
        os.kill(pid, signal.SIGCONT)
    assert play.code() == LEASE_LOST
    assert play.ranks() == []
    assert play.said() == "up\n"
