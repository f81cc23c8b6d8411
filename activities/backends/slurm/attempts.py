"""Starting the next attempt of a stopped, held job. Each command may be the last one before a crash: asked again,
the order reads where the job stands and does the rest."""

import asyncio
import time

from activities.backends.slurm.jobs import JobOrders
from activities.backends.slurm.normalise import JobRecord
from activities.backends.slurm.outcomes import Outcome
from activities.backends.slurm.writes import read_back
from fleet.errors import NotFoundError, RefusedError, TemporaryError
from fleet.model import NativeJob, Phase
from fleet.orders import StartOrder

TOP = 4294967290
"""Highest priority that is ordered; Slurm keeps the last few numbers of 32 bits for itself."""


SAME_SECOND = 1.1
"""Seconds. slurmd refuses a credential made in the same second as the job's kill ("already killed, do not launch
batch job", whole seconds of the controller's clock; 2 of 3 restarts on an idle machine) and Slurm then calls the
job FAILED with exit code 1. Its own requeue delay hides that; we drop the delay, so a second has to pass since the
job was first seen waiting."""


class Attempts:
    """`start_attempt` and `settle_attempt`."""

    def __init__(self, orders: JobOrders) -> None:
        self.orders = orders
        self.commands = orders.commands
        self.view = orders.view

    async def start(self, order: StartOrder) -> NativeJob:
        """Excludes, pins, releases, moves to the front, drops the requeue delay: in this order, for `release` gives
        a new lower priority, a held job takes none, and once released it may start at any moment."""
        record = await self.view.known_job(order.native_id)
        if self._running_already(record, order):
            return record.job
        _refuse_persons_hold(record)
        await self._refuse_unknown(order)
        record = await self.orders.exclude(record, tuple(n for n in order.exclude if n not in order.require))
        record = await (self.orders.pin(record, order.require) if order.require else self._free(record, order))
        await self._next_second(record)
        record = await self._release(record)
        _refuse_forgotten(record, order)
        if record.job.phase is Phase.PENDING and order.front:
            record = await self._front(record)
            _refuse_forgotten(record, order)
        if record.job.phase is Phase.PENDING:
            await self._now(record)
        return (await self.view.known_job(order.native_id)).job

    def _running_already(self, record: JobRecord, order: StartOrder) -> bool:
        """True when this very order was carried out. Raises RefusedError when somebody else moved the job."""
        job = record.job
        if job.phase.ended:
            raise RefusedError(f"job {job.native_id} has ended ({job.phase}); it is not started again")
        if job.restarts != order.restarts:
            raise RefusedError(
                f"job {job.native_id} is at restart {job.restarts}, the order was made at {order.restarts}: "
                "somebody else moved it; look at it again"
            )
        if job.phase is Phase.STOPPING:
            raise RefusedError(f"job {job.native_id} is still stopping; wait until it is pending")
        return job.phase is Phase.RUNNING

    async def _refuse_unknown(self, order: StartOrder) -> None:
        """Slurm takes `a5,a99` half; so every name is known before the first write."""
        names = {facts.node for facts in await self.view.nodes(60.0)}
        unknown = [node for node in (*order.exclude, *order.require) if node not in names]
        if unknown:
            raise NotFoundError(f"{self.view.cluster} has no node {', '.join(unknown)}")
        both = set(order.exclude) & set(order.require)
        if both:
            raise RefusedError(f"the order requires and excludes {', '.join(sorted(both))}")

    async def _free(self, record: JobRecord, order: StartOrder) -> JobRecord:
        return await self.orders.unpin(record, avoid=tuple(record.job.excluded))

    async def _next_second(self, record: JobRecord) -> None:
        """Waits until the new attempt cannot start in the second in which the old one was ended."""
        seen = self.view.waits_since(record)
        if seen is not None:
            await asyncio.sleep(max(0.0, seen + SAME_SECOND - time.monotonic()))

    async def _release(self, record: JobRecord) -> JobRecord:
        if not record.job.held:
            return record
        job_id = record.job.native_id
        done = await self.commands.run("scontrol", "release", job_id)
        return await read_back(
            f"release job {job_id}",
            done,
            lambda: self.view.known_job(job_id),
            lambda r: not r.job.held,
            self.orders.seconds,
        )

    async def _front(self, record: JobRecord) -> JobRecord:
        """One above every waiting job. Not being allowed to costs time only, so it does not stop the start."""
        others = [
            r.job.priority or 0
            for r in await self.view.live_jobs()
            if r.job.phase is Phase.PENDING and r.job.native_id != record.job.native_id
        ]
        wanted = min(max(others, default=0) + 1, TOP)
        if (record.job.priority or 0) >= wanted:
            return record
        job_id = record.job.native_id
        done = await self.commands.run("scontrol", "update", f"JobId={job_id}", f"Priority={wanted}")
        if done.outcome is Outcome.DENIED:
            return record
        return await read_back(
            f"move job {job_id} to the front",
            done,
            lambda: self.view.known_job(job_id),
            lambda r: (r.job.priority or 0) >= wanted or r.job.phase is not Phase.PENDING,
            self.orders.seconds,
        )

    async def _now(self, record: JobRecord) -> None:
        """Drops Slurm's own wait after a requeue (121 s by default); the receipt made it needless, and
        `_next_second` stood in for what it does beside (25.11's `release` drops it already)."""
        job_id = record.job.native_id
        before = record.job.eligible_at
        done = await self.commands.run("scontrol", "update", f"JobId={job_id}", "StartTime=now")
        await read_back(
            f"start job {job_id} now",
            done,
            lambda: self.view.known_job(job_id),
            lambda r: (
                r.job.phase is not Phase.PENDING
                or r.job.eligible_at != before
                or (done.outcome is Outcome.DONE and r.job.reason != "BeginTime")
            ),
            self.orders.seconds,
        )

    async def settle(self, native_id: str) -> NativeJob:
        """Holds the running attempt again. Our pin is only forgotten by what we report: Slurm cannot clear
        ReqNodeList on a running job, so the next start takes it away before it releases."""
        record = await self.view.known_job(native_id)
        if record.job.phase is not Phase.RUNNING:
            raise RefusedError(f"job {native_id} is {record.job.phase}; it is settled once it runs")
        job = (await self.orders.hold_record(record)).job
        if job.phase is not Phase.RUNNING:  # a controller that died has lost the start
            raise TemporaryError(f"job {native_id} is {job.phase} again; it is looked at again", delay=1.0)
        return job


def _refuse_forgotten(record: JobRecord, order: StartOrder) -> None:
    """A controller that died has lost the stop; nothing was started yet, for Slurm's requeue delay still stood."""
    if record.job.restarts < order.restarts:
        raise RefusedError(
            f"the controller forgot the stop of job {order.native_id}: it is at restart {record.job.restarts} again"
        )


def _refuse_persons_hold(record: JobRecord) -> None:
    """A hold without our mark and without a reason of Slurm's own (a failed launch) is a person's stop."""
    job = record.job
    if job.held and not record.marks.held and job.reason in {"JobHeldUser", "JobHeldAdmin"}:
        raise RefusedError(f"job {job.native_id} is held by a person; `scontrol release {job.native_id}` ends that")
