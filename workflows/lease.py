"""`HoldLease`: the launchers of one attempt, each with a seat that it renews, until the lease is taken back.

A seat is an activity that a launcher beats by itself: each beat is a renewal, acknowledged by the server alone, so
that no worker is needed for it and no history grows. Taking the lease back cancels all seats in one transaction: from
then on each renewal is answered with the cancel. See docs/launcher.md and docs/decisions/.
"""

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities import lease_api
    from fleet.identity import RUNBOOKS_QUEUE
    from fleet.lease import ClusterLoss, LeaseLapse, LeaseState, Seat, SeatSeen, SeatState
    from fleet.ledger import Attempt
    from fleet.runbooks import LEASE_STATE, REVOKED_MEMO, VIEW, LeaseInput, Revoke, Runbook, Signal, Update, View
    from workflows.base import Book

IDLE = timedelta(minutes=10)
"""How long a lease waits for another launcher once all have left or are silent."""
BARRED = timedelta(days=30)
"""How long a lease that was taken back bars launchers of its attempt: the old cluster may come back with it."""
BATCH = 100
BETWEEN_BATCHES = timedelta(milliseconds=100)
"""Seats that are given out in one workflow task, and the time to the next ones."""
MOST_SEATS = 1900
"""Temporal allows 2,000 activities under way in one workflow; with one launcher a node that is 1,900 nodes."""


