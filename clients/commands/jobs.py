"""`submit`, `start restart`, `start failover`, `logs`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from cyclopts import Parameter

from clients.commands.following import follow_up, run_following
from clients.options import COMMON, As, Common, DryRunFlag, Fleet, Reason, Timeout, run

if TYPE_CHECKING:
    from temporalio.client import Client

    from clients.shapes import Started
    from fleet.orders import JobSpec
    from fleet.policy import Policy


@Parameter(name="*")
@dataclass(frozen=True)
class JobWords:
    """What may be said about a job at its submit."""

    job: str | None = None
    """Fleet-unique name of the job, given once; made from the script's name by default."""
    name: str | None = None
    """Name that the scheduler shows; the script's name by default."""
    option: Annotated[tuple[str, ...], Parameter(allow_leading_hyphen=True)] = ()
    """A further option for the scheduler, e.g. `--option=--nodes=2`; may be repeated."""
    user: str | None = None
    """User to run as; needs a worker that may do that."""
    workdir: str | None = None
    """Working directory; the current one by default."""
    checkpoint: str | None = None
    """Checkpoint root of the job, an absolute path."""
    checkpoint_signal: str | None = None
    """USR1 or USR2: makes the job save. Absent: it is never signalled."""
    total_steps: int | None = None
    """Training steps of the whole job; the job is done when the last one was seen."""
    generation_check: bool = False
    """The job's writer refuses to write when a higher generation exists."""
    log: str | None = None
    """The job's output file, where it is not the scheduler's own."""
    dumps: str | None = None
    """Folder of the ranks' Flight Recorder dumps, an absolute path."""

    def spec(self, script: Path) -> "JobSpec":
        """What is submitted. Raises CliError (usage) for words or a script that no scheduler would take."""
        from clients import jobs
        from clients.names import name as checked_name
        from fleet.model import JobTokens, label_safe
        from fleet.orders import JobSpec

        text = jobs.read_script(script)
        job = checked_name(self.job, "job") if self.job else jobs.new_job_name(script.stem, text)
        signal = self.checkpoint_signal
        tokens = JobTokens(
            supervise=True,
            job=job,
            checkpoint=self.checkpoint,
            checkpoint_signal=signal.upper().removeprefix("SIG") if signal else None,
            total_steps=self.total_steps,
            generation_check=self.generation_check,
            log=self.log,
            dumps=self.dumps,
        )
        return JobSpec(
            job=job,
            name=checked_name(self.name or label_safe(script.stem), "job"),
            script=text,
            workdir=self.workdir or str(Path.cwd()),
            comment=" ".join(filter(None, (jobs.comment_of(tokens), jobs.script_comment(text)))),
            user=self.user,
            options=self.option,
        )


class Afterwards(NamedTuple):
    """What the command does once the job's runbook has started."""

    wait: bool
    watch: bool
    timeout: float | None


def submit(
    target: str,
    script: Path | None = None,
    /,
    *,
    words: JobWords = JobWords(),
    dry_run: DryRunFlag = False,
    wait: bool = False,
    watch: bool = False,
    detach: bool = False,
    timeout: Timeout = None,
    as_: As = None,
    fleet: Fleet = None,
    common: Common = COMMON,
) -> int:
    """Submit a job and supervise it for its whole life: a script to a cluster, or a job file to the best cluster.

    Parameters
    ----------
    target
        Cluster to run on, then SCRIPT; or a job file (JOB.yaml) with a template for each kind of cluster.
    script
        Batch script in the scheduler's own language, begins with `#!`; for Kubernetes a manifest of one job.
    wait
        Wait for the end, quietly.
    watch
        Follow it on a live page.
    detach
        Return at once (the default).
    """
    from clients import jobs
    from clients.errors import usage
    from clients.fleet_file import checked_cluster, policy
    from clients.names import caller

    if wait + watch + detach > 1:
        raise usage("give one of --wait, --watch and --detach")
    by, screen, then = caller(as_), common.screen, Afterwards(wait, watch, timeout)
    if script is None:
        return _submit_file(Path(target), words, by, common, then, policy(fleet), dry_run=dry_run)
    if dry_run:
        raise usage("--dry-run shows the choice of a cluster; it needs a job file: runbook submit JOB.yaml --dry-run")
    spec, found = words.spec(script), policy(fleet)

    async def work(client: "Client") -> int:
        where = await checked_cluster(client, target, found)
        jobs.check_language(where, found.cluster(where).kind if found else "", spec)
        started = await jobs.submit(client, where, spec, by)
        return await _follow(client, started, spec.job, common, then)

    return run_following(common, screen, work)


