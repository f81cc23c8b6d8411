"""`SimBackend`: the port over a simulated world. It behaves as the real schedulers were seen to behave.

All times that it gives and takes are in the world's clock, which runs `time_scale` times as fast as the wall.
"""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TypeVar

from activities.backends.dumps import read_dumps_below
from activities.backends.one_by_one import isolate_each
from activities.backends.port import Change, Dumps, GoOn, Isolations
from activities.backends.sim import jobs, nodes
from activities.backends.sim.attempts import read_log, read_progress
from activities.backends.sim.engine import advance, settle
from activities.backends.sim.scheduler import free_nodes
from activities.backends.sim.settings import SimSettings
from activities.backends.sim.store import Store, Tx
from fleet.errors import AmbiguousError, FleetError, InvalidInputError, NotFoundError, TemporaryError
from fleet.evacuation import EvacuationOrder, EvacuationState
from fleet.identity import parse_tokens
from fleet.model import (
    Capacity,
    CheckResult,
    ClusterFacts,
    NativeJob,
    NodeFacts,
    NodeReceipt,
    OpId,
    Phase,
    Progress,
    Room,
)
from fleet.orders import AdoptedJob, JobSpec, StartOrder, StopProof, StopQuery

T = TypeVar("T")
WATCH_EVERY = 0.5
"""Simulated seconds between two looks of the watch, but at least `WATCH_LEAST` real ones."""
WATCH_LEAST = 0.05
HANG_MOST = 0.25
"""Real seconds that a call to a frozen controller hangs at most, so that tests stay quick."""


