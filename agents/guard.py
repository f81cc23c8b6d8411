"""The guard: the small process between a launcher and the ranks, which ends the ranks when their lease has run out.

It is forked before the launcher knows any network, has one thread, and needs nothing but the kernel: no server, no
disk. It adopts every orphan below it, so that no rank is lost from sight. What it takes from the launcher comes over
a socket of whole messages; that the socket closes means that the launcher is dead.
"""

import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from enum import StrEnum
from types import FrameType

from agents.descendants import adopt_orphans, descendants, die_with_parent, reap, signal_all
from fleet.lease import LEASE_LOST

MESSAGE = struct.Struct("!cd")
"""Kind and a number."""
RENEW, SIGNAL, STOP, ENDED = b"R", b"S", b"X", b"E"
"""To the guard: the lease holds until that moment of `now()`; pass a signal on; stop. From it: the exit code."""
LOOK = 1.0
"""Seconds between two looks at the clock: after a suspended machine wakes, this late at most."""
LOOK_STOPPING = 0.1
LEFTOVER_GRACE = 5.0
"""Seconds for what a command left running when it ended."""
COMPLAIN_EVERY = 30.0
FORWARDED = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGALRM, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT),
)
"""Signals that the launcher passes on to the command, and that do nothing else to launcher and guard."""
STDERR = 2
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of a shell for a command that cannot be started."""


class Reason(StrEnum):
    """Why the ranks are being ended."""

    ENDED = "the command has ended"
    LAPSED = "the lease could not be renewed in time"
    REVOKED = "the lease was taken back"
    ALONE = "the launcher is dead"


def now() -> float:
    """Seconds by the clock of every deadline here: nobody sets it, and it counts the time of a suspended machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Guard:
    """Runs the command once there is a lease, and ends it and all below it when there is none any more."""

    def __init__(self, command: Sequence[str], grace: float, channel: socket.socket) -> None:
        """`grace`: seconds from TERM to KILL."""
        self.command, self.grace, self.channel = list(command), grace, channel
        self.until: float | None = None
        self.child: subprocess.Popen[bytes] | None = None
        self.status: int | None = None
        self.reason: Reason | None = None
        self.kill_at = 0.0
        self.complained_at = 0.0
        self._alone = False
        self._woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.setsid()  # what is sent to the launcher's whole group does not end its guard
        adopt_orphans()
        _be_deaf(wake)

    def run(self) -> int:
        """Returns the exit code of the whole once nothing below it runs any more."""
        while True:
            self._hear(self._patience())
            self._reap()
            if self.reason is None:
                self._watch()
            if self.reason is not None and self._are_gone():
                code = self._code()
                with contextlib.suppress(OSError):
                    self.channel.send(MESSAGE.pack(ENDED, code))
                return code

    # -- what it is told

    def _patience(self) -> float:
        if self.reason is not None:
            return LOOK_STOPPING
        return LOOK if self.until is None else min(LOOK, max(self.until - now(), 0.0))

    def _hear(self, seconds: float) -> None:
        waits = [self._woken] if self._alone else [self._woken, self.channel.fileno()]
        for ready in select.select(waits, [], [], seconds)[0]:
            if ready != self._woken:
                self._take()
            else:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)

    def _take(self) -> None:
        try:
            message = self.channel.recv(MESSAGE.size)
        except OSError:
            message = b""
        if not message:
            self._alone = True
            return
        kind, number = MESSAGE.unpack(message)
        if kind == RENEW:
            self.until = number
            if self.child is None and self.reason is None:
                self._start()
        elif kind == STOP:
            self._stop(Reason.REVOKED)
        elif self.child is not None and self.status is None:
            os.kill(self.child.pid, int(number))  # not yet collected, so the pid is its own

    # -- the ranks

    def _start(self) -> None:
        parent = os.getpid()
        try:
            self.child = subprocess.Popen(  # its own session, and so its own group
                self.command,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509 - this process has one thread
            )
        except OSError as error:
            _say(f"{self.command[0]}: {error.strerror}")
            self.status = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE

    def _reap(self) -> None:
        ended = reap()
        if self.child is not None and self.status is None and self.child.pid in ended:
            self.child.returncode = os.waitstatus_to_exitcode(ended[self.child.pid])
            self.status = self.child.returncode

    def _watch(self) -> None:
        if self.status is not None:
            self._stop(Reason.ENDED)
        elif self._alone:
            self._stop(Reason.ALONE)
        elif self.until is not None and now() >= self.until:
            self._stop(Reason.LAPSED)

    def _stop(self, reason: Reason) -> None:
        """TERM now, KILL after the grace: counted from the lease's end where that came first."""
        if self.reason is not None:
            return
        self.reason = reason
        grace = min(self.grace, LEFTOVER_GRACE) if reason is Reason.ENDED else self.grace
        self.kill_at = min(now(), self.until or now()) + grace
        left = descendants(os.getpid())
        if left:
            _say(f"{reason}: {len(left)} processes are told to end")
        if now() < self.kill_at:
            signal_all(left, signal.SIGTERM)
            signal_all(left, signal.SIGCONT)  # a stopped process takes no TERM

    def _are_gone(self) -> bool:
        left = descendants(os.getpid())
        if left and now() >= self.kill_at:
            refused = signal_all(left, signal.SIGKILL)
            if now() >= max(self.kill_at + COMPLAIN_EVERY, self.complained_at + COMPLAIN_EVERY):
                self.complained_at = now()
                why = "not ours to end" if refused else "they stand in the kernel"
                _say(f"cannot end {', '.join(map(str, sorted(left)))} ({why}); trying on")
        return not left

    def _code(self) -> int:
        if self.reason is not Reason.ENDED or self.status is None:
            return LEASE_LOST
        return self.status if self.status >= 0 else 128 - self.status


def _be_deaf(wake: int) -> None:
    """What ends others does not end the guard. Handlers, not SIG_IGN: that would be passed on to the command."""

    def nothing(_number: int, _frame: FrameType | None) -> None:
        pass

    signal.signal(signal.SIGCHLD, nothing)
    for number in FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, nothing)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)


def _say(text: str) -> None:
    """On standard error, unless that would block: whoever reads it may be frozen, and the guard must not be."""
    if select.select([], [STDERR], [], 0)[1]:
        with contextlib.suppress(OSError):
            os.write(STDERR, f"runbook-launch: {text}\n".encode()[: select.PIPE_BUF])
