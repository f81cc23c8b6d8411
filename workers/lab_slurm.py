"""Private Slurm clusters on this machine: started, looked at and removed through `deploy/lab/slurm_lab.sh`."""

import os
import random
import re
import socket
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from fleet.errors import PermanentError
from fleet.model import Value
from workers.lab_place import DEPLOY, Lab

SCRIPT = DEPLOY / "slurm_lab.sh"
PACKAGES = "apt-get install --no-install-recommends slurmctld slurmd slurm-client munge util-linux"
PORTS = range(17000, 20000)
"""Blocks of ports come from here: below the embedded Temporal server's (20000) and Linux's own (32768)."""
LIMIT = 180.0
"""Seconds for one call of the script; a start takes 3 s alone and its own limits end at about 90 s."""
DEFAULT_REQUEUE = 120
"""Slurm's own cred_expire in seconds; its requeue delay is one more."""
JOBS = "_jobs"
"""Folder under the root for what jobs of the lab write; no cluster can have this name."""

_DAEMONS = frozenset({"slurmctld", "slurmd", "slurmstepd", "munged", "bash", "unshare", "setsid", "sleep"})


class LabNode(Value):
    """One node as the lab and Slurm see it."""

    node: str
    power: str
    frozen: bool = False
    slurmd: bool
    processes: int
    state: str = ""
    """Slurm's word; empty when the controller does not answer or the cluster is stopped."""
    reason: str = ""


class LabCluster(Value):
    """One cluster of the lab."""

    cluster: str
    state: Literal["running", "stopped"]
    conf: str
    munged: bool
    slurmctld: bool
    answers: bool
    """The controller answered `sinfo`."""
    nodes: tuple[LabNode, ...] = ()


class SlurmLab(Lab):
    """The Slurm clusters under one root folder."""

    script = SCRIPT
    limit = LIMIT
    node_mark = "slurm-lab-node"
    daemons = _DAEMONS
    own_folders = (JOBS,)

    def conf(self, cluster: str) -> Path:
        return self.root / cluster / "etc" / "slurm.conf"

    @property
    def jobs_folder(self) -> Path:
        return self.root / JOBS

    def check(self) -> None:
        """Raises PermanentError, with the command that mends it, when no cluster can start on this machine."""
        if not SCRIPT.is_file():
            raise PermanentError(f"{SCRIPT} is missing: the lab is part of the source tree; run it from a clone")
        if os.geteuid() != 0:
            raise PermanentError(
                "the Slurm lab needs root (namespaces, device files): run it again with sudo -E. "
                f"Where its packages are missing too: {PACKAGES}"
            )
        self._script_is_ready("packages.sh")

    def up(
        self, clusters: Sequence[str], *, nodes: int = 6, gpus: int = 8, requeue_delay: int = DEFAULT_REQUEUE
    ) -> tuple[str, ...]:
        """Starts those that do not run, all at once, and returns their names. Those that run are left as they are.

        Raises PermanentError with the script's words; then none that this call started is left.
        """
        wanted = self._to_start(clusters)
        words = ("-n", str(nodes), "-g", str(gpus), "-r", str(requeue_delay))
        ports = iter(free_blocks(len(wanted), nodes + 1))
        started = self._start_all(
            {name: partial(self.call, "start", name, "-p", str(next(ports)), *words) for name in wanted}
        )
        self.jobs_folder.mkdir(exist_ok=True)
        return started

    def status(self) -> tuple[LabCluster, ...]:
        """Every cluster as it is now."""
        return self._states(
            lambda name, state, text: parse_status(
                name, "running" if state == "running" else "stopped", str(self.conf(name)), text
            )
        )


# -- reading


_NODE_LINE = re.compile(r"^(\S+) power=(on|off)(,frozen)? init=(\d*) slurmd=(\d*) pids=(\d+)$")


def parse_status(cluster: str, state: Literal["running", "stopped"], conf: str, text: str) -> LabCluster:
    """The script's `status`: one line of daemons, one for each node, then `sinfo`'s table when it answers."""
    daemons = re.match(r"munged (\d*) ?slurmctld (\d*)", text)
    opinions = dict(_opinions(text))
    nodes = []
    for line in text.splitlines():
        if found := _NODE_LINE.match(line):
            seen, reason = opinions.get(found[1], ("", ""))
            nodes.append(
                LabNode(
                    node=found[1],
                    power=found[2],
                    frozen=found[3] is not None,
                    slurmd=bool(found[5]),
                    processes=int(found[6]),
                    state=seen,
                    reason=reason,
                )
            )
    return LabCluster(
        cluster=cluster,
        state=state,
        conf=conf,
        munged=bool(daemons and daemons[1]),
        slurmctld=bool(daemons and daemons[2]),
        answers=bool(opinions),
        nodes=tuple(nodes),
    )


def _opinions(text: str) -> Iterable[tuple[str, tuple[str, str]]]:
    _, header, table = text.partition("NODELIST STATE REASON\n")
    for line in table.splitlines() if header else ():
        node, state, reason = [*line.split(" ", 2), "", ""][:3]
        yield node, (state, "" if reason == "none" else reason)


def free_blocks(count: int, size: int) -> list[int]:
    """First ports of `count` different blocks in which nobody listens. Raises PermanentError without enough."""
    found: list[int] = []
    starts = list(range(PORTS.start, PORTS.stop - size, max(size, 10)))
    for start in random.sample(starts, len(starts)):
        if len(found) == count:
            break
        if all(_is_free(port) for port in range(start, start + size)):
            found.append(start)
    if len(found) < count:
        raise PermanentError(f"no {count} free blocks of {size} ports from {PORTS.start} to {PORTS.stop - 1}")
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
