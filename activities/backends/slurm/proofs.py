"""Fence receipts: how we know that an attempt's ranks are gone from a node. Live readings only.

Strongest first: power reads off, the node booted again, its slurmd answers and has nothing of the job left.
DOWN is the scheduler's opinion and never a proof. Two facts of Slurm carry the last grade:

* A job leaves COMPLETING only when each node that is not DOWN has said that its part is over.
* A node that comes back has its stale ranks killed some seconds *after* it is in service again (2.3 s measured),
  and a DOWN node may look as if it answers until the next missed ping.
"""

import asyncio

from activities.backends.slurm.power import PowerHooks
from activities.backends.slurm.view import ClusterView, newer_boot
from activities.backends.steady import Steadiness
from fleet.errors import TemporaryError
from fleet.model import NativeJob, NodeFacts, NodeReceipt, NodeState, Phase, ReceiptGrade
from fleet.orders import StopProof, StopQuery


class Proofs:
    """`prove_stopped` of one cluster."""

    def __init__(self, view: ClusterView, power: PowerHooks, settle: float) -> None:
        self.view = view
        self.power = power
        self.settle = settle
        """Seconds of steady answers; raised to KillWait and three seconds by the probe."""
        self.silence = 62.0
        """Seconds after which a dead slurmd is noticed at the latest; SlurmdTimeout and 12 s from the probe."""

    async def prove(self, query: StopQuery) -> StopProof:
        nodes = {facts.node: facts for facts in await self.view.live_nodes()}
        job = (await self.view.job(query.native_id)).job
        receipts: list[NodeReceipt] = []
        unproven: dict[str, str] = {}
        settling: dict[str, float] = {}
        proofs = [self._prove_node(node, boot, nodes.get(node), job, query) for node, boot in query.boots.items()]
        for node, (receipt, why) in zip(query.boots, await asyncio.gather(*proofs), strict=True):
            if receipt is not None:
                receipts.append(receipt)
                continue
            unproven[node] = why
            if (seconds := self._settles_in(nodes.get(node), job, query)) is not None:
                settling[node] = seconds
        return StopProof(receipts=tuple(receipts), unproven=unproven, settling=settling)

    async def _prove_node(
        self, node: str, boot: str, facts: NodeFacts | None, job: NativeJob, query: StopQuery
    ) -> tuple[NodeReceipt | None, str]:
        if facts is not None and newer_boot(facts, boot):
            detail = f"boot {boot} became {facts.boot}"
            return _receipt(facts, ReceiptGrade.BOOT_CHANGED, detail), ""
        if facts is None:
            return None, "the cluster does not know this node any more"
        why = attempt_lives(job, query) or daemon_silent(facts) or self._not_settled(facts, query)
        if not why:
            return _receipt(facts, ReceiptGrade.DAEMON_GONE, f"slurmd answers, the job is {job.phase}"), ""
        if self.power.has_status:
            off, cannot = await self._is_off(node)
            if off:
                return _receipt(facts, ReceiptGrade.POWER_OFF, "the power hook reads off"), ""
            why += cannot
        return None, why

    def _not_settled(self, facts: NodeFacts, query: StopQuery) -> str:
        wait, because = self.still_to_wait(facts, query)
        return f"{because}; {wait:.0f} s more of steady answers are needed" if wait > 0 else ""

    def _settles_in(self, facts: NodeFacts | None, job: NativeJob, query: StopQuery) -> float | None:
        """Seconds after which time alone proves the node; None where somebody must act, a DOWN node included."""
        if facts is None or facts.state is NodeState.DOWN or attempt_lives(job, query) or daemon_silent(facts):
            return None
        return self.still_to_wait(facts, query)[0]

    async def _is_off(self, node: str) -> tuple[bool, str]:
        try:
            return await self.power.is_off(node), ""
        except TemporaryError as error:
            return False, f"; its power cannot be read either ({error})"

    def still_to_wait(self, facts: NodeFacts, query: StopQuery) -> tuple[float, str]:
        """Seconds of steady answers that are missing, and why they are asked for."""
        memory: Steadiness = self.view.steadiness
        steady = memory.since(facts.node)
        if steady is None:
            return self.settle, "its slurmd did not answer at the last reading"
        bad_at = memory.bad_at(facts.node)
        if facts.state is NodeState.DOWN:
            needed = self.settle if bad_at is not None else max(self.settle, self.silence)
            begin = steady if query.ordered else max(steady, query.since)
            return begin + needed - facts.read_at, "Slurm has it DOWN, and its slurmd answers"
        if not query.ordered:
            begin = max(steady, query.since)
            return begin + self.settle - facts.read_at, "nobody ordered this end, so the node may have been away"
        if bad_at is not None and bad_at >= query.since - self.silence:
            return steady + self.settle - facts.read_at, "its slurmd did not answer for a while"
        return 0.0, ""


def attempt_lives(job: NativeJob, query: StopQuery) -> str:
    """Why the attempt may still live by the job's own state; empty when it is over."""
    if job.phase is Phase.STOPPING:
        return "the job is COMPLETING: a node has not said yet that its part is over"
    if job.phase is Phase.RUNNING and job.restarts <= query.restarts:
        return "the attempt still runs"
    return ""


def daemon_silent(facts: NodeFacts) -> str:
    """Why the node's daemon proves nothing; empty when it answers."""
    if facts.state is NodeState.REBOOTING:
        return "it reboots; wait for the newer boot"
    if not facts.responding:
        opinion = "Slurm has it DOWN, which is an opinion; " if facts.state is NodeState.DOWN else ""
        return f"{opinion}its slurmd does not answer: nobody knows what runs there. Power it off or reboot it"
    return ""


def _receipt(facts: NodeFacts, grade: ReceiptGrade, detail: str) -> NodeReceipt:
    return NodeReceipt(node=facts.node, grade=grade, detail=detail, at=facts.read_at)
