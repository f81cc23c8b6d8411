"""A Kubernetes cluster on whose nodes a Slurm cluster runs (Slinky): its node and the Slurm node of that name are one
machine, and what is done to it is done from the Kubernetes side.

A cordon there is mirrored to Slurm by Slinky's operator, which drains and undrains only what has no reason or one
that begins with `slurm-operator: ` (SlinkyProject/slurm-operator, internal/controller/nodeset: syncCordon and
IsNodeReasonOurs). So its drain is waited for and never touched. Where it does not come, because the operator is away
or leaves a node alone that does not answer, we drain the Slurm node under our own mark, which the operator leaves
alone, and undrain it again.
"""

import asyncio
import time
from collections.abc import Callable

from activities.backends.kubernetes.backend import KubernetesBackend
from activities.backends.kubernetes.settings import KubernetesSettings
from activities.backends.slurm.backend import SlurmBackend
from fleet.errors import NotFoundError, TemporaryError
from fleet.identity import of_slinky
from fleet.model import NativeJob, NodeFacts, OpId

MIRROR = 15.0
"""Seconds for the operator to mirror a cordon: it is told of the change of its node, and reconciles again each minute
at the latest."""
LOOK = 0.3


class TwinBackend(KubernetesBackend):
    """`KubernetesBackend` with the Slurm side of its nodes."""

    def __init__(self, cluster: str, settings: KubernetesSettings, slurm: SlurmBackend) -> None:
        super().__init__(cluster, settings)
        self.slurm = slurm

    async def _other(self, node: str) -> NodeFacts | None:
        """The Slurm node, live; None for a node on which no slurmd runs."""
        try:
            return await self.slurm.node(node)
        except NotFoundError:
            return None

    async def node(self, node: str) -> NodeFacts:
        """With a drain that somebody set on the Slurm side, where none of ours is on this one."""
        facts, other = await asyncio.gather(super().node(node), self._other(node))
        if other is None or facts.op or facts.drained or not other.foreign_drain or of_slinky(other.reason):
            return facts
        return facts.model_copy(update={"drained": True, "reason": other.reason})

    async def holders(self, node: str) -> tuple[NativeJob, ...]:
        """Of both sides. The pods of slurmd itself hold nothing: what they hold, Slurm has given to its jobs."""
        ours, other = await asyncio.gather(super().holders(node), self._other(node))
        return (*ours, *(await self.slurm.holders(node) if other is not None else ()))

    async def isolate(self, node: str, op: OpId, text: str) -> NodeFacts:
        """The cordon first. It is done once the Slurm side takes no new work, too."""
        before = await self.node(node)
        if before.foreign_drain:
            return before
        facts = await super().isolate(node, op, text)
        if facts.op != op:
            return facts
        other = await self._until(node, lambda seen: seen.drained or not seen.responding)
        if other is not None and not other.drained:
            await self.slurm.isolate(node, op, text)
        return await self.node(node)

    async def release(self, node: str, op: OpId) -> NodeFacts:
        """The cordon first; the operator undrains what it drained, we what we did."""
        await super().release(node, op)
        other = await self._other(node)
        if other is not None and other.op == op:
            await self.slurm.release(node, op)
            other = await self._other(node)
        if other is not None and of_slinky(other.reason):
            other = await self._until(node, lambda seen: not seen.drained)
        if other is not None and other.drained and of_slinky(other.reason):
            raise TemporaryError(f"{node} is uncordoned, and Slurm still shows it drained ({other.reason!r})", 10.0)
        return await self.node(node)

    async def _until(self, node: str, wanted: Callable[[NodeFacts], bool]) -> NodeFacts | None:
        """The Slurm node once it is as wanted, or as it is after a while."""
        end = time.monotonic() + MIRROR
        while True:
            seen = await self._other(node)
            if seen is None or wanted(seen) or time.monotonic() > end:
                return seen
            await asyncio.sleep(LOOK)

    async def close(self) -> None:
        await asyncio.gather(super().close(), self.slurm.close())
