"""An apiserver that was away: what its node controller says of silent nodes then is not believed at once."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from activities.backends.kubernetes import api, view
from activities.backends.kubernetes.backend import KubernetesBackend
from activities.backends.kubernetes.settings import KubernetesSettings
from fleet.errors import TemporaryError
from fleet.model import NodeState

DOUBT = 0.6


class Server:
    """An apiserver of one node that was called lost; it can go away and come back."""

    def __init__(self) -> None:
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.Response:
        path = request.match_info["path"]
        if path == "api/v1/nodes/n1":
            return web.json_response(NODE)
        if path == "api/v1/nodes":
            return web.json_response({"items": [NODE], "metadata": {"resourceVersion": "1"}})
        return web.json_response({"items": [], "resources": [], "groups": [], "metadata": {"resourceVersion": "1"}})


NODE = {
    "metadata": {"name": "n1", "uid": "u1", "creationTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "1"},
    "spec": {},
    "status": {
        "nodeInfo": {"bootID": "b1"},
        "conditions": [
            {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "x"}
        ],
    },
}


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def backend(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[KubernetesBackend]:
    monkeypatch.setattr(api, "AWAY", 0.2)
    monkeypatch.setattr(view, "LEASES_AGAIN", DOUBT)
    config = tmp_path / "config"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        )
    )
    made = KubernetesBackend("gamma", KubernetesSettings(kubeconfig=str(config)))
    yield made
    await made.close()


async def test_a_node_called_lost_right_after_an_outage_is_not_believed_to_be_lost(
    server: Server, backend: KubernetesBackend
) -> None:
    assert (await backend.node("n1")).state is NodeState.DOWN, "a cluster that always answered is believed"
    await server.stop()
    for _ in range(2):
        with pytest.raises(TemporaryError):
            await backend.node("n1")
        await asyncio.sleep(api.AWAY)  # the outage itself
    await server.start()

    assert (await backend.node("n1")).state is NodeState.UNKNOWN
    await asyncio.sleep(DOUBT)  # the time in which its kubelet would have renewed its lease
    assert (await backend.node("n1")).state is NodeState.DOWN


async def test_one_lost_answer_is_no_outage(
    server: Server, backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "AWAY", 30.0)
    assert (await backend.node("n1")).state is NodeState.DOWN
    await server.stop()
    with pytest.raises(TemporaryError):
        await backend.node("n1")
    await server.start()

    assert (await backend.node("n1")).state is NodeState.DOWN
