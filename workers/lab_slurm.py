"""Private Slurm clusters on this machine: started, looked at and removed through `deploy/lab/slurm_lab.sh`.

The script is a program beside us: it is called with argument lists and never imported.
"""

import contextlib
import os
import random
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from fleet.errors import PermanentError, RefusedError
from fleet.model import Value
from workers.lab_traces import Leftovers, marked_namespaces, mounts, naming, pid_namespaces

DEPLOY = Path(__file__).resolve().parents[1] / "deploy" / "lab"
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


def default_root(purpose: str = "lab") -> Path:
    """Short, for a munge socket's path may have 107 characters, and one for each user."""
    return Path(f"/tmp/gpu-runbooks-{purpose}-{os.getuid()}")  # noqa: S108 - the script checks whose it is


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


class SlurmLab:
    """The clusters under one root folder. Every method blocks."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def conf(self, cluster: str) -> Path:
        return self.root / cluster / "etc" / "slurm.conf"

    @property
    def jobs_folder(self) -> Path:
        return self.root / JOBS

    def command(self, *words: str) -> tuple[str, ...]:
        """Argument list of one verb, as `fleet.yaml` holds it too."""
        return (str(SCRIPT), "--root", str(self.root), *words)

    def call(self, *words: str) -> str:
        """One verb's output. Raises PermanentError with the script's own words when it fails."""
        done = subprocess.run(
            self.command(*words), capture_output=True, text=True, timeout=LIMIT, check=False, stdin=subprocess.DEVNULL
        )
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip()).replace("slurm_lab: ", "")
            raise PermanentError(said or f"{words[0]} ended with {done.returncode}")
        return done.stdout

    # -- up

    def check(self) -> None:
        """Raises PermanentError, with the command that mends it, when no cluster can start on this machine."""
        if not SCRIPT.is_file():
            raise PermanentError(f"{SCRIPT} is missing: the lab is part of the source tree; run it from a clone")
        if os.geteuid() != 0:
            raise PermanentError(
                "the Slurm lab needs root (namespaces, device files): run it again with sudo -E. "
                f"Where its packages are missing too: {PACKAGES}"
            )
        try:
            self.call("check")
        except PermanentError as error:
            raise PermanentError(
                f"{error}\n`{DEPLOY / 'packages.sh'}` does that too, and lets no package start a service"
            ) from error

    def known(self) -> dict[str, str]:
        """name -> running or stopped."""
        return dict(line.split() for line in self.call("list").splitlines()) if self.root.is_dir() else {}

    def up(
        self, clusters: Sequence[str], *, nodes: int = 6, gpus: int = 8, requeue_delay: int = DEFAULT_REQUEUE
    ) -> tuple[str, ...]:
        """Starts those that do not run, all at once, and returns their names. Those that run are left as they are.

        Raises PermanentError with the script's words; then none that this call started is left.
        """
        self._own_root()
        running = {name for name, state in self.known().items() if state == "running"}
        wanted = [name for name in clusters if name not in running]
        words = ("-n", str(nodes), "-g", str(gpus), "-r", str(requeue_delay))
        ports = iter(free_blocks(len(wanted), nodes + 1))
        starts = {name: ("start", name, "-p", str(next(ports)), *words) for name in wanted}
        with ThreadPoolExecutor(max_workers=max(len(wanted), 1)) as pool:
            calls = {name: pool.submit(self.call, *start) for name, start in starts.items()}
        failed = {name: call.exception() for name, call in calls.items() if call.exception() is not None}
        if failed:
            for name in wanted:
                with contextlib.suppress(PermanentError):  # the first error is the one to tell
                    self.call("rm", name)
            name, error = next(iter(failed.items()))
            raise PermanentError(f"{name} did not start: {error}") from error
        self.jobs_folder.mkdir(exist_ok=True)
        return tuple(wanted)

    # -- looking

    def status(self) -> tuple[LabCluster, ...]:
        """Every cluster, all asked at once: a frozen controller delays none but its own line."""
        known = self.known()
        with ThreadPoolExecutor(max_workers=max(len(known), 1)) as pool:
            said = dict(zip(known, pool.map(lambda name: self.call("status", name), known), strict=True))
        return tuple(
            parse_status(name, "running" if known[name] == "running" else "stopped", str(self.conf(name)), text)
            for name, text in said.items()
        )

    # -- down

    def down(self, clusters: Sequence[str] | None = None) -> Leftovers:
        """Removes the clusters (all without names) and looks whether anything of them is left.

        Raises RefusedError for a name that is not here, before anything is removed.
        """
        known = self.known()
        names = tuple(clusters or known)
        unknown = [name for name in names if name not in known]
        if unknown:
            here = ", ".join(known) or "none"
            raise RefusedError(f"no cluster {', '.join(unknown)} under {self.root}; there are: {here}")
        before = self._namespaces(names)
        pids = [pid for pid, inode in pid_namespaces().items() if inode in before] + list(self._daemons(names))
        for name in names:
            self.call("rm", name)
        self._tidy()
        return Leftovers(
            clusters=names,
            ended=len(set(pids)),
            processes=tuple(self._daemons(names).values()),
            mounts=tuple(line for line in mounts() if any(f" {self.root / name}" in line for name in names)),
            namespaces=len(before & set(pid_namespaces().values())),
        )

    def _own_root(self) -> None:
        """Makes the root. Raises RefusedError for one of somebody else: its name in /tmp can be foreseen."""
        self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
        if self.root.lstat().st_uid != os.geteuid():
            raise RefusedError(f"{self.root} belongs to somebody else; give another folder with --root")

    def _tidy(self) -> None:
        """The root goes with its last cluster, and what jobs wrote there; files that are not the lab's keep it."""
        if self.root.is_dir() and not self.known():
            shutil.rmtree(self.jobs_folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                self.root.rmdir()

    def _namespaces(self, clusters: Iterable[str]) -> set[str]:
        """PID namespaces of the clusters' nodes, by their first processes."""
        return marked_namespaces(tuple(f"slurm-lab-node:{self.root / name}:" for name in clusters))

    def _daemons(self, clusters: Iterable[str]) -> dict[int, str]:
        """Processes of the clusters by their command lines: daemons, node shells, the watcher of reboots."""
        return naming((f"{self.root / name}" for name in clusters), _DAEMONS)


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
