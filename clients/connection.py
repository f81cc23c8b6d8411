"""One way to reach Temporal for every client and worker of ours.

Address, namespace, TLS and API key come from the flag, else from Temporal's own environment variables (`TEMPORAL_*`),
else from a profile of Temporal's own configuration file, else from the embedded server's state file.
"""

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from temporalio.client import Client, Interceptor
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.envconfig import ClientConfigProfile
from temporalio.runtime import Runtime
from temporalio.service import RPCError, TLSConfig

from clients import embedded
from fleet.errors import InvalidInputError, TemporaryError

CONNECT_LIMIT = 5.0
"""Seconds until a connection counts as failed."""
_ADDRESS = re.compile(r"^[^\s/@]+:\d{1,5}$")
_CAUSE = re.compile(r'(?:message|error): "([^"]+)"|error: InvalidMessage\((\w+)\)|error: (\w+)')
LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]", "::1"})


@dataclass(frozen=True)
class Target:
    """Where to connect, and who said so."""

    address: str
    namespace: str
    source: str
    """In words for messages, e.g. `--address`, `TEMPORAL_ADDRESS`, `profile prod`, `embedded server`."""
    embedded: bool = False
    apart: bool = False
    """That server lives in another network namespace than ours."""
    tls: bool | TLSConfig | None = None
    api_key: str | None = field(default=None, repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict, repr=False)


def find_target(
    address: str | None = None,
    namespace: str | None = None,
    *,
    api_key: str | None = None,
    tls: bool | TLSConfig | None = None,
    profile: str | None = None,
    config_file: str | Path | None = None,
    state_dir: str | Path | None = None,
) -> Target:
    """Decides where to connect; connects to nothing.

    The embedded server gets neither API key nor TLS nor metadata: a key for a real cluster never goes there.
    Raises InvalidInputError for a broken or missing profile, or credentials without an address; TemporaryError when
    nothing is configured and no embedded server runs.
    """
    found = _profile(profile, config_file)
    settings = found.to_client_connect_config()
    wanted = address or settings.get("target_host")
    name = namespace or settings.get("namespace") or "default"
    key = api_key or settings.get("api_key")
    security = tls if tls is not None else (settings.get("tls") or (True if key else None))
    if wanted is None:
        if key or security:
            raise InvalidInputError(
                "TLS or an API key is set but no address: give --address or TEMPORAL_ADDRESS, "
                "or unset them to use the embedded server"
            )
        return _embedded_target(name, state_dir)
    source = _source(address, profile)
    if not _ADDRESS.match(wanted):
        raise InvalidInputError(f"{wanted!r} (from {source}) is no address: give HOST:PORT, without http://")
    target = Target(
        address=wanted,
        namespace=name,
        source=source,
        tls=security,
        api_key=key,
        metadata=settings.get("rpc_metadata") or {},
    )
    if is_embedded(wanted, state_dir):
        return replace(target, embedded=True, tls=None, api_key=None, metadata={})
    return target


async def connect(
    address: str | None = None,
    namespace: str | None = None,
    *,
    api_key: str | None = None,
    tls: bool | TLSConfig | None = None,
    profile: str | None = None,
    config_file: str | Path | None = None,
    state_dir: str | Path | None = None,
    identity: str | None = None,
    interceptors: Sequence[Interceptor] = (),
    runtime: Runtime | None = None,
    limit: float = CONNECT_LIMIT,
) -> Client:
    """A connected client with the pydantic data converter; see `find_target` for where to.

    Raises TemporaryError, naming the address tried and what starts a server, when nobody answers in `limit`
    seconds; InvalidInputError for settings that cannot work.
    """
    target = find_target(
        address,
        namespace,
        api_key=api_key,
        tls=tls,
        profile=profile,
        config_file=config_file,
        state_dir=state_dir,
    )
    return await connect_to(target, identity=identity, interceptors=interceptors, runtime=runtime, limit=limit)


