"""What a placement weighs of a Slurm cluster: GPU types, leaf switches or blocks, and the limits of accounts.

`scontrol show topology` and `scontrol show assoc_mgr` have no JSON in 22.05; both are lines of `Key=Value`. A cluster
without a topology plugin or without accounting has neither, and says so in words or with an error: then the domain is
not known, and no account has a limit.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from activities.backends.slurm.commands import Commands
from activities.backends.slurm.hostlist import expand
from activities.backends.slurm.view import ClusterView
from fleet.capacity import NodeRoom, grouped, waiting
from fleet.errors import PermanentError
from fleet.model import NodeFacts, Quota, Room

_PAIR = re.compile(r"([A-Za-z/]+)=(\S*)")
_LIMIT = re.compile(r"(?:^|,)([a-z/:0-9_-]+)=(\d+)\((\d+)\)")
"""`gres/gpu=32(16)`: the limit and what is used of it; `N` for no limit is no number."""


class Account(NamedTuple):
    """One account's own limits."""

    parent: str
    left: Mapping[str, int]
    """TRES -> what its GrpTRES leaves."""


async def read_room(
    cluster: str, commands: Commands, view: ClusterView, is_free: Callable[[NodeFacts], bool]
) -> Room:
    """Live. Raises TemporaryError when Slurm does not answer."""
    nodes = await view.live_nodes()
    jobs = await view.live_jobs()
    domains = parse_topology(await _if_there(commands, "topology"))
    accounts = parse_accounts(await _if_there(commands, "assoc_mgr", "flags=assoc"))
    rooms = (
        NodeRoom(is_free(one), one.gpus, view.records[one.node].gpu_model, domains.get(one.node, "")) for one in nodes
    )
    return Room(
        cluster=cluster,
        groups=grouped(rooms),
        quotas=quotas_of(accounts),
        waiting=waiting(record.job for record in jobs),
        read_at=max((facts.read_at for facts in nodes), default=0.0),
    )


async def _if_there(commands: Commands, *what: str) -> str:
    """Empty where the cluster has no such thing."""
    try:
        return await commands.read("scontrol", "-o", "show", *what)
    except PermanentError:
        return ""


def parse_topology(text: str) -> dict[str, str]:
    """node -> its leaf switch (topology/tree, Level=0) or block (topology/block)."""
    domains: dict[str, str] = {}
    for line in text.splitlines():
        words = dict(_PAIR.findall(line))
        name = words.get("BlockName") or (words.get("SwitchName") if words.get("Level") == "0" else "")
        if name and words.get("Nodes", "(null)") != "(null)":
            domains |= dict.fromkeys(expand(words["Nodes"]), name)
    return domains


def parse_accounts(text: str) -> dict[str, Account]:
    """The accounts among the associations; those of users and partitions bind only them and are left to Slurm."""
    accounts: dict[str, Account] = {}
    words: dict[str, str] = {}
    for line in [*text.splitlines(), "ClusterName="]:
        if line.startswith("ClusterName="):
            _keep(accounts, words)
            words = {}
        words |= dict(_PAIR.findall(line))
    return accounts


def _keep(accounts: dict[str, Account], words: Mapping[str, str]) -> None:
    name = words.get("Account", "")
    if not name or words.get("UserName", "") or words.get("Partition", ""):
        return
    left = {tres: int(limit) - int(used) for tres, limit, used in _LIMIT.findall(words.get("GrpTRES", ""))}
    accounts[name] = Account(parent=words.get("ParentAccount", "").partition("(")[0], left=left)


def quotas_of(accounts: Mapping[str, Account]) -> tuple[Quota, ...]:
    """An account is bound by its own limits and by those of every account above it."""
    found: list[Quota] = []
    for name in sorted(accounts):
        above, seen = name, set[str]()
        while above in accounts and above not in seen:
            seen.add(above)
            left = accounts[above].left
            if "node" in left or "gres/gpu" in left:
                found.append(
                    Quota(
                        name=f"the limit of Slurm's account {above}",
                        scope=name,
                        nodes_left=left.get("node"),
                        gpus_left=left.get("gres/gpu"),
                    )
                )
            above = accounts[above].parent
    return tuple(found)
