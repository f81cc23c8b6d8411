"""Orders to one job that do not start an attempt: adopt, hold, give back, signal, stop, cancel."""

import asyncio
import copy
import time
from collections.abc import Callable, Iterable, Mapping

import yaml

from activities.backends.kubernetes import kueue, marks
from activities.backends.kubernetes.api import KubeApi, Raw
from activities.backends.kubernetes.jobview import JobObject, JobRecord
from activities.backends.kubernetes.kinds.base import CHILD, LONGEST_NAME, Release, gates_of, other_gates
from activities.backends.kubernetes.kinds.batch_job import BatchJob
from activities.backends.kubernetes.outcomes import Outcome, error_of_write
from activities.backends.kubernetes.records import PodRecord
from activities.backends.kubernetes.view import ClusterView
from activities.backends.kubernetes.writes import end_pod, patched
from fleet.errors import AmbiguousError, NotFoundError, RefusedError, TemporaryError
from fleet.identity import op_id
from fleet.model import NativeJob, Phase
from fleet.orders import AdoptedJob

SIGNALS = ("USR1", "USR2")
"""Signals that may ask for a checkpoint; any other could end the job."""
EXEC_LIMIT = 10.0
"""Seconds that a signal may take to reach one pod."""
GONE_WITHIN = 8.0
"""Seconds in which the pod objects of an attempt that has ended go, once nothing keeps them."""
KUEUE_TAKES = 0.3
"""Seconds in which Kueue writes its own template back to a stopped Job, if it does: 0.05 s were measured."""
KUEUE_TRIES = 10


