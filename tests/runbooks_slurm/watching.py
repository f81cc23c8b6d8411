"""The truth about attempts: processes in the nodes' namespaces and what Slurm shows, looked at all the time."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fleet.errors import TemporaryError
from fleet.model import Phase
from tests.slurm.lab import Cluster, rank_pids


@dataclass
class Seen:
    """What was seen of one job since the watching began. Attempts are named by Slurm's restart count."""

    first: dict[int, float] = field(default_factory=dict)
    last: dict[int, float] = field(default_factory=dict)
    together: set[frozenset[int]] = field(default_factory=set)
    """Attempts whose ranks were alive in one look."""
    states: list[tuple[Phase, bool, int]] = field(default_factory=list)
    """Phase, held, restarts; each change."""
    looks: int = 0

    def never_two_at_once(self) -> bool:
        """No look found ranks of two attempts, and there were looks at both."""
        return self.looks > 10 and len(self.first) > 1 and all(len(alive) < 2 for alive in self.together)


@asynccontextmanager
async def watching(lab: Cluster, native_id: str) -> AsyncIterator[Seen]:
    """Looks at processes and queue until the body has ended."""
    seen = Seen()
    tasks = [asyncio.create_task(_processes(lab, native_id, seen)), asyncio.create_task(_queue(lab, native_id, seen))]
    try:
        yield seen
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    broken = [e for e in ended if isinstance(e, Exception)]
    if broken:
        raise broken[0]


async def _processes(lab: Cluster, native_id: str, seen: Seen) -> None:
    while True:
        alive = await asyncio.to_thread(attempts_alive, native_id, lab.settings.conf)
        now = time.time()
        for attempt in alive:
            seen.first.setdefault(attempt, now)
            seen.last[attempt] = now
        seen.together.add(frozenset(alive))
        seen.looks += 1
        await asyncio.sleep(0.25)


async def _queue(lab: Cluster, native_id: str, seen: Seen) -> None:
    while True:
        with contextlib.suppress(TemporaryError):
            job = await lab.backend.job(native_id)
            state = (job.phase, job.held, job.restarts)
            if not seen.states or seen.states[-1] != state:
                seen.states.append(state)
        await asyncio.sleep(0.3)


def attempts_alive(native_id: str, conf: str) -> dict[int, int]:
    """Restart count -> living ranks, frozen ones too."""
    found: dict[int, int] = {}
    for pid in rank_pids(native_id, conf):
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        counts = [int(word.partition(b"=")[2]) for word in words if word.startswith(b"SLURM_RESTART_COUNT=")]
        attempt = counts[0] if counts else 0
        found[attempt] = found.get(attempt, 0) + 1
    return found
