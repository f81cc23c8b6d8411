"""A proxy in front of a real apiserver that spoils chosen answers, before or after the request went through."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import aiohttp
import yaml
from aiohttp import web

from tests.kubernetes.lab import Cluster


class Spoil(StrEnum):
    """What happens to one call."""

    BUSY = "429 with Retry-After, not taken"
    AWAY = "503, not taken"
    BROKEN = "500 after it was taken"
    RESET = "connection reset after it was taken"
    HALF = "half a body after it was taken"
    UNTAKEN = "connection reset before it was taken"


class Order(NamedTuple):
    """Spoils the next call with that method whose path ends so."""

    method: str
    path: str
    spoil: Spoil


class Proxy:
    """Plain HTTP to us, TLS to the apiserver; the account's token goes through."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self.session = session
        self.server = server
        self.orders: list[Order] = []
        self.taken: list[tuple[str, str]] = []
        """Writes that the apiserver carried out; one that met another version than it named is none."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        order = next((o for o in self.orders if o.method == request.method and request.path.endswith(o.path)), None)
        spoil = order.spoil if order else None
        if order:
            self.orders.remove(order)
        if spoil is Spoil.BUSY:
            return web.json_response({"reason": "TooManyRequests"}, status=429, headers={"Retry-After": "3"})
        if spoil is Spoil.AWAY:
            return web.json_response({"reason": "ServiceUnavailable"}, status=503)
        if spoil is Spoil.UNTAKEN:
            return self._reset(request)
        kept = {k: v for k, v in request.headers.items() if k.lower() in {"authorization", "content-type", "accept"}}
        body = await request.read()
        url = f"{self.server}{request.path_qs}"
        async with self.session.request(request.method, url, headers=kept, data=body or None) as answer:
            if request.method != "GET" and answer.status < 300:
                self.taken.append((request.method, request.path))
            return await self._pass_on(request, answer, spoil)

    async def _pass_on(
        self, request: web.Request, answer: aiohttp.ClientResponse, spoil: Spoil | None
    ) -> web.StreamResponse:
        if request.query.get("watch") == "1":
            return await self._stream(request, answer)
        data = await answer.read()
        if spoil is Spoil.BROKEN:
            return web.json_response({"message": "etcdserver: request timed out"}, status=500)
        if spoil is Spoil.RESET:
            return self._reset(request)
        made = web.StreamResponse(status=answer.status, headers={"Content-Length": str(len(data))})
        made.content_type = answer.content_type
        await made.prepare(request)
        await made.write(data[: len(data) // 2] if spoil is Spoil.HALF else data)
        return self._reset(request) if spoil is Spoil.HALF else made

    async def _stream(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        made = web.StreamResponse(status=answer.status)
        await made.prepare(request)
        async for chunk in answer.content.iter_any():
            await made.write(chunk)
            if any(o.method == "WATCH" for o in self.orders):
                self.orders = [o for o in self.orders if o.method != "WATCH"]
                return self._reset(request)
        return made

    def _reset(self, request: web.Request) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()


@asynccontextmanager
async def spoiled(cluster: Cluster, kubeconfig: Path) -> AsyncIterator[tuple[Proxy, Path]]:
    """The proxy, and a kubeconfig that leads through it."""
    config = yaml.safe_load(await asyncio.to_thread(kubeconfig.read_text))
    about = config["clusters"][0]["cluster"]
    context = ssl.create_default_context(cafile=about["certificate-authority"])
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        proxy = Proxy(session, about["server"])
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", proxy.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{port}"}
        path = cluster.root / f"{cluster.name}-spoiled.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(config))
        try:
            yield proxy, path
        finally:
            await runner.cleanup()
    await asyncio.sleep(0)
