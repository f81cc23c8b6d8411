"""The launcher: ranks under a lease. It renews the lease, passes signals and the exit code on, and ends the ranks
when it cannot renew in time.

Two processes watch over the ranks, for one alone may be frozen or killed: the launcher, which talks to the server,
and its child, the guard (`agents/guard.py`), which is the parent of the ranks. Each ends them when the other cannot.
How the lease is renewed is passed in (`Keeper`), for this floor knows neither Temporal nor the network.
See docs/launcher.md.
"""

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import Protocol

from agents.descendants import adopt_orphans, descendants, reap, signal_all
from agents.guard import ENDED, FORWARDED, MESSAGE, RENEW, SIGNAL, STOP, Guard, now
from fleet.errors import TemporaryError
from fleet.lease import LEASE_LOST, SHORT_TERM, LeaseTerms

RENEW_LIMIT = 10.0
"""Seconds for one renewal."""
OVERDUE = 2.0
"""Seconds after the KILL was due after which the launcher does the guard's work: it is frozen, then."""
GOODBYE_LIMIT = 5.0
"""Seconds for telling the server that nothing runs any more."""
GUARD_LOST = 128 + signal.SIGKILL
"""Exit code when the guard was killed: as if the command was."""
PAUSE = 0.1

log = logging.getLogger("runbook-launch")


class Keeper(Protocol):
    """The lease at the server."""

    async def renew(self) -> bool:
        """True: it holds. False: it was taken back, for good. Raises TemporaryError when nobody can tell now."""

    async def leave(self, text: str) -> None:
        """Nothing runs any more. Raises TemporaryError when that cannot be said now."""


class Ranks:
    """The guard and what runs below it, as the launcher sees them."""

    def __init__(self, command: Sequence[str], grace: float) -> None:
        """Forks the guard; to be made before this process has other threads. The command is not started yet."""
        adopt_orphans()
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stdout.flush()
        sys.stderr.flush()
        self.guard = os.fork()
        if self.guard == 0:
            self.channel.close()
            _be_guard(command, grace, theirs)
        theirs.close()
        self.channel.setblocking(False)
        self.code: int | None = None

    def renew(self, until: float) -> None:
        """They may run until then (`guard.now`). The first call starts them."""
        self._tell(RENEW, until)

    def forward(self, number: int) -> None:
        """Passes a signal on to the command, and to nobody else."""
        self._tell(SIGNAL, number)

    def stop(self) -> None:
        """TERM, and KILL after the grace."""
        self._tell(STOP, 0)

    def hear(self) -> bool:
        """Takes what the guard says; True when it is over: `code` is set, or the guard died without a word."""
        try:
            message = self.channel.recv(MESSAGE.size)
        except BlockingIOError:
            return False
        except OSError:
            message = b""
        if message:
            kind, number = MESSAGE.unpack(message)
            self.code = int(number) if kind == ENDED else None
        return True

    async def kill(self) -> None:
        """Ends everything below this process, a frozen or dead guard's ranks too. Returns when nothing is left."""
        while True:
            reap()
            left = descendants(os.getpid())
            if not left:
                return
            ranks = {pid: start for pid, start in left.items() if pid != self.guard}
            signal_all(ranks or left, signal.SIGKILL)  # its guard last: it is the parent of all orphans
            await asyncio.sleep(PAUSE)

    def _tell(self, kind: bytes, number: float) -> None:
        with contextlib.suppress(OSError):  # a dead guard is heard of, a frozen one is waited for
            self.channel.send(MESSAGE.pack(kind, number))


