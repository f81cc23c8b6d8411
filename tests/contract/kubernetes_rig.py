"""Real Kubernetes as a rig: one private cluster of six nodes for the whole run, made clean again for each test.

It lives in a network namespace that this process and all that it starts move into (tests/conftest.py): nothing of it
reaches outside.
"""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import yaml

from activities.backends.kubernetes.backend import KubernetesBackend
from activities.backends.kubernetes.settings import KubernetesSettings
from activities.backends.kubernetes.submit import object_name
from fleet.identity import TOKEN_PREFIX
from fleet.orders import JobSpec
from tests.contract.rig import Rig, RigKind, eventually
from tests.kubernetes import lab
from tests.kubernetes.accounts import kubeconfig_of
from tests.kubernetes.kinds import local_queue, queue
from tests.kubernetes.lab import NODE_GRACE, Cluster
from tests.kubernetes.used_rights import collect
from tests.runbooks_kubernetes.kinds import JOB, JOBSET, QUEUED_JOB, Kind
from tests.slurm.lab import short_folder
from workers.lab_k8s import K8sLab, build

NODES, GPUS = 6, 8
CONTROLLERS = ("jobset", "kueue")
OF_A_KIND = (
    "test_submitting_twice_makes_one_job",
    "test_adoption_holds_a_running_job_without_touching_it",
    "test_an_adopted_job_that_somebody_requeues_stays_held_in_the_queue",
    "test_cancel_ends_a_job_for_good_and_twice_is_once",
    "test_a_late_stop_of_an_older_attempt_leaves_the_newer_one_alone",
    "test_the_next_attempt_runs_elsewhere_and_resumes_from_the_checkpoint",
    "test_starting_twice_makes_one_attempt",
    "test_in_place_keeps_the_nodes_and_leaves_nothing_pinned",
    "test_a_later_submission_is_another_native_object_and_each_is_made_once",
    "test_cancel_ends_a_held_waiting_job_for_good_and_twice_is_once",
)
"""What a kind itself decides; what all kinds share is proven on a plain Job."""
SETTLE = 5.0
"""Seconds of steady answers; a pod of the tests has 5 s of grace and is killed within a second of a thaw."""


