"""`GuardCluster`: the freeze, and the leases that bound how many nodes are out at once.

`guard/fleet` holds the fleet's freeze, `guard/<cluster>` the cluster's freeze and its leases. A lease belongs to a
live workflow: one whose runbook has ended frees its slot when the next one asks.
"""

import asyncio

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities import api
    from fleet.runbooks import (
        FREEZE_MEMO,
        REFUSED,
        VIEW,
        Freeze,
        FreezeOrder,
        GuardInput,
        Lease,
        LeaseAnswer,
        LeaseWish,
        Runbook,
        Update,
        View,
    )
    from workflows.base import Book


@workflow.defn(name=Runbook.GUARD)
class GuardCluster(Book):
    """One per cluster, and one for the fleet. Runs for ever; its updates are the only way to change it."""

    kind = Runbook.GUARD

    @workflow.init
    def __init__(self, inp: GuardInput) -> None:
        super().__init__()
        self.scope = inp.scope
        self.freeze = inp.freeze
        self.leases = inp.leases
        self.granting = asyncio.Lock()
        self.headline = f"Guard of {inp.scope}"

    @workflow.run
    async def run(self, inp: GuardInput) -> None:
        self._publish()
        await workflow.wait_condition(lambda: workflow.info().is_continue_as_new_suggested())
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(
            GuardInput(scope=self.scope, freeze=self.freeze, leases=self.leases),
            memo=self._memo(),  # else the next run begins with the memo that this one was started with
        )

    def _memo(self) -> dict[str, object]:
        return {FREEZE_MEMO: self.freeze.model_dump() if self.freeze else None}

    def _publish(self) -> None:
        """Writes the freeze into the memo, where every worker reads it without asking this workflow."""
        workflow.upsert_memo(self._memo())
        self.facts["Frozen"] = f"by {self.freeze.by}: {self.freeze.reason}" if self.freeze else ""
        self.facts["Nodes out"] = ", ".join(f"{lease.node} ({lease.holder})" for lease in self.leases)
        self.at("frozen" if self.freeze else "open")

    @workflow.update(name=Update.FREEZE, description="Stops every new mutation in this scope.")
    def set_freeze(self, order: FreezeOrder) -> Freeze:
        """Keeps the first freeze's author when it is frozen already."""
        if self.freeze is None:
            self.freeze = Freeze(by=order.by, reason=order.reason, at=self.now())
            self.tell(f"frozen by {order.by}: {order.reason}")
        self._publish()
        return self.freeze

    @workflow.update(name=Update.UNFREEZE, description="Lets mutations go on.")
    def unset_freeze(self, order: FreezeOrder) -> FreezeOrder:
        """No effect when it is not frozen."""
        if self.freeze is not None:
            self.tell(f"unfrozen by {order.by}: {order.reason}")
        self.freeze = None
        self._publish()
        return order

    @set_freeze.validator
    def check_freeze(self, order: FreezeOrder) -> None:
        """A freeze without a name and a reason helps nobody at night."""
        if not order.by or not order.reason:
            raise ApplicationError("say who freezes and why: --reason TEXT", type=REFUSED)

    @workflow.update(name=Update.ACQUIRE, description="Asks for a node's lease.")
    async def acquire(self, wish: LeaseWish) -> LeaseAnswer:
        """Granted when the cluster's limit leaves room; asking again with a lease in hand is granted again."""
        async with self.granting:
            mine = [lease for lease in self.leases if lease.node == wish.node]
            if mine and mine[0].holder == wish.holder:
                return LeaseAnswer(granted=True)
            limit = (await self.act(api.READ_LIMIT, api.PolicyIn(cluster=self.scope), cluster=self.scope)).nodes_out
            if mine or len(self.leases) >= limit:
                await self._drop_dead()
                mine = [lease for lease in self.leases if lease.node == wish.node]
            if mine:
                return LeaseAnswer(granted=False, why=f"{wish.node} is out already by {mine[0].holder}")
            if len(self.leases) >= limit:
                out = ", ".join(lease.node for lease in self.leases)
                return LeaseAnswer(
                    granted=False, why=f"{len(self.leases)} of at most {limit} nodes of {self.scope} are out: {out}"
                )
            self.leases = (
                *self.leases,
                Lease(node=wish.node, holder=wish.holder, op=wish.op, since=self.now()),
            )
            self._publish()
            return LeaseAnswer(granted=True)

    @workflow.update(name=Update.RELEASE, description="Gives a node's lease back.")
    def release(self, wish: LeaseWish) -> LeaseAnswer:
        """Only the holder's own; a lease that is gone already is no error."""
        self.leases = tuple(
            lease for lease in self.leases if not (lease.node == wish.node and lease.holder == wish.holder)
        )
        self._publish()
        return LeaseAnswer(granted=False)

    async def _drop_dead(self) -> None:
        alive = await self.act(api.FIND_ALIVE, api.Alive(ids=tuple(lease.holder for lease in self.leases)))
        gone = [lease for lease in self.leases if lease.holder not in alive.ids]
        if gone:
            self.tell("freed " + ", ".join(f"{lease.node} ({lease.holder} has ended)" for lease in gone))
        self.leases = tuple(lease for lease in self.leases if lease.holder in alive.ids)

    @workflow.query(name=VIEW)
    def view(self) -> View:
        """Freeze and leases."""
        return View(
            workflow=workflow.info().workflow_id,
            kind=self.kind,
            step=self.step,
            story=self.story,
            freeze=self.freeze,
            leases=self.leases,
        )
