"""Empties a node of what is no supervised job: by the Eviction API, so that disruption budgets hold, and never in
silence: who stays is named with its owner and what keeps it.

Left alone: pods of supervised jobs (their runbooks move them), static pods, pods of DaemonSets that hold no GPU, and
pods that have ended.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from activities.backends.kubernetes.api import Answer, KubeApi, Raw
from activities.backends.kubernetes.check import CHECK_NAME
from activities.backends.kubernetes.nodes import NodeOrders
from activities.backends.kubernetes.outcomes import Outcome, error_of_write
from activities.backends.kubernetes.records import PodRecord
from activities.backends.kubernetes.view import ClusterView
from activities.backends.kubernetes.writes import delete_pod
from activities.backends.power import Power
from fleet.evacuation import REFUSES, EvacuationOrder, EvacuationState, Hold, Occupant
from fleet.model import NativeJob, NodeFacts

MADE_AGAIN = frozenset({"ReplicaSet", "ReplicationController", "StatefulSet"})
"""Controllers that make another pod elsewhere and know no more of it than that. All others run somebody's work, and
so do these for a kind of job that uses them (LeaderWorkerSet), which its labels tell."""
LATE = 10.0
"""Seconds beyond the end of its grace after which a pod is called stuck: 2.4 s were measured from a container's end
to its kubelet's word (proofs.END)."""
VOLUMES = "/apis/storage.k8s.io/v1/volumeattachments"
NOT_DELIVERED = frozenset({Outcome.NOT_DELIVERED, Outcome.UNAUTHENTICATED})
GONE = frozenset({Outcome.NOT_FOUND, Outcome.CONFLICT})
"""Of an eviction with the uid as precondition: no such pod, or another one of its name."""


class Seen(NamedTuple):
    """One reading of a node."""

    facts: NodeFacts
    pods: Sequence[PodRecord]
    jobs: Mapping[str, NativeJob]
    """uid of a pod -> the job it belongs to, where we know that."""


class Refusals(NamedTuple):
    """What came of the orders of one pass."""

    why: dict[str, str]
    """uid -> why it was not taken."""
    asked: list[str]
    again_in: float


