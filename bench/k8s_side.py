"""Two real Kubernetes clusters of the lab for `recovery`: `alpha` is supervised, `beta` is left to Kubernetes.

Both jobs are the same Indexed Job but for what adoption wants: `beta`'s keeps Kubernetes' own defaults
(`backoffLimit` 6, `podReplacementPolicy` TerminatingOrFailed). Times are the truth of the machine: starts of the
ranks' processes, and the job's own output.
"""

import asyncio
import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from activities.backends.kubernetes.api import KubeApi
from activities.backends.kubernetes.settings import KubernetesSettings
from activities.backends.training_log import parse_progress
from bench.sides import ALONE, OURS, SAVE_EVERY, STEP_TIME, TOTAL_STEPS, comment
from fleet.errors import FleetError
from fleet.model import Progress
from workers.demo_kubernetes import JOB_LABEL, manifest
from workers.fleets import ALL_AUTO
from workers.lab_fleet import write_k8s_fleet
from workers.lab_k8s import K8sLab
from workers.lab_traces import processes

NODES = 3
"""Real nodes of each cluster: two for the job, one to go to."""
RANKS = 2
LOOK = 0.3
"""Seconds between two looks at a job's output: what a pod said is gone with it."""
INDEX = "batch.kubernetes.io/job-completion-index"


class KubernetesSide:
    """Clusters of a lab that runs already, in whose network this process is."""

    alone = "cordon and delete its pods by hand at once"
    alone_after_crash = "the Job's own replacement after 300 s"

    def __init__(self, folder: Path, lab: K8sLab) -> None:
        self.folder = folder
        self.lab = lab
        self.fleet = folder / "fleet.yaml"
        self._apis = {
            name: KubeApi(name, KubernetesSettings(kubeconfig=str(lab.kubeconfig(name)))) for name in (OURS, ALONE)
        }
        self._said: dict[tuple[str, str], list[tuple[str, Progress]]] = {}
        """Of each job: first pods of its attempts in order, and what each said last."""
        self._looking: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        self.lab.jobs_folder.mkdir(exist_ok=True)
        write_k8s_fleet(self.fleet, self.lab, (OURS,), ALL_AUTO)

    async def submit(self, cluster: str, job: str, *, supervised: bool) -> str:
        made = manifest(self._checkpoints(cluster, job))
        words = dict(word.partition("=")[::2] for word in comment(job, supervised).split())
        made["metadata"] |= {"name": job, "annotations": words, "labels": made["metadata"]["labels"]}
        if not supervised:
            made["metadata"]["labels"] = {}
            del made["spec"]["backoffLimit"], made["spec"]["podReplacementPolicy"]
        own = made["spec"]["template"]["spec"]["containers"][0]["args"]
        settings = {"--steps": TOTAL_STEPS, "--step-time": STEP_TIME, "--checkpoint-every": SAVE_EVERY}
        for option, value in settings.items():
            own[own.index(option) + 1] = str(value)
        file = self.folder / f"{cluster}-{job}.json"
        file.write_text(json.dumps(made))
        await self._kubectl(cluster, "apply", "-f", str(file))
        self._said[cluster, job] = []
        self._looking.append(asyncio.create_task(self._look(cluster, job)))
        return f"job/default/{job}"

    async def progress(self, cluster: str, native_id: str, restarts: int) -> Progress:
        said = self._said[cluster, _name(native_id)]
        return said[restarts][1] if restarts < len(said) else Progress()

    async def nodes_of(self, cluster: str, native_id: str) -> tuple[str, ...]:
        pods = sorted(await self._pods(cluster, _name(native_id)), key=_index)
        return tuple(pod["spec"]["nodeName"] for pod in pods)

    async def running_at(self, cluster: str, native_id: str, after: float) -> float | None:
        ranks = await asyncio.to_thread(rank_starts, self._checkpoints(cluster, _name(native_id)))
        young = [at for at in ranks if at > after]
        return max(young) if len(young) == RANKS or self._lost(cluster, ranks, young) else None

    def _lost(self, cluster: str, ranks: list[float], young: list[float]) -> bool:
        """Left alone after a power loss one pod only is replaced; the other rank waits for a peer that is gone."""
        return cluster == ALONE and len(young) == 1 and len(ranks) == RANKS

    async def mark_dead(self, cluster: str, node: str) -> None:
        """What a person does who sees it at once and knows that all ranks must start anew."""
        await self._kubectl(cluster, "cordon", node)
        await self._kubectl(cluster, "delete", "pod", "-l", JOB_LABEL, "--wait=false")

    async def crash(self, cluster: str, node: str) -> None:
        await asyncio.to_thread(self.lab.call, "node-crash", cluster, node)

    async def cancel(self, cluster: str, native_id: str) -> None:
        await self._kubectl(cluster, "delete", "job", _name(native_id), "--wait=false")

    async def close(self) -> None:
        for task in self._looking:
            task.cancel()
        await asyncio.gather(*self._looking, return_exceptions=True)
        for api in self._apis.values():
            await api.close()

    def _checkpoints(self, cluster: str, job: str) -> Path:
        return self.lab.jobs_folder / f"{cluster}-{job}"

    async def _look(self, cluster: str, job: str) -> None:
        """Remembers what the first rank of each attempt says; the pod of an attempt is another one than before."""
        said = self._said[cluster, job]
        while True:
            with contextlib.suppress(FleetError):
                firsts = [pod for pod in await self._pods(cluster, job) if _index(pod) == 0]
                for pod in sorted(firsts, key=lambda pod: str(pod["metadata"]["creationTimestamp"])):
                    await self._read(cluster, pod["metadata"]["name"], said)
            await asyncio.sleep(LOOK)

    async def _read(self, cluster: str, pod: str, said: list[tuple[str, Progress]]) -> None:
        text = await self._apis[cluster].text("its output", f"/api/v1/namespaces/default/pods/{pod}/log")
        place = next((n for n, (name, _) in enumerate(said) if name == pod), len(said))
        said[place : place + 1] = [(pod, parse_progress(text, None))]

    async def _pods(self, cluster: str, job: str) -> list[dict[str, Any]]:
        query = [("labelSelector", f"{JOB_LABEL}={job}")]
        return (await self._apis[cluster].list("its pods", "/api/v1/namespaces/default/pods", query))[0]

    async def _kubectl(self, cluster: str, *words: str) -> str:
        kubeconfig = str(self.lab.kubeconfig(cluster))
        return await asyncio.to_thread(self.lab.call, "shell", "kubectl", "--kubeconfig", kubeconfig, *words)


def _name(native_id: str) -> str:
    return native_id.rpartition("/")[2]


def _index(pod: dict[str, Any]) -> int:
    return int(pod["metadata"]["annotations"][INDEX])


def rank_starts(checkpoints: Path) -> list[float]:
    """When each living rank of the job began, by the kernel."""
    found = []
    now, up = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    for pid, words in processes():
        if str(checkpoints) in words and any(word.endswith("/train.py") for word in words[1:4]):
            with contextlib.suppress(OSError):
                ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
                found.append(now - up + ticks / os.sysconf("SC_CLK_TCK"))
    return found
