"""One cluster's picture: jobs, nodes and reservations, joined, with what is remembered between readings."""

import time
from collections.abc import Mapping

from activities.backends.polling import Shared
from activities.backends.slurm.marks import op_of_reservation
from activities.backends.slurm.normalise import JobRecord, NodeRecord
from activities.backends.slurm.reads import Reservation, SlurmReads
from activities.backends.steady import Steadiness
from fleet.errors import NotFoundError
from fleet.identity import op_of_reason
from fleet.model import NativeJob, NodeFacts, NodeState, Phase

BOOT_JITTER = 2
"""Seconds. BootTime = controller's clock minus the node's uptime, both whole seconds: one boot was seen as two
numbers a second apart (tests/data/slurm/25.11: gold1). A real reboot takes longer than this."""

_SLURMS_OWN_DOWN = ("not responding", "node unexpectedly rebooted", "gres/", "low ", "node silently failed")
_OFF = frozenset({"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWERED_UP_PENDING"})


class ClusterView:
    """What the reads say, joined. `jobs`/`nodes` may be `max_age` seconds old; `live_*` are read now."""

    def __init__(self, cluster: str, reads: SlurmReads, settle: float) -> None:
        self.cluster = cluster
        self.reads = reads
        self.steadiness = Steadiness(gap=max(settle, 30.0))
        self.records: dict[str, NodeRecord] = {}
        """Nodes as Slurm showed them at the last reading, with the flags that the port's value leaves out."""
        self._boots: dict[str, int] = {}
        self._ended: dict[tuple[str, int], float] = {}
        self._jobs: Shared[tuple[JobRecord, ...]] = Shared(self._read_jobs)
        self._nodes: Shared[tuple[NodeFacts, ...]] = Shared(self._read_nodes)

    async def jobs(self, max_age: float) -> tuple[JobRecord, ...]:
        return await self._jobs.cached(max_age)

    async def nodes(self, max_age: float) -> tuple[NodeFacts, ...]:
        return await self._nodes.cached(max_age)

    async def live_jobs(self) -> tuple[JobRecord, ...]:
        return await self._jobs.fresh()

    async def live_nodes(self) -> tuple[NodeFacts, ...]:
        return await self._nodes.fresh()

    async def job(self, native_id: str) -> JobRecord:
        """Live. Phase ABSENT when the controller does not know it."""
        for record in await self.live_jobs():
            if record.called(native_id):
                return record
        absent = NativeJob(cluster=self.cluster, native_id=native_id, name="", phase=Phase.ABSENT)
        return JobRecord(job=absent, job_id=native_id, base=None)

    async def known_job(self, native_id: str) -> JobRecord:
        """Live. Raises NotFoundError for a job that is not in the controller."""
        record = await self.job(native_id)
        if record.job.phase is Phase.ABSENT:
            raise NotFoundError(
                f"job {native_id} is not in the controller of {self.cluster} (ended long ago, or lost)"
            )
        return record

    async def node(self, node: str) -> NodeFacts:
        """Live. Raises NotFoundError for a node that the cluster does not have."""
        for facts in await self.live_nodes():
            if facts.node == node:
                return facts
        raise NotFoundError(f"{self.cluster} has no node {node!r}")

    async def close(self) -> None:
        await self._jobs.close()
        await self._nodes.close()
        await self.reads.close()

    def waits_since(self, record: JobRecord) -> float | None:
        """Monotonic time of the first reading that showed this attempt ended and the job back in the queue."""
        return self._ended.get((record.job_id, record.job.restarts))

    async def _read_jobs(self) -> tuple[JobRecord, ...]:
        records = await self.reads.list_jobs()
        now = time.monotonic()
        waiting = [(r.job_id, r.job.restarts) for r in records if r.job.phase is Phase.PENDING and r.job.restarts > 0]
        self._ended = {key: self._ended.get(key, now) for key in waiting}
        return records

    async def _read_nodes(self) -> tuple[NodeFacts, ...]:
        records = await self.reads.list_nodes()
        reservations = await self.reads.list_reservations()
        jobs = await self.live_jobs()
        at = time.time()
        self.records = {record.name: record for record in records}
        held_by: dict[str, list[str]] = {}
        for record in jobs:
            if record.job.phase in {Phase.RUNNING, Phase.STOPPING}:
                for node in record.job.nodes:
                    held_by.setdefault(node, []).append(record.job.native_id)
        covers = _covering(reservations)
        facts = tuple(self._facts(r, covers.get(r.name), tuple(held_by.get(r.name, ())), at) for r in records)
        for one in facts:
            self.steadiness.saw(one.node, one.responding, at)
        return facts

    def _facts(self, record: NodeRecord, reservation: str | None, jobs: tuple[str, ...], at: float) -> NodeFacts:
        boot = self._boot(record)
        responding = is_responding(record)
        op = op_of_reason(record.reason) if takes_no_work(record) else None
        if op is None and reservation is not None and not foreign_mark(record):
            op = op_of_reservation(reservation)
        return NodeFacts(
            cluster=self.cluster,
            node=record.name,
            state=state_of(record, bool(jobs)),
            responding=responding,
            boot=str(boot) if boot else "",
            booted_at=float(boot),
            gpus=record.gpus,
            gpus_expected=record.gpus_expected,
            reason=record.reason if takes_no_work(record) else "",
            op=op,
            drained=is_drained(record),
            reserved_by=reservation,
            jobs=jobs,
            read_at=at,
        )

    def _boot(self, record: NodeRecord) -> int:
        """Boot time that stays the same for one boot, although BootTime wavers by a second; 0 = unknown.

        A reboot starts slurmd again. A BootTime that moved past slurmd's own start is a machine that stood still
        (a paused virtual machine: its uptime stops), and its ranks are alive.
        """
        known = self._boots.get(record.name, 0)
        if not record.boot_time:
            return 0
        if record.slurmd_start and record.slurmd_start + BOOT_JITTER < record.boot_time:
            return known
        if abs(record.boot_time - known) > BOOT_JITTER:
            self._boots[record.name] = record.boot_time
        return self._boots[record.name]


