"""One connection to one apiserver: JSON in, JSON out, a limit on every call, no retries of its own.

The official client brings credentials, TLS and the connection; its generated models are not used, for a runbook reads
a few fields of many objects and must keep the fields that it does not know. pydantic's parser takes half the time of
the standard library's: the list of 1,000 nodes is 3 MiB, and each change of a node one of 3 KiB.
"""

import asyncio
import math
import time
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.stream.ws_client import ERROR_CHANNEL, get_websocket_url
from pydantic_core import from_json

from activities.backends.kubernetes.credentials import Credentials
from activities.backends.kubernetes.outcomes import Outcome, classify, error_of_read
from activities.backends.kubernetes.settings import KubernetesSettings
from activities.presence import check_presence
from fleet.errors import TemporaryError, UnreadableError
from fleet.model import MARK

Raw = dict[str, Any]
"""An object as the apiserver gives it."""
Query = Sequence[tuple[str, str]]

MERGE = "application/merge-patch+json"
CONNECT_LIMIT = 4.0
"""Seconds to reach the apiserver; a machine that is switched off answers nothing at all."""
AWAY = 15.0
"""Seconds without an answer after which an apiserver counts as having been away: a kubelet that could not renew its
lease for so long may be called lost as soon as it is back."""
SILENCE = 90.0
"""Seconds without a byte after which a watch is given up: bookmarks come about once a minute."""
PAGE = 500
"""Objects a page of a list, as kubectl takes them."""


class Answer(NamedTuple):
    """What came of one call."""

    outcome: Outcome
    body: Raw
    text: str
    """The apiserver's words on one line, or ours about the lack of them."""
    retry_after: float | None = None


class _Connector(aiohttp.TCPConnector):
    """Ends its connections at once when it is closed. One whose call was given up waits up to 30 s for the other
    side's word that TLS is over, which a frozen apiserver never says."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self._made: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()

    async def _wrap_create_connection(self, *words: Any, **more: Any) -> Any:
        made = await super()._wrap_create_connection(*words, **more)
        self._made.add(made[0])
        return made

    def end(self) -> None:
        for transport in self._made:
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()


class _Rest(RESTClientObject):  # type: ignore[misc]
    """The client's connection pool on our connector, which is what its `_create_connector` is for."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self._effective_retry_options = None  # retries are Temporal's, whatever the configuration says

    def _create_connector(self) -> aiohttp.TCPConnector:
        return _Connector(limit=self.maxsize, ssl=self.ssl_context)


