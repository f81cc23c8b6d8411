"""The other ways to take 1,000 nodes out, and the eyes that see when they are out, the same for every way."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kubernetes.aio import config as kube_config
from kubernetes.aio.client import ApiClient, Configuration, CoreV1Api
from kubernetes.aio.client.exceptions import ConflictException

from activities.backends.kubernetes.api import MERGE, KubeApi
from activities.backends.kubernetes.settings import KubernetesSettings
from bench.stand import until
from fleet.errors import TemporaryError
from fleet.model import Value

AT_ONCE = 16
"""Patches under way together, as our adapter; more are no faster on cores that the apiserver shares."""
TAINT = "example.com/faulty"
REQUEST = "example.com/repair-requested"


class Watched:
    """Cordoned nodes, by a watch of the bench's own; it costs every way the same."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self.cordoned: dict[str, float] = {}
        """node -> when it was first seen cordoned, also if it is back by now; emptied by `all_in`."""
        self._out: set[str] = set()
        self.known = 0

    async def follow(self) -> None:
        path = "/api/v1/nodes"
        items, version = await self._api.list("nodes", path)
        self.known = len(items)
        for raw in items:
            self._saw(raw)
        while True:
            try:
                async for event in self._api.watch("nodes", path, [("resourceVersion", version)]):
                    self._saw(event["object"])
                    version = event["object"]["metadata"]["resourceVersion"]
            except TemporaryError:
                await asyncio.sleep(0.1)

    def _saw(self, raw: dict[str, Any]) -> None:
        name = raw["metadata"]["name"]
        if raw.get("spec", {}).get("unschedulable"):
            self.cordoned.setdefault(name, time.time())
            self._out.add(name)
        else:
            self._out.discard(name)

    async def all_out(self, count: int, limit: float) -> float:
        """When the last of `count` nodes was seen cordoned."""
        await until(lambda: _is(len(self.cordoned) >= count), limit, f"{count} nodes to be cordoned", every=0.02)
        return max(self.cordoned.values())

    async def all_in(self, limit: float) -> None:
        await until(lambda: _is(not self._out), limit, "every node to be back", every=0.1)
        self.cordoned.clear()


async def _is(true: bool) -> bool:
    return true


@asynccontextmanager
async def watched(kubeconfig: Path) -> AsyncIterator[Watched]:
    """Follows the nodes until the body has ended."""
    api = KubeApi("bench", KubernetesSettings(kubeconfig=str(kubeconfig)))
    eyes = Watched(api)
    task = asyncio.create_task(eyes.follow())
    try:
        await until(lambda: _is(eyes.known > 0), 30, "the nodes to be seen")
        yield eyes
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()


class Plain(Value):
    """What the script reached, in seconds from its start."""

    isolated: float
    requested: float


class PlainScript:
    """As a good engineer would write it in an afternoon: the official asyncio client, a list, 16 patches at once.

    It writes each repair request into a file. It has no limit, no freeze, no memory of itself, and starts no repair.
    """

    def __init__(self, kubeconfig: Path, ledger: Path) -> None:
        self.kubeconfig = kubeconfig
        self.ledger = ledger

    async def run(self, nodes: Sequence[str], eyes: Watched) -> Plain:
        start = time.time()
        with self.ledger.open("a", encoding="utf-8") as ledger:

            async def out(api: CoreV1Api, raw: Any) -> None:
                taints = [
                    *_plain(api, raw.spec.taints or []),
                    {"key": TAINT, "value": "xid-79", "effect": "NoSchedule"},
                ]
                body = {
                    "metadata": {
                        "resourceVersion": raw.metadata.resource_version,
                        "annotations": {REQUEST: "XID 79: GPU has fallen off the bus"},
                    },
                    "spec": {"unschedulable": True, "taints": taints},
                }
                await api.patch_node(raw.metadata.name, body, _content_type=MERGE)
                ledger.write(json.dumps({"node": raw.metadata.name, "repair": "requested", "at": time.time()}) + "\n")

            await self._each(nodes, out)
        requested = time.time() - start
        return Plain(isolated=await eyes.all_out(len(nodes), 120) - start, requested=requested)

    async def back(self, nodes: Sequence[str]) -> None:
        """Everything as it was before."""

        async def into(api: CoreV1Api, raw: Any) -> None:
            left = [t for t in _plain(api, raw.spec.taints or []) if t["key"] not in {TAINT, UNSCHEDULABLE}]
            await api.patch_node(
                raw.metadata.name,
                {
                    "metadata": {"annotations": {REQUEST: None}},
                    "spec": {"unschedulable": None, "taints": left or None},
                },
            )

        await self._each(nodes, into)

    async def _each(self, nodes: Sequence[str], change: Any) -> None:
        made = Configuration()
        await kube_config.load_kube_config(config_file=str(self.kubeconfig), client_configuration=made)
        async with ApiClient(configuration=made) as client:
            api = CoreV1Api(client)
            wanted = frozenset(nodes)
            found = iter([raw for raw in (await api.list_node()).items if raw.metadata.name in wanted])

            async def take() -> None:
                for listed in found:
                    raw = listed
                    while True:
                        try:
                            await change(api, raw)
                            break
                        except ConflictException:  # somebody wrote there since it was read
                            raw = await api.read_node(listed.metadata.name)

            await asyncio.gather(*(take() for _ in range(AT_ONCE)))


UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
"""The node controller's own, which follows the cordon."""


def _plain(api: CoreV1Api, taints: Sequence[Any]) -> list[dict[str, Any]]:
    return [api.api_client.sanitize_for_serialization(taint) for taint in taints]
