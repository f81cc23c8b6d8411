"""`KubernetesBackend`: the port for one Kubernetes cluster, put together from its parts."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from activities.backends.kubernetes.api import KubeApi
from activities.backends.kubernetes.attempts import Attempts
from activities.backends.kubernetes.check import Checks
from activities.backends.kubernetes.evacuate import Evacuations
from activities.backends.kubernetes.giveback import give_back_all
from activities.backends.kubernetes.jobs import JobOrders
from activities.backends.kubernetes.jobview import JobRecord
from activities.backends.kubernetes.mirror import Mirror
from activities.backends.kubernetes.nodes import NodeOrders, is_free
from activities.backends.kubernetes.nodeview import REBOOT_WITHIN, LastFacts
from activities.backends.kubernetes.progress import Outputs
from activities.backends.kubernetes.proofs import END, Proofs
from activities.backends.kubernetes.rights import missing_rights
from activities.backends.kubernetes.room import read_room
from activities.backends.kubernetes.settings import KubernetesSettings
from activities.backends.kubernetes.submit import Submits
from activities.backends.kubernetes.view import ClusterView
from activities.backends.port import Change, Dumps, GoOn, Isolations, MissingRights
from activities.backends.power import Hooks, Power
from fleet.errors import FleetError, TemporaryError, UnreadableError
from fleet.evacuation import EvacuationOrder, EvacuationState
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

GRACE = 30.0
"""Seconds between SIGTERM and SIGKILL where a pod names none (kubernetes, terminationGracePeriodSeconds)."""
TOGETHER = 0.1
"""Seconds in which changes are gathered into one: a pod's start is five events."""
LOST_AFTER = 20.0
"""Seconds without an apiserver after which a watch ends with an error."""
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