class SimBackend:
    """One cluster of a world file. Safe in several processes at once; needs no daemon."""

    kind = "sim"
    has_power = True

    def __init__(self, cluster: str, settings: SimSettings) -> None:
        self.cluster = cluster
        self._settings = settings
        self._store = Store(settings.path)
        self._scale = 1.0
        self._jobs: tuple[float, tuple[NativeJob, ...]] | None = None
        self._nodes: tuple[float, tuple[NodeFacts, ...]] | None = None

    # -- how every call runs

    async def _read(self, fn: Callable[[Tx], T]) -> T:
        return await asyncio.to_thread(self._attempt, fn, "")

    async def _write(self, op: str, fn: Callable[[Tx], T]) -> T:
        self._jobs = self._nodes = None
        return await asyncio.to_thread(self._attempt, fn, op)

    async def _beside(self, fn: Callable[[Tx], T]) -> T:
        """For what needs no controller: files and the power control."""
        return await asyncio.to_thread(self._attempt, fn, None)

    def _attempt(self, fn: Callable[[Tx], T], op: str | None) -> T:
        """One transaction. `op`: name of a write, "" for a read, None for what the controller has no part in."""
        lost = False
        try:
            with self._store.operate(self.cluster) as tx:
                self._scale = tx.scale
                advance(tx)
                if op is None or tx.controller == "up":
                    result = fn(tx)
                    settle(tx)
                    lost = bool(op) and _answer_is_lost(tx, str(op))
                    if not lost:
                        return result
                elif op and tx.controller == "frozen":
                    _happens_anyway(tx, fn)
                    lost = True
                controller, hang = tx.controller, min(HANG_MOST, tx.shape.message_timeout / tx.scale)
        except sqlite3.OperationalError as error:
            raise TemporaryError(f"the world's file could not be used ({error}); trying again") from error
        if controller != "up":
            time.sleep(hang)
        if lost:
            raise AmbiguousError(f"the answer to {op} on {self.cluster} was lost; read it back before a retry")
        raise TemporaryError(f"the controller of {self.cluster} does not answer ({controller}); trying again")

    # -- reads

    async def probe(self) -> ClusterFacts:
        promised = self._settings.time_scale

        def look(tx: Tx) -> ClusterFacts:
            if promised is not None and promised != tx.scale:
                raise InvalidInputError(
                    f"the world runs at time_scale {tx.scale}, configured is {promised}; set the same or leave it out"
                )
            shape = tx.shape
            return ClusterFacts(
                cluster=tx.cluster,
                kind=self.kind,
                version="sim 1",
                node_down_after=shape.node_down_after,
                stop_takes=shape.kill_wait + 3,
                requeue_delay=shape.requeue_delay,
                reboot_timeout=shape.boot_timeout,
            )

        return await self._read(look)

    async def jobs(self, max_age: float = 2.0) -> tuple[NativeJob, ...]:
        kept = self._jobs
        if kept is not None and (time.monotonic() - kept[0]) * self._scale < max_age:
            return kept[1]
        read_from = time.monotonic()
        found = await self._read(_all_jobs)
        self._jobs = (read_from, found)
        return found

    async def nodes(self, max_age: float = 2.0) -> tuple[NodeFacts, ...]:
        kept = self._nodes
        if kept is not None and (time.monotonic() - kept[0]) * self._scale < max_age:
            return kept[1]
        read_from = time.monotonic()
        found = await self._read(nodes.read_all)
        self._nodes = (read_from, found)
        return found

    async def job(self, native_id: str) -> NativeJob:
        def look(tx: Tx) -> NativeJob:
            try:
                return jobs.view(tx, jobs.find(tx, native_id))
            except NotFoundError:
                return NativeJob(cluster=tx.cluster, native_id=native_id, name="", phase=Phase.ABSENT)

        return await self._read(look)

    async def node(self, node: str) -> NodeFacts:
        return await self._read(lambda tx: nodes.read(tx, node))

    async def capacity(self) -> Capacity:
        def look(tx: Tx) -> Capacity:
            total = tx.value("select count(*) from nodes where cluster = ?", tx.cluster)
            return Capacity(cluster=tx.cluster, free_nodes=tuple(free_nodes(tx)), total_nodes=total, read_at=tx.now)

        return await self._read(look)

    async def room(self) -> Room:
        return await self._read(nodes.read_room)

    async def progress(self, native_id: str, restarts: int) -> Progress:
        def look(tx: Tx) -> Progress:
            try:
                return read_progress(tx, jobs.find(tx, native_id), restarts)
            except NotFoundError:
                return Progress()

        return await self._beside(look)

    async def log_tail(self, native_id: str, lines: int = 100) -> tuple[str, ...]:
        def look(tx: Tx) -> tuple[str, ...]:
            try:
                return read_log(tx, jobs.find(tx, native_id), lines)
            except NotFoundError:
                return ()

        return await self._beside(look)

    async def dumps(self, native_id: str, since: float) -> Dumps:
        """Of real files beside the world's own, for its trainings are only told."""

        def look(tx: Tx) -> str | None:
            try:
                return parse_tokens(jobs.find(tx, native_id)["comment"]).dumps
            except NotFoundError:
                return None

        folder = await self._beside(look)
        roots = (str(self._settings.path.parent),)
        return await asyncio.to_thread(read_dumps_below, folder, roots, since) if folder else Dumps()

    # -- a job

    async def submit(self, spec: JobSpec) -> NativeJob:
        return await self._write("submit", lambda tx: jobs.submit(tx, spec))

    async def try_submit(self, spec: JobSpec) -> tuple[str, ...]:
        def look(tx: Tx) -> tuple[str, ...]:
            try:
                jobs.plan_for(tx, spec)
            except InvalidInputError as error:
                return (str(error),)
            return ()

        return await self._read(look)

    async def adopt(self, native_id: str) -> AdoptedJob:
        return await self._write("adopt", lambda tx: jobs.adopt(tx, native_id))

    async def hold(self, native_id: str) -> NativeJob:
        return await self._write("hold", lambda tx: jobs.hold(tx, native_id))

    async def give_back(self, native_id: str) -> NativeJob:
        return await self._write("give_back", lambda tx: jobs.give_back(tx, native_id))

    async def request_checkpoint(self, native_id: str, signal: str) -> None:
        await self._write("request_checkpoint", lambda tx: jobs.request_checkpoint(tx, native_id, signal))

    async def stop(self, native_id: str, restarts: int) -> NativeJob:
        return await self._write("stop", lambda tx: jobs.stop(tx, native_id, restarts))

    async def prove_stopped(self, query: StopQuery) -> StopProof:
        return await self._read(lambda tx: nodes.prove_stopped(tx, query))

    async def start_attempt(self, order: StartOrder) -> NativeJob:
        return await self._write("start_attempt", lambda tx: jobs.start_attempt(tx, order))

    async def settle_attempt(self, native_id: str) -> NativeJob:
        return await self._write("settle_attempt", lambda tx: jobs.settle_attempt(tx, native_id))

    async def cancel(self, native_id: str) -> NativeJob:
        return await self._write("cancel", lambda tx: jobs.cancel(tx, native_id))

    # -- a node

    async def holders(self, node: str) -> tuple[NativeJob, ...]:
        def look(tx: Tx) -> tuple[NativeJob, ...]:
            tx.node(node)
            rows = tx.all(
                "select j.* from placements p join jobs j on j.id = p.job where p.cluster = ? and p.node = ?",
                tx.cluster,
                node,
            )
            return tuple(jobs.view(tx, row) for row in rows)

        return await self._read(look)

    async def evacuate(self, node: str, order: EvacuationOrder) -> EvacuationState:
        """All that holds a node here is a job."""
        return EvacuationState()

    async def isolate(self, node: str, op: OpId, text: str) -> NodeFacts:
        return await self._write("isolate", lambda tx: nodes.isolate(tx, node, op, text))

    async def isolate_many(self, ops: Mapping[str, OpId], text: str, go_on: GoOn) -> Isolations:
        return await isolate_each(self, ops, text, go_on)

    async def release(self, node: str, op: OpId) -> NodeFacts:
        return await self._write("release", lambda tx: nodes.release(tx, node, op))

    async def reboot(self, node: str, op: OpId) -> NodeFacts:
        return await self._write("reboot", lambda tx: nodes.reboot(tx, node, op))

    async def run_check(self, node: str, op: OpId, suite: str) -> CheckResult:
        return await self._write("run_check", lambda tx: nodes.run_check(tx, node, op, suite))

    async def power_off(self, node: str, op: OpId) -> NodeReceipt:
        return await self._beside(lambda tx: nodes.power_off(tx, node, op))

    async def power_on(self, node: str, op: OpId) -> None:
        await self._beside(lambda tx: nodes.power_on(tx, node, op))

    # -- marks

    async def give_back_all(self) -> tuple[str, ...]:
        return await self._write("give_back_all", nodes.give_back_all)

    async def watch(self) -> AsyncIterator[Change]:
        """Looks every half simulated second; ends with TemporaryError when the controller does not answer."""
        jobs_seen: dict[str, NativeJob] = {}
        nodes_seen: dict[str, NodeFacts] = {}
        first = True
        while True:
            now, scale, all_jobs, all_nodes = await self._read(
                lambda tx: (tx.now, tx.scale, _all_jobs(tx), nodes.read_all(tx))
            )
            still = {n.node: n.model_copy(update={"read_at": 0.0}) for n in all_nodes}
            new_jobs = tuple(j for j in all_jobs if jobs_seen.get(j.native_id) != j)
            new_nodes = tuple(n for n in all_nodes if nodes_seen.get(n.node) != still[n.node])
            if first or new_jobs or new_nodes:
                yield Change(jobs=new_jobs, nodes=new_nodes, resync=first, at=now)
            first = False
            jobs_seen = {j.native_id: j for j in all_jobs}
            nodes_seen = still
            await asyncio.sleep(max(WATCH_EVERY / scale, WATCH_LEAST))

    async def close(self) -> None:
        self._store.close()


def _all_jobs(tx: Tx) -> tuple[NativeJob, ...]:
    return tuple(jobs.view(tx, row) for row in tx.all("select * from jobs where cluster = ? order by id", tx.cluster))


def _answer_is_lost(tx: Tx, op: str) -> bool:
    """A fault that was ordered for the next write of that name, used up here."""
    rowid = tx.value("select rowid from lost_answers where cluster = ? and op in (?, '*') limit 1", tx.cluster, op)
    if rowid is not None:
        tx.run("delete from lost_answers where rowid = ?", rowid)
    return rowid is not None


def _happens_anyway(tx: Tx, fn: Callable[[Tx], object]) -> None:
    """Every second write that reaches a frozen controller takes place, so that both outcomes are met."""
    count = tx.value("select frozen_writes from clusters where name = ?", tx.cluster)
    tx.run("update clusters set frozen_writes = ? where name = ?", count + 1, tx.cluster)
    if count % 2:
        return
    tx.run("savepoint write")
    try:
        fn(tx)
    except FleetError:
        tx.run("rollback to write")