class JobOrders:
    """Writes to jobs. Each one reads the live job first and gives back what was seen afterwards."""

    def __init__(self, api: KubeApi, view: ClusterView) -> None:
        self.api = api
        self.view = view

    # -- hold and marks

    async def adopt(self, native_id: str) -> AdoptedJob:
        """Marks a running job as held, which its own settings must allow: then its controller starts nothing again
        by itself. A job that waits for its first start is left free to start."""
        record = await self.view.known_job(native_id)
        refuse_adoption(record)
        manifest = manifest_of(record.newest)
        if record.job.phase is Phase.PENDING and record.job.restarts == 0 and not record.job.held:
            await self.annotate(record, {marks.ADOPTED: "true"})
        else:
            await self.hold_record(record)
        job = (await self.view.known_job(native_id)).job
        return AdoptedJob(job=job, script=manifest, spec_text=manifest)

    async def hold(self, native_id: str) -> NativeJob:
        record = await self.view.known_job(native_id)
        if record.job.phase.ended:
            raise RefusedError(f"job {native_id} has ended ({record.job.phase}); there is nothing to hold")
        await self.hold_record(record)
        return (await self.view.known_job(native_id)).job

    async def hold_record(self, record: JobRecord) -> None:
        """Marked as held by us; one that waits with no pod placed yet is suspended. A suspend that stood before
        without our mark stays its owner's."""
        newest = record.newest
        owners = newest.stopped and not newest.held_by_us and record.job.phase is Phase.PENDING
        words: dict[str, str | None] = {marks.ADOPTED: "true"}
        if not owners:
            words[marks.HELD] = "true"
        if record.job.phase is Phase.RUNNING:
            words[marks.RAN] = str(newest.generation)
        placed = any(p.node for p in record.attempt(newest.generation))
        if newest.stopped or placed or record.job.phase is not Phase.PENDING:
            await self.annotate(record, words)
            return
        await self._end(record, record.job.restarts, words)
        await self._reopen(record)  # no rank ever ran, so no attempt is over

    async def _end(self, record: JobRecord, number: int, words: Mapping[str, str | None]) -> None:
        """Stops what runs or may start. `number`: that of the next attempt, which is written in the same patch, so
        that no crash comes between."""
        newest, kind = record.newest, record.newest.kind
        words = {**words, marks.RESTARTS: str(number)}

        def decide(raw: Raw) -> Raw | None:
            state = kind.state(raw)
            if state.ended is not None or state.ending:
                raise TemporaryError(f"job {record.job.native_id} ended by itself just now; looked at again", 0.5)
            return None if state.suspended else kind.suspend(words)

        if newest.queue:
            await self._deactivate(record, number)
            await self.annotate(record, words)
        else:
            await self._change(record, decide)

    async def _on_workload(self, record: JobRecord, decide: Callable[[Raw], Raw | None]) -> None:
        """Kueue makes the Workload of a job object a moment after the object."""
        newest = record.newest
        if newest.workload is None:
            raise TemporaryError(f"job {record.job.native_id}: Kueue has no Workload of it yet", 1.0)
        name, path = str(newest.workload["metadata"]["name"]), kueue.path_of(newest.workload)
        await patched(self.api, f"workload {name}", path, decide)

    async def _deactivate(self, record: JobRecord, number: int) -> None:
        await self._on_workload(record, lambda raw: kueue.deactivation(number) if kueue.is_active(raw) else None)

    async def annotate(self, record: JobRecord, words: Mapping[str, str | None]) -> Raw:
        """Writes (or takes away, None) annotations of its newest object; nothing when they are so already."""

        def decide(raw: Raw) -> Raw | None:
            has = raw["metadata"].get("annotations") or {}
            if all(has.get(key) == value for key, value in words.items()):
                return None
            return {"metadata": {"annotations": dict(words)}}

        return await self._change(record, decide)

    async def _change(self, record: JobRecord, decide: Callable[[Raw], Raw | None], part: str = "") -> Raw:
        """Under its version, and only while it is the very object that was read."""
        newest = record.newest

        def checked(raw: Raw) -> Raw | None:
            if raw["metadata"]["uid"] != newest.uid:
                raise RefusedError(f"job {record.job.native_id} was made anew by somebody; look at it again")
            return decide(raw)

        return await patched(self.api, f"job {record.job.native_id}", newest.path, checked, part=part)

    async def give_back(self, native_id: str) -> NativeJob:
        """Takes our marks away; a suspend of ours ends, so that the job may start."""
        record = await self.view.known_job(native_id)
        newest = record.newest
        ours = marks.ADOPTED in newest.notes or newest.held_by_us
        if record.job.phase.ended or not ours:
            return record.job
        gone: dict[str, str | None] = {marks.ADOPTED: None, marks.HELD: None, marks.REQUIRED: None}
        if newest.stopped and newest.held_by_us:
            await self.drop_proofs(record.pods)
            await self.release(record, gone, own_affinities(newest))
        else:
            await self.annotate(record, gone)
        return (await self.view.known_job(native_id)).job

    # -- release, shared with the start of an attempt

    async def release(
        self,
        record: JobRecord,
        words: Mapping[str, str | None],
        affinities: tuple[Mapping[str, object] | None, ...],
    ) -> None:
        """Starts the attempt with the record's number. The number is written down before the status is opened for
        the change, for what is derived from the status would be lost then."""
        number = record.job.restarts
        await self.annotate(record, {marks.RESTARTS: str(number)})
        await self._wait_quiet(record)
        await self._reopen(record)
        newest, kind = record.newest, record.newest.kind
        enters = newest.notes.get(marks.QUEUE, "")
        gated = not kind.affinity_mutable and bool(words.get(marks.EXCLUDED) or words.get(marks.REQUIRED))
        order = Release(
            generation=number,
            annotations={**words, marks.RESTARTS: str(number), marks.QUEUE: None},
            affinities=affinities,
            gated=gated,
            suspended=bool(newest.queue or enters),
        )

        def decide(raw: Raw) -> Raw | None:
            if not kind.state(raw).suspended:
                return None
            patch = kind.release(raw, order)
            if enters:
                patch["metadata"]["labels"] = {kueue.QUEUE: enters}
            return patch

        if newest.queue:
            await self._on_workload(record, lambda raw: kueue.next_attempt(raw, number, gated))
        if not gated and any(marks.GATE in gates_of(template) for template in kind.templates(newest.raw)):
            await self._open_gates(record)
        await self._change(record, lambda raw: kind.prepare(raw, order) if kind.state(raw).suspended else None)
        if newest.queue:
            await self._change_for_kueue(record, decide, number)
            await self._on_workload(record, lambda raw: None if kueue.is_active(raw) else kueue.activation())
        else:
            await self._change(record, decide)

    async def _change_for_kueue(self, record: JobRecord, decide: Callable[[Raw], Raw | None], number: int) -> None:
        """Of a stopped Job, Kueue writes the template back to what its Workload says each time that it looks, and may
        have looked before it heard of our change there."""
        for _ in range(KUEUE_TRIES):
            await self._change(record, decide)
            await asyncio.sleep(KUEUE_TAKES)
            seen = await self.api.get(f"job {record.job.native_id}", record.newest.path)
            if JobObject(record.newest.kind, seen).generation == number:
                return
        raise TemporaryError(f"job {record.job.native_id}: Kueue writes its template back; tried again", 1.0)

    async def _open_gates(self, record: JobRecord) -> None:
        """Of its suspended Jobs: its controller would keep a gate there after it went from the object's template."""
        newest, found = record.newest, BatchJob()
        if not newest.kind.has_jobs:
            return
        query = [("labelSelector", newest.kind.pods_of([newest.name]))]
        jobs, _ = await self.api.list(f"jobs of {newest.name}", found.path(newest.namespace), query)

        def decide(raw: Raw) -> Raw | None:
            spec = found.templates(raw)[0]["spec"]
            left = other_gates(spec)
            suspended = found.state(raw).suspended and len(left) < len(spec.get("schedulingGates") or [])
            return {"spec": {"template": {"spec": {"schedulingGates": left or None}}}} if suspended else None

        for raw in jobs:
            what, path = f"job {raw['metadata']['name']}", found.path(newest.namespace, raw["metadata"]["name"])
            if decide(raw):
                await patched(self.api, what, path, found.reopen, part="/status")
                await patched(self.api, what, path, decide)

    async def _wait_quiet(self, record: JobRecord) -> None:
        """For kinds whose controller would start a next attempt beside old pods, or count their end against it.
        Raises TemporaryError while one is there."""
        newest = record.newest
        quiet, end = newest.kind.quiet, time.monotonic() + GONE_WITHIN
        if quiet is None:
            return
        while True:
            pods = (await self.view.known_job(record.job.native_id)).pods
            left = [pod.name for pod in pods if newest.kind.object_of(pod) == newest.name]
            if not left:
                break
            if time.monotonic() >= end:
                raise TemporaryError(f"job {record.job.native_id}: pods of its last attempt are there ({left})", 2.0)
            await asyncio.sleep(0.1)
        await asyncio.sleep(quiet)

    async def _reopen(self, record: JobRecord) -> None:
        kind = record.newest.kind

        def decide(raw: Raw) -> Raw | None:
            return kind.reopen(raw) if kind.state(raw).suspended else None

        await self._change(record, decide, part="/status")

    # -- signal, stop, cancel

    async def request_checkpoint(self, native_id: str, signal: str) -> None:
        """Only the signal that the job declared, to process 1 of the main container of each pod."""
        name = signal.upper().removeprefix("SIG")
        record = await self.view.known_job(native_id)
        job = record.job
        if name not in SIGNALS or job.tokens.checkpoint_signal != name:
            declared = job.tokens.checkpoint_signal or "none"
            raise RefusedError(f"job {native_id} declares {declared} as its checkpoint signal, not {signal}")
        if job.phase is not Phase.RUNNING:
            raise RefusedError(f"job {native_id} is {job.phase}; only a running one can save")
        pods = [p for p in record.attempt(record.newest.generation) if p.running]
        done = await asyncio.gather(*(self._signal(pod, name) for pod in pods))
        bad = [f"{pod.name}: {why}" for pod, why in zip(pods, done, strict=True) if why]
        if bad:
            raise AmbiguousError(f"signal {name} to job {native_id}: {'; '.join(bad)}; look for a newer checkpoint")

    async def _signal(self, pod: PodRecord, name: str) -> str:
        query = [("command", word) for word in ("kill", f"-{name}", "1")]
        query += [("container", pod.containers[0]), ("stdout", "true"), ("stderr", "true")]
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/exec"
        code, said = await self.api.execute(f"signal pod {pod.name}", path, query, EXEC_LIMIT)
        return "" if code == 0 else f"exit {code} {said.strip()}"[:200]

    async def stop(self, native_id: str, restarts: int) -> NativeJob:
        record = await self.view.known_job(native_id)
        job = record.job
        if job.phase in {Phase.SUCCEEDED, Phase.CANCELLED, Phase.TIMED_OUT}:
            raise RefusedError(f"job {native_id} has ended ({job.phase}); starting it again would revive it")
        if job.restarts < restarts:
            raise RefusedError(
                f"job {native_id} is at restart {job.restarts}, the order is for {restarts}: another job?"
            )
        if not job.adopted:
            refuse_unsafe(record)
        late = record.newest.generation > restarts if record.over else not record.newest.stopped
        if job.restarts > restarts and late:
            return job  # a newer attempt runs, or waits for its nodes, or has ended
        if record.over:  # also one that a rank's failure ended while we stopped it
            if not (job.tokens.supervise or job.adopted):
                raise RefusedError(f"job {native_id} has ended ({job.phase}) and is not supervised")
            await self._follow(record, restarts + 1)
        elif record.newest.stopped:
            await self.hold_record(record)  # that attempt is over: only see that none follows by itself
        else:
            await self._suspend(record)
        return (await self.view.known_job(native_id)).job

    async def _suspend(self, record: JobRecord) -> None:
        await self._keep_proofs(record.attempt(record.newest.generation))
        await self._end(record, record.job.restarts + 1, {marks.ADOPTED: "true", marks.HELD: "true"})

    async def _follow(self, record: JobRecord, number: int) -> None:
        """A failed object stays failed: the next attempt is an object of its own, suspended, with a name made of the
        attempt's number, so that a second try finds the first one's."""
        newest, job = record.newest, record.job
        ranks = record.attempt(newest.generation)
        await self._keep_proofs(ranks)
        left = [pod for pod in ranks if not (pod.ended or pod.deleted)]  # some controllers let the other ranks run on
        await asyncio.gather(*(end_pod(self.api, f"end pod {p.name}", p.namespace, p.name, p.uid) for p in left))
        words: dict[str, str | None] = {
            marks.ADOPTED: "true",
            marks.HELD: "true",
            marks.RESTARTS: str(number),
            marks.REQUIRED: None,
            marks.FIRST_UID: job.uid,
            marks.FIRST_CREATED: newest.notes.get(
                marks.FIRST_CREATED, newest.raw["metadata"].get("creationTimestamp", "")
            ),
        }
        name = successor_name(newest.first, number, newest.kind.longest_name(newest.raw))
        made = successor(newest, name, Release(generation=number, annotations=words))
        what = f"next object of job {job.native_id}"
        answer = await self.api.write("POST", newest.kind.path(newest.namespace), made)
        if answer.outcome in {Outcome.EXISTS, Outcome.UNKNOWN}:
            try:
                found = await self.api.get(what, newest.kind.path(newest.namespace, name))
            except (NotFoundError, TemporaryError) as error:
                raise AmbiguousError(f"{what}: no answer ({answer.text}; {error}); read back first") from error
            if JobObject(newest.kind, found).notes.get(marks.FIRST_UID) != job.uid:
                raise RefusedError(f"{what}: the name {name} belongs to another job; rename or remove that one")
        elif answer.outcome is not Outcome.DONE:
            raise error_of_write(what, answer.outcome, answer.text, answer.retry_after)

    async def cancel(self, native_id: str) -> NativeJob:
        """Suspended for good. Its object stays, so that everybody can see how it ended."""
        record = await self.view.known_job(native_id)
        if record.job.phase.ended:
            return record.job
        words: dict[str, str | None] = {
            marks.CANCELLED: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            marks.HELD: None,
            marks.ADOPTED: None,
        }
        newest, kind = record.newest, record.newest.kind

        def decide(raw: Raw) -> Raw | None:
            done = marks.CANCELLED in (raw["metadata"].get("annotations") or {})
            return None if done and kind.state(raw).suspended else kind.suspend(words)

        if newest.queue:
            await self.annotate(record, words)
            await self._deactivate(record, record.job.restarts)
        else:
            await self._change(record, decide)
        await self.drop_proofs(record.pods)
        return (await self.view.known_job(native_id)).job

    # -- the finalizer that keeps a kubelet's word

    async def _keep_proofs(self, pods: Iterable[PodRecord]) -> None:
        def decide(raw: Raw) -> Raw | None:
            meta = raw["metadata"]
            has = meta.get("finalizers") or []
            if marks.PROOF in has or "deletionTimestamp" in meta:
                return None  # one that is being deleted takes no new finalizer
            return {"metadata": {"finalizers": [*has, marks.PROOF]}}

        await asyncio.gather(*(self.on_pod(pod, decide) for pod in pods if pod.node))

    async def drop_proofs(self, pods: Iterable[PodRecord]) -> None:
        """Lets the objects of stopped pods go."""

        def decide(raw: Raw) -> Raw | None:
            has = raw["metadata"].get("finalizers") or []
            return {"metadata": {"finalizers": [f for f in has if f != marks.PROOF]}} if marks.PROOF in has else None

        await asyncio.gather(*(self.on_pod(pod, decide) for pod in pods if pod.ours))

    async def on_pod(self, pod: PodRecord, decide: Callable[[Raw], Raw | None]) -> None:
        """Writes to that very pod; nothing when it is gone or another by now."""

        def same(raw: Raw) -> Raw | None:
            return decide(raw) if raw["metadata"]["uid"] == pod.uid else None

        try:
            await patched(self.api, f"pod {pod.name}", f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}", same)
        except NotFoundError:
            return  # it went meanwhile


