"""`SlurmBackend`: the port for one Slurm cluster, put together from its parts. The commands are the transport."""

import asyncio
from collections.abc import AsyncIterator, Mapping

from activities.backends.one_by_one import isolate_each
from activities.backends.port import Change, Dumps, GoOn, Isolations
from activities.backends.slurm.attempts import Attempts
from activities.backends.slurm.check import Checks
from activities.backends.slurm.commands import GRACE, Commands
from activities.backends.slurm.giveback import give_back_all
from activities.backends.slurm.jobs import JobOrders
from activities.backends.slurm.nodes import NodeOrders
from activities.backends.slurm.power import PowerHooks
from activities.backends.slurm.progress import Outputs
from activities.backends.slurm.proofs import Proofs
from activities.backends.slurm.pyslurm_reads import ChosenReads
from activities.backends.slurm.reads import CliReads, SlurmReads, option_of, release_of, seconds_of
from activities.backends.slurm.room import read_room
from activities.backends.slurm.settings import SlurmSettings
from activities.backends.slurm.submit import Submits
from activities.backends.slurm.view import ClusterView
from fleet.errors import PermanentError
from fleet.evacuation import EvacuationOrder, EvacuationState
from fleet.model import (
    Capacity,
    CheckResult,
    ClusterFacts,
    NativeJob,
    NodeFacts,
    NodeReceipt,
    NodeState,
    OpId,
    Phase,
    Progress,
    Room,
)
from fleet.orders import AdoptedJob, JobSpec, StartOrder, StopProof, StopQuery

NOTICE = 12.0
"""Seconds beyond SlurmdTimeout until slurmctld gives a node up (one ping cycle, measured)."""
END = 3.0
"""Seconds beyond KillWait until a stopped job has left COMPLETING (2.4 s measured)."""