class KubernetesBackend:
    """One Kubernetes cluster behind `ClusterBackend`, `PowerControl` and `NodeNotes`."""

    kind = "kubernetes"

    def __init__(self, cluster: str, settings: KubernetesSettings) -> None:
        self.cluster = cluster
        self.settings = settings
        self.has_power = settings.has_power
        self.api = KubeApi(cluster, settings)
        self.view = ClusterView(cluster, self.api, settings)
        hooks = Hooks(off=settings.power_off, on=settings.power_on, status=settings.power_status)
        self.power = Power(hooks, _environment, self.view.node, self.view.steadiness)
        self._jobs = JobOrders(self.api, self.view)
        self._attempts = Attempts(self._jobs, self.power)
        self._submits = Submits(self.api, self.view)
        self._proofs = Proofs(self.view, self.power)
        self._nodes = NodeOrders(self.api, self.view, self.power)
        self._evacuations = Evacuations(self.api, self.view, self.power, self._nodes)
        self._checks = Checks(self.api, self.view)
        self._outputs = Outputs(self.api, self.view)

    # -- reads

    async def probe(self) -> ClusterFacts:
        """Reads what every runbook will read, so that missing rights and wrong files are told at once."""
        said = await self.api.get(f"version of {self.cluster}", "/version")
        version = str(said.get("gitVersion", ""))
        if not version:
            raise UnreadableError(f"what answers for {self.cluster} is no kube-apiserver: {str(said)[:100]}")
        picture = await self.view.picture(0)
        notes = []
        if not self.has_power:
            notes.append("no power hook: nodes are fenced by hand, and rebooted by hand or NVSentinel")
        if not any(node.gpus_declared for node in picture.nodes.values()):
            notes.append(f"no node offers {self.settings.gpu_resource}")
        if self.settings.check is None:
            notes.append("no check pod: after a repair only the allocatable GPUs are counted")
        notes += [f"not supervised: {why}" for why in (await self.view.installed.now()).unreadable]
        notes.append("pods are scheduled one by one: a job that does not fit holds nodes while it waits")
        return ClusterFacts(
            cluster=self.cluster,
            kind=self.kind,
            version=version,
            node_down_after=self.settings.node_down_after,
            stop_takes=GRACE + END,
            requeue_delay=0.0,
            reboot_timeout=REBOOT_WITHIN,
            notes=tuple(notes),
        )

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
        return Capacity(
            cluster=self.cluster,
            free_nodes=tuple(facts.node for facts in nodes if is_free(facts) and facts.gpus),
            total_nodes=len(nodes),
            read_at=max((facts.read_at for facts in nodes), default=0.0),
        )

    async def room(self) -> Room:
        return await read_room(self.api, self.view)

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
        return await self._jobs.adopt(native_id)

    async def hold(self, native_id: str) -> NativeJob:
        return await self._jobs.hold(native_id)

    async def give_back(self, native_id: str) -> NativeJob:
        return await self._jobs.give_back(native_id)

    async def request_checkpoint(self, native_id: str, signal: str) -> None:
        await self._jobs.request_checkpoint(native_id, signal)

    async def stop(self, native_id: str, restarts: int) -> NativeJob:
        return await self._jobs.stop(native_id, restarts)

    async def prove_stopped(self, query: StopQuery) -> StopProof:
        return await self._proofs.prove(query)

    async def start_attempt(self, order: StartOrder) -> NativeJob:
        return await self._attempts.start(order)

    async def settle_attempt(self, native_id: str) -> NativeJob:
        return await self._attempts.settle(native_id)

    async def cancel(self, native_id: str) -> NativeJob:
        return await self._jobs.cancel(native_id)

    # -- a node

    async def holders(self, node: str) -> tuple[NativeJob, ...]:
        """Jobs that we know by their records; every other pod with GPUs as a job of its own that nobody requeues."""
        picture = await self.view.picture(0)
        facts = self.view.facts_in(picture, node)
        known = {record.job.native_id: record.job for record in self.view.records_of(picture)}
        return tuple(known.get(native_id) or self._stranger(native_id, node) for native_id in facts.jobs)

    def _stranger(self, native_id: str, node: str) -> NativeJob:
        _, namespace, name = native_id.split("/", 2)
        return NativeJob(
            cluster=self.cluster,
            native_id=native_id,
            name=name,
            user=namespace,
            phase=Phase.RUNNING,
            nodes=(node,),
            requeueable=False,
        )

    async def evacuate(self, node: str, order: EvacuationOrder) -> EvacuationState:
        return await self._evacuations.run(node, order)

    async def isolate(self, node: str, op: OpId, text: str) -> NodeFacts:
        return await self._nodes.isolate(node, op, text)

    async def isolate_many(self, ops: Mapping[str, OpId], text: str, go_on: GoOn) -> Isolations:
        return await self._nodes.isolate_many(ops, text, go_on)

    async def tell_isolated(self, ops: Mapping[str, OpId], text: str) -> None:
        await self._nodes.tell_isolated(ops, text)

    async def release(self, node: str, op: OpId) -> NodeFacts:
        return await self._nodes.release(node, op)

    async def reboot(self, node: str, op: OpId) -> NodeFacts:
        return await self._nodes.reboot(node, op)

    async def run_check(self, node: str, op: OpId, suite: str) -> CheckResult:
        return await self._checks.run(node, op, suite)

    async def power_off(self, node: str, op: OpId) -> NodeReceipt:
        return await self.power.power_off(node)

    async def power_on(self, node: str, op: OpId) -> None:
        await self._nodes.in_service(node)
        await self.power.power_on(node)

    async def missing_rights(self) -> MissingRights:
        served = (await self.view.installed.now()).served
        return await missing_rights(self.api, self.settings.namespaces, served)

    async def advice(self, native_id: str) -> tuple[str, ...]:
        newest = (await self.view.known_job(native_id)).newest
        return newest.kind.advice(newest.raw)

    # -- marks

    async def give_back_all(self) -> tuple[str, ...]:
        return await give_back_all(self.view, self._jobs, self._nodes)

    async def watch(self) -> AsyncIterator[Change]:
        """The watched picture's differences, as events come in. Ends with TemporaryError when the cluster is away."""
        events: dict[Mirror[Any], asyncio.Event] = {}
        jobs: dict[str, NativeJob] = {}
        nodes: dict[str, NodeFacts] = {}
        last = LastFacts()
        first = True
        try:
            while True:
                await self.view.follow()
                for mirror in self.view.mirrors():
                    if mirror not in events:
                        events[mirror] = mirror.subscribe()
                for event in events.values():
                    event.clear()
                picture = self.view.watched()
                records = self.view.records_of(picture)
                await asyncio.gather(*(self._place(record) for record in records))
                seen_jobs = {record.job.native_id: record.job for record in records}
                seen_nodes = {facts.node: facts for facts in self.view.changing_facts(picture, last)}
                new_jobs = [job for key, job in seen_jobs.items() if jobs.get(key) != job]
                new_jobs += [await self._went(job) for key, job in jobs.items() if key not in seen_jobs]
                new_nodes = [f for key, f in seen_nodes.items() if f is not (old := nodes.get(key)) and f != old]
                jobs, nodes = seen_jobs, seen_nodes
                if first or new_jobs or new_nodes:
                    yield Change(jobs=tuple(new_jobs), nodes=tuple(new_nodes), resync=first, at=picture.at)
                first = False
                await self._something(list(events.values()))
        finally:
            for mirror, event in events.items():
                mirror.unsubscribe(event)

    async def _place(self, record: JobRecord) -> None:
        """What we may not place, or has moved, does not end the watch. Raises TemporaryError for what a new watch
        will do, such as when this worker was away."""
        try:
            await self._attempts.place(record)
        except TemporaryError:
            raise
        except FleetError:
            return

    async def _went(self, job: NativeJob) -> NativeJob:
        """A job whose object was deleted, as it ended."""
        return await self.job(job.native_id)

    async def _something(self, events: list[asyncio.Event]) -> None:
        """Waits for a change, and a moment for those that come with it. Raises TemporaryError when it is away.

        That silent nodes are believed to be lost again is a change, too.
        """
        doubted = self.view.doubts()
        waits = [asyncio.create_task(event.wait()) for event in events]
        try:
            while True:
                done, _ = await asyncio.wait(waits, timeout=LOST_AFTER / 4, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    break
                self._raise_if_lost()
                if doubted and not self.view.doubts():
                    break
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        self._raise_if_lost()
        await asyncio.sleep(TOGETHER)

    def _raise_if_lost(self) -> None:
        mirrors = self.view.mirrors()
        for mirror in mirrors:
            failure: FleetError | None = mirror.failure
            if failure is not None and mirror.age() > LOST_AFTER:
                raise TemporaryError(f"{self.cluster} is away: {failure}") from failure

    async def close(self) -> None:
        await self.view.close()


def _environment() -> Mapping[str, str]:
    """What a power hook starts from: nothing of the worker's."""
    return {"PATH": PATH, "LC_ALL": "C.UTF-8"}