def refuse_adoption(record: JobRecord) -> None:
    """Raises RefusedError with the exact fix for a job that we could not start again, or not alone; TemporaryError
    while what decides that is not made yet."""
    job, newest = record.job, record.newest
    if job.phase.ended:
        raise RefusedError(f"job {job.native_id} has ended ({job.phase}); there is nothing to supervise")
    if newest.kind.child and CHILD not in newest.raw:
        raise TemporaryError(f"job {job.native_id}: its {newest.kind.child.api_kind} is not seen yet", 1.0)
    refuse_unsafe(record)


def refuse_unsafe(record: JobRecord) -> None:
    """Raises RefusedError with the field to change for a job whose controller could start a second copy beside
    ours, or that we could not start again."""
    if record.job.refusal:
        raise RefusedError(f"job {record.job.native_id} cannot be supervised: {record.job.refusal}")


def own_affinities(newest: JobObject) -> tuple[Mapping[str, object] | None, ...]:
    """The owner's own node affinity in each template: what was kept when ours was written over it, else what stands
    there."""
    kept = marks.affinities_kept(newest.notes)
    if kept is not None:
        return kept
    specs = (template.get("spec", {}) for template in newest.kind.templates(newest.raw))
    return tuple((spec.get("affinity") or {}).get("nodeAffinity") or None for spec in specs)


