"""What a cluster has of the kinds that need a CRD, and may be read by our account."""

import asyncio

from activities.backends.kubernetes.api import KubeApi
from activities.backends.kubernetes.kinds.all import ALWAYS, KINDS
from activities.backends.kubernetes.kinds.base import JobKind
from activities.backends.kubernetes.kueue import workloads_path
from activities.backends.polling import Shared
from fleet.errors import NotFoundError, PermanentError, TemporaryError
from fleet.model import Value

LOOK_EVERY = 60.0
"""Seconds until a kind that was installed meanwhile is noticed."""


class Found(Value):
    """One look at the cluster."""

    words: frozenset[str]
    """Kinds (`JobKind.word`) that are there and readable."""
    kueue: bool = False
    unreadable: tuple[str, ...] = ()
    """What is there and refused to our account, with the reason."""

    @property
    def kinds(self) -> tuple[JobKind, ...]:
        return tuple(kind for kind in KINDS if kind in ALWAYS or kind.word in self.words)


class Installed:
    """Looks, and remembers for a minute."""

    def __init__(self, api: KubeApi, namespaces: tuple[str, ...]) -> None:
        self._api = api
        self._namespace = namespaces[0] if namespaces else ""
        self._found: Shared[Found] = Shared(self._look)
        self._last: Found | None = None

    async def now(self) -> Found:
        """At most a minute old, older while the apiserver is away. Raises TemporaryError if it never answered."""
        try:
            self._last = await self._found.cached(LOOK_EVERY)
        except TemporaryError:
            if self._last is None:
                raise
        return self._last

    async def _look(self) -> Found:
        asked = [(kind.word, kind.path(self._namespace)) for kind in KINDS if kind not in ALWAYS]
        asked.append(("", workloads_path(self._namespace)))
        answers = await asyncio.gather(*(self._there(path) for _, path in asked))
        there = {word for (word, _), why in zip(asked, answers, strict=True) if why == ""}
        return Found(
            words=frozenset(there - {""}), kueue="" in there, unreadable=tuple(why for why in answers if why)
        )

    async def _there(self, path: str) -> str | None:
        """Empty when it can be read, None when the cluster does not have it, else the refusal."""
        try:
            await self._api.get(f"is there {path}", path, [("limit", "1")])
        except NotFoundError:
            return None
        except PermanentError as error:
            return str(error)
        return ""

    async def close(self) -> None:
        await self._found.close()
