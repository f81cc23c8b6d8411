"""A job as the port shows it, made of its objects and pods. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from activities.backends.kubernetes import kueue, marks
from activities.backends.kubernetes.api import Raw
from activities.backends.kubernetes.kinds.base import CHILD, JobKind, KindState, controller_of
from activities.backends.kubernetes.records import NodeRecord, PodRecord, pod_gpus, quantity, seconds
from fleet.model import NativeJob, Phase


@dataclass(frozen=True)
class JobObject:
    """One native object."""

    kind: JobKind
    raw: Raw
    workload: Raw | None = None
    """Kueue's Workload of an object in a queue."""

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.raw["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        return str(self.raw["metadata"]["uid"])

    @property
    def path(self) -> str:
        return self.kind.path(self.namespace, self.name)

    @property
    def notes(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.raw["metadata"].get("annotations") or {}
        return found

    @property
    def labels(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.raw["metadata"].get("labels") or {}
        return found

    @property
    def first(self) -> str:
        """Name of the job's first object, which the native id keeps."""
        return self.labels.get(marks.FIRST, self.name)

    @property
    def native_id(self) -> str:
        return f"{self.kind.word}/{self.namespace}/{self.first}"

    @cached_property
    def state(self) -> KindState:
        return self.kind.state(self.raw)

    @property
    def generation(self) -> int:
        """Attempt that pods made from the present template belong to."""
        notes = self.template.get("metadata", {}).get("annotations") or {}
        return quantity(notes.get(marks.GENERATION))

    @property
    def template(self) -> Raw:
        """Pod template of the first role."""
        return self.kind.templates(self.raw)[0]

    @property
    def queue(self) -> str:
        """LocalQueue of Kueue that it is in; empty for none. Kueue may take objects without the label, too."""
        spec = (self.workload or {}).get("spec", {})
        return str(spec.get("queueName", "")) or self.labels.get(kueue.QUEUE, "")

    @property
    def stopped(self) -> bool:
        """It starts nothing until whoever stopped it lets it go. One that waits in a queue is not stopped."""
        if self.queue:
            return self.workload is not None and not kueue.is_active(self.workload)
        return self.state.suspended

    @property
    def restarts(self) -> int:
        """Number of the newest attempt. A suspended object that ran has ended an attempt, whoever suspended it."""
        ran = self.state.has_run or self.notes.get(marks.RAN) == str(self.generation)
        over = 1 if self.stopped and ran and not self.cancelled else 0
        kept = (self.workload or {}).get("metadata", {}).get("annotations") or {}
        numbers = (quantity(notes.get(marks.RESTARTS)) for notes in (self.notes, kept))
        return max(*numbers, self.generation + over)

    @property
    def held_by_us(self) -> bool:
        return self.notes.get(marks.HELD) == "true"

    @property
    def cancelled(self) -> bool:
        return marks.CANCELLED in self.notes


@dataclass(frozen=True)
class JobRecord:
    """A job: the port's value, its objects (newest last) and the pods of all of them."""

    job: NativeJob
    objects: tuple[JobObject, ...]
    pods: tuple[PodRecord, ...]
    helpers: tuple[PodRecord, ...] = ()
    """Pods of its newest attempt that are no ranks, and whose output is the job's: a RayJob's submitter."""

    @property
    def newest(self) -> JobObject:
        return self.objects[-1]

    @property
    def over(self) -> bool:
        """Its newest object has ended for good, or is about to."""
        newest = self.newest
        return newest.state.ended is not None or is_ending(newest, own_pods(newest, self.pods))

    def attempt(self, restarts: int) -> list[PodRecord]:
        """Pods of the attempt with that number."""
        return sorted((p for p in self.pods if p.generation == restarts), key=lambda p: (p.index, p.created))

    def speakers(self, restarts: int) -> list[PodRecord]:
        """Pods of that attempt that may have said something: its ranks, then who watches them."""
        others = self.helpers if restarts == self.newest.generation else ()
        return [pod for pod in (*self.attempt(restarts), *others) if pod.has_started]

    def deleted(self, nodes: Mapping[str, NodeRecord]) -> "JobRecord":
        """The same after its object went: as it had ended, else cancelled; stopping while pods are seen to live."""
        phase = self.newest.state.ended or Phase.CANCELLED
        living = alive(self.pods, nodes)
        job = self.job.model_copy(
            update={
                "phase": Phase.STOPPING if living else phase,
                "reason": "its object was deleted",
                "held": False,
                "adopted": False,
                "nodes": tuple(dict.fromkeys(p.node for p in living)),
            }
        )
        return JobRecord(job=job, objects=self.objects, pods=self.pods)


def alive(pods: Sequence[PodRecord], nodes: Mapping[str, NodeRecord]) -> list[PodRecord]:
    """Pods that may still run where a kubelet will say when they do not. What is on a node that was given up is
    nobody's to wait for: it is proven gone by a receipt, or not at all."""
    found = [p for p in pods if p.node and not p.ended and p.node in nodes and not nodes[p.node].given_up]
    return sorted(found, key=lambda p: (p.index, p.created))


def job_record(
    cluster: str, group: Sequence[JobObject], pods: Sequence[PodRecord], nodes: Mapping[str, NodeRecord]
) -> JobRecord:
    """`group` is all objects of one job, `pods` all of theirs."""
    order = sorted(group, key=lambda o: (o.restarts, seconds(o.raw["metadata"].get("creationTimestamp"))))
    newest = order[-1]
    own = own_pods(newest, pods)
    living = alive(pods, nodes)
    phase = phase_of(newest, own, living)
    shown = [p for p in own if p.node] if phase in {Phase.RUNNING, Phase.PENDING} or phase.ended else living
    if (newest.state.suspended or newest.stopped) and phase is not Phase.STOPPING:
        shown = []
    end = next((p for p in sorted(own, key=lambda p: p.finished or 0) if p.exit_code), None)
    end = end or next((p for p in own if p.exit_code is not None), None)
    code = end.exit_code if end is not None and phase.ended else None
    notes = newest.notes
    created = seconds(notes.get(marks.FIRST_CREATED) or newest.raw["metadata"].get("creationTimestamp"))
    starts = [p.started for p in own if p.started]
    refusal = newest.kind.refusal(newest.raw) or unseen_queue(newest, phase)
    job = NativeJob(
        cluster=cluster,
        native_id=newest.native_id,
        uid=notes.get(marks.FIRST_UID, newest.uid),
        name=newest.first,
        key=notes.get(marks.KEY),
        user=newest.namespace,
        phase=phase,
        held=is_held(newest, phase),
        reason=reason_of(newest, own, phase),
        restarts=newest.restarts,
        nodes=tuple(dict.fromkeys(p.node for p in shown)),
        nodes_wanted=newest.state.wanted,
        gpus_per_node=max(pod_gpus(t.get("spec", {}), "nvidia.com/gpu") for t in newest.kind.templates(newest.raw)),
        excluded=marks.names(notes.get(marks.EXCLUDED, "")),
        required=marks.names(notes.get(marks.REQUIRED, "")),
        exit_code=code,
        exit_signal=code - 128 if code is not None and 128 < code < 160 else None,
        submitted_at=created,
        started_at=max(starts) if phase is Phase.RUNNING and starts else newest.state.started_at,
        tokens=marks.tokens_of(newest.labels, notes),
        adopted=marks.ADOPTED in notes and not phase.ended,
        requeueable=refusal is None,
        refusal=refusal or "",
    )
    return JobRecord(job=job, objects=tuple(order), pods=tuple(pods))


def own_pods(newest: JobObject, pods: Sequence[PodRecord]) -> list[PodRecord]:
    """Pods of the attempt that the object's present template is for."""
    kind = newest.kind
    mine = (p for p in pods if kind.object_of(p) == newest.name and kind.is_of(p, newest.raw))
    return sorted((p for p in mine if p.generation == newest.generation), key=lambda p: (p.index, p.created))


def unseen_queue(newest: JobObject, phase: Phase) -> str | None:
    """What keeps us from a job in a queue that we cannot see."""
    if not newest.queue or newest.workload is not None or phase is not Phase.RUNNING:
        return None
    return (
        f"its label {kueue.QUEUE} names the queue {newest.queue}, and no Workload of it is seen: let us list "
        "workloads.kueue.x-k8s.io, or take the label away where Kueue is not installed"
    )


def is_held(newest: JobObject, phase: Phase) -> bool:
    """A suspended job waits for whoever suspended it; a running one of ours is started again by us only. One that
    was released and waits for its nodes is free to start."""
    if phase.ended:
        return False
    return newest.stopped or (newest.held_by_us and phase is not Phase.PENDING)


def phase_of(newest: JobObject, own: Sequence[PodRecord], living: Sequence[PodRecord]) -> Phase:
    """Where it stands. The object's own conditions decide only how it ended; whether it still lives, the pods."""
    state = newest.state
    if newest.cancelled:
        return Phase.STOPPING if living else Phase.CANCELLED
    if state.ended is not None:
        if state.ended is Phase.FAILED and any(p.node_lost for p in own):
            return Phase.NODE_LOST
        if state.ended is Phase.SUCCEEDED and any(p.disruption for p in own):
            return Phase.FAILED  # a rank that ends with 0 when it is told to go is counted as done by its controller
        return state.ended
    if is_ending(newest, own) or "deletionTimestamp" in newest.raw["metadata"]:
        return Phase.STOPPING
    if newest.stopped and not state.suspended:
        return Phase.STOPPING  # Kueue has yet to suspend it
    if state.suspended or newest.stopped:
        return Phase.STOPPING if living else Phase.PENDING
    done = {p.rank for p in own if p.phase == "Succeeded"}
    begun = {p.rank for p in own if p.has_started} - done
    return Phase.RUNNING if len(begun) + max(len(done), state.succeeded) >= state.wanted else Phase.PENDING


def is_ending(newest: JobObject, own: Sequence[PodRecord]) -> bool:
    """Its end is decided, also where the object says so late."""
    state = newest.state
    failed = any(p.phase == "Failed" and not p.deleted for p in own)
    return state.ending or (newest.kind.ends_with_a_pod and failed and not state.suspended)


def reason_of(newest: JobObject, own: Sequence[PodRecord], phase: Phase) -> str:
    """For people, and for the classification of an end."""
    state = newest.state
    if newest.cancelled:
        return f"cancelled ({newest.notes[marks.CANCELLED]})"
    if newest.stopped:
        return "held by gpu-runbooks" if newest.held_by_us else "suspended by its owner"
    if newest.queue and state.suspended:
        return f"in queue {newest.queue}: {kueue.waits_for(newest.workload)}"
    if phase is Phase.PENDING:
        return next((p.waiting for p in own if p.waiting), "its pods are not all started")
    if phase.ended or phase is Phase.STOPPING:
        ends = sorted(own, key=lambda p: p.finished or 0)
        gone = next((p for p in ends if p.disruption and not p.node_lost), None)
        if gone is not None:
            return f"{gone.disruption} ({state.reason or newest.kind.api_kind})"
        pod = next((p for p in ends if p.exit_code or p.node_lost), None)
        return " ".join(w for w in (state.reason, pod.reason if pod else "") if w)
    return ""


def with_children(objects: Sequence[JobObject]) -> list[JobObject]:
    """The same, each with the child that its kind has."""
    known = {(o.kind.word, o.namespace, o.name): o.raw for o in objects}
    made = []
    for one in objects:
        child = known.get((one.kind.child.word, one.namespace, one.name)) if one.kind.child else None
        made.append(replace(one, raw={**one.raw, CHILD: child}) if child else one)
    return made


def outermost(objects: Sequence[JobObject]) -> list[JobObject]:
    """Without those that belong to another of them: a JobSet's Jobs are its own matter."""
    known = {(o.kind.api_kind, o.namespace, o.name) for o in objects}
    found = []
    for one in objects:
        owner = controller_of(one.raw) or {}
        if (owner.get("kind"), one.namespace, owner.get("name")) not in known:
            found.append(one)
    return found


class Owners:
    """Which job object a pod belongs to."""

    def __init__(self, objects: Sequence[JobObject]) -> None:
        """`objects`: those of one kind together, the outermost kind first."""
        self._kinds = tuple(dict.fromkeys(one.kind for one in objects))
        self._objects = {(one.kind.word, one.namespace, one.name): one for one in objects}

    def of(self, pod: PodRecord) -> JobObject | None:
        """The outermost; None when it belongs to no job that is known."""
        for kind in self._kinds:
            name = kind.object_of(pod)
            found = self._objects.get((kind.word, pod.namespace, name)) if name else None
            if found is not None:
                return self._above(found)
        return None

    def _above(self, one: JobObject) -> JobObject:
        """What it belongs to in the end: a RayJob's submitter is a Job of its own."""
        owner = controller_of(one.raw) or {}
        for kind in self._kinds:
            if kind.api_kind == owner.get("kind"):
                above = self._objects.get((kind.word, one.namespace, str(owner.get("name"))))
                return self._above(above) if above is not None else one
        return one
