"""One private Kubernetes cluster of the lab for tests: started and removed by `deploy/lab/k8s_lab.sh`."""

import asyncio
import ctypes
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from tests.kubernetes.used_rights import collect
from tests.slurm.lab import short_folder
from workers.lab_k8s import BUILD, K8sLab, build
from workers.lab_k8s import NODE_GRACE as NODE_GRACE

REPOSITORY = Path(__file__).resolve().parents[2]
LAB = REPOSITORY / "deploy" / "lab" / "k8s_lab.sh"
TRAINING = REPOSITORY / "deploy" / "lab" / "training"
LIMIT = 300.0
"""Seconds for one program, the same as `runbook lab` has; the longest, the start of a cluster, takes 8 to 20 s."""
JOB_INDEX = "batch.kubernetes.io/job-completion-index"
_LEADS_OUT = r"(?!(lo|lab\d+n\d|veth[0-9a-f]+|tunl0|sit0|ip6tnl0|gre0|gretap0|erspan0|ip_vti0|ip6_vti0|ip6gre0)$)"
"""As in the lab's script: the rest are interfaces that the kernel puts into every namespace."""
_CLONE_NEWNET = 0x40000000


@functools.cache
def why_not() -> str | None:
    """One sentence when the lab cannot start here; None when it can. Builds nothing; asked once."""
    if os.geteuid() != 0:
        return "the Kubernetes lab needs root"
    done = subprocess.run([LAB, "check"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return None if done.returncode == 0 else done.stderr.strip().replace("k8s_lab: ", "")


@functools.cache
def why_not_controllers(*names: str) -> str | None:
    """The same for these controllers of job kinds, which are built by name."""
    words = [sys.executable, str(BUILD), "--check", *names]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return None if done.returncode == 0 else done.stderr.strip().replace("lab build: ", "")


# -- the network namespace


def is_isolated() -> bool:
    """No interface leads out of this process's network namespace: loopback and the lab's own only."""
    return not any(re.match(_LEADS_OUT, name) for name in interfaces())


def interfaces() -> set[str]:
    """Names of this network namespace's interfaces."""
    return {line.partition(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]}


@contextmanager
def isolated() -> Iterator[None]:
    """A network namespace of its own for this process, unless it is in one: with loopback, forwarding, nothing else.

    Only the calling thread moves, with threads and processes that it starts; AssertionError beside other threads.
    """
    if is_isolated():
        yield
        return
    assert threading.active_count() == 1, (
        "other threads would stay in the machine's network: run under `unshare --net`"
    )
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        if libc.unshare(_CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "unshare of the network namespace")
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)  # noqa: S607 - iproute2, where it is
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        yield
    finally:
        libc.setns(before, _CLONE_NEWNET)
        os.close(before)


# -- a cluster


class Cluster:
    """A running cluster: faults, a person's commands, and the truth about its processes."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.root = root
        self.place = K8sLab(root)
        self.folder = root / name
        self.work = root / f"{name}-work"
        """Shared folder of jobs, at the same path in the pods of `training_job`."""
        self.work.mkdir(exist_ok=True)

    @property
    def kubeconfig(self) -> Path:
        """The admin's; its one context has the cluster's name."""
        return self.place.kubeconfig(self.name)

    def node(self, number: int) -> str:
        """Name of the node with that number, from 1."""
        return f"{self.name}-n{number}"

    def power(self) -> dict[str, tuple[str, ...]]:
        """Argument lists of the power hook, by `off`, `on`, `status`."""
        return {verb: self.place.command(f"power-{verb}", self.name, "{node}") for verb in ("off", "on", "status")}

    async def lab(self, verb: str, *words: str) -> str:
        """One verb of the lab on this cluster, e.g. `lab("node-crash", "gamma-n1")`."""
        return await call(*self.place.command(verb, self.name, *words))

    async def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """A person's command, as admin; raises AssertionError when it fails."""
        return await call("kubectl", "--kubeconfig", str(self.kubeconfig), *words, stdin=stdin)

    async def get(self, *words: str) -> Any:
        """`kubectl get ... -o json`, read."""
        return json.loads(await self.kubectl("get", *words, "-o", "json"))

    async def apply(self, *manifests: dict[str, Any]) -> None:
        """Creates the objects, or changes them."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
        await self.kubectl("apply", "-f", "-", stdin=text)

    async def boot_id(self, node: str) -> str:
        """As the apiserver has it."""
        return str((await self.get("node", node))["status"]["nodeInfo"]["bootID"])

    async def ready(self, node: str) -> str:
        """Status of the node's Ready condition: True, False or Unknown."""
        conditions = (await self.get("node", node))["status"]["conditions"]
        return str(next(c["status"] for c in conditions if c["type"] == "Ready"))

    async def pods(self, job: str, namespace: str = "default") -> list[dict[str, Any]]:
        """Pods of a batch Job, by its label."""
        found = await self.get("pods", "-n", namespace, "-l", f"batch.kubernetes.io/job-name={job}")
        return list(found["items"])

    def checkpoints(self, job: str) -> Path:
        """Checkpoint folder of a `training_job`."""
        return self.work / job

    def training_job(self, name: str, *, nodes: int = 2, steps: int = 100_000, **changes: Any) -> dict[str, Any]:
        """Manifest of an Indexed Job that trains in the lab's own program, one rank of 8 GPUs on each node.

        `changes` go into the Job's spec. Its settings are those with which no controller starts a second copy.
        """
        rank = {
            "name": "rank",
            "image": "lab/base:1",
            "imagePullPolicy": "Never",
            "command": ["/usr/bin/python3", "-u", "/training/train.py"],
            "args": [
                *("--checkpoint-dir", str(self.checkpoints(name)), "--steps", str(steps)),
                *("--step-time", "0.1", "--checkpoint-every", "20", "--no-generation-check"),
            ],
            "env": [
                {"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{JOB_INDEX}']"}}},
                {"name": "WORLD_SIZE", "value": str(nodes)},
            ],
            "resources": {"limits": {"nvidia.com/gpu": "8"}},
            "volumeMounts": [{"name": at, "mountPath": path} for at, _, path in self._mounts()],
        }
        volumes = [{"name": at, "hostPath": {"path": host}} for at, host, _ in self._mounts()]
        pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [rank], "volumes": volumes}
        spec = {
            "completions": nodes,
            "parallelism": nodes,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "template": {"spec": pod},
        }
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {**spec, **changes}}

    def _mounts(self) -> list[tuple[str, str, str]]:
        """(name, folder on the machine, in the pod): the machine's own Python, the program, the shared folder."""
        system = [(name, f"/{name}", f"/{name}") for name in ("usr", "lib", "lib64")]
        return [*system, ("training", str(TRAINING), "/training"), ("work", str(self.work), str(self.work))]

    async def ranks_alive(self, job: str) -> int:
        """The truth: processes of the training program that write that job's checkpoints, frozen ones too."""
        return len(await asyncio.to_thread(rank_pids, self.checkpoints(job)))

    def cgroups(self) -> tuple[str, ...]:
        """Folders of the cluster's cgroups under every controller."""
        return self.place.cgroups(self.name)