def successor(newest: JobObject, name: str, order: Release) -> Raw:
    """The next object of a job that failed. It enters its queue only once it may start: Kueue would start it."""
    raw = newest.raw
    if newest.queue:
        order = order.model_copy(update={"annotations": {**order.annotations, marks.QUEUE: newest.queue}})
        raw = copy.deepcopy(raw)
        for place, template in enumerate(newest.kind.templates(raw)):
            kueue.restore(template, newest.workload, place)
    made = newest.kind.successor(raw, name, order)
    made["metadata"]["labels"].pop(kueue.QUEUE, None)
    return made


def successor_name(first: str, number: int, longest: int = LONGEST_NAME) -> str:
    """`NAME-gN`; a long name is cut, and a hash of the whole keeps it apart from others."""
    tail = f"-g{number}"
    if len(first) + len(tail) > longest:
        first = f"{first[: longest - len(tail) - 8].rstrip('-.')}-{op_id(first)}"
    return first + tail


def manifest_of(newest: JobObject) -> str:
    """The object as a manifest, without what the apiserver added."""
    meta = newest.raw["metadata"]
    kept = {
        "name": newest.first,
        "namespace": newest.namespace,
        "labels": dict(newest.labels),
        "annotations": {k: v for k, v in newest.notes.items() if not k.startswith("kubectl.kubernetes.io/")},
    }
    made = newest.kind.successor(newest.raw, str(meta["name"]), Release(generation=0, annotations={}))
    made["metadata"] = {key: value for key, value in kept.items() if value}
    made["spec"] = {k: v for k, v in made["spec"].items() if k not in {"suspend", "manualSelector"}}
    made["spec"].get("runPolicy", {}).pop("suspend", None)
    return yaml.safe_dump(made, sort_keys=False)