class KubernetesRig:
    """The faults are verbs of the lab, or what a person does with kubectl; the truth is read from /proc."""

    time_scale = 1.0
    batch_scheduler = False
    gpu_model = ""  # the lab runs no GPU feature discovery

    def __init__(self, cluster: Cluster, space: str, kubeconfig: Path, kind: Kind) -> None:
        self.name = rig_name(kind)
        self.kind = kind
        self.script_start = f"apiVersion: {kind.kind.api_version}"
        self.cluster = cluster
        self.space = space
        self.broken: set[str] = set()
        self.drained: set[str] = set()
        self.sick: set[str] = set()
        self.frozen = False
        power = cluster.power()
        self.backend = KubernetesBackend(
            cluster.name,
            KubernetesSettings(
                kubeconfig=str(kubeconfig),
                context=cluster.name,
                power_off=power["off"],
                power_on=power["on"],
                power_status=power["status"],
                check=str(cluster.place.check_pod(cluster.name)),
                node_down_after=NODE_GRACE + 2,
                settle=SETTLE,
            ),
        )

    def now(self) -> float:
        return time.time()

    def training_spec(
        self,
        name: str,
        *,
        nodes: int = 2,
        steps: int = 100_000,
        checkpoint_every: int = 20,
        fail_at: int | None = None,
        exit_code: int = 3,
        generation_check: bool = False,
        tokens: str = "",
    ) -> JobSpec:
        key = f"key-{self.space}-{name}"
        manifest = self.kind.objects(self.cluster, object_name(key), nodes=nodes)[-1]
        manifest["metadata"]["namespace"] = self.space
        rank = self.kind.kind.templates(manifest)[0]["spec"]["containers"][0]
        words = ["--checkpoint-dir", str(self.cluster.work / key), "--steps", str(steps), "--step-time", "0.1"]
        words += ["--checkpoint-every", str(checkpoint_every)]
        words += [] if generation_check else ["--no-generation-check"]
        rank["args"] = words
        if fail_at is not None:
            program = " ".join([*rank["command"], *words, "--raise-at-step", str(fail_at)])
            rank["command"], rank["args"] = ["/bin/sh", "-c", f"{program} || exit {exit_code}"], []
        declared = " ".join(
            f"{TOKEN_PREFIX}{word}" for word in ("supervise", "checkpoint-signal=USR1", f"total-steps={steps}")
        )
        check = f" {TOKEN_PREFIX}generation-check=yes" if generation_check else ""
        return JobSpec(
            job=key,
            name=name,
            script=yaml.safe_dump(manifest),
            comment=f"{declared}{check} {tokens}".strip(),
        )

    async def person_submit(self, spec: JobSpec) -> str:
        """`kubectl apply` of the same job, with the tokens as a person writes them and without a key of ours."""
        manifest = yaml.safe_load(spec.script)
        words = [word.partition("=") for word in spec.comment.split()]
        manifest["metadata"]["annotations"] = {key: value or "true" for key, _, value in words}
        manifest["metadata"]["annotations"].pop(f"{TOKEN_PREFIX}supervise")
        manifest["metadata"]["labels"] |= {f"{TOKEN_PREFIX}supervise": "true"}
        await self.cluster.apply(manifest)
        return f"{self.kind.kind.word}/{self.space}/{manifest['metadata']['name']}"

    async def ranks_alive(self, native_id: str) -> int:
        name = native_id.rpartition("/")[2]
        return len(await asyncio.to_thread(lab.rank_pids, self.cluster.work / name))

    async def newest_complete_checkpoint(self, job: str) -> int | None:
        steps = [int(p.parent.name[5:13]) for p in (self.cluster.work / job).glob("step_*/COMPLETE")]
        return max(steps, default=None)

    async def crash_node(self, node: str) -> None:
        self.broken.add(node)
        await self.cluster.lab("node-crash", node)

    async def freeze_node(self, node: str) -> None:
        self.broken.add(node)
        await self.cluster.lab("node-freeze", node)

    async def thaw_node(self, node: str) -> None:
        await self.cluster.lab("node-thaw", node)

    async def kill_daemon(self, node: str) -> None:
        self.broken.add(node)
        await self.cluster.lab("kubelet-kill", node)

    async def start_daemon(self, node: str) -> None:
        await self.cluster.lab("kubelet-start", node)

    async def person_drain(self, node: str, reason: str) -> None:
        """What cluster tools do: a cordon, and an annotation that says why."""
        self.drained.add(node)
        await self.cluster.kubectl("cordon", node)
        await self.cluster.kubectl("annotate", "node", node, f"example.com/cordon-reason={reason}")

    async def _suspend(self, native_id: str) -> None:
        word, space, name = native_id.split("/")
        first = f"{TOKEN_PREFIX}first={name}"
        later = (await self.cluster.kubectl("get", word, "-n", space, "-l", first, "-o", "name")).split()
        what, stop = (later or [f"{word}/{name}"])[-1], '{"spec":{"suspend":true}}'
        if self.kind.queued:
            uid = (await self.cluster.get("-n", space, what))["metadata"]["uid"]
            query = ("-l", f"kueue.x-k8s.io/job-uid={uid}", "-o", "name")
            what = (await self.cluster.kubectl("get", "workloads", "-n", space, *query)).strip()
            stop = '{"spec":{"active":false}}'
        await self.cluster.kubectl("patch", what, "-n", space, "--type=merge", "-p", stop)

    async def person_hold(self, native_id: str) -> None:
        await self._suspend(native_id)

    async def person_requeue(self, native_id: str) -> None:
        """The owner takes the job off its nodes: on Kubernetes that is the same suspend."""
        await self._suspend(native_id)

    async def person_cancel(self, native_id: str) -> None:
        word, space, name = native_id.split("/")
        await self.cluster.kubectl("delete", word, name, "-n", space)

    async def fail_check(self, node: str, text: str) -> None:
        self.sick.add(node)
        await self.cluster.lab("check-fail", node, text)

    async def freeze_controller(self) -> None:
        self.frozen = True
        await self.cluster.lab("api-freeze")

    async def thaw_controller(self) -> None:
        await self.cluster.lab("api-thaw")
        self.frozen = False

    # -- clean again

    async def make_clean(self) -> None:
        """Nothing of ours, of the test's or of a person's is left; what was broken is up again."""
        if self.frozen:
            await self.thaw_controller()
        await asyncio.gather(*(self._up(node) for node in self.broken))
        await self.backend.give_back_all()
        await self.cluster.kubectl("delete", self.kind.kind.plural, "--all", "-n", self.space, "--wait=false")
        for node in self.drained:
            await self.cluster.kubectl("uncordon", node)
            await self.cluster.kubectl("annotate", "node", node, "example.com/cordon-reason-")
        for node in self.sick:
            await self.cluster.lab("check-fail", node, "ok")
        await self.cluster.kubectl("delete", "namespace", self.space, "--wait=false")

    async def _up(self, node: str) -> None:
        if "off" in (await self.cluster.lab("power-status", node)).split():
            await self.cluster.lab("power-on", node)
            return
        await self.cluster.lab("node-thaw", node)
        await self.cluster.lab("kubelet-start", node)

    async def all_free(self) -> None:
        """Waits until every node answers and holds nothing, so that each test begins alike."""

        async def free() -> int:
            return len((await self.backend.capacity()).free_nodes)

        await eventually(self, free, lambda n: n == NODES, 60, f"{NODES} free nodes")


