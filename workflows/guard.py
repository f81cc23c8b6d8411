"""`GuardCluster`: the freeze, the leases that bound how many nodes are out at once, and waves of faulty nodes.

`guard/fleet` holds the fleet's freeze, `guard/<cluster>` the cluster's freeze, its leases and its waves
(`workflows/wave.py`). A lease belongs to a live workflow: one whose runbook has ended frees its slot when the next
one asks.
"""

import asyncio

from temporalio import workflow
from temporalio.exceptions import ApplicationError, is_cancelled_exception

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
        Signal,
        Update,
        View,
    )
    from fleet.waves import DropOrder, Dropped, WaveOrder
    from workflows.wave import Waves


@workflow.defn(name=Runbook.GUARD)
class GuardCluster(Waves):
    """One per cluster, and one for the fleet. Runs for ever; people change it by updates, a watch begins a wave."""

    @workflow.init
    def __init__(self, inp: GuardInput) -> None:
        super().__init__(inp)
        self.freeze = inp.freeze
        self.granting = asyncio.Lock()
        self.headline = f"Guard of {inp.scope}"

    @workflow.run
    async def run(self, inp: GuardInput) -> None:
        self._publish()
        self.show_wave()
        try:
            await self.serve()
            await workflow.wait_condition(workflow.all_handlers_finished)
        except BaseException as error:
            if is_cancelled_exception(error):
                self.leaving = True
                self.leave()
            raise
        workflow.continue_as_new(
            GuardInput(
                scope=self.scope,
                freeze=self.freeze,
                leases=self.leases,
                waves=self.carried(),
                wave_count=self.count,
                waves_taken=self.waves_taken,
                questions=self.questions,
            ),
            memo=self._memo(),  # else the next run begins with the memo that this one was started with
        )

    def _memo(self) -> dict[str, object]:
        return {FREEZE_MEMO: self.freeze.model_dump() if self.freeze else None}

    def _publish(self) -> None:
        """Writes the freeze into the memo, where every worker reads it without asking this workflow."""
        workflow.upsert_memo(self._memo())
        self.facts["Frozen"] = f"by {self.freeze.by}: {self.freeze.reason}" if self.freeze else ""
        self.facts["Nodes out"] = ", ".join(f"{lease.node} ({lease.holder})" for lease in self.leases)
        if self.question is None or self.question.done():  # else the page says what is asked
            self.at("frozen" if self.freeze else "open")
        else:
            self.show()

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
                return self.hand_over(wish.node)
            if wish.node in self.in_hand and wish.node in self.entries:
                return LeaseAnswer(granted=False, why="a wave isolates it just now")
            limit = (await self.act(api.READ_LIMIT, api.PolicyIn(cluster=self.scope), cluster=self.scope)).nodes_out
            if mine or len(self.leases) >= limit:
                await self.look_after()
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
            answer = self.hand_over(wish.node)
            self._publish()
            return answer

    @workflow.update(name=Update.RELEASE, description="Gives a node's lease back.")
    def release(self, wish: LeaseWish) -> LeaseAnswer:
        """Only the holder's own; a lease that is gone already is no error."""
        self.leases = tuple(
            lease for lease in self.leases if not (lease.node == wish.node and lease.holder == wish.holder)
        )
        self.finish(wish.node)
        self.news = True  # there is room for another one
        self._publish()
        return LeaseAnswer(granted=False)

    @workflow.signal(name=Signal.WAVE)
    def wave(self, order: WaveOrder) -> None:
        """Many nodes that failed at once, judged already."""
        self.take_in(order)

    @workflow.update(name=Update.DROP, description="Takes nodes out of the waves under way.")
    async def drop(self, order: DropOrder) -> Dropped:
        """Nothing more is done about them; a mark that is on a node stays until it is released."""
        return await self.take_out(order)

    @workflow.query(name=VIEW)
    def view(self) -> View:
        """Freeze, leases and waves."""
        return self.view_with(
            freeze=self.freeze,
            leases=self.leases,
            wave=self.count if self.count.nodes else None,
        )
