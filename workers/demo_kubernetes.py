"""The demo's stage on a real Kubernetes lab of this machine: one private cluster in its own network namespace."""

import asyncio
import ctypes
import json
import os
from pathlib import Path
from typing import Any

import yaml

from activities.backends.training_log import parse_progress
from fleet.errors import PermanentError
from fleet.identity import TOKEN_PREFIX
from workers.demo_slurm import GPU, LINE, lab_root
from workers.demo_stage import JOB, TOTAL_STEPS, comment
from workers.fleets import ALL_AUTO
from workers.lab_fleet import EXAMPLE_ROOT, write_k8s_fleet
from workers.lab_k8s import K8sLab
from workers.lab_place import DEPLOY
from workers.lab_traces import processes

CLUSTER = "gamma"
NODES = 3
"""Two for the job, one to move to."""
UNREAL = (
    f"GPU {GPU} is really gone from the node's status and its device file is missing, and the check pod will count; "
    "but this lab's training runs on the CPU, so its ranks go on where real ones would hang, and the kernel's line "
    "is ours"
)
STEP_TIME = "0.5"
JOB_LABEL = "batch.kubernetes.io/job-name"
"""Kubernetes' own, on each pod of a Job."""
_CLONE_NEWNET = 0x40000000
"""As in Linux's sched.h: setns(2) shall move us into a network namespace and no other kind."""


def open_lab(folder: Path) -> K8sLab:
    """Starts the cluster. Raises PermanentError, with the command that installs what is missing."""
    lab = K8sLab(lab_root(folder))
    lab.check()
    try:
        lab.down()  # of a demo that was killed
        lab.up((CLUSTER,), nodes=NODES)
        write_k8s_fleet(folder / "fleet.yaml", lab, (CLUSTER,), ALL_AUTO)
        enter_network(lab)
    except BaseException:
        lab.down()
        raise
    return lab


def enter_network(lab: K8sLab) -> None:
    """Moves the calling thread, and all that it starts from now on, into the lab's network: nothing of it is reached
    from outside, the Temporal server of the demo included.

    Raises PermanentError when the kernel refuses it.
    """
    mark = f"k8s-lab-net:{lab.root.resolve()}"
    keeper = next((pid for pid, words in processes() if words[0] == mark), None)
    if keeper is None:
        return  # no way leads out of this process's network: the lab has taken it for its own
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/proc/{keeper}/ns/net").open("rb") as namespace:
        if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
            raise PermanentError(f"cannot enter the lab's network namespace: {os.strerror(ctypes.get_errno())}")


def close_lab(lab: K8sLab, folder: Path, *, keep: bool) -> tuple[str, ...]:
    """Removes the lab and says what is left of it."""
    if keep:
        shell, down = (f"runbook lab {verb} --root {lab.root}" for verb in ("shell", "k8s down"))
        return (f"left running: the Kubernetes lab; look into it with `{shell}`, end it with `{down}`",)
    left = lab.down()
    (folder / "fleet.yaml").unlink(missing_ok=True)
    if left.clean:
        removed = f"Kubernetes lab removed: {', '.join(left.clusters)}"
        return (f"{removed}; no process, mount, namespace or cgroup is left",)
    marks = (*left.processes, *left.mounts, *left.cgroups)
    return ("Kubernetes lab NOT wholly removed:", *marks, f"{left.namespaces} PID namespaces")


class KubernetesStage:
    """The cluster of `open_lab`; whoever opened it closes it."""

    cluster = CLUSTER

    def __init__(self, lab: K8sLab, fleet: Path) -> None:
        self.lab = lab
        self.fleet = fleet
        self.watch = f"real Kubernetes; look with runbook lab shell --root {lab.root} -- kubectl get pods"

    async def submit(self) -> None:
        """A plain `kubectl apply`; nothing of ours in the Job but its label and annotations."""
        self.lab.jobs_folder.mkdir(exist_ok=True)
        file = self.lab.jobs_folder / f"{JOB}.json"
        file.write_text(json.dumps(manifest(self.lab.jobs_folder / JOB)), encoding="utf-8")
        await self._kubectl("apply", "-f", str(file))

    async def steps(self) -> int:
        """Last step in the job's output."""
        try:
            text = await self._kubectl("logs", "-l", f"{JOB_LABEL}={JOB}", "--tail=20")
        except PermanentError:  # its containers have not started
            return 0
        return parse_progress(text, 0).step or 0

    async def break_gpu(self, node: str) -> tuple[str, str]:
        """The GPU is gone from the node until it boots again."""
        await asyncio.to_thread(self.lab.call, "gpu-lose", self.cluster, node, str(GPU))
        return LINE, UNREAL

    async def close(self, *, keep: bool) -> tuple[str, ...]:
        """Nothing to do: the server still runs in the lab's network, so `close_lab` comes after it."""
        return ()

    async def _kubectl(self, *words: str) -> str:
        """As the cluster's admin. Raises PermanentError with kubectl's own words."""
        kubeconfig = str(self.lab.kubeconfig(self.cluster))
        return await asyncio.to_thread(self.lab.call, "shell", "kubectl", "--kubeconfig", kubeconfig, *words)


def manifest(checkpoints: Path) -> dict[str, Any]:
    """The example Job under the demo's name, with its own checkpoint folder, steps and opt-in."""
    text = (DEPLOY / "training" / "job.yaml").read_text(encoding="utf-8").replace(EXAMPLE_ROOT, str(checkpoints))
    made: dict[str, Any] = yaml.safe_load(text)
    declared = dict(word.partition("=")[::2] for word in comment(f"checkpoint={checkpoints}").split())
    del declared[f"{TOKEN_PREFIX}supervise"]  # a label here
    made["metadata"] |= {"name": JOB, "annotations": declared}
    own = made["spec"]["template"]["spec"]["containers"][0]["args"]
    settings = {"--steps": str(TOTAL_STEPS), "--step-time": STEP_TIME, "--checkpoint-every": "10"}
    for option, value in settings.items():
        own[own.index(option) + 1] = value
    return made
