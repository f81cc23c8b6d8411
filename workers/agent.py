"""`runbook-agent`: the node's agent with Temporal as the place where its evidence goes.

Wired here, for `agents/` may not know Temporal and `clients/` may not know the agent (docs/decisions/).
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from temporalio.client import Client

from activities import wave_api
from agents.agent import KMSG, Agent, Send, Settings
from clients import nodes
from clients.app import leave
from clients.app import main as run
from clients.ask_cluster import read
from clients.connection import connect
from clients.errors import CliError, Exit, explained, usage
from clients.fleet_file import checked_cluster
from clients.names import name
from fleet.errors import TemporaryError
from fleet.faults.evidence import Evidence
from fleet.units import parse_duration
from workers.logs import configure_logs, core_runtime

STATE = Path("/var/lib/runbook-agent")
STATE_VARIABLE = "STATE_DIRECTORY"
"""Set by systemd from the unit's `StateDirectory=`."""
UNKNOWN_NAME_DELAY = 300.0
"""Seconds before a cluster or node that nobody knows is looked up again: it may be new."""


def main() -> None:
    """`runbook-agent`."""
    leave(run(make_app(), sys.argv[1:]))


def make_app() -> App:
    """Its command line."""
    app = App(
        name="runbook-agent",
        help="Tell the cluster's watch what the kernel and NVIDIA's driver say on this node. It reads only.",
        help_format="plaintext",
        default_parameter=Parameter(show_default=False, negative=()),
        suppress_keyboard_interrupt=False,
    )
    app.default(agent)
    return app


def agent(
    where: str,
    /,
    *,
    state: Path | None = None,
    kmsg: Path = KMSG,
    every: str = "30s",
    hang_after: str = "90s",
    show: Annotated[bool, Parameter(name="--print")] = False,
    address: str | None = None,
    namespace: str | None = None,
    profile: str | None = None,
) -> int:
    """Run until it is stopped. Evidence waits on disk while Temporal cannot be reached.

    Parameters
    ----------
    where
        CLUSTER/NODE; CLUSTER alone where the node's name is this machine's host name up to the first dot.
    state
        Folder for what waits to be sent; else systemd's $STATE_DIRECTORY, else /var/lib/runbook-agent.
    kmsg
        The kernel's log: /dev/kmsg, or a file or named pipe of the same shape.
    every
        Time between two rounds over the GPUs, e.g. 30s; at least 1s.
    hang_after
        Time after which a call into NVIDIA's driver counts as hung, e.g. 90s.
    show
        Print the evidence as JSON lines and send nothing; `runbook evidence CLUSTER/NODE -` takes them.
    address
        HOST:PORT of Temporal; else TEMPORAL_ADDRESS, else a profile, else the embedded server.
    namespace
        Temporal namespace; else TEMPORAL_NAMESPACE, else the profile's, else default.
    profile
        Profile of Temporal's own configuration file.
    """
    cluster, _, node = where.partition("/")
    settings = Settings(
        cluster=name(cluster, "cluster"),
        node=name(node or os.uname().nodename.split(".")[0], "node"),
        state=state or Path(os.environ.get(STATE_VARIABLE) or STATE),
        kmsg=kmsg,
        every=_seconds("--every", every),
        hang_after=_seconds("--hang-after", hang_after),
    )
    configure_logs()
    send: Send = _print if show else ToWatch(settings, address, namespace, profile).send
    return asyncio.run(_until_stopped(settings, send))


def _seconds(option: str, text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise usage(f"{option}: {error}") from error
    if seconds < 1:
        raise usage(f"{option} {text} is too short: at least 1s")
    return seconds


async def _until_stopped(settings: Settings, send: Send) -> int:
    """Ends in good order on SIGTERM and Ctrl-C: what was seen is on disk then."""
    work = asyncio.create_task(Agent(settings, send).run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        return Exit.DONE
    except ExceptionGroup as group:
        raise group.exceptions[0] from group
    return Exit.DONE


async def _print(pieces: Sequence[Evidence]) -> None:
    for piece in pieces:
        sys.stdout.write(json.dumps(piece.model_dump(mode="json", exclude_none=True)) + "\n")
    sys.stdout.flush()


class ToWatch:
    """Sends to `watch/<cluster>`, the same way as `runbook evidence`; connects once and keeps the connection."""

    def __init__(self, settings: Settings, address: str | None, namespace: str | None, profile: str | None) -> None:
        self._settings = settings
        self._place = (address, namespace, profile)
        self._client: Client | None = None
        self._checked = False

    async def send(self, pieces: Sequence[Evidence]) -> None:
        """Raises TemporaryError for all that a later try may get past; an unknown cluster or node is such a thing."""
        try:
            if self._client is None:
                address, namespace, profile = self._place
                self._client = await connect(address, namespace, profile=profile, runtime=core_runtime())
            if not self._checked:
                await self._check(self._client)
            await nodes.hand_over(self._client, self._settings.cluster, pieces)
        except Exception as error:
            said = explained(error)
            if said is None:
                raise
            delay = UNKNOWN_NAME_DELAY if said.code is Exit.USAGE else 0.0
            raise TemporaryError(str(said), delay=delay) from error

    async def _check(self, client: Client) -> None:
        """The names, once: evidence under a wrong name would reach nobody. A cluster that cannot be asked now checks
        nothing; its watch drops what is about a node that it does not have, and says so."""
        cluster, node = self._settings.cluster, self._settings.node
        await checked_cluster(client, cluster, None)
        try:
            seen = await read(client, wave_api.READ_NODES, wave_api.NodesIn(cluster=cluster, nodes=(node,)), cluster)
        except CliError:
            return
        if node not in seen.boots:
            raise usage(f"{cluster} has no node {node!r}: give CLUSTER/NODE as Slurm or Kubernetes names the node")
        self._checked = True


if __name__ == "__main__":
    main()