@workflow.defn(name=Runbook.LEASE)
class HoldLease(Book):
    """Begun by the first launcher; ends by itself when none is left."""

    kind = Runbook.LEASE

    @workflow.init
    def __init__(self, inp: LeaseInput) -> None:
        super().__init__()
        key = inp.key
        self.headline = f"Launchers of {key.cluster}/{key.native_id}, start {key.restarts}"
        self.seats: dict[str, SeatSeen] = {seen.seat.id: seen for seen in inp.seats}
        self.holding: dict[str, workflow.ActivityHandle[lease_api.Left]] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.waiting: list[Seat] = []
        self.revoked: Revoke | None = None
        self.revoked_at: float | None = None

    @workflow.run
    async def run(self, _inp: LeaseInput) -> LeaseState:
        self.at("held", waits="the launchers to leave")
        self.tasks.append(asyncio.create_task(self._give_out()))
        while self.revoked is None:
            await workflow.wait_condition(lambda: not self.is_used or self.revoked is not None)
            try:
                await workflow.wait_condition(
                    lambda: self.is_used or self.revoked is not None,
                    timeout=IDLE,
                    timeout_summary="then the lease ends",
                )
            except TimeoutError:
                self.at("unused")
                return self.state()
        self.at("taken back", waits="nobody; it bars launchers of this attempt")
        await workflow.sleep(BARRED, summary="bars launchers of this attempt")
        return self.state()

    @workflow.signal(name=Signal.JOIN)
    def join(self, seat: Seat) -> None:
        """A launcher wants a seat; the same one again is no news. Nobody gets one after the lease was taken back."""
        if self.revoked is not None or seat.id in self.holding or seat in self.waiting:
            return
        if len(self.holding) + len(self.waiting) >= MOST_SEATS:
            self.tell(f"{seat.node} gets no seat: {MOST_SEATS} are taken; use one launcher a node, not one a rank")
            return
        self.waiting.append(seat)

    async def _give_out(self) -> None:
        """Seats in the order in which they were asked for, not all in one workflow task: that has 10 s."""
        while self.revoked is None:
            await workflow.wait_condition(lambda: bool(self.waiting))
            batch, self.waiting = self.waiting[:BATCH], self.waiting[BATCH:]
            for seat in batch:
                self._give(seat)
            self._show_seats()
            if self.waiting:
                await workflow.sleep(BETWEEN_BATCHES, summary="before more seats are given out")

    def _give(self, seat: Seat) -> None:
        if self.revoked is not None:
            return
        self.seats[seat.id] = SeatSeen(seat=seat, state=SeatState.HELD, since=self.now())
        self.holding[seat.id] = workflow.start_activity(
            lease_api.HOLD_LEASE.name,
            lease_api.HoldIn(seat=seat),
            activity_id=seat.id,
            task_queue=RUNBOOKS_QUEUE,
            result_type=lease_api.Left,
            start_to_close_timeout=lease_api.HOLD_LEASE.start_to_close,
            heartbeat_timeout=timedelta(seconds=seat.terms.lapse_after),
            retry_policy=RetryPolicy(maximum_attempts=1),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=f"launcher on {seat.node}",
        )
        self.tasks.append(asyncio.create_task(self._follow(seat, self.holding[seat.id])))

    async def _follow(self, seat: Seat, held: workflow.ActivityHandle[lease_api.Left]) -> None:
        """Until the launcher leaves or has been silent for too long."""
        now = self.now()
        try:
            left = await held
            seen = SeatSeen(seat=seat, state=SeatState.LEFT, since=self.now(), renewed_at=self.now(), text=left.text)
            self.tell(f"{seat.node}: {left.text}")
        except ActivityError as error:
            never_began = is_cancelled_exception(error)
            seen = SeatSeen(
                seat=seat,
                state=SeatState.LEFT if never_began else SeatState.SILENT,
                since=self.now(),
                renewed_at=None if never_began else max(self.now() - seat.terms.lapse_after, now),
                text="its ranks were never started" if never_began else "",
            )
            self.tell(f"{seat.node}: {seen.text or f'silent for {seat.terms.lapse_after:.0f} s'}")
        self.seats[seat.id] = seen
        del self.holding[seat.id]
        self._show_seats()

    @workflow.update(name=Update.REVOKE, description="Takes the lease back: no renewal succeeds any more.")
    def revoke(self, order: Revoke) -> LeaseState:
        """The cancels of all seats are stored together with the answer to this."""
        if self.revoked is None:
            self.revoked, self.revoked_at = order, self.now()
            for held in self.holding.values():
                held.cancel()
            workflow.upsert_memo({REVOKED_MEMO: order.why or "no reason was given"})
            self.tell(f"taken back: {order.why or 'no reason was given'}")
        return self.state()

    @property
    def is_used(self) -> bool:
        """Somebody has a seat, or waits for one."""
        return bool(self.holding or self.waiting)

    def state(self) -> LeaseState:
        """As it is now; when a seat was renewed last, the server knows and the workflow does not."""
        return LeaseState(
            seats=tuple(self.seats.values()),
            revoked_at=self.revoked_at,
            revoked_for=self.revoked.why if self.revoked is not None else "",
        )

    def _show_seats(self) -> None:
        states = [seen.state for seen in self.seats.values()]
        self.facts["Launchers"] = ", ".join(f"{states.count(s)} {s}" for s in SeatState if s in states)
        self.show()

    @workflow.query(name=LEASE_STATE)
    def lease(self) -> LeaseState:
        """For whoever judges it."""
        return self.state()

    @workflow.query(name=VIEW)
    def view(self) -> View:
        """As `runbook describe` shows it."""
        return self.view_with(op=self.op)


async def lapse(book: Book, attempt: Attempt, *, checks_generation: bool, loss: ClusterLoss, why: str) -> LeaseLapse:
    """Takes the lease of an attempt back and waits until none of its ranks can run; asked of any runbook.

    It is not taken back, and nothing is stopped, where it could prove nothing: `refused` says why. What it proves,
    `fleet.lease.lease_receipt` judges. Raises Abandoned or StepFailed as `Book.must`.
    """
    return await book.must(
        lease_api.LAPSE_LEASE,
        lease_api.LapseIn(
            cluster=attempt.cluster, attempt=attempt, checks_generation=checks_generation, loss=loss, why=why
        ),
        summary=f"take back the lease of attempt {attempt.generation} and wait until it has lapsed",
    )
