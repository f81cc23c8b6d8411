"""Fence receipts: how we know that an attempt's ranks are gone from a node. Live readings only.

Strongest first: power reads off; another boot; the kubelet of the same boot, which still answers, has said that each
container of the attempt ended. A pod object that is not there proves nothing by itself (force delete, pod garbage
collection and an out-of-service taint take it away while the container runs), nor does a phase Failed that no kubelet
set, nor a node that is called lost.
"""

import asyncio

from activities.backends.kubernetes.jobview import JobRecord
from activities.backends.kubernetes.records import PodRecord
from activities.backends.kubernetes.view import ClusterView
from activities.backends.power import Power
from fleet.errors import TemporaryError
from fleet.model import NodeFacts, NodeReceipt, NodeState, Phase, ReceiptGrade
from fleet.orders import StopProof, StopQuery

END = 5.0
"""Seconds beyond a pod's grace until its kubelet has reported its end: 2.4 s measured with two ranks."""


class Proofs:
    """`prove_stopped` of one cluster."""

    def __init__(self, view: ClusterView, power: Power) -> None:
        self.view = view
        self.power = power

    async def prove(self, query: StopQuery) -> StopProof:
        record, facts = await asyncio.gather(self.view.job(query.native_id), self.view.live_nodes())
        nodes = {one.node: one for one in facts}
        receipts: list[NodeReceipt] = []
        unproven: dict[str, str] = {}
        settling: dict[str, float] = {}
        proofs = [self._prove_node(node, boot, nodes.get(node), record, query) for node, boot in query.boots.items()]
        for node, (receipt, why, wait) in zip(query.boots, await asyncio.gather(*proofs), strict=True):
            if receipt is not None:
                receipts.append(receipt)
                continue
            unproven[node] = why
            if wait is not None:
                settling[node] = wait
        return StopProof(receipts=tuple(receipts), unproven=unproven, settling=settling)

    async def _prove_node(
        self, node: str, boot: str, facts: NodeFacts | None, record: JobRecord, query: StopQuery
    ) -> tuple[NodeReceipt | None, str, float | None]:
        """A receipt; else why there is none, and the seconds after which time alone may give it."""
        if facts is None:
            return None, "the cluster does not know this node any more", None
        if boot and facts.boot and facts.boot != boot:
            detail = f"boot {boot} became {facts.boot}"
            return _receipt(facts, ReceiptGrade.BOOT_CHANGED, detail), "", None
        why, wait = self._by_kubelet(facts, record, query)
        if not why:
            return _receipt(facts, ReceiptGrade.DAEMON_GONE, "its kubelet reported each container ended"), "", None
        if self.power.has_status:
            off, cannot = await self._is_off(node)
            if off:
                return _receipt(facts, ReceiptGrade.POWER_OFF, "the power hook reads off"), "", None
            why += cannot
        return None, why, wait

    def _by_kubelet(self, facts: NodeFacts, record: JobRecord, query: StopQuery) -> tuple[str, float | None]:
        """Why its kubelet's word is no proof yet; empty when it is one."""
        job = record.job
        if job.phase is Phase.RUNNING and job.restarts <= query.restarts:
            return "the attempt still runs", None
        if facts.state is NodeState.REBOOTING:
            return "it reboots; wait for another boot", None
        if not facts.responding:
            return "its kubelet does not answer: nobody knows what runs there. Power it off or reboot it", None
        there = [p for p in record.pods if p.node == facts.node and p.generation <= query.restarts]
        living = [p.name for p in there if not p.ended]
        if living:
            return f"its kubelet has not reported the end of {', '.join(living)}", None
        wait, because = self._still_to_wait(facts, there, query)
        if wait > 0:
            return f"{because}; {wait:.0f} s more of steady answers are needed", wait
        return "", None

    def _still_to_wait(self, facts: NodeFacts, there: list[PodRecord], query: StopQuery) -> tuple[float, str]:
        """Seconds of steady answers that are missing, and why they are asked for."""
        settings = self.view.settings
        attempt = [p for p in there if p.generation == query.restarts]
        if attempt and query.ordered:
            return 0.0, ""
        steady = self.view.steadiness.since(facts.node)
        needed = settings.settle
        because = "nobody ordered this end, so the node may have been away"
        if not attempt:
            # whoever took the object away, a kubelet that lives ends the container within its grace; one that died
            # at the same moment is called silent only after a while
            grace = max((p.grace for p in there), default=30.0)
            needed = max(needed, grace + END, settings.node_down_after + END)
            because = "its pod's object is gone, which proves nothing"
        if steady is None:
            return needed, "its kubelet did not answer at the last reading"
        return max(steady, query.since) + needed - facts.read_at, because

    async def _is_off(self, node: str) -> tuple[bool, str]:
        try:
            return await self.power.is_off(node), ""
        except TemporaryError as error:
            return False, f"; its power cannot be read either ({error})"


def _receipt(facts: NodeFacts, grade: ReceiptGrade, detail: str) -> NodeReceipt:
    return NodeReceipt(node=facts.node, grade=grade, detail=detail, at=facts.read_at)
