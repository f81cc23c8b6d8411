"""Private Kubernetes clusters on this machine: built, started, looked at and removed through `deploy/lab/k8s_lab.sh`.

The script keeps all clusters of one root in a network namespace of their own and enters it by itself.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from fleet.errors import PermanentError, RefusedError
from fleet.model import Value
from workers.lab_place import DEPLOY, Lab
from workers.lab_traces import cgroups

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
CONTROLLERS = ("jobset", "kueue", "training-operator", "trainer", "kuberay")
"""Controllers of job kinds, and Kueue, that a cluster may have beside Kubernetes' own."""

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
        *CONTROLLERS,
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
    """etcd, api, manager, scheduler, kwok, and each controller that was asked for -> runs."""
    frozen: bool = False
    """The apiserver is stopped by a signal."""
    answers: bool
    """The apiserver answered."""
    nodes: tuple[K8sNode, ...] = ()
    fake_nodes: int = 0


class K8sLab(Lab):
    """The Kubernetes clusters under one root folder."""

    script = SCRIPT
    limit = LIMIT
    node_mark = "k8s-lab-node"
    daemons = _DAEMONS
    own_folders = ("_images",)

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

    def check(self, controllers: Sequence[str] = ()) -> None:
        """Raises PermanentError, with the command that mends it, when no cluster can start on this machine.

        Builds what is missing, of these controllers too.
        """
        if not SCRIPT.is_file():
            raise PermanentError(f"{SCRIPT} is missing: the lab is part of the source tree; run it from a clone")
        if os.geteuid() != 0:
            raise PermanentError(
                "the Kubernetes lab needs root (namespaces, cgroups, a container runtime): use sudo -E. "
                f"Where its packages are missing too: {PACKAGES}"
            )
        build()
        if controllers:
            build(*controllers)
        self._script_is_ready("k8s_packages.sh")

    def up(
        self,
        clusters: Sequence[str],
        *,
        nodes: int = 2,
        gpus: int = 8,
        fake_nodes: int = 0,
        controllers: Sequence[str] = (),
        keep: bool = False,
    ) -> tuple[str, ...]:
        """Starts those that do not run, all at once, and returns their names. Those that run are left as they are.

        Raises PermanentError with the script's words; then none that this call started is left.
        """
        words = ["-n", str(nodes), "-g", str(gpus)]
        words += [*(("-c", ",".join(controllers)) if controllers else ()), *(("-k",) if keep else ())]
        return self._start_all(
            {name: partial(self._start, name, words, fake_nodes, gpus) for name in self._to_start(clusters)}
        )

    def _start(self, name: str, words: Sequence[str], fake_nodes: int, gpus: int) -> None:
        self.call("start", name, *words)
        if fake_nodes:
            self.call("fake-nodes", name, str(fake_nodes), "-g", str(gpus))

    # -- looking

    def status(self) -> tuple[K8sCluster, ...]:
        """Every cluster as it is now."""
        return self._states(
            lambda name, state, text: parse_status(
                name, "running" if state == "running" else "stopped", str(self.kubeconfig(name)), text
            )
        )

    # -- down

    def mounted(self, cluster: str) -> str:
        """Below its folder: nothing is mounted on the folder itself."""
        return f"{super().mounted(cluster)}/"


def build(*components: str, check_only: bool = False) -> str:
    """Builds what is missing, with its progress on standard error; returns the folders as one PATH.

    Without names, what makes a cluster; controllers are built by name.

    Raises PermanentError, whose text is not more than a pointer: the build itself has said what is wrong.
    """
    words = [sys.executable, str(BUILD), *components, *(("--check",) if check_only else ())]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise PermanentError("the programs of the Kubernetes lab are not built; see above")
    return done.stdout.strip()


# -- reading


_NODE_LINE = re.compile(r"^(\S+) power=(on|off)(,frozen)? init=(\d*) kubelet=(\d*) pids=(\d+)$")
_SEEN_LINE = re.compile(r"^node (\S+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)$", re.MULTILINE)
_DAEMON = re.compile(r"([\w-]+)=(\d*)(,frozen)?")


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