_RUN: list[Cluster] = []
_BEFORE: set[str] = set()
"""Interfaces of the namespace before the lab."""


async def _cluster() -> Cluster:
    """The run's cluster, started at its first use."""
    if not _RUN:
        os.environ.setdefault("K8S_BIN", build(check_only=True))
        os.environ["PATH"] = f"{os.environ['K8S_BIN']}:{os.environ['PATH']}:/usr/sbin:/sbin"
        root, before = short_folder(), lab.interfaces()
        made = Cluster("gamma", root)
        _RUN.append(made)
        _BEFORE.update(before)
        controllers = () if lab.why_not_controllers(*CONTROLLERS) else ("-c", ",".join(CONTROLLERS))
        await made.lab("start", "-n", str(NODES), "-g", str(GPUS), *controllers)
        if controllers:
            await made.apply(*queue(NODES * GPUS))
    return _RUN[0]


def finish() -> None:
    """At the end of the run. Raises AssertionError for what the lab left behind."""
    if not _RUN:
        return
    root = _RUN[0].root
    collect(_RUN[0].folder)
    subprocess.run(K8sLab(root).command("rm", "gamma"), check=False, stdout=subprocess.DEVNULL)
    left = lab.leftovers(root, _RUN, _BEFORE)
    shutil.rmtree(root, ignore_errors=True)
    assert not left, f"left behind by the Kubernetes lab: {left}"


_COUNT = iter(range(1, 10_000))


@asynccontextmanager
async def open_rig(kind: Kind) -> AsyncIterator[Rig]:
    """The run's cluster with a namespace of its own."""
    made = await _cluster()
    rig = KubernetesRig(made, f"t{next(_COUNT)}", await kubeconfig_of(made, "repair"), kind)
    await made.kubectl("create", "namespace", rig.space)
    if kind.queued:
        await made.apply(local_queue(rig.space))
    try:
        await rig.all_free()
        yield rig
    finally:
        try:
            await rig.make_clean()
        finally:
            await rig.backend.close()


def rig_name(kind: Kind) -> str:
    """`kubernetes` for a plain Job."""
    return "kubernetes" if kind is JOB else f"kubernetes-{kind.name}"


def why_not(kind: Kind) -> str | None:
    """One sentence when jobs of that kind cannot run here."""
    why = lab.why_not()
    return why if kind is JOB or why else lab.why_not_controllers(*CONTROLLERS)


KINDS = tuple(
    RigKind(
        name=rig_name(kind),
        why_not=partial(why_not, kind),
        open=lambda _, kind=kind: open_rig(
            kind
        ),  # no folder: a cluster outlives a test, containerd needs a short path
        marks=("kubernetes",),
        only=() if kind is JOB else OF_A_KIND,
    )
    for kind in (JOB, JOBSET, QUEUED_JOB)
)