def newer_boot(now: NodeFacts, before: str) -> bool:
    """A reboot between the two, proven: both are known and the present one is newer by more than the jitter."""
    return bool(now.boot) and before.isdigit() and now.booted_at > float(before) + BOOT_JITTER


def _covering(reservations: tuple[Reservation, ...]) -> Mapping[str, str]:
    """node -> name of the maintenance reservation over it; ours wins where two overlap."""
    covers: dict[str, str] = {}
    for one in sorted(reservations, key=lambda r: op_of_reservation(r.name) is not None):
        if one.maintenance:
            covers.update(dict.fromkeys(one.nodes, one.name))
    return covers


def is_responding(record: NodeRecord) -> bool:
    """Its slurmd answers. A boot time of 0 is a node that was resumed and has not registered yet."""
    quiet = "NOT_RESPONDING" in record.flags or record.base in {"UNKNOWN", "FUTURE", "ERROR"}
    return not quiet and record.boot_time > 0 and "REBOOT_ISSUED" not in record.flags and not record.flags & _OFF


def takes_no_work(record: NodeRecord) -> bool:
    """Its reason counts: 25.11 leaves an old reason on a node that works again."""
    return record.base == "DOWN" or bool(record.flags & {"DRAIN", "FAIL", "REBOOT_REQUESTED", "REBOOT_ISSUED"})


def foreign_mark(record: NodeRecord) -> bool:
    """Somebody else's drain or down with a reason of theirs."""
    return is_drained(record) and op_of_reason(record.reason) is None and bool(record.reason)


def is_drained(record: NodeRecord) -> bool:
    """A drain, or a DOWN that somebody set with a reason (Slurm's own DOWN is its opinion and no drain)."""
    if record.flags & {"DRAIN", "FAIL"}:
        return True
    reason = record.reason.lower()
    return record.base == "DOWN" and bool(reason) and not reason.startswith(_SLURMS_OWN_DOWN)


def state_of(record: NodeRecord, busy: bool) -> NodeState:
    if "REBOOT_ISSUED" in record.flags:
        return NodeState.REBOOTING
    if record.base == "DOWN" or "INVALID_REG" in record.flags or record.flags & _OFF:
        return NodeState.DOWN
    if record.base not in {"IDLE", "MIXED", "ALLOCATED", "ALLOC"}:
        return NodeState.UNKNOWN
    if record.flags & {"DRAIN", "FAIL"}:
        working = busy or record.base != "IDLE" or "COMPLETING" in record.flags
        return NodeState.DRAINING if working else NodeState.DRAINED
    return NodeState.UP
