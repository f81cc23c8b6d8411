"""Tests that mostly wait, played side by side in one event loop, each in a world of its own. Each is still one test
with its own result: what pytest runs only waits for it (`pytest_pyfunc_call` in tests/conftest.py).
"""

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

World = Callable[[pytest.Function], AbstractAsyncContextManager[dict[str, Any]]]
"""Opens what a test asks for by the names of its arguments, as its fixtures would."""


class SideBySide:
    """The value of a fixture whose tests are played so. Make it before any of them runs, and close it."""

    def __init__(self, items: Iterable[pytest.Function], world: World, at_once: int) -> None:
        """Begins at once, in a thread of its own, with at most `at_once` at a time, in the order given."""
        self._world = world
        self._free = asyncio.Semaphore(at_once)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="side by side")
        self._thread.start()
        self._playing: dict[str, Future[float]] = {
            item.nodeid: asyncio.run_coroutine_threadsafe(self._play(item, item.obj), self._loop) for item in items
        }

    def seconds(self, item: pytest.Function) -> float:
        """Waits for that test's end; returns how long it took, or raises what it raised."""
        return self._playing[item.nodeid].result()

    def close(self) -> None:
        """Cancels what still plays; returns when it has cleaned up."""
        for future in self._playing.values():
            future.cancel()
        asyncio.run_coroutine_threadsafe(self._others_have_ended(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _play(self, item: pytest.Function, body: Callable[..., Any]) -> float:
        async with self._free:
            began = time.monotonic()
            async with self._world(item) as given:
                known = params_of(item) | given
                await body(**{name: known[name] for name in inspect.signature(body).parameters})
            return time.monotonic() - began

    async def _others_have_ended(self) -> None:
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)


def params_of(item: pytest.Function) -> dict[str, Any]:
    """The values of its `parametrize` marks."""
    callspec = getattr(item, "callspec", None)
    return dict(callspec.params) if callspec else {}


def chosen(session: pytest.Session, wanted: Callable[[pytest.Function], bool]) -> list[pytest.Function]:
    """Those of the run's tests that are wanted."""
    return [item for item in session.items if isinstance(item, pytest.Function) and wanted(item)]