async def connect_to(
    target: Target,
    *,
    identity: str | None = None,
    interceptors: Sequence[Interceptor] = (),
    runtime: Runtime | None = None,
    limit: float = CONNECT_LIMIT,
) -> Client:
    """The same for a target that is already decided."""
    try:
        async with asyncio.timeout(limit):
            return await Client.connect(
                target.address,
                namespace=target.namespace,
                api_key=target.api_key,
                tls=target.tls,
                rpc_metadata=target.metadata,
                data_converter=pydantic_data_converter,
                connect_timeout=timedelta(seconds=limit),
                identity=identity,
                interceptors=interceptors,
                runtime=runtime,
            )
    except (RuntimeError, RPCError, TimeoutError) as error:  # the SDK's core raises plain RuntimeError
        raise TemporaryError(_no_answer(target, error, limit)) from error


def is_embedded(where: str | Client, state_dir: str | Path | None = None) -> bool:
    """True when the address, or the client's, is the running embedded server of this state directory.

    Only that server takes unsigned answers, so this asks for proof: our state file names the port, and the process
    that we started there still holds it. A TLS connection is never embedded.
    """
    if isinstance(where, Client):
        config = where.service_client.config
        if config.tls:
            return False
        where = config.target_host
    info = embedded.running(state_dir)
    host, _, port = where.removeprefix("http://").rpartition(":")
    return info is not None and host in LOCAL_HOSTS and port == str(info.port)


def _embedded_target(namespace: str, state_dir: str | Path | None) -> Target:
    info = embedded.read_state(state_dir)
    place = embedded.home(state_dir)
    if info is None:
        raise TemporaryError(
            f"no Temporal server is configured and none was started in {place}: "
            "`runbook dev` starts one, or give --address (TEMPORAL_ADDRESS) of yours"
        )
    if not embedded.is_alive(info):
        raise TemporaryError(
            f"the embedded Temporal server of {place} ({info.address}) is stopped: `runbook dev` starts it again"
        )
    source, apart = f"the embedded server of {place}", embedded.is_apart(info)
    return Target(address=info.address, namespace=namespace, source=source, embedded=True, apart=apart)


def _profile(profile: str | None, config_file: str | Path | None) -> ClientConfigProfile:
    source = Path(config_file) if config_file else None
    if source is not None and not source.is_file():  # the SDK would take a missing file for an empty one
        raise InvalidInputError(f"Temporal's configuration file {source} does not exist")
    try:
        return ClientConfigProfile.load(profile, config_source=source)
    except (RuntimeError, ValueError, OSError) as error:  # the bridge raises RuntimeError with the file's complaint
        raise InvalidInputError(f"Temporal's configuration cannot be used: {error}") from error


def _source(address: str | None, profile: str | None) -> str:
    if address:
        return "--address"
    if os.environ.get("TEMPORAL_ADDRESS"):
        return "TEMPORAL_ADDRESS"
    return f"profile {profile or os.environ.get('TEMPORAL_PROFILE') or 'default'} of Temporal's configuration"


def _no_answer(target: Target, error: Exception, limit: float) -> str:
    why = f"no answer in {limit:g} s" if isinstance(error, TimeoutError) else _cause(str(error))
    local = target.address.rpartition(":")[0] in LOCAL_HOSTS
    remedy = "`runbook dev` starts a server here" if local else "check the address, TLS and the network"
    if target.embedded:
        remedy = "end it with `runbook dev --stop`, start it again with `runbook dev`"
    if target.apart:
        remedy = "it lives in a network of its own, as a lab does: enter it with `runbook lab shell`"
    return f"no Temporal server answers at {target.address} (from {target.source}): {why}; {remedy}"


def _cause(text: str) -> str:
    """The one part of the Rust core's message that a person can use; the whole first line when it is not found."""
    found = _CAUSE.findall(text)
    return next(filter(None, found[-1])) if found else text.partition("\n")[0][:300]
