"""What is read from a Slurm controller, behind a small seam: the commands here, a pyslurm child elsewhere.

Every read raises `TemporaryError` when the controller does not answer; an answer that makes no sense is
`UnreadableError` and never "empty".
"""

import json
import re
from collections.abc import Mapping
from typing import Protocol

from activities.backends.slurm.commands import Commands
from activities.backends.slurm.hostlist import expand
from activities.backends.slurm.normalise import JobRecord, NodeRecord, entries, job_record, node_record
from fleet.errors import PermanentError, UnreadableError
from fleet.model import Value

JSON_NODES_SINCE = (23, 2)
"""From this release on `scontrol show nodes --json` exists and `sinfo --json` answers in groups."""


class Reservation(Value):
    """A reservation and the nodes it covers."""

    name: str
    nodes: tuple[str, ...] = ()
    maintenance: bool = False


class SlurmReads(Protocol):
    """The reads of one cluster; all jobs and all nodes at once, because 22.05 has no other JSON."""

    async def ping(self) -> None:
        """Raises TemporaryError when no controller answers."""

    async def config(self) -> Mapping[str, str]:
        """`scontrol show config`: the controller's own values, as text."""

    async def list_jobs(self) -> tuple[JobRecord, ...]:
        """All jobs in the controller, the ended ones too."""

    async def list_nodes(self) -> tuple[NodeRecord, ...]:
        """All nodes."""

    async def list_reservations(self) -> tuple[Reservation, ...]:
        """All reservations."""

    async def close(self) -> None:
        """Ends what the transport keeps open."""


class CliReads:
    """The reads by Slurm's own commands."""

    def __init__(self, cluster: str, commands: Commands) -> None:
        self.cluster = cluster
        self.commands = commands
        self._client: tuple[int, int] | None = None

    async def ping(self) -> None:
        await self.commands.read("scontrol", "ping")

    async def client_release(self) -> tuple[int, int]:
        """Major and minor release of the commands; needs no controller."""
        if self._client is None:
            self._client = release_of(await self.commands.read("scontrol", "--version"))
        return self._client

    async def config(self) -> Mapping[str, str]:
        return parse_config(await self.commands.read("scontrol", "show", "config"))

    async def list_jobs(self) -> tuple[JobRecord, ...]:
        answer = _json(await self.commands.read("squeue", "--json", "--states=all"), "squeue")
        return tuple(job_record(raw, self.cluster) for raw in entries(answer, "jobs"))

    async def list_nodes(self) -> tuple[NodeRecord, ...]:
        if await self.client_release() >= JSON_NODES_SINCE:
            text = await self.commands.read("scontrol", "show", "nodes", "--json")
        else:
            text = await self.commands.read("sinfo", "--json")
        return tuple(node_record(raw) for raw in entries(_json(text, "node list"), "nodes"))

    async def list_reservations(self) -> tuple[Reservation, ...]:
        return parse_reservations(await self.commands.read("scontrol", "-o", "show", "reservation"))

    async def close(self) -> None:
        return None


def _json(text: str, what: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UnreadableError(f"{what} gave no JSON: {text[:200]!r}") from error


def release_of(text: str) -> tuple[int, int]:
    """`slurm-wlm 22.05.8` -> (22, 5)."""
    found = re.search(r"(\d+)\.(\d+)", text)
    if found is None:
        raise UnreadableError(f"no Slurm release in {text[:100]!r}")
    return int(found.group(1)), int(found.group(2))


def parse_config(text: str) -> dict[str, str]:
    """`Key   = value` lines of `scontrol show config`."""
    values = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and re.fullmatch(r"[A-Za-z0-9_\[\]]+\s*", key):
            values[key.strip()] = value.strip()
    if "ClusterName" not in values:
        raise UnreadableError(f"the controller's configuration has no ClusterName: {text[:200]!r}")
    return values


def seconds_of(config: Mapping[str, str], key: str, default: float) -> float:
    """`15 sec` -> 15.0; `default` where the release does not show the key."""
    found = re.match(r"(\d+)", config.get(key, ""))
    return float(found.group(1)) if found else default


def option_of(config: Mapping[str, str], key: str, option: str) -> float | None:
    """A number inside a list of options: `cred_expire=5` in AuthInfo."""
    found = re.search(rf"(?:^|,){option}=(\d+)", config.get(key, ""))
    return float(found.group(1)) if found else None


def parse_reservations(text: str) -> tuple[Reservation, ...]:
    """One reservation a line; names and node lists hold no blank."""
    found = []
    for line in text.splitlines():
        name = re.match(r"ReservationName=(\S+)", line)
        if name is None:
            if line.strip() and not line.startswith("No reservations"):
                raise UnreadableError(f"unknown line in the list of reservations: {line[:200]!r}")
            continue
        nodes = re.search(r" Nodes=(\S*)", line)
        flags = re.search(r" Flags=(\S*)", line)
        if nodes is None:
            raise PermanentError(f"a reservation without nodes: {line[:200]!r}")
        found.append(
            Reservation(
                name=name.group(1),
                nodes=expand(nodes.group(1)),
                maintenance="MAINT" in (flags.group(1).split(",") if flags else ()),
            )
        )
    return tuple(found)
