"""One cluster's picture: jobs, pods and nodes, joined, with what is remembered between readings.

`jobs`/`nodes` come from the watched picture when that is fresh enough, else from a live list; `live_*`,
`job` and `node` are read now.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from activities.backends.kubernetes.api import KubeApi, Raw
from activities.backends.kubernetes.installed import Found, Installed
from activities.backends.kubernetes.jobview import JobObject, JobRecord, Owners, job_record, outermost, with_children
from activities.backends.kubernetes.kinds.all import KINDS
from activities.backends.kubernetes.kinds.base import JobKind
from activities.backends.kubernetes.kueue import JOB_UID, by_owner, workloads_path
from activities.backends.kubernetes.marks import FIRST
from activities.backends.kubernetes.mirror import Mirror
from activities.backends.kubernetes.nodeview import BootTimes, LastFacts, node_facts
from activities.backends.kubernetes.records import NodeRecord, PodRecord, node_record, pod_record
from activities.backends.kubernetes.settings import KubernetesSettings
from activities.backends.polling import Shared
from activities.backends.steady import Steadiness
from fleet.errors import NotFoundError
from fleet.model import NativeJob, NodeFacts, NodeState, Phase

PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
ONE_BY_ONE = 32
"""Nodes that are read one by one; of more, the list of all is the smaller load."""
FIRST_LIST = 30.0
"""Seconds that the first list of everything may take."""
Show = Callable[[str, NodeRecord, tuple[str, ...], BootTimes, float], NodeFacts]
"""As `node_facts`."""


class Picture:
    """Jobs, pods and nodes of one reading. `age` is that of a watched one; None for one that was read just now."""

    def __init__(
        self,
        objects: Sequence[JobObject],
        pods: Sequence[PodRecord],
        nodes: Sequence[NodeRecord],
        workloads: Sequence[Raw] = (),
        age: float | None = None,
        whole: bool = True,
    ) -> None:
        """`whole` False: of one node only, with the job objects that what is on it may belong to."""
        waiting = by_owner(workloads)
        self.objects = [replace(one, workload=waiting.get(one.uid)) for one in with_children(objects)]
        """Of each kind, the outermost first; those between a job object and its pods are among them."""
        self.pods = pods
        self.nodes = {node.name: node for node in nodes}
        self.live = age is None
        self.whole = whole
        self.at = time.time() - (age or 0.0)


LEASES_AGAIN = 40.0
"""Seconds after an apiserver came back for which the node controller's word on silent nodes is not believed: it calls
each node lost whose lease was not renewed while nobody could renew one. A kubelet does so every 10 s, and gives up on
one call after as long (nodeLeaseDurationSeconds 40, a quarter of it; measured after outages of 3 and 4 minutes)."""


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
        self.installed = Installed(api, settings.namespaces)
        spaces = settings.namespaces
        self.job_mirrors: dict[str, Mirror[JobObject]] = {}
        """By kind, of those that the cluster has; the outermost first."""
        self.workload_mirror: Mirror[Raw] | None = None
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

    def _paths(self, path: Callable[[str], str]) -> tuple[str, ...]:
        return tuple(path(n) for n in self.settings.namespaces or ("",))

    async def follow(self) -> None:
        """Follows every kind that the cluster has, and waits for the first list of each."""
        found = await self.installed.now()
        for kind in found.kinds:
            if kind.word not in self.job_mirrors:
                made = Mirror(self.api, f"jobs of {self.cluster}", self._paths(kind.path), self._keeper(kind))
                self.job_mirrors[kind.word] = made
        self.job_mirrors = {k.word: self.job_mirrors[k.word] for k in KINDS if k.word in self.job_mirrors}
        if found.kueue and self.workload_mirror is None:
            paths = self._paths(lambda namespace: workloads_path(found.kueue, namespace))
            self.workload_mirror = Mirror(self.api, f"workloads of {self.cluster}", paths, lambda raw: raw)
        await asyncio.gather(*(mirror.ready(FIRST_LIST) for mirror in self.mirrors()))

    # -- the picture

    async def picture(self, max_age: float) -> Picture:
        """At most `max_age` seconds old. Raises TemporaryError when the apiserver cannot be asked."""
        if max_age <= 0:
            return await self._live.fresh()
        await self.follow()
        mirrors = self.mirrors()
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
        workloads = self.workload_mirror.values() if self.workload_mirror else []
        return Picture(objects, self.pod_mirror.values(), self.node_mirror.values(), workloads, age)

    def mirrors(self) -> list[Mirror[Any]]:
        """Everything that is followed."""
        workloads = [self.workload_mirror] if self.workload_mirror else []
        return [*self.job_mirrors.values(), *workloads, self.pod_mirror, self.node_mirror]

    async def _read_all(self) -> Picture:
        objects, workloads = await self._read_objects()
        nodes, pods = await asyncio.gather(self.live_node_records(), self._read_pods())
        return Picture(objects, pods, tuple(nodes.values()), workloads)

    async def node_picture(self, node: str) -> Picture:
        """Live, of one node: in a large cluster a small part of what everything is. Raises NotFoundError."""
        try:
            raw, pods = await asyncio.gather(
                self.api.get(f"node {node} of {self.cluster}", f"{NODES}/{node}"),
                self._read_pods([("fieldSelector", f"spec.nodeName={node}")]),
            )
        except NotFoundError as error:
            raise NotFoundError(f"{self.cluster} has no node {node!r}") from error
        kinds = (await self.installed.now()).kinds
        of_jobs = any(kind.object_of(pod) for kind in kinds for pod in pods if not pod.ended)
        objects, workloads = await self._read_objects() if of_jobs else ([], [])
        return Picture(objects, pods, [node_record(raw, self.settings.gpu_resource)], workloads, whole=False)

    async def _read_objects(self) -> tuple[list[JobObject], list[Raw]]:
        """Job objects of all kinds, and Kueue's Workloads."""
        installed = await self.installed.now()
        paths = [(kind, kind.path(n)) for kind in installed.kinds for n in self.settings.namespaces or ("",)]
        queued = self._paths(lambda n: workloads_path(installed.kueue, n)) if installed.kueue else ()
        found = await asyncio.gather(
            *(self.api.list(f"jobs of {self.cluster}", path) for _, path in paths),
            *(self.api.list(f"workloads of {self.cluster}", path) for path in queued),
        )
        objects = [JobObject(kind, raw) for (kind, _), (items, _) in zip(paths, found, strict=False) for raw in items]
        return objects, [raw for items, _ in found[len(paths) :] for raw in items]

    async def _read_pods(self, query: Sequence[tuple[str, str]] = ()) -> list[PodRecord]:
        paths = [f"/api/v1/namespaces/{n}/pods" for n in self.settings.namespaces] or [PODS]
        found = await asyncio.gather(*(self.api.list(f"pods of {self.cluster}", path, query) for path in paths))
        return [pod_record(raw, self.settings.gpu_resource) for items, _ in found for raw in items]

    # -- jobs

    async def jobs(self, max_age: float) -> tuple[JobRecord, ...]:
        return self.records_of(await self.picture(max_age))

    def records_of(self, picture: Picture) -> tuple[JobRecord, ...]:
        """One record for each job, of its newest object."""
        groups: dict[str, list[JobObject]] = {}
        for one in outermost(picture.objects):
            groups.setdefault(one.native_id, []).append(one)
        owners = Owners(picture.objects)
        pods: dict[str, list[PodRecord]] = {}
        helpers: dict[tuple[str, str], list[PodRecord]] = {}
        for pod in picture.pods:
            owner = owners.of(pod)
            if owner is not None and owner.kind.object_of(pod) == owner.name:
                pods.setdefault(owner.native_id, []).append(pod)
            elif owner is not None and not pod.deleted:
                helpers.setdefault((owner.native_id, owner.name), []).append(pod)
        made = [job_record(self.cluster, g, pods.get(key, []), picture.nodes) for key, g in groups.items()]
        made = [replace(one, helpers=tuple(helpers.get((one.job.native_id, one.newest.name), ()))) for one in made]
        return tuple(sorted(made, key=lambda record: (record.job.submitted_at, record.job.native_id)))

    async def job(self, native_id: str) -> JobRecord:
        """Live. Phase ABSENT when the apiserver does not know it, and this process never saw it either."""
        kind, namespace, name = self._parse(native_id)
        installed = await self.installed.now()
        if kind is None or kind not in installed.kinds:
            return _absent(self.cluster, native_id)
        path = kind.path(namespace)
        own = self.api.get(f"job {native_id}", kind.path(namespace, name))
        first, later = await asyncio.gather(
            _or_none(own),
            self.api.list(f"job {native_id}", path, [("labelSelector", f"{FIRST}={name}")]),
        )
        group = [JobObject(kind, raw) for raw in ([first] if first else []) + later[0]]
        group = [one for one in group if one.native_id == native_id]
        group = await self._with_workloads(await self._with_children(group), installed)
        known = [one.name for one in group] or [name]
        pods, _ = await self.api.list(
            f"pods of {native_id}",
            f"/api/v1/namespaces/{namespace}/pods",
            [("labelSelector", kind.pods_of(known))],
        )
        found = (pod_record(raw, self.settings.gpu_resource) for raw in pods)
        mine = [pod for pod in found if kind.object_of(pod) in known]
        nodes = await self._nodes_under(mine)
        if group:
            return job_record(self.cluster, group, mine, nodes)
        return self._deleted(native_id, mine, nodes)

    async def _with_children(self, group: list[JobObject]) -> list[JobObject]:
        """With what they make under their own name (`JobKind.child`)."""
        asked = [(one, one.kind.child) for one in group if one.kind.child]
        what = f"what is made by a job of {self.cluster}"
        reads = (_or_none(self.api.get(what, kind.path(one.namespace, one.name))) for one, kind in asked if kind)
        found = await asyncio.gather(*reads)
        children = [JobObject(kind, raw) for (_, kind), raw in zip(asked, found, strict=True) if kind and raw]
        return with_children([*group, *children])[: len(group)]

    async def _with_workloads(self, group: list[JobObject], installed: Found) -> list[JobObject]:
        """What Kueue keeps of those that are in a queue."""
        made = []
        for one in group:
            if installed.kueue:
                path, query = workloads_path(installed.kueue, one.namespace), f"{JOB_UID}={one.uid}"
                found, _ = await self.api.list(f"workload of {one.name}", path, [("labelSelector", query)])
                made.append(replace(one, workload=by_owner(found).get(one.uid)))
            else:
                made.append(one)
        return made

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
        return self.facts_in(await self.node_picture(node), node)

    def facts_in(self, picture: Picture, node: str) -> NodeFacts:
        """One node of a picture. Raises NotFoundError for one that the cluster did not have."""
        for facts in self.facts_of(picture):
            if facts.node == node:
                return facts
        raise NotFoundError(f"{self.cluster} has no node {node!r}")

    async def _nodes_under(self, pods: Sequence[PodRecord]) -> dict[str, NodeRecord]:
        """Live, the nodes that these pods were placed on; one that is gone is left out."""
        names = {pod.node for pod in pods if pod.node}
        if len(names) > ONE_BY_ONE:
            return await self.live_node_records()
        reads = (self.api.get(f"node {name} of {self.cluster}", f"{NODES}/{name}") for name in sorted(names))
        found = await asyncio.gather(*map(_or_none, reads))
        records = [node_record(raw, self.settings.gpu_resource) for raw in found if raw is not None]
        return {record.name: record for record in records}

    async def live_node_records(self) -> dict[str, NodeRecord]:
        items, _ = await self.api.list(f"nodes of {self.cluster}", NODES)
        found = [node_record(raw, self.settings.gpu_resource) for raw in items]
        return {node.name: node for node in found}

    def facts_of(self, picture: Picture) -> tuple[NodeFacts, ...]:
        return self._shown(picture, node_facts)

    def changing_facts(self, picture: Picture, last: LastFacts) -> tuple[NodeFacts, ...]:
        """The same without the time of reading, for who compares one picture with the next."""
        return self._shown(picture, last.of)

    def _shown(self, picture: Picture, show: Show) -> tuple[NodeFacts, ...]:
        pods = [pod for pod in picture.pods if not (pod.slurmd and self.settings.slinky)]
        holders = held_nodes(pods, Owners(picture.objects))
        self.records = ({} if picture.whole else self.records) | picture.nodes
        made = tuple(
            show(self.cluster, record, holders.get(record.name, ()), self.boots, picture.at)
            for record in sorted(picture.nodes.values(), key=lambda r: r.name)
        )
        if self.doubts():
            made = tuple(f if f.state is not NodeState.DOWN else _unsure(f) for f in made)
        for facts in made:
            if picture.live or not facts.responding:  # what was not asked just now is no steady answer
                self.steadiness.saw(facts.node, facts.responding, picture.at)
        return made

    def doubts(self) -> bool:
        """Whether silent nodes may be well: their apiserver has only just come back."""
        return self.api.back_within(LEASES_AGAIN)

    async def close(self) -> None:
        await asyncio.gather(*(mirror.close() for mirror in self.mirrors()))
        await self.installed.close()
        await self._live.close()
        await self._pulse.close()
        await self.api.close()


def held_nodes(pods: Sequence[PodRecord], owners: Owners) -> Mapping[str, tuple[str, ...]]:
    """node -> native ids of what holds it: jobs that we know, and every other pod with GPUs by its own name."""
    held: dict[str, list[str]] = {}
    for pod in pods:
        if not pod.node or pod.ended:
            continue
        owner = owners.of(pod)
        native = owner.native_id if owner else None
        if native is None and pod.gpus:
            native = f"pod/{pod.namespace}/{pod.name}"
        if native is not None and native not in held.setdefault(pod.node, []):
            held[pod.node].append(native)
    return {node: tuple(ids) for node, ids in held.items()}


def _unsure(facts: NodeFacts) -> NodeFacts:
    return facts.model_copy(update={"state": NodeState.UNKNOWN})


def _absent(cluster: str, native_id: str) -> JobRecord:
    absent = NativeJob(cluster=cluster, native_id=native_id, name="", phase=Phase.ABSENT)
    return JobRecord(job=absent, objects=(), pods=())


async def _or_none(read: Awaitable[Raw]) -> Raw | None:
    try:
        return await read
    except NotFoundError:
        return None