class SlurmBackend:
    """One Slurm cluster behind `ClusterBackend` and `PowerControl`."""

    kind = "slurm"

    def __init__(self, cluster: str, settings: SlurmSettings, reads: SlurmReads | None = None) -> None:
        self.cluster = cluster
        self.settings = settings
        self.has_power = settings.has_power
        self.commands = Commands(settings)
        cli = CliReads(cluster, self.commands)
        chosen = reads or ChosenReads(cluster, self.commands, cli, settings.transport)
        self.view = ClusterView(cluster, chosen, settings.settle)
        self.power = PowerHooks(self.commands, self.view)
        self._jobs = JobOrders(self.commands, self.view)
        self._attempts = Attempts(self._jobs)
        self._submits = Submits(self.commands, self.view, settings.epoch)
        self._proofs = Proofs(self.view, self.power, settings.settle)
        self._nodes = NodeOrders(self.commands, self.view)
        self._checks = Checks(self.commands, self.view, self._nodes)
        self._outputs = Outputs(self.commands, self.view)
        self._facts: ClusterFacts | None = None

    # -- reads

    async def probe(self) -> ClusterFacts:
        """Refuses at once what would go wrong later; derives the waits from the controller's own configuration."""
        self.commands.check_conf()
        client = release_of(await self.commands.read("scontrol", "--version"))
        config = await self.view.reads.config()
        if config["ClusterName"] != self.cluster:
            raise PermanentError(
                f"{self.settings.conf} is of the cluster {config['ClusterName']}, not {self.cluster}: "
                "correct fleet.yaml"
            )
        version = config.get("SLURM_VERSION", "")
        if release_of(version) != client:
            raise PermanentError(
                f"the commands in {self.settings.bin_dir} are of release {client[0]}.{client[1]:02}, the controller "
                f"of {self.cluster} of {version}; they do not understand each other: set bin_dir"
            )
        slurmd, kill = seconds_of(config, "SlurmdTimeout", 300), seconds_of(config, "KillWait", 30)
        self.commands.limit = seconds_of(config, "MessageTimeout", 10) + GRACE
        self._proofs.settle = max(self.settings.settle, kill + END)
        self._proofs.silence = slurmd + NOTICE
        notes = []
        self._nodes.can_reboot = config.get("RebootProgram", "(null)") not in {"(null)", ""}
        if not self._nodes.can_reboot:
            notes.append("no RebootProgram: nodes are rebooted by the power hook or by hand only")
        if config.get("JobRequeue") == "0":
            notes.append("JobRequeue=0: only jobs submitted with --requeue can be supervised")
        expire = option_of(config, "AuthInfo", "cred_expire")
        delay = option_of(config, "SchedulerParameters", "requeue_delay")
        self._facts = ClusterFacts(
            cluster=self.cluster,
            kind=self.kind,
            version=version,
            node_down_after=slurmd + NOTICE,
            stop_takes=kill + END,
            requeue_delay=delay if delay is not None else (120.0 if expire is None else expire) + 1,
            reboot_timeout=seconds_of(config, "ResumeTimeout", 60),
            notes=tuple(notes),
        )
        return self._facts

    async def _ready(self) -> None:
        """The waits that proofs depend on are the cluster's own: probes once, before the first order."""
        if self._facts is None:
            await self.probe()

    async def jobs(self, max_age: float = 2.0) -> tuple[NativeJob, ...]:
        return tuple(record.job for record in await self.view.jobs(max_age))

    async def nodes(self, max_age: float = 2.0) -> tuple[NodeFacts, ...]:
        return await self.view.nodes(max_age)

    async def job(self, native_id: str) -> NativeJob:
        return (await self.view.job(native_id)).job

    async def node(self, node: str) -> NodeFacts:
        return await self.view.node(node)

    async def capacity(self) -> Capacity:
        nodes = await self.view.live_nodes()
        free = tuple(facts.node for facts in nodes if is_free(facts))
        return Capacity(
            cluster=self.cluster,
            free_nodes=free,
            unreported=tuple(f.node for f in nodes if self.view.records[f.node].base == "UNKNOWN"),
            total_nodes=len(nodes),
            read_at=max((facts.read_at for facts in nodes), default=0.0),
        )

    async def room(self) -> Room:
        return await read_room(self.cluster, self.commands, self.view, is_free)

    async def progress(self, native_id: str, restarts: int) -> Progress:
        return await self._outputs.progress(native_id, restarts)

    async def log_tail(self, native_id: str, lines: int = 100) -> tuple[str, ...]:
        return await self._outputs.log_tail(native_id, lines)

    async def dumps(self, native_id: str, since: float) -> Dumps:
        return await self._outputs.dumps(native_id, since)

    # -- a job

    async def submit(self, spec: JobSpec) -> NativeJob:
        return await self._submits.submit(spec)

    async def try_submit(self, spec: JobSpec) -> tuple[str, ...]:
        return await self._submits.try_it(spec)

    async def adopt(self, native_id: str) -> AdoptedJob:
        await self._ready()
        return await self._jobs.adopt(native_id)

    async def hold(self, native_id: str) -> NativeJob:
        return await self._jobs.hold(native_id)

    async def give_back(self, native_id: str) -> NativeJob:
        return await self._jobs.give_back(native_id)

    async def request_checkpoint(self, native_id: str, signal: str) -> None:
        await self._jobs.request_checkpoint(native_id, signal)

    async def stop(self, native_id: str, restarts: int) -> NativeJob:
        await self._ready()
        return await self._jobs.stop(native_id, restarts)

    async def prove_stopped(self, query: StopQuery) -> StopProof:
        await self._ready()
        return await self._proofs.prove(query)

    async def start_attempt(self, order: StartOrder) -> NativeJob:
        await self._ready()
        return await self._attempts.start(order)

    async def settle_attempt(self, native_id: str) -> NativeJob:
        return await self._attempts.settle(native_id)

    async def cancel(self, native_id: str) -> NativeJob:
        return await self._jobs.cancel(native_id)

    # -- a node

    async def holders(self, node: str) -> tuple[NativeJob, ...]:
        facts = await self.view.node(node)
        return tuple(r.job for r in await self.view.live_jobs() if r.job.native_id in facts.jobs)

    async def evacuate(self, node: str, order: EvacuationOrder) -> EvacuationState:
        """All that holds a node here is a job."""
        return EvacuationState()

    async def isolate(self, node: str, op: OpId, text: str) -> NodeFacts:
        return await self._nodes.isolate(node, op, text)

    async def isolate_many(self, ops: Mapping[str, OpId], text: str, go_on: GoOn) -> Isolations:
        return await isolate_each(self, ops, text, go_on)

    async def release(self, node: str, op: OpId) -> NodeFacts:
        return await self._nodes.release(node, op)

    async def reboot(self, node: str, op: OpId) -> NodeFacts:
        await self._ready()
        return await self._nodes.reboot(node, op)

    async def run_check(self, node: str, op: OpId, suite: str) -> CheckResult:
        return await self._checks.run(node, op, suite)

    async def power_off(self, node: str, op: OpId) -> NodeReceipt:
        return await self.power.power_off(node)

    async def power_on(self, node: str, op: OpId) -> None:
        await self.power.power_on(node)

    # -- marks

    async def give_back_all(self) -> tuple[str, ...]:
        return await give_back_all(self.view, self._jobs, self._nodes)

    async def watch(self) -> AsyncIterator[Change]:
        """The shared poll's differences. A reading that fails ends it with TemporaryError; watch again."""
        jobs: dict[str, NativeJob] = {}
        nodes: dict[str, NodeFacts] = {}
        first = True
        while True:
            seen_nodes = await self.nodes(self.settings.poll_interval)
            seen_jobs = await self.jobs(self.settings.poll_interval)
            at = max((facts.read_at for facts in seen_nodes), default=0.0)
            new_jobs = tuple(job for job in seen_jobs if jobs.get(job.native_id) != job)
            gone = tuple(j.model_copy(update={"phase": Phase.ABSENT}) for j in lost(jobs, seen_jobs))
            new_nodes = tuple(f for f in seen_nodes if _timeless(f) != nodes.get(f.node))
            jobs = {job.native_id: job for job in seen_jobs}
            nodes = {facts.node: _timeless(facts) for facts in seen_nodes}
            if first or new_jobs or gone or new_nodes:
                yield Change(jobs=new_jobs + gone, nodes=new_nodes, resync=first, at=at)
            first = False
            await asyncio.sleep(self.settings.poll_interval)

    async def close(self) -> None:
        await self.view.close()


def is_free(facts: NodeFacts) -> bool:
    """Could take work now: up, answering, nothing on it, nobody's drain or reservation over it."""
    return (
        facts.state is NodeState.UP
        and facts.responding
        and not facts.drained
        and not facts.jobs
        and facts.reserved_by is None
    )


def lost(before: dict[str, NativeJob], now: tuple[NativeJob, ...]) -> tuple[NativeJob, ...]:
    """Jobs that the controller knew at the last reading and does not know any more."""
    known = {job.native_id for job in now}
    return tuple(job for native_id, job in before.items() if native_id not in known)


def _timeless(facts: NodeFacts) -> NodeFacts:
    return facts.model_copy(update={"read_at": 0.0})
