"""Starting the next attempt of a stopped, held job. Each call may be the last one before a crash: asked again, the
order reads where the job stands and does the rest."""

import asyncio
import copy
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from activities.backends.kubernetes import marks
from activities.backends.kubernetes.api import Raw
from activities.backends.kubernetes.jobs import JobOrders, own_affinities
from activities.backends.kubernetes.jobview import JobRecord
from activities.backends.kubernetes.kinds.base import other_gates
from activities.backends.kubernetes.records import PodRecord
from activities.backends.kubernetes.writes import end_pod
from activities.backends.power import Power
from fleet.errors import NotFoundError, RefusedError
from fleet.model import NativeJob, Phase
from fleet.orders import StartOrder

PODS_WITHIN = 5.0
"""Seconds in which a released object's pods are waited for: 1.7 s were measured for a JobSet's."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class Attempts:
    """`start_attempt` and `settle_attempt`."""

    def __init__(self, orders: JobOrders, power: Power) -> None:
        self.orders = orders
        self.power = power
        self.api = orders.api
        self.view = orders.view

    async def start(self, order: StartOrder) -> NativeJob:
        """Clears away what is left of older attempts (their receipts were asked for before this order), then
        releases with exclusions and pins. `front` has no effect: without Kueue, pods go by their priority class."""
        record = await self.view.known_job(order.native_id)
        if started_already(record, order):
            return (await self._placed(order.native_id)).job
        newest = record.newest
        if not newest.held_by_us:
            raise RefusedError(
                f"job {order.native_id} was suspended by a person; `kubectl patch job {newest.name} "
                f'-n {newest.namespace} -p \'{{"spec":{{"suspend":false}}}}\'` ends that'
            )
        await self._refuse_unknown(order)
        avoid = tuple(dict.fromkeys(n for n in order.exclude if n not in order.require))
        own = own_affinities(newest)
        words: dict[str, str | None] = {
            marks.HELD: "true",
            marks.ADOPTED: "true",
            marks.EXCLUDED: ",".join(avoid) or None,
            marks.REQUIRED: ",".join(order.require) or None,
            marks.OWN_AFFINITY: json.dumps(own, sort_keys=True),
        }
        await self._clear(record)
        await self.orders.release(record, words, tuple(node_affinity(one, order.require, avoid) for one in own))
        return (await self._placed(order.native_id)).job

    async def _refuse_unknown(self, order: StartOrder) -> None:
        known = await self.view.live_node_records()
        unknown = [node for node in (*order.exclude, *order.require) if node not in known]
        if unknown:
            raise NotFoundError(f"{self.view.cluster} has no node {', '.join(unknown)}")
        both = set(order.exclude) & set(order.require)
        if both:
            raise RefusedError(f"the order requires and excludes {', '.join(sorted(both))}")

    async def _clear(self, record: JobRecord) -> None:
        """Lets go of the objects that were kept as proof. One that its kubelet never spoke of is on a node that is
        fenced by now; its controller would wait for it for ever, so its object is taken away."""
        left = [pod for pod in record.pods if not pod.ended]
        for pod in left:
            await self._refuse_unfenced(record, pod)
        await self.orders.drop_proofs(record.pods)
        for pod in left:
            await end_pod(self.api, f"remove pod {pod.name}", pod.namespace, pod.name, pod.uid, grace=0)

    async def _refuse_unfenced(self, record: JobRecord, pod: PodRecord) -> None:
        """Receipts were asked for the nodes of attempts that ran whole, for only those were recorded. A rank of one
        that never did, on a node that was lost meanwhile, is fenced only if its power reads off."""
        if not pod.node:
            return
        started = {p.rank for p in record.attempt(pod.generation) if p.has_started}
        if len(started) >= record.newest.state.wanted:
            return
        if self.power.has_status and await self.power.is_off(pod.node):
            return
        raise RefusedError(
            f"{pod.name} on {pod.node} is of an attempt that never ran whole, and its kubelet has not reported its "
            f"end: power {pod.node} off, or wait until its kubelet answers"
        )

    # -- placing pods one by one, of kinds whose node affinity cannot change

    async def _placed(self, native_id: str) -> JobRecord:
        """Waits a moment for its pods where they have to be placed; later ones are placed by the watch."""
        end = time.monotonic() + PODS_WITHIN
        while True:
            record = await self.view.known_job(native_id)
            if record.newest.kind.affinity_mutable:
                return record
            await self.place(record)
            there = {p.rank for p in record.attempt(record.newest.generation)}
            waits = record.newest.state.suspended  # in a queue: nobody knows until when
            if waits or len(there) >= record.newest.state.wanted or time.monotonic() >= end:
                return record
            await asyncio.sleep(0.1)

    async def place(self, record: JobRecord) -> None:
        """Lets its pods that wait for us go, to the nodes that its order names."""
        gated = [pod for pod in record.pods if pod.gated and pod.generation == record.newest.generation]
        if gated:
            nodes = await self.view.live_node_records()
            hosts = {name: node.hostname for name, node in nodes.items()}
            await asyncio.gather(*(self._place(record, pod, hosts) for pod in gated))

    async def _place(self, record: JobRecord, pod: PodRecord, hosts: Mapping[str, str]) -> None:
        job = record.job

        def decide(raw: Raw) -> Raw | None:
            left = other_gates(raw["spec"])
            if len(left) == len(raw["spec"].get("schedulingGates") or []):
                return None
            affinity = raw["spec"].get("affinity") or {}
            wanted = [hosts.get(node, node) for node in job.required]
            mine = narrowed(affinity.get("nodeAffinity"), wanted, job.excluded)
            spec: Raw = {"schedulingGates": left}
            return {"spec": spec | ({"affinity": {**affinity, "nodeAffinity": mine}} if mine else {})}

        await self.orders.on_pod(pod, decide)

    async def settle(self, native_id: str) -> NativeJob:
        """Holds the running attempt again. Our pin is only forgotten by what we report: a running Job's template
        cannot change, so the next start writes its node affinity anew."""
        record = await self.view.known_job(native_id)
        if record.job.phase is not Phase.RUNNING:
            raise RefusedError(f"job {native_id} is {record.job.phase}; it is settled once it runs")
        ran = str(record.newest.generation)
        words = {marks.ADOPTED: "true", marks.HELD: "true", marks.REQUIRED: None, marks.RAN: ran}
        await self.orders.annotate(record, words)
        return (await self.view.known_job(native_id)).job


def started_already(record: JobRecord, order: StartOrder) -> bool:
    """True when this very order was carried out. Raises RefusedError when somebody else moved the job."""
    job = record.job
    if job.phase.ended:
        raise RefusedError(f"job {job.native_id} has ended ({job.phase}); it is not started again")
    if job.restarts != order.restarts:
        raise RefusedError(
            f"job {job.native_id} is at restart {job.restarts}, the order was made at {order.restarts}: "
            "somebody else moved it; look at it again"
        )
    let_go = not record.newest.stopped
    if job.phase is Phase.STOPPING and not (let_go and record.newest.generation == order.restarts):
        raise RefusedError(f"job {job.native_id} is still stopping; wait until it is pending")
    return let_go  # one in a queue may look as if it stopped: Kueue starts it between two reads


def node_affinity(
    own: Mapping[str, Any] | None, require: Sequence[str], avoid: Sequence[str]
) -> Mapping[str, object] | None:
    """The owner's node affinity, narrowed to nodes and away from others.

    Terms are alternatives, expressions of one term must all hold, and a name expression takes one name only
    (kubernetes, NodeSelectorTerm.matchFields): so each required node is an alternative, each avoided one a condition.
    """
    if not require and not avoid:
        return own
    made: dict[str, Any] = copy.deepcopy(dict(own or {}))
    terms = (made.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    away = [_field("NotIn", node) for node in avoid]
    narrowed = []
    for term in terms:
        fields = term.get("matchFields", [])
        for names in [[_field("In", node)] for node in require] or [[]]:
            narrowed.append({**term, "matchFields": [*fields, *names, *away]})
    made[_REQUIRED] = {"nodeSelectorTerms": narrowed}
    return made


def narrowed(
    own: Mapping[str, Any] | None, hosts: Sequence[str], avoid: Sequence[str]
) -> Mapping[str, object] | None:
    """The same for a pod that exists: a gated one takes new conditions only within the terms that it has
    (kubernetes, "Mutable Pod Scheduling Directives"), so nodes that it must go to are named by their host names."""
    made: dict[str, Any] = copy.deepcopy(dict(own or {}))
    if not hosts and not avoid:
        return own
    away = [_field("NotIn", node) for node in avoid]
    there = [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(hosts)}] if hosts else []
    terms = (made.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    made[_REQUIRED] = {
        "nodeSelectorTerms": [
            {
                **term,
                "matchFields": [*term.get("matchFields", []), *away],
                "matchExpressions": [*term.get("matchExpressions", []), *there],
            }
            for term in terms
        ]
    }
    return made


def _field(operator: str, node: str) -> dict[str, object]:
    return {"key": "metadata.name", "operator": operator, "values": [node]}