class Evacuations:
    """`evacuate` of one cluster."""

    def __init__(self, api: KubeApi, view: ClusterView, power: Power, nodes: NodeOrders) -> None:
        self.api = api
        self.view = view
        self.power = power
        self.nodes = nodes

    async def run(self, node: str, order: EvacuationOrder) -> EvacuationState:
        """One pass: read, order, read back."""
        seen = await self._look(node)
        done = Refusals({}, [], 0.0)
        volumes: tuple[Occupant, ...] = ()
        if seen.facts.responding:
            done = await self._order(seen, order)
        elif order.fenced and await self._is_off(node):
            volumes = await self._volumes(node)
            if volumes or occupants_of(seen, {}):
                await self.nodes.out_of_service(node, order.op)
                seen = await self._look(node)
        if done.asked or done.why:
            seen = await self._look(node)
        return EvacuationState(
            occupants=(*occupants_of(seen, done.why), *volumes),
            asked=tuple(done.asked),
            ignored=tuple(name_of(pod) for pod in seen.pods if of_the_node(pod)),
            again_in=done.again_in,
        )

    async def _look(self, node: str) -> Seen:
        """Live. Raises NotFoundError for a node that the cluster does not have."""
        picture = await self.view.node_picture(node)
        facts = self.view.facts_in(picture, node)
        jobs = {pod.uid: record.job for record in self.view.records_of(picture) for pod in record.pods}
        slinky = self.view.settings.slinky
        here = (p for p in picture.pods if p.node == node and not (slinky and p.slurmd))
        pods = sorted(here, key=lambda p: (p.namespace, p.name))
        return Seen(facts, pods, jobs)

    async def _is_off(self, node: str) -> bool:
        """Read again, whatever the receipt says. Another boot needs nothing of this: the kubelet of that boot lets
        the old pods go as soon as it answers, and while it does not, it may run what it started since."""
        return self.power.has_status and await self.power.is_off(node)

    async def _volumes(self, node: str) -> tuple[Occupant, ...]:
        found, _ = await self.api.list(f"volumes of {node}", VOLUMES)
        here = [v for v in found if v["spec"].get("nodeName") == node and v.get("status", {}).get("attached")]
        return tuple(_volume(v) for v in here)

    # -- orders

    async def _order(self, seen: Seen, order: EvacuationOrder) -> Refusals:
        """Raises TemporaryError when the apiserver took none of an order."""
        may = {Hold.MOVABLE, Hold.WORK} if order.others else {Hold.MOVABLE}
        there = {o.uid: o for o in occupants_of(seen, {})}
        todo = [(pod, there[pod.uid]) for pod in seen.pods if pod.uid in there]
        forced = [pod for pod, o in todo if pod.uid in order.forced and o.hold in REFUSES]
        evicted = [pod for pod, o in todo if order.evict and pod.uid not in order.forced and o.hold in may]
        # with its own grace: its kubelet answers, and a pod object that goes before its containers hides them
        ends = (delete_pod(self.api, p.namespace, p.name, p.uid) for p in forced)
        answers = await asyncio.gather(*ends, *(self._evict(p) for p in evicted))
        done = Refusals({}, [], max((a.retry_after or 0.0 for a in answers), default=0.0))
        for pod, answer in zip([*forced, *evicted], answers, strict=True):
            if answer.outcome is Outcome.DONE:
                done.asked.append(name_of(pod))
            elif answer.outcome in NOT_DELIVERED or (answer.outcome is Outcome.BUSY and not budgets(answer.body)):
                raise error_of_write(f"evict {name_of(pod)}", answer.outcome, answer.text, answer.retry_after)
            elif answer.outcome not in GONE:
                done.why[pod.uid] = budgets(answer.body) or answer.text
        return done

    async def _evict(self, pod: PodRecord) -> Answer:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        return await self.api.write("POST", f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction", body)


# -- pure


def name_of(pod: PodRecord) -> str:
    return f"pod/{pod.namespace}/{pod.name}"


def of_the_node(pod: PodRecord) -> bool:
    """It belongs to the node and comes back with it."""
    return pod.mirror or (pod.owner_kind == "DaemonSet" and not pod.gpus)


def budgets(body: Raw) -> str:
    """The disruption budgets that a refused eviction names; empty for another refusal."""
    causes = body.get("details", {}).get("causes", [])
    return "; ".join(c.get("message", "") for c in causes if c.get("reason") == "DisruptionBudget")


def occupants_of(seen: Seen, refused: Mapping[str, str]) -> tuple[Occupant, ...]:
    """Those who are waited for. `refused`: uid -> why an order of this pass was not taken."""
    found = []
    for pod in seen.pods:
        job = seen.jobs.get(pod.uid)
        if of_the_node(pod) or _moves_itself(job) or (pod.ended and not pod.deleted):
            continue
        hold = hold_of(pod, time.time())
        why = refused.get(pod.uid, "") if not pod.deleted else ""
        found.append(
            Occupant(
                id=name_of(pod),
                uid=pod.uid,
                owner=f"{pod.owner_kind} {pod.owner_name}" if pod.owner_uid else "no controller",
                holder=job.native_id if job is not None else name_of(pod),
                hold=Hold.PROTECTED if why else hold,
                why=why or _why(pod, hold, responding=seen.facts.responding),
            )
        )
    return tuple(found)


def _moves_itself(job: NativeJob | None) -> bool:
    """A runbook of its own moves it; a job that asked for one and cannot have it is like any other."""
    return job is not None and job.supervised and (job.adopted or not job.refusal)


def hold_of(pod: PodRecord, now: float) -> Hold:
    if pod.deleted:
        if pod.ended and pod.finalizers:
            return Hold.KEPT
        return Hold.STUCK if now > pod.deleted_at + LATE else Hold.LEAVING
    if pod.name.startswith(CHECK_NAME):
        return Hold.MOVABLE  # ours, left by a worker that crashed
    if not pod.owner_uid:
        return Hold.UNMANAGED
    serves = pod.owner_kind in MADE_AGAIN and not pod.gpus and not pod.labels
    return Hold.MOVABLE if serves else Hold.WORK


def _why(pod: PodRecord, hold: Hold, *, responding: bool) -> str:
    kept = f"; the finalizer {', '.join(pod.finalizers)} keeps it" if pod.finalizers else ""
    local = "; what it keeps in emptyDir is lost when it leaves" if pod.local_data else ""
    match hold:
        case Hold.KEPT:
            return f"it has ended{kept}: whoever set that must take it away"
        case Hold.STUCK:
            late = f"its grace ended {time.time() - pod.deleted_at:.0f} s ago, and its kubelet "
            return late + ("has not reported its end" if responding else "does not answer") + kept
        case Hold.LEAVING:
            return f"asked to leave; its grace ends in {max(0.0, pod.deleted_at - time.time()):.0f} s{kept}"
        case Hold.UNMANAGED:
            return f"no controller would bring it back{local}"
        case Hold.MOVABLE:
            return f"can be made again elsewhere{local}"
        case _:
            holds = f"holds {pod.gpus} GPUs" if pod.gpus else "of a job that no runbook moves"
            return f"other people's work ({holds}){local}"


def _volume(raw: Raw) -> Occupant:
    source = raw["spec"].get("source", {}).get("persistentVolumeName", "")
    return Occupant(
        id=f"volume/{source or raw['metadata']['name']}",
        uid=raw["metadata"]["uid"],
        owner=str(raw["spec"].get("attacher", "")),
        holder="",
        hold=Hold.LEAVING,
        why="attached",
    )
