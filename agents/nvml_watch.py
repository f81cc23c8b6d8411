"""The agent's side of the child that asks NVML: starts it, ends one that hangs, and starts it again.

A child that stands in an uninterruptible call cannot be ended. Then no other is started until it is gone: a pile of
such processes would only make a sick node sicker.
"""

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass

from agents.nvml_words import GpuRead, Message, Off, Start, Swept, read_message

FIRST_WAIT = 2.0
"""Seconds before a child that ended is started again; doubled up to `LONGEST_WAIT`."""
LONGEST_WAIT = 300.0
END_LIMIT = 5.0
"""Seconds in which a killed child must be gone; one that is not stands in the kernel."""

log = logging.getLogger("runbook-agent")


@dataclass(frozen=True)
class Hung:
    """The child said nothing for too long."""

    seconds: float
    after: str
    """What was heard last, in words."""
    times: int
    """In a row; 2 or more is no accident."""
    stuck: bool
    """It could not be ended either."""


@dataclass(frozen=True)
class Gone:
    """The child ended by itself."""

    why: str
    times: int
    """In a row, without one round in between."""


Heard = Message | Hung | Gone
_UP_TO_HERE = {Start: "its start", Swept: "a whole round"}


class NvmlWatch:
    """Runs for ever; gives every message to `hear`."""

    def __init__(self, hear: Callable[[Heard], None], every: float, hang_after: float) -> None:
        """`every`: seconds between rounds; `hang_after`: seconds for which a call may take."""
        self.hear = hear
        self.every = every
        self.hang_after = hang_after
        self.hangs = 0
        self.failures = 0
        self._again = False
        self._child: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        """One child after the other. Ends the child when it is cancelled."""
        wait = min(FIRST_WAIT, self.every)
        while True:
            try:
                await self._one_child()
                while not await self._end():
                    log.error("the process that asks NVML stands in the kernel and cannot be ended; none is started")
                    await asyncio.sleep(LONGEST_WAIT)
            finally:
                await asyncio.shield(self._end())
            if not self.hangs and not self.failures:
                wait = min(FIRST_WAIT, self.every)
            await asyncio.sleep(wait)
            wait = min(wait * 2, LONGEST_WAIT)

    def start_again(self) -> None:
        """A new child with a new list of GPUs, for the present one's list never changes."""
        self._again = True

    async def _one_child(self) -> None:
        self._again = False
        self._child = child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "agents.nvml_child",
            "--every",
            str(self.every),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        assert child.stdout is not None  # noqa: S101 - for the type checker; PIPE was asked for
        last: Message | None = None
        while not self._again:
            try:
                async with asyncio.timeout(self.every + self.hang_after):
                    line = await child.stdout.readline()
            except TimeoutError:
                self.hangs += 1
                stuck = not await self._end()
                self.hear(Hung(self.every + self.hang_after, _words(last), self.hangs, stuck))
                return
            except ValueError:  # a line over asyncio's limit is none of ours
                continue
            if not line:
                self.failures += 1
                self.hear(Gone(last.why if isinstance(last, Off) else "the process that asks it died", self.failures))
                return
            message = read_message(line)
            if message is None:
                continue
            last = message
            if isinstance(message, Swept):
                self.hangs = self.failures = 0
            if not isinstance(message, Off):
                self.hear(message)

    async def _end(self) -> bool:
        """Ends the child; False when it stands in the kernel and is not gone in time."""
        child = self._child
        if child is None or child.returncode is not None:
            return True
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        try:
            async with asyncio.timeout(END_LIMIT):
                await child.wait()
        except TimeoutError:
            return False
        return True


def _words(last: Message | None) -> str:
    if isinstance(last, GpuRead):
        return f"GPU {last.index} ({last.uuid or last.pci or 'unnamed'})"
    return "nothing" if last is None else _UP_TO_HERE.get(type(last), "an event")
