"""Private Kubernetes clusters on this machine: built, started, looked at and removed through `deploy/lab/k8s_lab.sh`.

The script is a program beside us: it is called with argument lists and never imported. It keeps all clusters of one
root in a network namespace of their own and enters it by itself.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from fleet.errors import PermanentError, RefusedError
from fleet.model import Value
from workers.lab_slurm import DEPLOY
from workers.lab_traces import Leftovers, cgroups, marked_namespaces, mounts, naming, pid_namespaces

SCRIPT = DEPLOY / "k8s_lab.sh"
BUILD = DEPLOY / "k8s" / "build.py"
PACKAGES = (
    "apt-get install --no-install-recommends "
    "containerd runc containernetworking-plugins busybox-static iproute2 iptables openssl util-linux"
)
LIMIT = 300.0
"""Seconds for one call of the script; a start takes 10 to 15 s alone, its own limits end at about 240 s."""
MOST_NODES = 8
"""Real nodes of one cluster: the script makes that many tokens and subnets."""
NODE_GRACE = 16
"""Seconds after which the lab's controller-manager takes a silent node for lost; the script's own default."""
MOST_FAKE_NODES = 9999
CONTROLLERS = ("jobset", "kueue")
"""Job controllers that `--controllers` will take."""

_DAEMONS = frozenset(
    {
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kwok",
        "kubelet",
        "containerd",
        "containerd-shim-runc-v2",
        "bash",
        "unshare",
        "setsid",
        "k8s-lab-net",
    }
)


class K8sNode(Value):
    """One node as the lab and the apiserver see it."""

    node: str
    power: str
    """on or off."""
    frozen: bool = False
    kubelet: bool
    processes: int
    ready: str = ""
    """The Ready condition: True, False or Unknown; empty when the apiserver does not answer or has no such node."""
    cordoned: bool = False
    gpus: int | None = None
    """Allocatable nvidia.com/gpu."""
    boot_id: str = ""


class K8sCluster(Value):
    """One cluster of the lab."""

    cluster: str
    state: Literal["running", "stopped"]
    kubeconfig: str
    daemons: dict[str, bool]
    """etcd, api, manager, scheduler, kwok -> runs."""
    frozen: bool = False
    """The apiserver is stopped by a signal."""
    answers: bool
    """The apiserver answered."""
    nodes: tuple[K8sNode, ...] = ()
    fake_nodes: int = 0


class K8sLab:
    """The clusters under one root folder. Every method blocks."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def kubeconfig(self, cluster: str) -> Path:
        """The admin's; its one context has the cluster's name."""
        return self.root / cluster / "admin.kubeconfig"

    def check_pod(self, cluster: str) -> Path:
        """Manifest of the pod that checks a node's GPUs."""
        return self.root / cluster / "check.yaml"

    @property
    def jobs_folder(self) -> Path:
        """Checkpoints of jobs, at the same path on every node; the script removes it with the last cluster."""
        return self.root / "_jobs"

    def command(self, *words: str) -> tuple[str, ...]:
        """Argument list of one verb, as `fleet.yaml` holds it too."""
        return (str(SCRIPT), "--root", str(self.root), *words)

    def call(self, *words: str) -> str:
        """One verb's output. Raises PermanentError with the script's own words when it fails."""
        done = subprocess.run(
            self.command(*words), capture_output=True, text=True, timeout=LIMIT, check=False, stdin=subprocess.DEVNULL
        )
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip()).replace("k8s_lab: ", "")
            raise PermanentError(said or f"{words[0]} ended with {done.returncode}")
        return done.stdout

    def enter(self, command: Sequence[str], known: Sequence[str]) -> None:
        """Becomes a shell, or the command, in the lab's network. Never returns; raises RefusedError without a lab."""
        if not known:
            raise RefusedError(f"no cluster runs under {self.root}; `runbook lab k8s up` starts some")
        os.environ["KUBECONFIG"] = os.pathsep.join(str(self.kubeconfig(name)) for name in known)
        words = self.command("shell", *command)
        os.execv(words[0], words)  # noqa: S606 - the script of this lab

    def cgroups(self, cluster: str) -> tuple[str, ...]:
        """Its cgroups that exist, one for each controller."""
        return cgroups(self.call("cgroup", cluster).strip().rstrip("/"))

    # -- up

    def check(self) -> None:
        """Raises PermanentError, with the command that mends it, when no cluster can start on this machine."""
        if not SCRIPT.is_file():
            raise PermanentError(f"{SCRIPT} is missing: the lab is part of the source tree; run it from a clone")
        if os.geteuid() != 0:
            raise PermanentError(
                "the Kubernetes lab needs root (namespaces, cgroups, a container runtime): use sudo -E. "
                f"Where its packages are missing too: {PACKAGES}"
            )
        build()
        try:
            self.call("check")
        except PermanentError as error:
            raise PermanentError(
                f"{error}\n`{DEPLOY / 'k8s_packages.sh'}` does that too, and lets no package start a service"
            ) from error

    def known(self) -> dict[str, str]:
        """name -> running or stopped."""
        return dict(line.split() for line in self.call("list").splitlines()) if self.root.is_dir() else {}

    def up(
        self, clusters: Sequence[str], *, nodes: int = 2, gpus: int = 8, fake_nodes: int = 0, keep: bool = False
    ) -> tuple[str, ...]:
        """Starts those that do not run, all at once, and returns their names. Those that run are left as they are.

        Raises PermanentError with the script's words; then none that this call started is left.
        """
        self._own_root()
        running = {name for name, state in self.known().items() if state == "running"}
        wanted = [name for name in clusters if name not in running]
        words = ("-n", str(nodes), "-g", str(gpus), *(("-k",) if keep else ()))
        with ThreadPoolExecutor(max_workers=max(len(wanted), 1)) as pool:
            calls = {name: pool.submit(self._start, name, words, fake_nodes, gpus) for name in wanted}
        failed = {name: call.exception() for name, call in calls.items() if call.exception() is not None}
        if failed:
            for name in wanted:
                with contextlib.suppress(PermanentError):  # the first error is the one to tell
                    self.call("rm", name)
            name, error = next(iter(failed.items()))
            raise PermanentError(f"{name} did not start: {error}") from error
        return tuple(wanted)

    def _start(self, name: str, words: Sequence[str], fake_nodes: int, gpus: int) -> None:
        self.call("start", name, *words)
        if fake_nodes:
            self.call("fake-nodes", name, str(fake_nodes), "-g", str(gpus))

    # -- looking

    def status(self) -> tuple[K8sCluster, ...]:
        """Every cluster, all asked at once: a frozen apiserver delays none but its own line."""
        known = self.known()
        with ThreadPoolExecutor(max_workers=max(len(known), 1)) as pool:
            said = dict(zip(known, pool.map(lambda name: self.call("status", name), known), strict=True))
        return tuple(
            parse_status(name, "running" if known[name] == "running" else "stopped", str(self.kubeconfig(name)), text)
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
        marks = tuple(f"k8s-lab-node:{self.root / name}:" for name in names)
        before = marked_namespaces(marks)
        pids = {pid for pid, inode in pid_namespaces().items() if inode in before} | set(self._daemons(names))
        for name in names:
            self.call("rm", name)
        self._tidy()
        return Leftovers(
            clusters=names,
            ended=len(pids),
            processes=tuple(self._daemons(names).values()),
            mounts=tuple(line for line in mounts() if any(f" {self.root / name}/" in line for name in names)),
            namespaces=len(before & set(pid_namespaces().values())),
            cgroups=tuple(path for name in names for path in self.cgroups(name)),
        )

    def _own_root(self) -> None:
        """Makes the root. Raises RefusedError for one of somebody else: its name in /tmp can be foreseen."""
        self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
        if self.root.lstat().st_uid != os.geteuid():
            raise RefusedError(f"{self.root} belongs to somebody else; give another folder with --root")

    def _tidy(self) -> None:
        """The root goes with its last cluster; files that are not the lab's keep it."""
        if self.root.is_dir() and not self.known():
            shutil.rmtree(self.root / "_images", ignore_errors=True)
            with contextlib.suppress(OSError):
                self.root.rmdir()

    def _daemons(self, clusters: Sequence[str]) -> dict[int, str]:
        return naming((f"{self.root / name}" for name in clusters), _DAEMONS)


def build(*, check_only: bool = False) -> str:
    """Builds what is missing, with its progress on standard error; returns the folders as one PATH.

    Raises PermanentError, whose text is not more than a pointer: the build itself has said what is wrong.
    """
    words = [sys.executable, str(BUILD), *(("--check",) if check_only else ())]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise PermanentError("the programs of the Kubernetes lab are not built; see above")
    return done.stdout.strip()


# -- reading


_NODE_LINE = re.compile(r"^(\S+) power=(on|off)(,frozen)? init=(\d*) kubelet=(\d*) pids=(\d+)$")
_SEEN_LINE = re.compile(r"^node (\S+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)$", re.MULTILINE)
_DAEMON = re.compile(r"(\w+)=(\d*)(,frozen)?")


def parse_status(cluster: str, state: Literal["running", "stopped"], kubeconfig: str, text: str) -> K8sCluster:
    """The script's `status`: one line of daemons, one for each node, then the apiserver's view when it answers."""
    first, _, rest = text.partition("\n")
    daemons = {name: (pid, frozen) for name, pid, frozen in _DAEMON.findall(first)}
    seen = {found[1]: found for found in _SEEN_LINE.finditer(rest)}
    nodes = [_node(found, seen.get(found[1])) for line in rest.splitlines() if (found := _NODE_LINE.match(line))]
    return K8sCluster(
        cluster=cluster,
        state=state,
        kubeconfig=kubeconfig,
        daemons={name: bool(pid) for name, (pid, _) in daemons.items()},
        frozen=bool(daemons.get("api", ("", ""))[1]),
        answers=bool(daemons.get("api", ("", ""))[0]) and "the apiserver does not answer" not in rest,
        nodes=tuple(nodes),
        fake_nodes=len(seen.keys() - {node.node for node in nodes}),
    )


def _node(line: re.Match[str], seen: re.Match[str] | None) -> K8sNode:
    """A node of the lab, with what the apiserver says of it; `<none>` stands for a field that is not there."""
    return K8sNode(
        node=line[1],
        power=line[2],
        frozen=line[3] is not None,
        kubelet=bool(line[5]),
        processes=int(line[6]),
        ready=seen[2] if seen else "",
        cordoned=seen is not None and seen[3] == "true",
        gpus=int(seen[4]) if seen and seen[4].isdigit() else None,
        boot_id=seen[5] if seen and seen[5] != "<none>" else "",
    )
