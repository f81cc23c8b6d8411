"""Orders to one node: isolate, release, reboot. Undone is only what carries our mark."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from activities.backends.kubernetes import marks, reboot_node
from activities.backends.kubernetes.api import KubeApi, Raw
from activities.backends.kubernetes.marks import Isolation
from activities.backends.kubernetes.nodeview import REBOOT_WITHIN
from activities.backends.kubernetes.records import NodeRecord, node_record
from activities.backends.kubernetes.view import NODES, ClusterView
from activities.backends.kubernetes.writes import patched
from activities.backends.port import GoOn, Isolations
from activities.backends.power import Power
from fleet.errors import FleetError, NotFoundError, RefusedError
from fleet.identity import op_of_reason, reason_text
from fleet.model import MARK, NodeFacts, NodeState

Taint = Mapping[str, Any]
SAME_ORDER = 60.0
"""Seconds after a reboot of ours within which another order of the same op is the same order, asked again."""
WATCHED = 10.0
"""Seconds without a word of the apiserver up to which the watched picture says what to write: an older one would make
of each node a write that is refused and a read."""
AT_ONCE = 16
"""Patches under way together: 1,000 cordons took 4.1 s one by one, 2.5 s with 16 and no less with 64 (measured on two
cores that the apiserver shares)."""


class NodeOrders:
    """Writes to nodes, each under the version that was read: taints are a list, and others write there too."""

    def __init__(self, api: KubeApi, view: ClusterView, power: Power) -> None:
        self.api = api
        self.view = view
        self.power = power

    async def _change(self, node: str, what: str, decide: Callable[[NodeRecord], Raw | None]) -> None:
        """The list of taints is atomic, also to a strategic patch: a patch must name them all, and only the version
        that it carries keeps another writer's."""
        resource = self.view.settings.gpu_resource

        def on_record(raw: Raw) -> Raw | None:
            return decide(node_record(raw, resource))

        await patched(self.api, f"{what} {node}", f"{NODES}/{node}", on_record)

    # -- isolate and release

    async def isolate(self, node: str, op: str, text: str) -> NodeFacts:
        """Cordon, our taint, and why, in one write. A cordon that stands before, a person's or another runbook's, is
        returned as it is."""
        reason = reason_text(op, text)
        did = False

        def decide(record: NodeRecord) -> Raw | None:
            nonlocal did
            patch = self._isolation(record, op, reason)
            did = did or patch is not None
            return patch

        await self._change(node, "isolate", decide)
        facts = await self.view.node(node)
        if did and facts.op == op:
            await self.tell(node, "Isolated", reason)
        return facts

    async def isolate_many(self, ops: Mapping[str, str], text: str, go_on: GoOn) -> Isolations:
        """One patch for each, some at once, made of the watched picture under the version that it shows: what has
        changed since is refused and read. Where the picture is old, or leaves a node alone, all are listed first."""
        seen = (await self.view.picture(WATCHED)).nodes
        reasons = {node: reason_text(op, text) for node, op in ops.items()}
        if any(n not in seen or self._isolation(seen[n], op, reasons[n]) is None for n, op in ops.items()):
            seen = await self.view.live_node_records()
        found: dict[str, NodeRecord | None] = {}
        waiting = iter(ops.items())

        async def take() -> None:
            for node, op in waiting:
                found[node] = await self._isolate_one(node, op, reasons[node], seen.get(node), go_on, len(found))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(take())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        marked = tuple(n for n, op in ops.items() if (r := found[n]) and r.isolation and r.isolation.op == op)
        left = {n: _why_left(record) for n, record in found.items() if n not in set(marked)}
        return Isolations(marked=marked, left=left)

    async def _isolate_one(
        self, node: str, op: str, reason: str, seen: NodeRecord | None, go_on: GoOn, done: int
    ) -> NodeRecord | None:
        """The node afterwards; None where the cluster has none of that name."""
        resource = self.view.settings.gpu_resource
        patch = self._isolation(seen, op, reason) if seen is not None else None
        if seen is None or patch is None:
            return seen

        def decide(raw: Raw) -> Raw | None:
            return self._isolation(node_record(raw, resource), op, reason)

        await go_on(done)
        try:
            what = f"isolate {node}"
            after = await patched(self.api, what, f"{NODES}/{node}", decide, ready=(seen.version, patch))
        except NotFoundError:  # deleted since
            return None
        return node_record(after, resource)

    def _isolation(self, record: NodeRecord, op: str, reason: str) -> Raw | None:
        return isolation(record, op, reason, slinky=self.view.settings.slinky)

    async def tell_isolated(self, ops: Mapping[str, str], text: str) -> None:
        """The Events of `isolate_many`: they are for people and come after everything that is for machines."""
        waiting = iter(ops.items())

        async def take() -> None:
            for node, op in waiting:
                await self.tell(node, "Isolated", reason_text(op, text))

        await asyncio.gather(*(take() for _ in range(AT_ONCE // 2)))

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

        def decide(record: NodeRecord) -> Raw | None:
            mark = record.isolation
            if mark is None or mark.op != op:
                return None
            left = [taint for taint in _in_service(record) if taint["key"] != marks.ISOLATED]
            if mark.cordoned:
                left = _not_cordoned(left)
            words = dict.fromkeys((marks.ISOLATED, marks.STATE, marks.OUT_OF_SERVICE))
            if op_of_reason(record.cordon_reason) == op:
                words[marks.CORDON_REASON] = None
            patch: Raw = {
                "metadata": {"annotations": words},
                "spec": {"taints": left or None},
            }
            if mark.cordoned:
                patch["spec"]["unschedulable"] = None
            return patch

        await self._change(node, "release", decide)

    # -- off, and known to be

    async def out_of_service(self, node: str, op: str) -> None:
        """Tells the cluster that the node is off, unless somebody has."""

        def decide(record: NodeRecord) -> Raw | None:
            if any(taint["key"] == marks.OUT_TAINT["key"] for taint in record.taints):
                return None
            return {
                "metadata": {"annotations": {marks.OUT_OF_SERVICE: op}},
                "spec": {"taints": [*record.taints, marks.OUT_TAINT]},
            }

        await self._change(node, "take out of service", decide)
        await self.tell(node, "OutOfService", reason_text(op, "its power reads off: its pods and volumes are let go"))

    async def in_service(self, node: str) -> None:
        """Takes that back, where it is ours."""

        def decide(record: NodeRecord) -> Raw | None:
            if not record.out_of_service:
                return None
            left = _in_service(record)
            return {"metadata": {"annotations": {marks.OUT_OF_SERVICE: None}}, "spec": {"taints": left or None}}

        await self._change(node, "take back into service", decide)

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
        """A power cycle by the hook, else by NVSentinel's janitor. How far it has got is written on the node: asked
        again, it goes on there."""
        facts = await self.view.node(node)
        if facts.op != op:
            owner = f"isolated by {facts.op}" if facts.op else "not isolated by this runbook"
            raise RefusedError(f"{node} is {owner}; isolate it before it is rebooted")
        mark = self.view.records[node].isolation or Isolation(op=op)
        if mark.reboot_from and mark.reboot_from != facts.boot and time.time() - mark.reboot_at < SAME_ORDER:
            return facts  # this very order: it has booted since
        asked = mark.reboot_from == facts.boot and time.time() - mark.reboot_at < REBOOT_WITHIN
        if not asked:
            janitor = (reboot_node.GROUP, reboot_node.PLURAL) in (await self.view.installed.now()).served
            if not (self.power.has_power or janitor):
                raise RefusedError(
                    "this cluster has neither a power hook nor NVSentinel's RebootNode; set `power` in fleet.yaml, "
                    "or reboot it by hand"
                )
            if not facts.responding:
                raise RefusedError(f"{node} does not answer, so nothing would end its work in order; power-cycle it")
            await self._note(node, op, reboot_from=facts.boot, reboot_at=time.time(), power_was_off=False)
            how = "power cycle ordered" if self.power.has_power else "asked NVSentinel for a RebootNode"
            await self.tell(node, "Rebooting", reason_text(op, how))
        if not self.power.has_power:
            await self._by_janitor(node, op, facts.boot)
            return await self.view.node(node)
        if not (asked and mark.power_was_off):
            await self.power.power_off(node)
            await self._note(node, op, power_was_off=True)
        await self.power.power_on(node)
        return await self.view.node(node)

    async def _by_janitor(self, node: str, op: str, boot: str) -> None:
        try:
            await reboot_node.order_reboot(self.api, node, op, boot)
        except RefusedError:
            await self._note(node, op, reboot_from="")
            raise

    async def _note(self, node: str, op: str, **fields: object) -> None:
        def decide(record: NodeRecord) -> Raw | None:
            mark = record.isolation
            if mark is None or mark.op != op:
                raise RefusedError(f"{node} lost the mark of {op} during its reboot; somebody took it away")
            text = mark.model_copy(update=fields).model_dump_json()
            return {"metadata": {"annotations": {marks.STATE: text}}} if text != mark.model_dump_json() else None

        await self._change(node, "note the reboot of", decide)


def _in_service(record: NodeRecord) -> list[Taint]:
    """The taints without the one that says that the node is off, where that is ours."""
    return [t for t in record.taints if not record.out_of_service or t["key"] != marks.OUT_TAINT["key"]]


def _not_cordoned(taints: Sequence[Taint]) -> list[Taint]:
    """The taints without the one that goes with a cordon."""
    return [t for t in taints if any(t[key] != value for key, value in marks.CORDON_TAINT.items())]


def isolation(record: NodeRecord, op: str, reason: str, *, slinky: bool = False) -> Raw | None:
    """The patch that isolates the node; None where a cordon or a mark stands already. Slinky's operator gives the
    reason to the Slurm node, unless somebody has written one for it."""
    if record.cordoned or record.isolation is not None:
        return None
    mark = Isolation(op=op, boot=record.boot, at=time.time(), gpus=record.gpus_declared, cordoned=True)
    words = {marks.ISOLATED: reason, marks.STATE: mark.model_dump_json()}
    if slinky and not record.cordon_reason:
        words[marks.CORDON_REASON] = reason
    return {
        "metadata": {"annotations": words},
        "spec": {
            "unschedulable": True,
            "taints": [
                *_not_cordoned(record.taints),
                marks.CORDON_TAINT,
                {"key": marks.ISOLATED, "value": op, "effect": "NoSchedule"},
            ],
        },
    }


def _why_left(record: NodeRecord | None) -> str:
    if record is None:
        return "the cluster has no such node"
    if record.isolation is not None:
        return f"it carries the mark of {record.isolation.op}"
    return f"drained by somebody else ({record.text or 'no reason'})"


def refuse_foreign(facts: NodeFacts, op: str) -> None:
    """Raises RefusedError when somebody else's mark keeps the node out."""
    if facts.foreign_drain:
        raise RefusedError(f"{facts.node} was cordoned by somebody else ({facts.reason!r}); they release it")
    if facts.op not in {None, op}:
        raise RefusedError(f"{facts.node} carries the mark of {facts.op}, not of {op}; that runbook releases it")


def is_free(facts: NodeFacts) -> bool:
    """Could take work now: up, answering, nothing on it, nobody's cordon."""
    return facts.state is NodeState.UP and facts.responding and not facts.drained and not facts.jobs