def _submit_file(
    path: Path, words: JobWords, by: str, common: Common, then: Afterwards, found: "Policy | None", *, dry_run: bool
) -> int:
    """A job file: to the best cluster, or only the choice."""
    from clients import job_files, jobs, render
    from clients.errors import usage

    if path.suffix not in job_files.SUFFIXES:
        raise usage(f"{path} is no job file (JOB.yaml); to submit a script, name its cluster first: CLUSTER SCRIPT")
    if replace(words, job=None) != JobWords():
        raise usage("of the words about a job only --job goes with a job file; write the others into it")
    wish, screen = job_files.read_job(path, words.job), common.screen

    async def work(client: "Client") -> int:
        await job_files.check_clusters(client, wish, found)
        if dry_run:
            plan = await job_files.plan(client, wish)
            screen.one(plan, name=plan.choice or "", page=render.placement_page(plan))
            return 0
        started = await jobs.submit_anywhere(client, wish, by)
        return await _follow(client, started, wish.job, common, then)

    return run_following(common, screen, work)


async def _follow(client: "Client", started: "Started", job: str, common: Common, then: Afterwards) -> int:
    screen = common.screen
    following = then.wait or then.watch
    if not following or screen.form != "json":
        screen.answer(started, name=started.id, text=f"{started.id} started: {started.text}")
    if following:
        return await follow_up(client, started.id, screen, page=then.watch, timeout=then.timeout)
    screen.note(f"follow it with `runbook watch {job}`")
    return 0


def restart(
    job: str,
    /,
    *,
    reason: Reason,
    dry_run: DryRunFlag = False,
    as_: As = None,
    fleet: Fleet = None,
    common: Common = COMMON,
) -> int:
    """Restart a job on the same nodes. Budgets and modes of the policy still hold.

    Parameters
    ----------
    job
        Fleet name, CLUSTER/NATIVEID, CLUSTER/NAME or CLUSTER/NAMESPACE/NAME.
        A job that is not supervised is adopted by your word.
    """
    return _order("restart_in_place", job, (), reason, dry_run, as_, fleet, common)


def failover(
    job: str,
    /,
    *,
    reason: Reason,
    exclude: tuple[str, ...] = (),
    dry_run: DryRunFlag = False,
    as_: As = None,
    fleet: Fleet = None,
    common: Common = COMMON,
) -> int:
    """Move a job to other nodes of its cluster. Budgets and modes of the policy still hold.

    Parameters
    ----------
    job
        Fleet name, CLUSTER/NATIVEID, CLUSTER/NAME or CLUSTER/NAMESPACE/NAME.
        A job that is not supervised is adopted by your word.
    exclude
        A node that the next attempt must not use; may be repeated.
    """
    return _order("failover_in_cluster", job, exclude, reason, dry_run, as_, fleet, common)


def transfer(
    job: str,
    /,
    *,
    reason: Reason,
    to: str = "",
    dry_run: DryRunFlag = False,
    as_: As = None,
    fleet: Fleet = None,
    common: Common = COMMON,
) -> int:
    """Move a job with its newest complete checkpoint to another cluster. Budgets and modes of the policy still hold.

    Parameters
    ----------
    job
        Fleet name, CLUSTER/NATIVEID, CLUSTER/NAME or CLUSTER/NAMESPACE/NAME.
        A job that is not supervised is adopted by your word.
    to
        The cluster. Default: the best one that can take it.
    """
    return _order("failover_across_clusters", job, (), reason, dry_run, as_, fleet, common, to)


def _order(
    want: Literal["restart_in_place", "failover_in_cluster", "failover_across_clusters"],
    job: str,
    exclude: tuple[str, ...],
    reason: str,
    dry_run: bool,
    as_: str | None,
    fleet: Path | None,
    common: Common,
    to: str = "",
) -> int:
    from clients import dry_runs, jobs, render
    from clients.fleet_file import needed_policy, policy
    from clients.names import caller
    from clients.names import name as checked_name
    from clients.nodes import check_nodes
    from fleet.decision import Action

    action, by, screen = Action(want), caller(as_), common.screen
    nodes = tuple(checked_name(node, "node") for node in exclude)
    found = needed_policy(fleet) if dry_run or to else policy(fleet)
    if to and found is not None:
        found.cluster(checked_name(to, "cluster"))

    async def work(client: "Client") -> int:
        ref = await jobs.find_job(client, job, found)
        await check_nodes(client, ref.cluster, nodes)
        if dry_run and found is not None:
            plan = await dry_runs.move(client, ref, jobs.Wanted(action, by, reason, nodes, to), found)
            screen.one(plan, name=plan.id, page=render.dry_run_page(plan))
            return 0
        done = await jobs.order(client, ref, jobs.Wanted(action, by, reason, nodes, to))
        screen.answer(done, name=done.id, text=f"{done.id}: {done.text}")
        return 0

    return run(common, work)


def logs(job: str, /, *, fleet: Fleet = None, common: Common = COMMON) -> int:
    """Print the last lines of a job's own output.

    Parameters
    ----------
    job
        Fleet name, CLUSTER/NATIVEID, CLUSTER/NAME or CLUSTER/NAMESPACE/NAME.
    """
    from clients import reports
    from clients.fleet_file import policy

    found, screen = policy(fleet), common.screen

    async def work(client: "Client") -> int:
        tail = await reports.logs(client, job, found)
        if screen.form == "json":
            screen.data(tail)
            return 0
        for line in tail.lines:
            screen.line(line)
        if not tail.lines:
            screen.note("no output yet")
        return 0

    return run(common, work)
