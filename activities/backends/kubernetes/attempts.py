"""Starting the next attempt of a stopped, held job. Each call may be the last one before a crash: asked again, the
order reads where the job stands and does the rest."""

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from activities.backends.kubernetes import marks
from activities.backends.kubernetes.jobs import JobOrders, own_affinity
from activities.backends.kubernetes.jobview import JobRecord
from activities.backends.kubernetes.outcomes import Outcome, error_of_write
from activities.backends.kubernetes.records import PodRecord
from activities.backends.power import Power
from fleet.errors import NotFoundError, RefusedError
from fleet.model import NativeJob, Phase
from fleet.orders import StartOrder

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
        if _started_already(record, order):
            return record.job
        newest = record.newest
        if not newest.held_by_us:
            raise RefusedError(
                f"job {order.native_id} was suspended by a person; `kubectl patch job {newest.name} "
                f'-n {newest.namespace} -p \'{{"spec":{{"suspend":false}}}}\'` ends that'
            )
        await self._refuse_unknown(order)
        avoid = tuple(dict.fromkeys(n for n in (*record.job.excluded, *order.exclude) if n not in order.require))
        own = own_affinity(newest)
        words: dict[str, str | None] = {
            marks.HELD: "true",
            marks.ADOPTED: "true",
            marks.EXCLUDED: ",".join(avoid) or None,
            marks.REQUIRED: ",".join(order.require) or None,
            marks.OWN_AFFINITY: json.dumps(own or {}, sort_keys=True),
        }
        await self._clear(record)
        await self.orders.release(record, words, node_affinity(own, order.require, avoid))
        return (await self.view.known_job(order.native_id)).job

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
            await self._remove(pod)

    async def _refuse_unfenced(self, record: JobRecord, pod: PodRecord) -> None:
        """Receipts were asked for the nodes of attempts that ran whole, for only those were recorded. A rank of one
        that never did, on a node that was lost meanwhile, is fenced only if its power reads off."""
        if not pod.node:
            return
        started = {p.index for p in record.attempt(pod.generation) if p.has_started}
        if len(started) >= record.newest.state.wanted:
            return
        if self.power.has_status and await self.power.is_off(pod.node):
            return
        raise RefusedError(
            f"{pod.name} on {pod.node} is of an attempt that never ran whole, and its kubelet has not reported its "
            f"end: power {pod.node} off, or wait until its kubelet answers"
        )

    async def _remove(self, pod: PodRecord) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": pod.uid},
        }
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        answer = await self.api.write("DELETE", path, body)
        if answer.outcome not in {Outcome.DONE, Outcome.NOT_FOUND, Outcome.CONFLICT}:
            raise error_of_write(f"remove pod {pod.name}", answer.outcome, answer.text, answer.retry_after)

    async def settle(self, native_id: str) -> NativeJob:
        """Holds the running attempt again. Our pin is only forgotten by what we report: a running Job's template
        cannot change, so the next start writes its node affinity anew."""
        record = await self.view.known_job(native_id)
        if record.job.phase is not Phase.RUNNING:
            raise RefusedError(f"job {native_id} is {record.job.phase}; it is settled once it runs")
        await self.orders.annotate(record, {marks.ADOPTED: "true", marks.HELD: "true", marks.REQUIRED: None})
        return (await self.view.known_job(native_id)).job


def _started_already(record: JobRecord, order: StartOrder) -> bool:
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
    return not record.newest.state.suspended


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


def _field(operator: str, node: str) -> dict[str, object]:
    return {"key": "metadata.name", "operator": operator, "values": [node]}
