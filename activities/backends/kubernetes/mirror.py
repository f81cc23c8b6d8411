"""One list-and-watch per kind of object: a picture that follows the apiserver, shared by all runbooks of a worker.

It lists, then watches from there with bookmarks; a stream that ends is taken up where it was, after a jittered wait;
a version that is too old (410) makes it list again. A picture is only as fresh as the last sign of life of its
apiserver, and says so (`Mirror.at`): decisions that destroy read live instead.
"""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from activities.backends.kubernetes.api import KubeApi, Raw
from fleet.errors import FleetError, TemporaryError

T = TypeVar("T")
STREAM = 270.0
"""Seconds that one watch is asked to last; a third is random, lest all come back at once."""
SLOWEST = 8.0
"""Seconds between two tries to reach an apiserver that is away."""
SHORT = 1.0
"""Seconds; a stream that ended sooner is not taken up at once, lest a proxy that cuts each one is flooded."""
KEPT_GONE = 2000
"""Objects that were deleted are remembered, the newest so many: who was told of them wants to know that they went."""


class Mirror(Generic[T]):
    """All objects at some paths (one, or one for each namespace), each as the value that `keep` makes of it."""

    def __init__(self, api: KubeApi, what: str, paths: tuple[str, ...], keep: Callable[[Raw], T]) -> None:
        self.api = api
        self.what = what
        self.at: dict[str, float] = {}
        """Monotonic time of the last word from the apiserver, for each path."""
        self.lists = 0
        """How often it listed, for tests of bookmarks and of 410."""
        self.gone: dict[str, T] = {}
        """Last value of objects that were deleted while this process watched, by uid."""
        self._paths = paths
        self._keep = keep
        self._found: dict[str, dict[str, T]] = {path: {} for path in paths}
        self._listed: dict[str, asyncio.Event] = {path: asyncio.Event() for path in paths}
        self._tasks: list[asyncio.Task[None]] = []
        self._changed: set[asyncio.Event] = set()
        self._failure: FleetError | None = None

    def start(self) -> None:
        """Begins to follow; nothing when it does already."""
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._follow(path)) for path in self._paths]

    async def ready(self, limit: float) -> None:
        """Waits for the first list. Raises what keeps it away."""
        self.start()
        try:
            async with asyncio.timeout(limit):
                await asyncio.gather(*(event.wait() for event in self._listed.values()))
        except TimeoutError as error:
            raise self._failure or TemporaryError(f"{self.what}: no first list within {limit:.0f} s") from error

    def values(self) -> list[T]:
        """Everything known, in no order."""
        return [value for found in self._found.values() for value in found.values()]

    def age(self) -> float:
        """Seconds since the last word about the path that is behind most."""
        return time.monotonic() - min((self.at.get(path, 0.0) for path in self._paths), default=0.0)

    @property
    def failure(self) -> FleetError | None:
        """Why it does not follow now; None while it does."""
        return self._failure

    def subscribe(self) -> asyncio.Event:
        """An event that is set at each change; the caller clears it, and gives it back to `unsubscribe`."""
        event = asyncio.Event()
        self._changed.add(event)
        return event

    def unsubscribe(self, event: asyncio.Event) -> None:
        self._changed.discard(event)

    # -- following

    async def _follow(self, path: str) -> None:
        version, pause = "", 0.2
        while True:
            try:
                if not version:
                    version = await self._list(path)
                began = time.monotonic()
                version = await self._watch(path, version)
                pause = 0.2
                self._failure = None
                if time.monotonic() - began < SHORT:
                    await asyncio.sleep(random.uniform(SHORT / 2, SHORT))  # noqa: S311 - jitter
            except FleetError as error:
                self._failure = error
                self._tell()
                await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - jitter
                pause = min(pause * 2, SLOWEST)

    async def _list(self, path: str) -> str:
        items, version = await self.api.list(self.what, path)
        before, found = self._found[path], {raw["metadata"]["uid"]: self._keep(raw) for raw in items}
        for uid in before.keys() - found.keys():
            self._went(uid, before[uid])
        self._found[path] = found
        self.lists += 1
        self._failure = None
        self._alive(path)
        self._listed[path].set()
        self._tell()
        return version

    async def _watch(self, path: str, version: str) -> str:
        """Takes events in until the stream ends; the version to go on from, empty for "list again"."""
        lasts = int(STREAM * random.uniform(0.67, 1.0))  # noqa: S311 - jitter
        query = [
            ("resourceVersion", version),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(lasts)),
        ]
        async for event in self.api.watch(self.what, path, query):
            raw = event.get("object", {})
            self._failure = None
            if event["type"] == "ERROR":
                if raw.get("code") == 410:
                    return ""
                raise TemporaryError(f"{self.what}: the watch ended with {raw.get('code')} {raw.get('message', '')}")
            version = raw["metadata"]["resourceVersion"]
            self._alive(path)
            if event["type"] == "BOOKMARK":
                continue
            uid = raw["metadata"]["uid"]
            if event["type"] == "DELETED":
                self._found[path].pop(uid, None)
                self._went(uid, self._keep(raw))
            else:
                self._found[path][uid] = self._keep(raw)
            self._tell()
        return version

    def _went(self, uid: str, value: T) -> None:
        self.gone[uid] = value
        while len(self.gone) > KEPT_GONE:
            del self.gone[next(iter(self.gone))]

    def _alive(self, path: str) -> None:
        self.at[path] = time.monotonic()

    def sign_of_life(self) -> None:
        """The apiserver answered something else just now, and the streams stand: the picture is as fresh."""
        if self._failure is None:
            self.at.update({path: time.monotonic() for path in self._paths})

    def _tell(self) -> None:
        for event in self._changed:
            event.set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
