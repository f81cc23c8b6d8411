"""One job: what we can do for it when something breaks, and what we cannot."""

from dataclasses import dataclass
from pathlib import Path

from temporalio.client import Client, WorkflowExecutionStatus

from activities.backends.factory import make_backend
from activities.backends.port import ClusterBackend, JobAdvice
from activities.backends.slurm.jobs import requeue_fix
from fleet.identity import fleet_name, job_workflow_id
from fleet.model import NativeJob, Phase
from fleet.policy import Policy
from workers.doctor_checks import Area, Check
from workers.doctor_temporal import described
from workers.job_by_name import found, parts


@dataclass(frozen=True)
class Words:
    """How a person says it where the job runs."""

    declare: str = "in its comment"
    supervise: str = "gpu-runbooks.io/supervise in its comment"
    hold: str = "scontrol hold"
    number: str = "GPU_RUNBOOKS_EPOCH and SLURM_RESTART_COUNT"
    scheduler: str = "Slurm"


WORDS = {
    "kubernetes": Words(
        declare="as an annotation",
        supervise="the label gpu-runbooks.io/supervise=true",
        hold="runbook release JOB, then runbook start restart JOB",
        number="GPU_RUNBOOKS_EPOCH and GPU_RUNBOOKS_RESTART",
        scheduler="its controller",
    )
}
SLURM = Words()


async def look_at_job(text: str, policy: Policy, folder: Path, client: Client | None) -> tuple[Check, ...]:
    """`text`: fleet name, `job/NAME`, native id or the user's own name, with `CLUSTER/` before it where needed.

    Raises CliError (usage) when no cluster has it, or several have.
    """
    cluster, name = parts(text, policy)
    backends = {c: make_backend(c, policy, folder) for c in ((cluster,) if cluster else policy.clusters)}
    try:
        backend, job = await found(name, backends)
        area, here = Area(job_workflow_id(fleet_name(job))), policy.cluster(job.cluster)
        words = WORDS.get(here.kind, SLURM)
        return (
            area.ok(
                "found", f"{job.cluster}/{job.native_id} ({job.name}) is {job.phase} on {','.join(job.nodes) or '-'}"
            ),
            opt_in(area, job, words),
            *await area.tried("runbook", lambda: runbook(area, job, client)),
            held(area, job, words),
            restartable(area, job),
            checkpoint_signal(area, job, words),
            generation_check(area, job, words),
            *await area.tried("next object", lambda: next_object(area, job, backend)),
            total_steps(area, job, words),
            checkpoint_root(area, job, here.checkpoint_roots, words),
            *await area.tried("log", lambda: log(area, job, backend)),
        )
    finally:
        for backend in backends.values():
            await backend.close()


def opt_in(area: Area, job: NativeJob, words: Words = SLURM) -> Check:
    if job.tokens.supervise or job.key:
        return area.ok("opt-in", "asks for supervision")
    return area.warn(
        "opt-in",
        "does not ask for supervision, so it is left alone",
        f"{words.supervise}, or `runbook start failover` by a person",
    )


async def runbook(area: Area, job: NativeJob, client: Client | None) -> Check:
    name = job_workflow_id(fleet_name(job))
    if client is None:
        return area.warn(
            "runbook", "Temporal cannot be asked, so nobody knows whether it is supervised", "runbook doctor"
        )
    seen = await described(client, name)
    if seen is not None and seen.status is WorkflowExecutionStatus.RUNNING:
        return area.ok("runbook", f"{name} runs")
    if job.phase.ended:
        return area.ok("runbook", "none runs, and the job has ended")
    if job.adopted:
        return area.fail(
            "runbook",
            f"{name} does not run, and the job carries our mark: nobody will start it again",
            "runbook release JOB",
        )
    return area.warn("runbook", f"{name} does not run: nobody supervises it")


