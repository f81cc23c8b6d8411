"""One read serves everybody who asked: a cache with an age, and live reads that are shared but never old."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


def _looked_at(task: "asyncio.Task[T]") -> None:
    """An error that nobody waits for any more (all callers were cancelled) is no news."""
    if not task.cancelled():
        task.exception()


class Shared(Generic[T]):
    """A read that at most one task at a time performs, and one more waits to perform.

    `cached(age)` gives what is at most `age` seconds old; `fresh()` what was asked of the controller after the call.
    A failed read fails everybody who waited for it and is not remembered.
    """

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._running: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None
        self._value: tuple[float, T] | None = None
        """When the read began (monotonic seconds), and what it gave."""

    async def cached(self, age: float) -> T:
        if self._value is not None and time.monotonic() - self._value[0] <= age:
            return self._value[1]
        if self._running is not None and not self._running.done():
            return await asyncio.shield(self._running)
        return await self.fresh()

    async def fresh(self) -> T:
        if self._running is None or self._running.done():
            task = self._running = self._begin(None)
        else:
            if self._next is None or self._next.done():
                self._next = self._begin(self._running)
            task = self._next
        return await asyncio.shield(task)

    def _begin(self, before: "asyncio.Task[T] | None") -> "asyncio.Task[T]":
        task = asyncio.create_task(self._perform(before))
        task.add_done_callback(_looked_at)
        return task

    async def _perform(self, before: "asyncio.Task[T] | None") -> T:
        if before is not None:
            await asyncio.wait([before])
            self._running, self._next = asyncio.current_task(), None
        began = time.monotonic()
        value = await self._read()
        self._value = (began, value)
        return value

    async def close(self) -> None:
        """Ends what still runs."""
        for task in (self._running, self._next):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task])
