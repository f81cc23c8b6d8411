"""Real Slurm as a rig: a fresh private cluster of six nodes for each test, with Slurm's own default requeue delay."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.contract.rig import Rig, RigKind
from tests.slurm.lab import QUICK, QUICK_SETTLE, Cluster, cluster, why_not

DEFAULT_REQUEUE = 120
"""Slurm's default cred_expire, seconds: its requeue delay is one more."""


class SlurmRig:
    """The faults are verbs of the lab; the truth is read from /proc."""

    name = "slurm"
    time_scale = 1.0
    batch_scheduler = True
    script_start = "#!"
    gpu_model = "h100"

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.backend = cluster.backend
        self.training_spec = cluster.training_spec
        self.person_submit = cluster.person_submit
        self.ranks_alive = cluster.ranks_alive
        self.newest_complete_checkpoint = cluster.newest_complete_checkpoint

    def now(self) -> float:
        return time.time()

    async def _node(self, verb: str, node: str, *words: str) -> None:
        await self.cluster.lab(verb, self.cluster.name, node, *words)

    async def crash_node(self, node: str) -> None:
        await self._node("node-crash", node)

    async def freeze_node(self, node: str) -> None:
        await self._node("node-freeze", node)

    async def thaw_node(self, node: str) -> None:
        await self._node("node-thaw", node)

    async def kill_daemon(self, node: str) -> None:
        await self._node("slurmd-kill", node)

    async def start_daemon(self, node: str) -> None:
        await self._node("slurmd-start", node)

    async def person_drain(self, node: str, reason: str) -> None:
        await self.cluster.slurm("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")

    async def person_hold(self, native_id: str) -> None:
        await self.cluster.slurm("scontrol", "uhold", native_id)

    async def person_requeue(self, native_id: str) -> None:
        await self.cluster.slurm("scontrol", "requeue", native_id)

    async def person_cancel(self, native_id: str) -> None:
        await self.cluster.slurm("scancel", native_id)

    async def fail_check(self, node: str, text: str) -> None:
        await self._node("check-fail", node, text)

    async def freeze_controller(self) -> None:
        await self.cluster.lab("ctld-freeze", self.cluster.name)

    async def thaw_controller(self) -> None:
        await self.cluster.lab("ctld-thaw", self.cluster.name)


@asynccontextmanager
async def open_rig(folder: Path) -> AsyncIterator[Rig]:
    """`folder` is not used: the sockets of munge need a short path."""
    async with cluster("alpha", nodes=6, requeue=DEFAULT_REQUEUE, words=QUICK, settle=QUICK_SETTLE) as made:
        yield SlurmRig(made)


KINDS = (RigKind(name="slurm", why_not=why_not, open=open_rig, marks=("slurm",), at_once=3),)
