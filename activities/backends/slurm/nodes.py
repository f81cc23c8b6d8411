"""Orders to one node: isolate, reboot, release, and the maintenance reservation that keeps other work away.

One node a call: Slurm carries out half of a list with an unknown name. Undone is only what carries our mark.
"""

import os
import pwd

from activities.backends.slurm.commands import Commands, Finished
from activities.backends.slurm.marks import op_of_reservation, reservation_name
from activities.backends.slurm.reads import Reservation
from activities.backends.slurm.view import ClusterView, newer_boot
from activities.backends.slurm.writes import read_back
from fleet.errors import RefusedError
from fleet.identity import op_of_reason, reason_text
from fleet.model import NodeFacts, NodeState

UP_WITHIN = 30.0
"""Seconds until a resumed node answers: 0.2 to 0.3 s measured, later if its ping is due later."""
_REBOOTS = frozenset({"REBOOT_REQUESTED", "REBOOT_ISSUED"})


class NodeOrders:
    """Writes to nodes."""

    def __init__(self, commands: Commands, view: ClusterView) -> None:
        self.commands = commands
        self.view = view
        self.can_reboot: bool | None = None
        """Whether the cluster has a RebootProgram; None until the probe has looked."""

    @property
    def seconds(self) -> float:
        return self.commands.settings.read_back

    # -- isolate and release

    async def isolate(self, node: str, op: str, text: str) -> NodeFacts:
        """A drain that stands before, a person's or another runbook's, is returned as it is: Slurm would let the
        last writer win. A DOWN node is drained at once, or it would come back into service by itself."""
        facts = await self.view.node(node)
        if facts.drained or facts.op not in {None, op}:
            return facts
        done = await self.commands.run(
            "scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason_text(op, text)}"
        )
        return await read_back(
            f"isolate {node}",
            done,
            lambda: self.view.node(node),
            lambda f: f.drained and "DRAIN" in self.view.records[node].flags,
            self.seconds,
        )

    async def release(self, node: str, op: str) -> NodeFacts:
        """Back into service, the reservation last: until then no work can land on it."""
        facts = await self.view.node(node)
        refuse_foreign(facts, op)
        mine = [r for r in await self._ours_over(node) if op_of_reservation(r.name) == op]
        if facts.op != op and not mine:
            return facts
        if not facts.responding and facts.drained:
            raise RefusedError(f"{node} does not answer; it is released once its slurmd does (start or reboot it)")
        await self.put_in_service(facts)
        for reservation in mine:
            await self.delete_reservation(reservation.name)
        return await self.view.node(node)

    async def put_in_service(self, facts: NodeFacts) -> NodeFacts:
        """UNDRAIN leaves the base state as it is; only DOWN needs RESUME. After either, the node has to register
        again before it takes work; one that somebody just resumed is only waited for."""
        node = facts.node
        if facts.state is NodeState.UP and facts.responding:
            return facts
        done = Finished(rc=0, out="", err="")
        if facts.state is not NodeState.UP:
            state = "RESUME" if facts.state is NodeState.DOWN else "UNDRAIN"
            done = await self.commands.run("scontrol", "update", f"NodeName={node}", f"State={state}")
        return await read_back(
            f"release {node}",
            done,
            lambda: self.view.node(node),
            lambda f: f.state is NodeState.UP and f.responding and not f.drained,
            UP_WITHIN,
        )

    async def undrain(self, facts: NodeFacts) -> NodeFacts:
        """Takes only the drain away and waits for nothing else: for a node that does not answer."""
        node = facts.node
        done = await self.commands.run("scontrol", "update", f"NodeName={node}", "State=UNDRAIN")
        return await read_back(
            f"undrain {node}",
            done,
            lambda: self.view.node(node),
            lambda f: "DRAIN" not in self.view.records[node].flags,
            self.seconds,
        )

    # -- reboot

    async def reboot(self, node: str, op: str) -> NodeFacts:
        """`reboot ASAP nextstate=down` inside our reservation: the node comes back into no work."""
        facts = await self.view.node(node)
        if facts.op != op:
            owner = f"isolated by {facts.op}" if facts.op else "not isolated by this runbook"
            raise RefusedError(f"{node} is {owner}; isolate it before it is rebooted")
        if self.view.records[node].flags & _REBOOTS:
            return facts
        if not facts.responding:
            raise RefusedError(f"{node} does not answer, so `scontrol reboot` would do nothing; power-cycle it")
        if self.can_reboot is False:
            raise RefusedError("this cluster has no RebootProgram; reboot the node by its power hook or by hand")
        await self.reserve(node, op)
        reason = facts.reason if op_of_reason(facts.reason) == op else reason_text(op, "reboot")
        done = await self.commands.run("scontrol", "reboot", "ASAP", "nextstate=down", f"reason={reason}", node)
        return await read_back(
            f"reboot {node}",
            done,
            lambda: self.view.node(node),
            lambda f: bool(self.view.records[node].flags & _REBOOTS) or newer_boot(f, facts.boot),
            self.seconds,
        )

    # -- reservations

    async def reserve(self, node: str, op: str) -> None:
        """A maintenance reservation that only we may use, named after the op."""
        name = reservation_name(op)
        if node in await self._covered_by(name):
            return
        user = pwd.getpwuid(os.getuid()).pw_name
        done = await self.commands.run(
            "scontrol",
            "create",
            "reservation",
            f"ReservationName={name}",
            "StartTime=now",
            "Duration=infinite",
            "Flags=MAINT,IGNORE_JOBS",
            f"Users={user}",
            f"Nodes={node}",
        )
        await read_back(
            f"reserve {node}", done, lambda: self._covered_by(name), lambda nodes: node in nodes, self.seconds
        )

    async def delete_reservation(self, name: str) -> None:
        done = await self.commands.run("scontrol", "delete", f"ReservationName={name}")
        await read_back(
            f"delete the reservation {name}",
            done,
            self.view.reads.list_reservations,
            lambda found: name not in {r.name for r in found},
            self.seconds,
        )

    async def _covered_by(self, name: str) -> tuple[str, ...]:
        return next((r.nodes for r in await self.view.reads.list_reservations() if r.name == name), ())

    async def _ours_over(self, node: str) -> list[Reservation]:
        found = await self.view.reads.list_reservations()
        return [r for r in found if node in r.nodes and op_of_reservation(r.name) is not None]


def refuse_foreign(facts: NodeFacts, op: str) -> None:
    """Raises RefusedError when somebody else's mark keeps the node out."""
    if facts.foreign_drain:
        raise RefusedError(f"{facts.node} was drained by somebody else ({facts.reason!r}); they release it")
    if facts.op not in {None, op}:
        raise RefusedError(f"{facts.node} carries the mark of {facts.op}, not of {op}; that runbook releases it")
