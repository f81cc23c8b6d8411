"""What a cluster has of the kinds that need a CRD, and may be read by our account."""

import asyncio

from activities.backends.kubernetes import kueue, reboot_node
from activities.backends.kubernetes.api import KubeApi
from activities.backends.kubernetes.kinds.all import ALWAYS, KINDS
from activities.backends.kubernetes.kinds.base import JobKind
from activities.backends.polling import Shared
from fleet.errors import NotFoundError, PermanentError, TemporaryError
from fleet.model import Value

LOOK_EVERY = 60.0
"""Seconds until a kind that was installed meanwhile is noticed."""


class Found(Value):
    """One look at the cluster."""

    served: frozenset[tuple[str, str]] = frozenset()
    """(API group, resource) of those that it has, readable or not."""
    words: frozenset[str] = frozenset()
    """Kinds (`JobKind.word`) that are there and readable."""
    kueue: str = ""
    """API version of Kueue's Workloads where they are there and readable."""
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
        """What is not there is told apart from what we may not read by the API's own list, which everybody may read:
        an account without a right gets 403 for both."""
        groups = {g["name"]: g for g in (await self._api.get("groups of the API", "/apis")).get("groups", [])}
        has = {name: {v["version"] for v in group["versions"]} for name, group in groups.items()}
        version = next((v for v in kueue.VERSIONS if v in has.get(kueue.GROUP, ())), "")
        asked = [k for k in KINDS if k not in ALWAYS and k.api_version.partition("/")[2] in has.get(k.group, ())]
        wanted = [(k.api_version, k.plural, k.path(self._namespace)) for k in asked]
        if version:
            wanted.append((f"{kueue.GROUP}/{version}", "workloads", kueue.workloads_path(version, self._namespace)))
        there = await asyncio.gather(*(self._has(api_version, plural) for api_version, plural, _ in wanted))
        wanted = [one for one, is_there in zip(wanted, there, strict=True) if is_there]
        answers = await asyncio.gather(*(self._why_not(path) for _, _, path in wanted))
        readable = {(one[0], one[1]) for one, why in zip(wanted, answers, strict=True) if not why}
        served = [(api_version.partition("/")[0], plural) for api_version, plural, _ in wanted]
        if reboot_node.VERSION in has.get(reboot_node.GROUP, ()) and await self._has(
            f"{reboot_node.GROUP}/{reboot_node.VERSION}", reboot_node.PLURAL
        ):
            served.append((reboot_node.GROUP, reboot_node.PLURAL))
        return Found(
            served=frozenset(served),
            words=frozenset(k.word for k in asked if (k.api_version, k.plural) in readable),
            kueue=version if (f"{kueue.GROUP}/{version}", "workloads") in readable else "",
            unreadable=tuple(why for why in answers if why),
        )

    async def _has(self, api_version: str, plural: str) -> bool:
        try:
            listed = await self._api.get(f"resources of {api_version}", f"/apis/{api_version}")
        except NotFoundError:
            return False  # it went meanwhile
        return any(one["name"] == plural for one in listed.get("resources", []))

    async def _why_not(self, path: str) -> str:
        """Why our account may not read it; empty when it may."""
        try:
            await self._api.get(f"is there {path}", path, [("limit", "1")])
        except NotFoundError as error:
            return str(error)
        except PermanentError as error:
            return str(error)
        return ""

    async def close(self) -> None:
        await self._found.close()