def held(area: Area, job: NativeJob, words: Words = SLURM) -> Check:
    """Adopted and held, so that only we start its next attempt."""
    if job.phase.ended:
        return area.ok("hold", "it has ended; there is nothing to hold")
    if not job.adopted:
        return area.warn(
            "hold", "not adopted: the scheduler requeues it by itself, before anybody knows that its ranks are gone"
        )
    if job.held or (job.phase is Phase.PENDING and job.restarts == 0):
        return area.ok("hold", "adopted and held" if job.held else "adopted; it is held once it runs")
    if job.phase is Phase.PENDING:
        return area.warn(
            "hold",
            "adopted, and free to start: as an attempt that its runbook has started and that waits for nodes; it is "
            "held again once it runs",
            "runbook describe JOB",
        )
    return area.fail(
        "hold",
        "adopted and NOT held: the scheduler may start a second attempt while an old rank still runs",
        f"its runbook holds it again at the next look; if it does not: {words.hold}",
    )


def restartable(area: Area, job: NativeJob) -> Check:
    if job.batch and job.requeueable:
        return area.ok("requeue", "a batch job that may be requeued")
    return area.fail("requeue", "it cannot be started again by us", job.refusal or requeue_fix(job))


def checkpoint_signal(area: Area, job: NativeJob, words: Words = SLURM) -> Check:
    if job.tokens.checkpoint_signal:
        return area.ok("checkpoint signal", f"{job.tokens.checkpoint_signal}: it saves before a stop")
    return area.warn(
        "checkpoint signal",
        "declares none and is never signalled: a stop loses the steps since its last save",
        f"gpu-runbooks.io/checkpoint-signal=USR1 {words.declare}, where it has a handler",
    )


def generation_check(area: Area, job: NativeJob, words: Words = SLURM) -> Check:
    """Whether a late writer of an older attempt could spoil the newest checkpoint."""
    if job.tokens.generation_check:
        return area.ok(
            "late writer",
            "its writer checks its generation: a late rank refuses to write and cannot spoil a checkpoint",
        )
    return area.warn(
        "late writer",
        "its writer does not say that it checks its generation: a rank that outlives its attempt COULD SPOIL the "
        f"newest checkpoint. No attempt of ours starts before a fence receipt, but one of a person or of "
        f"{words.scheduler} may",
        f"compare {words.number} before each write, then declare gpu-runbooks.io/generation-check=yes",
    )


async def next_object(area: Area, job: NativeJob, backend: ClusterBackend) -> tuple[Check, ...]:
    """Whether its description suits an attempt that goes on as another object, which has another name."""
    if not isinstance(backend, JobAdvice):
        return ()
    found = await backend.advice(job.native_id)
    if not found:
        return (area.ok("next object", "names no host of its own pods"),)
    return tuple(
        area.warn(
            "next object",
            f"{line}: after a failure the job goes on as {job.name}-gN, whose pods have other host names",
            "let the ranks find each other by what their controller tells them (docs/job-kinds.md)",
        )
        for line in found
    )


def total_steps(area: Area, job: NativeJob, words: Words = SLURM) -> Check:
    if job.tokens.total_steps:
        return area.ok("total steps", str(job.tokens.total_steps))
    return area.warn(
        "total steps",
        "not declared: a resume at an absurd step is not recognised by its number",
        f"gpu-runbooks.io/total-steps=N {words.declare}",
    )


def checkpoint_root(area: Area, job: NativeJob, roots: tuple[str, ...], words: Words = SLURM) -> Check:
    root = job.tokens.checkpoint
    if root is None:
        return area.warn("checkpoint root", "not declared", f"gpu-runbooks.io/checkpoint=/PATH {words.declare}")
    if not any(Path(root).is_relative_to(allowed) for allowed in roots):
        return area.warn("checkpoint root", f"{root} is under none of the cluster's checkpoint_roots", "fleet.yaml")
    return area.ok("checkpoint root", root)


async def log(area: Area, job: NativeJob, backend: ClusterBackend) -> Check:
    """Its own output is how a new training step is seen."""
    progress = await backend.progress(job.native_id, job.restarts)
    if progress.step is not None:
        return area.ok(
            "log", f"readable, at step {progress.step}" + (f", saved {progress.saved}" if progress.saved else "")
        )
    if job.phase is Phase.PENDING:
        return area.ok("log", "it has not run yet")
    if await backend.log_tail(job.native_id, 1):
        return area.warn("log", "readable, but it shows no step of this attempt", "print steps as docs/lab.md shows")
    return area.fail(
        "log",
        "nothing readable: without it no new step is ever seen, and a recovery cannot be called done",
        "its output must be a plain file of the job's user that this machine can read, or gpu-runbooks.io/log=/PATH",
    )