def rank_pids(checkpoints: Path) -> list[int]:
    """Ranks whose checkpoint folder this is, in whatever container; zombies do not count."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        trains = any(word.endswith(b"/train.py") for word in words[1:4])
        if trains and str(checkpoints).encode() in words and state not in "ZX":
            found.append(int(folder.name))
    return found


async def call(*argv: str, stdin: str | None = None) -> str:
    """One program's standard output. Raises AssertionError with all that it said when it fails."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(None if stdin is None else stdin.encode()), LIMIT)
    except TimeoutError as error:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise AssertionError(f"{' '.join(argv)} did not end in {LIMIT:.0f} s") from error
    assert process.returncode == 0, (
        f"{' '.join(argv)} -> {process.returncode}: {(err or out).decode(errors='replace')}"
    )
    return out.decode(errors="replace")


@asynccontextmanager
async def clusters(
    *names: str, nodes: int = 2, gpus: int = 8, controllers: Sequence[str] = ()
) -> AsyncIterator[tuple[Cluster, ...]]:
    """Fresh clusters in this process's network namespace; nothing of them is left afterwards."""
    more = ("-c", ",".join(controllers)) if controllers else ()
    assert is_isolated(), "clusters of tests live in a network namespace of their own: use isolated()"
    os.environ.setdefault("K8S_BIN", build(check_only=True))
    if os.environ["K8S_BIN"] not in os.environ["PATH"]:
        os.environ["PATH"] = f"{os.environ['K8S_BIN']}:{os.environ['PATH']}:/usr/sbin:/sbin"
    root, before = short_folder(), interfaces()
    made = []
    try:
        for name in names:
            cluster = Cluster(name, root)
            await cluster.lab("start", "-n", str(nodes), "-g", str(gpus), *more)
            made.append(cluster)
        yield tuple(made)
    finally:
        for name in names:
            collect(root / name)
            await call(*K8sLab(root).command("rm", name))
        left = leftovers(root, made, before)
        shutil.rmtree(root, ignore_errors=True)
    assert not left, f"left behind by {', '.join(names)}: {left}"


@asynccontextmanager
async def cluster(
    name: str = "gamma", *, nodes: int = 2, gpus: int = 8, controllers: Sequence[str] = ()
) -> AsyncIterator[Cluster]:
    """One fresh cluster, see `clusters`."""
    async with clusters(name, nodes=nodes, gpus=gpus, controllers=controllers) as (made,):
        yield made


def leftovers(root: Path, made: list[Cluster], before: set[str]) -> list[str]:
    """Processes that still name the lab's folder, mounts below it, cgroups, and new interfaces."""
    listed = subprocess.run(["ps", "-ww", "-eo", "pid=,stat=,args="], check=True, capture_output=True, text=True)  # noqa: S607
    left = [line for line in listed.stdout.splitlines() if f"{root}/" in line and line.split()[1][0] != "Z"]
    left += [line for line in Path("/proc/mounts").read_text().splitlines() if f" {root}/" in line]
    left += [path for cluster in made for path in cluster.cgroups()]
    return left + sorted(interfaces() - before)
