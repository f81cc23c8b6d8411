"""Waiting for a state of a real cluster, with a deadline and no fixed sleep."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fleet.errors import TemporaryError
from fleet.model import NativeJob, Phase
from tests.slurm.lab import Cluster

T = TypeVar("T")


async def until(read: Callable[[], Awaitable[T]], wanted: Callable[[T], bool], seconds: float = 40) -> T:
    """Polls until `wanted`; a TemporaryError counts as "not yet". Fails with the last thing seen."""
    end, seen = time.monotonic() + seconds, "nothing"
    while True:
        try:
            value = await read()
            if wanted(value):
                return value
            seen = repr(value)
        except TemporaryError as error:
            seen = repr(error)
        assert time.monotonic() < end, f"not as wanted after {seconds} s; last seen: {seen}"
        await asyncio.sleep(0.1)


async def job_in(cluster: Cluster, native_id: str, phase: Phase, seconds: float = 40) -> NativeJob:
    return await until(lambda: cluster.backend.job(native_id), lambda job: job.phase is phase, seconds)


async def trains(cluster: Cluster, native_id: str, restarts: int = 0) -> NativeJob:
    """Waits for the first step of that attempt."""
    await until(lambda: cluster.backend.progress(native_id, restarts), lambda p: p.step is not None)
    return await cluster.backend.job(native_id)


async def stopped(cluster: Cluster, native_id: str, restarts: int = 0) -> NativeJob:
    await cluster.backend.stop(native_id, restarts)
    return await job_in(cluster, native_id, Phase.PENDING)
