"""Orders to one node: isolate, release, reboot. Undone is only what carries our mark."""

import time
from collections.abc import Callable

from activities.backends.kubernetes import marks
from activities.backends.kubernetes.api import KubeApi, Raw
from activities.backends.kubernetes.marks import Isolation
from activities.backends.kubernetes.nodeview import REBOOT_WITHIN
from activities.backends.kubernetes.records import NodeRecord, node_record
from activities.backends.kubernetes.view import ClusterView
from activities.backends.kubernetes.writes import patched
from activities.backends.power import Power
from fleet.errors import FleetError, RefusedError
from fleet.identity import reason_text
from fleet.model import MARK, NodeFacts, NodeState

SAME_ORDER = 60.0
"""Seconds after a reboot of ours within which another order of the same op is the same order, asked again."""


class NodeOrders:
    """Writes to nodes, each under the version that was read: taints are a list, and others write there too."""

    def __init__(self, api: KubeApi, view: ClusterView, power: Power) -> None:
        self.api = api
        self.view = view
        self.power = power

    async def _change(self, node: str, what: str, decide: Callable[[NodeRecord, list[Raw]], Raw | None]) -> None:
        """`decide` gets the node and its taints. The list is atomic, also to a strategic patch: a patch must name
        them all, and only the version that it carries keeps another writer's."""
        resource = self.view.settings.gpu_resource

        def on_record(raw: Raw) -> Raw | None:
            return decide(node_record(raw, resource), raw.get("spec", {}).get("taints") or [])

        await patched(self.api, f"{what} {node}", f"/api/v1/nodes/{node}", on_record)

    # -- isolate and release

    async def isolate(self, node: str, op: str, text: str) -> NodeFacts:
        """Cordon, our taint, and why, in one write. A cordon that stands before, a person's or another runbook's, is
        returned as it is."""
        reason = reason_text(op, text)
        did = False

        def decide(record: NodeRecord, taints: list[Raw]) -> Raw | None:
            nonlocal did
            if record.cordoned or record.isolation is not None:
                return None
            did = True
            mark = Isolation(op=op, boot=record.boot, at=time.time(), gpus=record.gpus_declared, cordoned=True)
            return {
                "metadata": {"annotations": {marks.ISOLATED: reason, marks.STATE: mark.model_dump_json()}},
                "spec": {
                    "unschedulable": True,
                    "taints": [*taints, {"key": marks.ISOLATED, "value": op, "effect": "NoSchedule"}],
                },
            }

        await self._change(node, "isolate", decide)
        facts = await self.view.node(node)
        if did and facts.op == op:
            await self.tell(node, "Isolated", reason)
        return facts

    async def release(self, node: str, op: str) -> NodeFacts:
        """Back into service. What others put there meanwhile stays."""
        facts = await self.view.node(node)
        refuse_foreign(facts, op)
        if facts.op != op:
            return facts
        if not facts.responding:
            raise RefusedError(f"{node} does not answer; it is released once its kubelet does (start or reboot it)")
        await self.unmark(node, op)
        await self.tell(node, "Released", f"{MARK}:{op}: back in service")
        return await self.view.node(node)

    async def unmark(self, node: str, op: str) -> None:
        """Takes our mark away, and the cordon where it is ours."""

        def decide(record: NodeRecord, taints: list[Raw]) -> Raw | None:
            mark = record.isolation
            if mark is None or mark.op != op:
                return None
            left = [taint for taint in taints if taint["key"] != marks.ISOLATED]
            patch: Raw = {
                "metadata": {"annotations": {marks.ISOLATED: None, marks.STATE: None}},
                "spec": {"taints": left or None},
            }
            if mark.cordoned:
                patch["spec"]["unschedulable"] = None
            return patch

        await self._change(node, "release", decide)

    async def tell(self, node: str, reason: str, text: str) -> None:
        """An Event for `kubectl describe node`. It is for people: one that cannot be written stops nothing."""
        record = self.view.records.get(node)
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{node}.", "namespace": "default"},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Node",
                "name": node,
                "uid": record.uid if record else node,
            },
            "reason": reason,
            "message": text[:1000],
            "type": "Normal" if reason == "Released" else "Warning",
            "source": {"component": MARK},
            "reportingComponent": MARK,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self.api.write("POST", "/api/v1/namespaces/default/events", event)
        except FleetError:
            return

    # -- reboot

    async def reboot(self, node: str, op: str) -> NodeFacts:
        """A power cycle by the hook. How far it has got is written on the node: asked again, it goes on there."""
        facts = await self.view.node(node)
        if facts.op != op:
            owner = f"isolated by {facts.op}" if facts.op else "not isolated by this runbook"
            raise RefusedError(f"{node} is {owner}; isolate it before it is rebooted")
        mark = self.view.records[node].isolation or Isolation(op=op)
        if mark.reboot_from and mark.reboot_from != facts.boot and time.time() - mark.reboot_at < SAME_ORDER:
            return facts  # this very order: it has booted since
        asked = mark.reboot_from == facts.boot and time.time() - mark.reboot_at < REBOOT_WITHIN
        if not asked:
            if not self.power.has_power:
                raise RefusedError("this cluster has no power hook; set `power` in fleet.yaml, or reboot it by hand")
            if not facts.responding:
                raise RefusedError(f"{node} does not answer, so nothing would end its work in order; power-cycle it")
            await self._note(node, op, reboot_from=facts.boot, reboot_at=time.time(), power_was_off=False)
            await self.tell(node, "Rebooting", reason_text(op, "power cycle ordered"))
        if not (asked and mark.power_was_off):
            await self.power.power_off(node)
            await self._note(node, op, power_was_off=True)
        await self.power.power_on(node)
        return await self.view.node(node)

    async def _note(self, node: str, op: str, **fields: object) -> None:
        def decide(record: NodeRecord, _: list[Raw]) -> Raw | None:
            mark = record.isolation
            if mark is None or mark.op != op:
                raise RefusedError(f"{node} lost the mark of {op} during its reboot; somebody took it away")
            text = mark.model_copy(update=fields).model_dump_json()
            return {"metadata": {"annotations": {marks.STATE: text}}} if text != mark.model_dump_json() else None

        await self._change(node, "note the reboot of", decide)


def refuse_foreign(facts: NodeFacts, op: str) -> None:
    """Raises RefusedError when somebody else's mark keeps the node out."""
    if facts.foreign_drain:
        raise RefusedError(f"{facts.node} was cordoned by somebody else ({facts.reason!r}); they release it")
    if facts.op not in {None, op}:
        raise RefusedError(f"{facts.node} carries the mark of {facts.op}, not of {op}; that runbook releases it")


def is_free(facts: NodeFacts) -> bool:
    """Could take work now: up, answering, nothing on it, nobody's cordon."""
    return facts.state is NodeState.UP and facts.responding and not facts.drained and not facts.jobs
