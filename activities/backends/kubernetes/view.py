"""One cluster's picture: jobs, pods and nodes, joined, with what is remembered between readings.

`jobs`/`nodes` come from the watched picture when that is fresh enough, else from a live list; `live_*`,
`job` and `node` are read now.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from activities.backends.kubernetes.api import KubeApi, Raw
from activities.backends.kubernetes.jobview import JobObject, JobRecord, job_record
from activities.backends.kubernetes.kinds.base import JobKind
from activities.backends.kubernetes.kinds.batch_job import BatchJob
from activities.backends.kubernetes.marks import FIRST
from activities.backends.kubernetes.mirror import Mirror
from activities.backends.kubernetes.nodeview import BootTimes, node_facts
from activities.backends.kubernetes.records import NodeRecord, PodRecord, node_record, pod_record
from activities.backends.kubernetes.settings import KubernetesSettings
from activities.backends.polling import Shared
from activities.backends.steady import Steadiness
from fleet.errors import NotFoundError
from fleet.model import NativeJob, NodeFacts, Phase

KINDS: tuple[JobKind, ...] = (BatchJob(),)
PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
FIRST_LIST = 30.0
"""Seconds that the first list of everything may take."""


class Picture:
    """Jobs, pods and nodes of one reading. `age` is that of a watched one; None for one that was read just now."""

    def __init__(
        self,
        objects: Sequence[JobObject],
        pods: Sequence[PodRecord],
        nodes: Sequence[NodeRecord],
        age: float | None = None,
    ) -> None:
        self.objects = objects
        self.pods = pods
        self.nodes = {node.name: node for node in nodes}
        self.live = age is None
        self.at = time.time() - (age or 0.0)


class ClusterView:
    """What the reads say, joined."""

    def __init__(self, cluster: str, api: KubeApi, settings: KubernetesSettings) -> None:
        self.cluster = cluster
        self.api = api
        self.settings = settings
        self.steadiness = Steadiness(gap=max(settings.settle, 30.0))
        self.boots = BootTimes()
        self.records: dict[str, NodeRecord] = {}
        """Nodes as they were at the last reading, with what the port's value leaves out."""
        spaces = settings.namespaces
        self.job_mirrors = {
            kind.word: Mirror(
                api, f"jobs of {cluster}", tuple(kind.path(n) for n in spaces) or (kind.path(),), self._keeper(kind)
            )
            for kind in KINDS
        }
        self.pod_mirror = Mirror(
            api,
            f"pods of {cluster}",
            tuple(f"/api/v1/namespaces/{n}/pods" for n in spaces) or (PODS,),
            lambda raw: pod_record(raw, settings.gpu_resource),
        )
        self.node_mirror = Mirror(
            api, f"nodes of {cluster}", (NODES,), lambda raw: node_record(raw, settings.gpu_resource)
        )
        self._live: Shared[Picture] = Shared(self._read_all)
        self._pulse: Shared[Raw] = Shared(lambda: api.get(f"version of {cluster}", "/version"))

    def _keeper(self, kind: JobKind) -> Callable[[Raw], JobObject]:
        return lambda raw: JobObject(kind, raw)

    # -- the picture

    async def picture(self, max_age: float) -> Picture:
        """At most `max_age` seconds old. Raises TemporaryError when the apiserver cannot be asked."""
        if max_age <= 0:
            return await self._live.fresh()
        mirrors = self.mirrors()
        await asyncio.gather(*(mirror.ready(FIRST_LIST) for mirror in mirrors))
        if any(mirror.age() > max_age for mirror in mirrors):
            await self._pulse.cached(min(max_age, self.settings.alive))
            for mirror in mirrors:
                mirror.sign_of_life()
        if any(mirror.age() > max_age for mirror in mirrors):
            return await self._live.cached(max_age)
        return self.watched()

    def watched(self) -> Picture:
        """The watched picture as it is."""
        objects = [one for mirror in self.job_mirrors.values() for one in mirror.values()]
        age = max(mirror.age() for mirror in self.mirrors())
        return Picture(objects, self.pod_mirror.values(), self.node_mirror.values(), age)

    def mirrors(self) -> list[Mirror[Any]]:
        """Everything that is followed."""
        return [*self.job_mirrors.values(), self.pod_mirror, self.node_mirror]

    async def _read_all(self) -> Picture:
        spaces = self.settings.namespaces
        paths = [(kind, kind.path(n)) for kind in KINDS for n in spaces or ("",)]
        pods = [f"/api/v1/namespaces/{n}/pods" for n in spaces] or [PODS]
        jobs = await asyncio.gather(*(self.api.list(f"jobs of {self.cluster}", path) for _, path in paths))
        found = await asyncio.gather(
            self.api.list(f"nodes of {self.cluster}", NODES),
            *(self.api.list(f"pods of {self.cluster}", path) for path in pods),
        )
        objects = [JobObject(kind, raw) for (kind, _), (items, _) in zip(paths, jobs, strict=True) for raw in items]
        resource = self.settings.gpu_resource
        return Picture(
            objects,
            [pod_record(raw, resource) for items, _ in found[1:] for raw in items],
            [node_record(raw, resource) for raw in found[0][0]],
        )

    # -- jobs

    async def jobs(self, max_age: float) -> tuple[JobRecord, ...]:
        return self.records_of(await self.picture(max_age))

    def records_of(self, picture: Picture) -> tuple[JobRecord, ...]:
        """One record for each job, of its newest object."""
        groups: dict[str, list[JobObject]] = {}
        for one in picture.objects:
            groups.setdefault(one.native_id, []).append(one)
        pods: dict[tuple[str, str], list[PodRecord]] = {}
        for pod in picture.pods:
            pods.setdefault((pod.namespace, pod.owner_name), []).append(pod)
        made = []
        for group in groups.values():
            mine = [p for o in group for p in pods.get((o.namespace, o.name), []) if p.owner_kind == o.kind.owner]
            made.append(job_record(self.cluster, group, mine, picture.nodes))
        return tuple(sorted(made, key=lambda record: (record.job.submitted_at, record.job.native_id)))

    async def job(self, native_id: str) -> JobRecord:
        """Live. Phase ABSENT when the apiserver does not know it, and this process never saw it either."""
        kind, namespace, name = self._parse(native_id)
        if kind is None:
            return _absent(self.cluster, native_id)
        path = kind.path(namespace)
        own = self.api.get(f"job {native_id}", kind.path(namespace, name))
        first, later, nodes = await asyncio.gather(
            _or_none(own),
            self.api.list(f"job {native_id}", path, [("labelSelector", f"{FIRST}={name}")]),
            self.live_node_records(),
        )
        group = [JobObject(kind, raw) for raw in ([first] if first else []) + later[0]]
        group = [one for one in group if one.native_id == native_id]
        known = [one.name for one in group] or [name]
        pods, _ = await self.api.list(
            f"pods of {native_id}",
            f"/api/v1/namespaces/{namespace}/pods",
            [("labelSelector", kind.pods_of(known))],
        )
        mine = [pod_record(raw, self.settings.gpu_resource) for raw in pods]
        if group:
            return job_record(self.cluster, group, mine, nodes)
        return self._deleted(native_id, mine, nodes)

    def _deleted(self, native_id: str, pods: list[PodRecord], nodes: Mapping[str, NodeRecord]) -> JobRecord:
        """A job whose object is gone: a person's end of it, if this process saw it before it had ended."""
        seen = [o for mirror in self.job_mirrors.values() for o in mirror.gone.values() if o.native_id == native_id]
        if not seen:
            return _absent(self.cluster, native_id)
        record = job_record(self.cluster, seen, pods, nodes)
        return record.deleted(nodes)

    async def known_job(self, native_id: str) -> JobRecord:
        """Live. Raises NotFoundError for a job that is not in the cluster."""
        record = await self.job(native_id)
        if record.job.phase is Phase.ABSENT:
            raise NotFoundError(f"{self.cluster} has no job {native_id} (deleted, or never there)")
        return record

    def _parse(self, native_id: str) -> tuple[JobKind | None, str, str]:
        word, _, rest = native_id.partition("/")
        namespace, _, name = rest.partition("/")
        kind = next((k for k in KINDS if k.word == word), None)
        legal = bool(namespace and name) and "/" not in name
        if not legal or (self.settings.namespaces and namespace not in self.settings.namespaces):
            return None, "", ""
        return kind, namespace, name

    # -- nodes

    async def nodes(self, max_age: float) -> tuple[NodeFacts, ...]:
        return self.facts_of(await self.picture(max_age))

    async def live_nodes(self) -> tuple[NodeFacts, ...]:
        return await self.nodes(0)

    async def node(self, node: str) -> NodeFacts:
        """Live. Raises NotFoundError for a node that the cluster does not have."""
        for facts in await self.live_nodes():
            if facts.node == node:
                return facts
        raise NotFoundError(f"{self.cluster} has no node {node!r}")

    async def live_node_records(self) -> dict[str, NodeRecord]:
        items, _ = await self.api.list(f"nodes of {self.cluster}", NODES)
        found = [node_record(raw, self.settings.gpu_resource) for raw in items]
        return {node.name: node for node in found}

    def facts_of(self, picture: Picture) -> tuple[NodeFacts, ...]:
        holders = held_nodes(picture.pods, self._native_ids(picture.objects))
        self.records = dict(picture.nodes)
        made = tuple(
            node_facts(self.cluster, record, holders.get(record.name, ()), self.boots, picture.at)
            for record in sorted(picture.nodes.values(), key=lambda r: r.name)
        )
        for facts in made:
            if picture.live or not facts.responding:  # what was not asked just now is no steady answer
                self.steadiness.saw(facts.node, facts.responding, picture.at)
        return made

    def _native_ids(self, objects: Iterable[JobObject]) -> dict[tuple[str, str, str], str]:
        return {(o.kind.owner, o.namespace, o.name): o.native_id for o in objects}

    async def close(self) -> None:
        await asyncio.gather(*(mirror.close() for mirror in self.mirrors()))
        await self._live.close()
        await self._pulse.close()
        await self.api.close()


def held_nodes(
    pods: Sequence[PodRecord], native_ids: Mapping[tuple[str, str, str], str]
) -> Mapping[str, tuple[str, ...]]:
    """node -> native ids of what holds it: jobs that we know, and every other pod with GPUs by its own name."""
    held: dict[str, list[str]] = {}
    for pod in pods:
        if not pod.node or pod.ended:
            continue
        native = native_ids.get((pod.owner_kind, pod.namespace, pod.owner_name))
        if native is None and pod.gpus:
            native = f"pod/{pod.namespace}/{pod.name}"
        if native is not None and native not in held.setdefault(pod.node, []):
            held[pod.node].append(native)
    return {node: tuple(ids) for node, ids in held.items()}


def _absent(cluster: str, native_id: str) -> JobRecord:
    absent = NativeJob(cluster=cluster, native_id=native_id, name="", phase=Phase.ABSENT)
    return JobRecord(job=absent, objects=(), pods=())


async def _or_none(read: Awaitable[Raw]) -> Raw | None:
    try:
        return await read
    except NotFoundError:
        return None