class Launcher:
    """Keeps one command alive for as long as there is a lease."""

    def __init__(self, ranks: Ranks, terms: LeaseTerms, keeper: Keeper, wait: float) -> None:
        """`wait`: seconds for the first lease; without one the command is never started."""
        self.ranks, self.terms, self.keeper, self.wait = ranks, terms, keeper, wait
        self.until: float | None = None
        """Until when the lease holds; None before the first renewal."""
        self._over = asyncio.Event()
        self._told_to_end: int | None = None

    async def run(self) -> int:
        """The exit code of the command; `LEASE_LOST` when it was ended for want of a lease, or never started."""
        loop = asyncio.get_running_loop()
        for number in FORWARDED:
            loop.add_signal_handler(number, self._forward, number)
        loop.add_reader(self.ranks.channel, self._hear)
        renewing = asyncio.create_task(self._keep_renewing())
        renewing.add_done_callback(_report)
        overdue = asyncio.create_task(self._look_after_guard())
        try:
            await self._over.wait()
        finally:
            renewing.cancel()
            overdue.cancel()
            loop.remove_reader(self.ranks.channel)
            await asyncio.gather(renewing, overdue, return_exceptions=True)
        return await self._end()

    async def _end(self) -> int:
        code = self.ranks.code
        if code is None:
            log.error("the guard is dead or frozen; everything below is killed")
            code = GUARD_LOST if self.until is None or now() < self.until else LEASE_LOST
        await self.ranks.kill()
        if self.until is None and self._told_to_end is not None:
            code = 128 + self._told_to_end
        text = f"ended with code {code}" if code != LEASE_LOST else "ended for want of a lease"
        try:
            async with asyncio.timeout(GOODBYE_LIMIT):
                await self.keeper.leave(text)
        except (TemporaryError, TimeoutError) as error:
            log.warning("the server was not told that nothing runs any more: %s", str(error) or "no answer")
        return code

    # -- the lease

    async def _keep_renewing(self) -> None:
        begun, trouble = now(), ""
        while True:
            sent = now()
            pause = self.terms.every
            try:
                async with asyncio.timeout(RENEW_LIMIT):
                    held = await self.keeper.renew()
            except (TemporaryError, TimeoutError) as error:
                said = str(error) or f"no answer in {RENEW_LIMIT:g} s"
                if said != trouble:
                    log.warning("%s: %s", "no lease yet" if self.until is None else self._left(), said)
                trouble = said
                pause = min(pause, error.delay if isinstance(error, TemporaryError) else 1.0)
            else:
                if not held:
                    log.error("the lease was taken back: the job goes on elsewhere, or a person ended it")
                    self.ranks.stop()
                    return
                if self.until is None or trouble:
                    log.info("the lease holds; without a renewal the ranks end %.0f s after it", self.terms.term)
                self.until, trouble = sent + self.terms.term, ""
                self.ranks.renew(self.until)
            if self.until is None and now() - begun > self.wait:
                log.error("no lease in %.0f s: the command is not started", self.wait)
                self.ranks.stop()
                return
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads many nodes, hides nothing

    def _left(self) -> str:
        assert self.until is not None  # noqa: S101 - only said of a lease
        return f"the lease cannot be renewed, the ranks end in {max(self.until - now(), 0):.0f} s"

    async def _look_after_guard(self) -> None:
        """Ends the ranks itself where the guard, which should have, did not: it is frozen."""
        while True:
            if self.until is not None and now() >= self.until + self.terms.grace + OVERDUE:
                self._over.set()
                return
            await asyncio.sleep(1.0)

    # -- what comes from outside

    def _forward(self, number: int) -> None:
        if self.until is None and number in {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}:
            self._told_to_end = number
            self.ranks.stop()
        else:
            self.ranks.forward(number)

    def _hear(self) -> None:
        if self.ranks.hear():
            self._over.set()


def _report(task: asyncio.Task[None]) -> None:
    """A fault of ours renews nothing any more: said at once, long before the ranks end of it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the launcher renews no more, for it failed itself: %r", error)


def warn_of_short(terms: LeaseTerms) -> None:
    """Says what a short term costs."""
    if terms.term < SHORT_TERM:
        log.warning(
            "a term of %.0f s is shorter than a restart of a Temporal server may take: it would end the training",
            terms.term,
        )


def _be_guard(command: Sequence[str], grace: float, channel: socket.socket) -> None:
    code = 1
    try:
        code = Guard(command, grace, channel).run()
    except BaseException:  # noqa: BLE001 - the edge of a process
        traceback.print_exc()
    finally:
        os._exit(code)