class KubeApi:
    """The calls. Made lazily, in the event loop that uses it."""

    def __init__(self, cluster: str, settings: KubernetesSettings) -> None:
        self.cluster = cluster
        self.settings = settings
        self.calls: dict[str, int] = {}
        """How many calls of each method went out, for tests of the shared watch."""
        self._answered = time.monotonic()
        """When it answered last."""
        self._unheard = False
        """A call since then got no answer."""
        self._back_at = -math.inf
        self._client: ApiClient | None = None
        self._credentials = Credentials(cluster, settings)
        self._opening = asyncio.Lock()

    def back_within(self, seconds: float) -> bool:
        """Whether it answers again since at most so many seconds, after it did not for longer than `AWAY`."""
        return time.monotonic() - self._back_at < seconds

    def _heard(self) -> None:
        now = time.monotonic()
        if self._unheard and now - self._answered > AWAY:
            self._back_at = now
        self._answered, self._unheard = now, False

    async def _open(self) -> ApiClient:
        async with self._opening:
            if self._client is None:
                configuration = await self._credentials.load()
                self._client = ApiClient(configuration=configuration)
                self._client.rest_client = _Rest(configuration)
                self._client.user_agent = MARK
        await self._credentials.renew(self._client.configuration)
        return self._client

    # -- calls

    async def get(self, what: str, path: str, query: Query = ()) -> Raw:
        """Raises TemporaryError, NotFoundError or PermanentError."""
        answer = await self._call("GET", path, query, None, self.settings.read_limit)
        if answer.outcome is not Outcome.DONE:
            raise error_of_read(what, answer.outcome, answer.text, answer.retry_after)
        return answer.body

    async def list(self, what: str, path: str, query: Query = ()) -> tuple[list[Raw], str]:
        """All pages, and the resourceVersion that they stand for. Live: asked of etcd, not of a cache."""
        items: list[Raw] = []
        more = ""
        while True:
            page = [("limit", str(PAGE)), *query] + ([("continue", more)] if more else [])
            body = await self.get(what, path, page)
            if not isinstance(body.get("items"), list):
                raise UnreadableError(f"{what}: the answer is no list")
            items += body["items"]
            meta = body.get("metadata", {})
            more = meta.get("continue") or ""
            if not more:
                return items, str(meta.get("resourceVersion", ""))

    async def text(self, what: str, path: str, query: Query = (), limit: float | None = None) -> str:
        """A body that is no JSON, such as a pod's log."""
        answer = await self._call("GET", path, query, None, limit or self.settings.read_limit, plain=True)
        if answer.outcome is not Outcome.DONE:
            raise error_of_read(what, answer.outcome, answer.text, answer.retry_after)
        return str(answer.body.get("text", ""))

    async def write(
        self, method: str, path: str, body: Raw | None, kind: str = "application/json", query: Query = ()
    ) -> Answer:
        """Sends a write and judges nothing. Raises TemporaryError when our step may be another worker's by now."""
        check_presence()
        query = [*query, *([("fieldManager", MARK)] if method in {"POST", "PATCH", "PUT"} else [])]
        return await self._call(method, path, query, body, self.settings.write_limit, kind=kind)

    async def _call(
        self,
        method: str,
        path: str,
        query: Query,
        body: Raw | None,
        limit: float,
        *,
        kind: str = "application/json",
        plain: bool = False,
    ) -> Answer:
        timeout = aiohttp.ClientTimeout(total=limit, sock_connect=min(CONNECT_LIMIT, limit))
        try:
            response = await self._send(method, path, query, body, timeout, kind)
            data = await response.read()
            self._heard()
            return _answer(response, data, plain=plain)
        except aiohttp.ClientConnectorError as error:
            self._unheard = True
            return Answer(Outcome.NOT_DELIVERED, {}, f"cannot connect: {error.os_error or error}")
        except aiohttp.ConnectionTimeoutError:
            self._unheard = True
            return Answer(Outcome.NOT_DELIVERED, {}, "cannot connect in time")
        except TimeoutError:
            self._unheard = True
            return Answer(Outcome.UNKNOWN, {}, f"no answer within {limit:.0f} s")
        except aiohttp.ClientError as error:
            self._unheard = True
            return Answer(Outcome.UNKNOWN, {}, f"{type(error).__name__}: {error}")

    async def _send(
        self, method: str, path: str, query: Query, body: Raw | None, limits: aiohttp.ClientTimeout, kind: str
    ) -> aiohttp.ClientResponse:
        self.calls[method] = self.calls.get(method, 0) + 1
        client = await self._open()
        headers = {"Accept": "application/json", "Content-Type": kind}
        method, url, sent, data, _ = await client.param_serialize(
            method, path, query_params=list(query), header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        answer = await client.rest_client.request(method, url, headers=sent, body=data, _request_timeout=limits)
        response: aiohttp.ClientResponse = answer.response
        if response.status == 401:
            self._credentials.refused()
        return response

    # -- streams

    async def watch(self, what: str, path: str, query: Query) -> AsyncIterator[Raw]:
        """Events, one object each, until the apiserver ends the stream.

        Raises TemporaryError when it breaks. An event of the type ERROR with code 410 asks for a new list.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_LIMIT, sock_read=SILENCE)
        try:
            response = await self._send("GET", path, [("watch", "1"), *query], None, timeout, "application/json")
            async with response:
                if response.status != 200:
                    answer = _answer(response, await response.read(), plain=False)
                    if answer.outcome is Outcome.GONE:
                        yield {"type": "ERROR", "object": {"code": 410}}
                        return
                    raise error_of_read(what, answer.outcome, answer.text, answer.retry_after)
                async for line in response.content:
                    if line.strip():
                        yield from_json(line)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise TemporaryError(f"{what}: the watch broke ({type(error).__name__}: {error})", 0.5) from error

    async def execute(self, what: str, path: str, query: Query, limit: float) -> tuple[int, str]:
        """Runs a command in a container: its exit code and what it printed. -1: nothing is known of its end."""
        check_presence()
        client = await self._open()
        _, url, headers, _, _ = await client.param_serialize(
            "GET", path, query_params=list(query), header_params={}, auth_settings=["BearerToken"]
        )
        headers["sec-websocket-protocol"] = "v4.channel.k8s.io"
        pool = client.rest_client.pool_manager or client.rest_client._create_pool_manager()
        client.rest_client.pool_manager = pool
        said, code = "", -1
        try:
            async with asyncio.timeout(limit), pool.ws_connect(get_websocket_url(url), headers=headers) as socket:
                async for message in socket:
                    data = message.data if isinstance(message.data, bytes) else str(message.data).encode()
                    if len(data) > 1 and data[0] == ERROR_CHANNEL:
                        code = exit_code(data[1:])
                    else:
                        said += data[1:].decode(errors="replace")
        except aiohttp.WSServerHandshakeError as error:
            raise error_of_read(what, classify(error.status, "", None), error.message) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            return -1, f"{said} ({type(error).__name__}: {error})"
        return code, said

    async def close(self) -> None:
        """Ends the connections at once: a stream that is still open would hold an orderly end of TLS up."""
        client, self._client = self._client, None
        if client is None:
            return
        pool = client.rest_client.pool_manager
        if pool is not None:
            pool.connector.end()
        await client.close()
        await asyncio.sleep(0)


def exit_code(data: bytes) -> int:
    """Of a Status on an exec's error channel; -1 where it says none."""
    try:
        status = from_json(data)
    except ValueError:
        return -1
    if status.get("status") == "Success":
        return 0
    causes = status.get("details", {}).get("causes", [])
    codes = [c.get("message", "") for c in causes if c.get("reason") == "ExitCode"]
    return int(codes[0]) if codes and codes[0].isdigit() else -1


def _answer(response: aiohttp.ClientResponse, data: bytes, *, plain: bool) -> Answer:
    after = retry_after(response.headers)
    if plain and response.status == 200:
        return Answer(Outcome.DONE, {"text": data.decode(errors="replace")}, "", after)
    try:
        body = from_json(data) if data else {}
    except ValueError:
        body = {"message": data[:200].decode(errors="replace")}
        if 200 <= response.status < 300:
            return Answer(Outcome.UNKNOWN, {}, f"an answer that is no JSON: {body['message']!r}", after)
    if not isinstance(body, dict):
        return Answer(Outcome.UNKNOWN, {}, "an answer that is no object", after)
    outcome = classify(response.status, str(body.get("reason", "")), after)
    text = "" if outcome is Outcome.DONE else f"{response.status} {body.get('message') or response.reason}"
    return Answer(outcome, body, " ".join(text.split())[:600], after)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a Retry-After header; a date, which no apiserver sends, counts as none."""
    text = headers.get("Retry-After", "")
    return float(text) if text.isdigit() else None
