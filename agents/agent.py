"""The agent of a node: what the kernel and NVIDIA's driver say becomes evidence, once, and waits until it is sent.

It reads only, changes nothing on the node, and judges nothing: the cluster's watch does. How it is sent is passed in
(`Send`), for this floor knows neither Temporal nor the network. See docs/agent.md.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agents.gpus import Gpus
from agents.kernel import KernelNews
from agents.kmsg import KernelTail
from agents.nvml_watch import Heard, NvmlWatch
from agents.nvml_words import XidEvent
from agents.spool import Spool
from fleet.errors import PermanentError, TemporaryError
from fleet.faults.evidence import Evidence

Send = Callable[[Sequence[Evidence]], Awaitable[None]]
"""Hands the pieces to the cluster's watch; without any, it only checks the way there. Raises TemporaryError to be
asked again after its delay, PermanentError for pieces that no later try can send."""

KMSG = Path("/dev/kmsg")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
GATHER = 1.0
"""Seconds in which lines of the kernel gather: the lines of one fault come together and are one piece of evidence."""
FILE_EVERY = 1.0
"""Seconds between two looks at a plain file, which cannot be waited for."""
XID_HOLD = 5.0
"""Seconds for which NVML's bare XID waits for the kernel's line, which says more."""
KEEP_EVERY = 600.0
"""Seconds between two writes of where the kernel's log was left, while it tells nothing."""
BATCH = 200
"""Pieces in one send."""
SEND_LIMIT = 60.0
"""Seconds for one send."""
FIRST_WAIT = 1.0
LONGEST_WAIT = 60.0
"""Seconds between two tries to send; the first ones are shorter, all vary by half (many nodes, one outage)."""

log = logging.getLogger("runbook-agent")


@dataclass(frozen=True)
class Settings:
    """One node's agent."""

    cluster: str
    node: str
    state: Path
    """Folder for the spool."""
    kmsg: Path = KMSG
    every: float = 30.0
    """Seconds between two rounds over the GPUs."""
    hang_after: float = 90.0
    """Seconds until a call of NVML counts as hung: two waits of the driver for a silent GPU processor (45 s each)."""
    boot_id: Path = BOOT_ID


class Agent:
    """Collects and sends until it is cancelled."""

    def __init__(self, settings: Settings, send: Send) -> None:
        self.settings = settings
        self.send = send
        self.boot = settings.boot_id.read_text().strip()
        self.spool = Spool(settings.state, self.boot)
        self.kernel = KernelNews(settings.cluster, settings.node, self.spool, self.boot)
        self.nvml = NvmlWatch(self._heard, settings.every, settings.hang_after)
        self.gpus = Gpus(settings.cluster, settings.node, self.spool, self.boot, self.nvml.start_again)
        self._fresh = asyncio.Event()
        self._gathering: asyncio.TimerHandle | None = None
        self._failed = asyncio.Event()
        self._held: deque[XidEvent] = deque()

    async def run(self) -> None:
        """For ever. A part that fails by itself ends the whole, loudly: the service manager starts it again."""
        try:
            async with asyncio.TaskGroup() as parts:
                parts.create_task(self._read_kernel())
                parts.create_task(self.nvml.run())
                parts.create_task(self._keep_sending())
        finally:
            self._flush()
            while self._held:
                self._let_go()
            self.spool.add(memo=self.kernel.memo())
            self.spool.close()

    # -- what is seen

    async def _read_kernel(self) -> None:
        try:
            tail = KernelTail(self.settings.kmsg, after=self.kernel.last)
        except OSError as error:
            log.error(
                "%s cannot be read (%s): XIDs come from NVML only, without their text; the agent needs CAP_SYSLOG",
                self.settings.kmsg,
                error,
            )
            return
        loop = asyncio.get_running_loop()
        self.kernel.tail = tail
        try:
            if not tail.plain_file:
                loop.add_reader(tail.descriptor, self._take)
            self._take()
            while not await self._has_failed(FILE_EVERY if tail.plain_file else KEEP_EVERY):
                if tail.plain_file:
                    self._take()
                else:
                    self.spool.add(memo=self.kernel.memo())
        finally:
            loop.remove_reader(tail.descriptor)
            tail.close()
            self.kernel.leave()
        raise TemporaryError(f"{self.settings.kmsg} cannot be read any more")

    async def _has_failed(self, seconds: float) -> bool:
        """Waits for it that long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._failed.wait()
        return self._failed.is_set()

    def _take(self) -> None:
        """Lines gather a moment before they are read as evidence."""
        try:
            news = self.kernel.take()
        except OSError as error:
            log.error("%s: %s", self.settings.kmsg, error)
            self._failed.set()
            return
        if news and self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(GATHER, self._flush)

    def _flush(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self._tell(self.kernel.evidence(self.gpus.uuids, time.time()))

    def _heard(self, heard: Heard) -> None:
        if isinstance(heard, XidEvent):
            self._held.append(heard)
            asyncio.get_running_loop().call_later(XID_HOLD, self._let_go)
            return
        self._tell(self.gpus.heard(heard, time.monotonic(), time.time()))

    def _let_go(self) -> None:
        """The kernel's own line for an event says more, and is told already if it can be read at all."""
        if not self._held:
            return
        event = self._held.popleft()
        if not self.kernel.knows(event.code, event.pci):
            self._tell(self.gpus.xid(event, time.monotonic(), time.time()))

    def _tell(self, pieces: Iterable[Evidence]) -> None:
        told = list(pieces)
        memo = {**self.kernel.memo(), **self.gpus.memo()} if told else self.gpus.changed_memo()
        if not told and not memo:
            return
        if over := self.spool.add(told, memo):
            log.error("too much waits: the oldest %d pieces were dropped, %d so far", over, self.spool.dropped)
        for piece in told:
            log.warning("seen: %s", piece.text)
        if told:
            self._fresh.set()

    # -- what is sent

    async def _keep_sending(self) -> None:
        wait = FIRST_WAIT
        trouble = ""
        first = True
        while True:
            batch = self.spool.oldest(BATCH)
            if not batch and not first:
                self._fresh.clear()
                await self._fresh.wait()
                continue
            try:
                async with asyncio.timeout(SEND_LIMIT):
                    await self.send([piece for _, piece in batch])
            except (TemporaryError, TimeoutError) as error:
                said = str(error) or f"no answer in {SEND_LIMIT:g} s"
                if said != trouble:
                    log.error("%d pieces wait, %s", self.spool.waiting, said)
                    trouble = said
                delay = max(wait, error.delay if isinstance(error, TemporaryError) else 0.0)
                await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311 - spreads nodes, hides nothing
                wait = min(wait * 2, LONGEST_WAIT)
                continue
            except PermanentError as error:
                log.error("%d pieces were refused and are dropped: %s", len(batch), error)
            self.spool.done([number for number, _ in batch])
            if trouble or first:
                log.info("evidence reaches the watch over %s", self.settings.cluster)
            wait, trouble, first = FIRST_WAIT, "", False
