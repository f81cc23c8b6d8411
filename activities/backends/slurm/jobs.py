"""Orders to one job that do not start an attempt: adopt, hold, give back, signal, stop, cancel."""

from activities.backends.slurm.commands import Commands
from activities.backends.slurm.hostlist import compress, expand
from activities.backends.slurm.marks import NO_PIN, JobMarks, write_marks
from activities.backends.slurm.normalise import JobRecord
from activities.backends.slurm.view import ClusterView
from activities.backends.slurm.writes import read_back
from fleet.errors import AmbiguousError, PermanentError, RefusedError, TemporaryError
from fleet.model import NativeJob, Phase
from fleet.orders import AdoptedJob

SIGNALS = ("USR1", "USR2")
"""Signals that may ask for a checkpoint; any other could end the job."""


class JobOrders:
    """Writes to jobs. Each one reads the live job first and gives back what was seen afterwards."""

    def __init__(self, commands: Commands, view: ClusterView) -> None:
        self.commands = commands
        self.view = view

    @property
    def seconds(self) -> float:
        return self.commands.settings.read_back

    # -- hold and marks

    async def adopt(self, native_id: str) -> AdoptedJob:
        """Holds a running job, or a waiting one that ran before, and saves its script.

        A job that waits for its first start is left free to start: it is held once it runs (`hold`).
        """
        record = await self.view.known_job(native_id)
        refuse_adoption(record)
        text = await self.commands.read("scontrol", "show", "job", record.job.native_id)
        script = await self._script(record)
        if record.job.phase is Phase.PENDING and record.job.restarts == 0:
            record = await self._mark(record, record.marks.model_copy(update={"since": record.job.submitted_at}))
        else:
            record = await self.hold_record(record)
        return AdoptedJob(job=record.job, script=script, spec_text=text)

    async def _script(self, record: JobRecord) -> str | None:
        try:
            return await self.commands.read("scontrol", "write", "batch_script", record.job.native_id, "-") or None
        except PermanentError:
            return None

    async def hold(self, native_id: str) -> NativeJob:
        record = await self.view.known_job(native_id)
        if record.job.phase.ended:
            raise RefusedError(f"job {native_id} has ended ({record.job.phase}); there is nothing to hold")
        return (await self.hold_record(record)).job

    async def hold_record(self, record: JobRecord) -> JobRecord:
        """Held and marked as held by us. A hold that stood before without our mark stays its owner's."""
        owners = record.job.held and not record.marks.held and record.job.phase is Phase.PENDING
        job_id = record.job.native_id
        marks = record.marks.model_copy(
            update={"since": record.job.submitted_at, "held": record.marks.held or not owners}
        )
        record = await self._mark(record, marks)
        if record.job.held:
            return record
        done = await self.commands.run("scontrol", "hold", job_id)
        return await read_back(
            f"hold job {job_id}",
            done,
            lambda: self.view.known_job(job_id),
            lambda r: r.job.held or r.job.phase.ended,
            self.seconds,
        )

    async def _mark(self, record: JobRecord, marks: JobMarks) -> JobRecord:
        """Writes our words into the AdminComment, before the write that they explain."""
        if record.marks == marks:
            return record
        job_id = record.job.native_id
        text = write_marks(record.admin_comment, marks)
        done = await self.commands.run("scontrol", "update", f"JobId={job_id}", f"AdminComment={text}")
        return await read_back(
            f"mark job {job_id}",
            done,
            lambda: self.view.known_job(job_id),
            lambda r: r.marks == marks or r.job.phase.ended,
            self.seconds,
        )

    async def give_back(self, native_id: str) -> NativeJob:
        """Releases what carries our mark. A pin of ours goes too while the job waits; Slurm cannot clear it on a
        running job, there it has no effect until somebody requeues it."""
        record = await self.view.known_job(native_id)
        if record.job.phase.ended or not record.marks.ours:
            return record.job
        if record.marks.held and record.job.held:
            record = await self.exclude(await self.unpin(record), ())
            job_id = record.job.native_id
            done = await self.commands.run("scontrol", "release", job_id)
            record = await read_back(
                f"release job {job_id}",
                done,
                lambda: self.view.known_job(job_id),
                lambda r: not r.job.held or r.job.phase.ended,
                self.seconds,
            )
        return (await self._mark(record, JobMarks())).job

    # -- pins

    async def pin(self, record: JobRecord, nodes: tuple[str, ...]) -> JobRecord:
        """ReqNodeList = `nodes`, marked. Only on a waiting job: on a running one Slurm would shrink it."""
        if set(record.pinned) == set(nodes):
            return record
        before = record.marks.pin or (",".join(record.pinned) or NO_PIN)
        record = await self._mark(record, record.marks.model_copy(update={"pin": before}))
        return await self._set_required(record, nodes)

    async def unpin(self, record: JobRecord, avoid: tuple[str, ...] = ()) -> JobRecord:
        """Puts the owner's ReqNodeList back; none when it names a node to avoid, for it would wait for ever."""
        if record.job.phase is not Phase.PENDING:
            return record
        own = record.pinned if record.marks.pin is None else _owners(record.marks.pin)
        wanted = () if set(own) & set(avoid) else own
        if set(wanted) != set(record.pinned):
            record = await self._set_required(record, wanted)
        if record.marks.pin is not None:
            record = await self._mark(record, record.marks.model_copy(update={"pin": None}))
        return record

    async def _set_required(self, record: JobRecord, nodes: tuple[str, ...]) -> JobRecord:
        job_id = record.job.native_id
        done = await self.commands.run("scontrol", "update", f"JobId={job_id}", f"ReqNodeList={','.join(nodes)}")
        return await read_back(
            f"pin job {job_id}",
            done,
            lambda: self.view.known_job(job_id),
            lambda r: set(r.pinned) == set(nodes),
            self.seconds,
        )

    async def exclude(self, record: JobRecord, nodes: tuple[str, ...]) -> JobRecord:
        """ExcNodeList = its owner's own and `nodes`; what an earlier order of ours added is taken back. Mark and list
        change in one write."""
        own = record.job.own_excluded
        ours = tuple(node for node in dict.fromkeys(nodes) if node not in own)
        marks = record.marks.model_copy(update={"excluded": ours})
        if record.job.phase.ended or (marks == record.marks and set(record.job.excluded) == {*own, *ours}):
            return record
        job_id = record.job.native_id
        words = (f"ExcNodeList={compress((*own, *ours))}", f"AdminComment={write_marks(record.admin_comment, marks)}")
        done = await self.commands.run("scontrol", "update", f"JobId={job_id}", *words)
        return await read_back(
            f"exclude nodes for job {job_id}",
            done,
            lambda: self.view.known_job(job_id),
            lambda r: r.marks == marks and set(r.job.excluded) == {*own, *ours},
            self.seconds,
        )

    # -- signal, stop, cancel

    async def request_checkpoint(self, native_id: str, signal: str) -> None:
        """Only the signal that the job declared: without a handler it would kill the job."""
        name = signal.upper().removeprefix("SIG")
        record = await self.view.known_job(native_id)
        if name not in SIGNALS or record.job.tokens.checkpoint_signal != name:
            declared = record.job.tokens.checkpoint_signal or "none"
            raise RefusedError(f"job {native_id} declares {declared} as its checkpoint signal, not {signal}")
        if record.job.phase is not Phase.RUNNING:
            raise RefusedError(f"job {native_id} is {record.job.phase}; only a running one can save")
        done = await self.commands.run("scancel", "--full", f"--signal={name}", record.job.native_id)
        if done.rc != 0 or done.timed_out:
            raise AmbiguousError(f"signal {name} to job {native_id}: {done.text}; look for a newer checkpoint")

    async def stop(self, native_id: str, restarts: int) -> NativeJob:
        record = await self.view.known_job(native_id)
        job = record.job
        if job.phase in {Phase.SUCCEEDED, Phase.CANCELLED, Phase.TIMED_OUT}:
            raise RefusedError(f"job {native_id} has ended ({job.phase}); requeueing would revive it")
        if job.restarts < restarts:
            raise RefusedError(
                f"job {native_id} is at restart {job.restarts}, the order is for {restarts}: another job?"
            )
        if job.phase in {Phase.PENDING, Phase.STOPPING} and (job.restarts > restarts or job.phase is Phase.PENDING):
            return (await self.hold_record(record)).job  # that attempt is over: only see that none follows by itself
        if job.restarts > restarts:
            return job  # a newer attempt runs; the order is late
        if job.phase is Phase.STOPPING and record.base not in {"RUNNING", "SUSPENDED"}:
            raise TemporaryError(f"job {native_id} is ending; how, is known only when it has ended", delay=1.0)
        if job.phase.ended and not job.tokens.supervise:
            raise RefusedError(f"job {native_id} has ended ({job.phase}) and is not supervised")
        return await self._requeue_held(record)

    async def _requeue_held(self, record: JobRecord) -> NativeJob:
        """`requeuehold`: unlike SIGTERM it cannot let the script end with 0 and the job with it."""
        if not record.job.requeueable or not record.job.batch:
            raise RefusedError(f"job {record.job.native_id} cannot be requeued: {requeue_fix(record.job)}")
        marks = record.marks.model_copy(update={"since": record.job.submitted_at, "held": True})
        record = await self._mark(record, marks)
        job_id, restarts = record.job.native_id, record.job.restarts
        done = await self.commands.run("scontrol", "requeuehold", job_id)
        seen = await read_back(
            f"requeuehold job {job_id}",
            done,
            lambda: self.view.known_job(job_id),
            lambda r: r.job.restarts > restarts or r.job.phase in {Phase.SUCCEEDED, Phase.CANCELLED},
            self.seconds,
        )
        if seen.job.phase.ended:
            raise RefusedError(f"job {job_id} ended by itself ({seen.job.phase}) before it was stopped")
        seen = await self._mark(seen, marks)  # again: an ended job that was revived could not carry it before
        return (await self.hold_record(seen)).job

    async def cancel(self, native_id: str) -> NativeJob:
        record = await self.view.known_job(native_id)
        if record.job.phase.ended:
            return record.job
        job_id = record.job.native_id
        done = await self.commands.run("scancel", job_id)
        seen = await read_back(
            f"cancel job {job_id}",
            done,
            lambda: self.view.known_job(job_id),
            lambda r: r.job.phase.ended or r.job.phase is Phase.STOPPING,
            self.seconds,
        )
        return seen.job


def requeue_fix(job: NativeJob) -> str:
    """What its owner does so that we can start a next attempt."""
    if not job.batch:
        return "it is an interactive allocation (srun or salloc); submit it with sbatch"
    return (
        f"it was submitted with --no-requeue; run `scontrol update JobId={job.native_id} Requeue=1` or use --requeue"
    )


def refuse_adoption(record: JobRecord) -> None:
    """Raises RefusedError with the exact fix for a job that we could not start again."""
    job = record.job
    if job.phase.ended:
        raise RefusedError(f"job {job.native_id} has ended ({job.phase}); there is nothing to supervise")
    if record.meta:
        raise RefusedError(f"job {job.native_id} is an array whose tasks wait; each task is adopted once it starts")
    if record.het:
        raise RefusedError(f"job {job.native_id} is a heterogeneous job; Slurm cannot requeue its parts together")
    if not job.batch or not job.requeueable:
        raise RefusedError(f"job {job.native_id} cannot be supervised: {requeue_fix(job)}")


def _owners(pin: str) -> tuple[str, ...]:
    return () if pin == NO_PIN else expand(pin)
