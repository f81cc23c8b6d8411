"""Copies of checkpoints and datasets as activities: one at a time for each operation, told by heartbeats.

The work is in `activities/copying/`. A step that is cancelled, or whose clone comes while it still runs, ends its
rclone within seconds; what lies in staging stays and is gone on from.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from activities import copy_api
from activities.api import Nothing
from activities.copy_api import Copied, CopyOrder, CopyProgress, Proof, Published, Survey
from activities.copying.finish import Finishing
from activities.copying.rclone import Rclone
from activities.copying.state import Ground, Rules
from activities.copying.work import Copying, Meters
from activities.registry import BEAT_SECONDS, implements, remember
from activities.runtime import Owner, Runtime
from fleet.errors import TemporaryError

Out = TypeVar("Out")


class CopyActivities(Owner):
    """Runs on the queue of a site, next to its storage."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._running: dict[str, asyncio.Task[object]] = {}

    @implements(copy_api.SURVEY_COPY)
    async def survey(self, arg: CopyOrder) -> Survey:
        """Reads both sides; a small file at the target shows that we may write there."""
        return await self._alone(arg, lambda ground, meters: Copying(ground, meters).survey())

    @implements(copy_api.COPY_FILES)
    async def copy(self, arg: CopyOrder) -> Copied:
        """Into staging, every file compared by hash."""
        return await self._alone(arg, lambda ground, meters: Copying(ground, meters).run())

    @implements(copy_api.PROVE_COPY)
    async def prove(self, arg: CopyOrder) -> Proof:
        """Reads everything back at the target."""
        return await self._alone(arg, lambda ground, meters: Finishing(ground, meters).prove())

    @implements(copy_api.PUBLISH_COPY)
    async def publish(self, arg: CopyOrder) -> Published:
        """Final name, tracker, receipt."""
        return await self._alone(arg, lambda ground, meters: Finishing(ground, meters).publish())

    @implements(copy_api.DROP_COPY)
    async def drop(self, arg: CopyOrder) -> Nothing:
        """What is left of the copy goes; what it published stays."""
        await self._alone(arg, lambda ground, meters: Finishing(ground, meters).drop())
        return Nothing()

    async def _alone(self, arg: CopyOrder, work: Callable[[Ground, Meters], Awaitable[Out]]) -> Out:
        """One step of an operation at a time in this worker: an older try that still runs is ended first."""
        older = self._running.get(arg.op)
        if older is not None:
            older.cancel()
            await asyncio.wait({older})
        policy = self.runtime.policy().copies
        limits = [rate for rate in (policy.bandwidth, arg.bandwidth) if rate is not None]
        rules = Rules(
            bandwidth=min(limits, default=None), headroom=policy.headroom, files_at_once=policy.files_at_once
        )
        meters = Meters(_beat)
        task = asyncio.ensure_future(_awaited(work(Ground(arg, rules, Rclone()), meters)))
        self._running[arg.op] = task
        telling = asyncio.create_task(_tell(meters))
        try:
            return await _result(task, arg.op)
        finally:
            telling.cancel()
            if self._running.get(arg.op) is task:
                del self._running[arg.op]


async def _awaited(work: Awaitable[Out]) -> Out:
    return await work


async def _result(task: "asyncio.Task[Out]", op: str) -> Out:
    """Its result. Cancelled ourselves, we wait until its child has ended; cancelled by a newer try, we say so."""
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task
        raise
    if task.cancelled():
        raise TemporaryError(f"another try of copy {op} has taken over", delay=5)
    return task.result()


async def _tell(meters: Meters) -> None:
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        meters.tell()


def _beat(progress: CopyProgress) -> None:
    remember(progress.model_dump())
