"""Idempotent submit: look up by key and epoch, else create held, look up again, let the lowest id win, release it.

Tried with 36 calls for 6 keys from 12 processes, `sbatch` killed at random and the controller frozen: 6 jobs.
A job that the controller loses in a crash right after its answer is gone for every reader: submit again, by key.
"""

import asyncio
import os
import pwd
import re

from activities.backends.slurm.commands import Commands
from activities.backends.slurm.normalise import JobRecord
from activities.backends.slurm.outcomes import Outcome, error_of_read, error_of_write
from activities.backends.slurm.view import ClusterView
from activities.backends.slurm.writes import read_back
from fleet.errors import AmbiguousError, InvalidInputError, PermanentError
from fleet.identity import TOKEN_PREFIX, parse_tokens, with_epoch
from fleet.model import NAME_PATTERN, NativeJob, Phase
from fleet.orders import EPOCH_ENV, JobSpec, check_env

LATE = 1.0
"""Seconds after a lost answer until the controller is looked at again: a request that it had already taken up lands
within that time (a frozen controller serves the older connection first)."""
_OURS = ("-J", "--job-name", "-H", "--hold", "--comment", "--uid", "--wrap", "--parsable", "-D", "--chdir")


class Submits:
    """`submit` of one cluster."""

    def __init__(self, commands: Commands, view: ClusterView, epoch: int) -> None:
        self.commands = commands
        self.view = view
        self.epoch = epoch
        self._locks: dict[str, asyncio.Lock] = {}

    async def submit(self, spec: JobSpec) -> NativeJob:
        """The one job with the key `spec.job` of that epoch; one that ended already is returned as it is."""
        check_spec(spec)
        async with self._locks.setdefault(spec.job, asyncio.Lock()):
            found = await self._with_key(spec)
            if not found:
                found = await self._create(spec)
            winner = await self._drop_doubles(found)
            return await self._let_go(winner, spec)

    async def try_it(self, spec: JobSpec) -> tuple[str, ...]:
        """`sbatch --test-only` asks the controller: partition, account, QOS, features, limits of a single job. A key
        that has its job already is no refusal."""
        try:
            check_spec(spec)
            env = environment(spec, self.epoch)
        except InvalidInputError as error:
            return (str(error),)
        words = [word for word in arguments(spec) if word != "--hold"]
        done = await self.commands.run("sbatch", "--test-only", *words, stdin=spec.script, env=env)
        if done.outcome is Outcome.DONE:
            return ()
        if done.outcome in {Outcome.NOT_DELIVERED, Outcome.UNKNOWN}:
            raise error_of_read(f"try {spec.job}", done.outcome, done.text)
        return (f"sbatch --test-only: {done.text}",)

    async def _with_key(self, spec: JobSpec) -> list[JobRecord]:
        """All jobs of the key and the epoch, whatever their state, oldest first: the name and the comment's token
        agree. Those of other epochs are other submissions of the job."""
        found = [r for r in await self.view.live_jobs() if is_of(r.job, spec)]
        return sorted(found, key=lambda r: int(r.job_id))

    async def _create(self, spec: JobSpec) -> list[JobRecord]:
        done = await self.commands.run(
            "sbatch", *arguments(spec), stdin=spec.script, env=environment(spec, self.epoch)
        )
        if done.outcome is Outcome.UNKNOWN:
            await asyncio.sleep(LATE)
        found = await self._with_key(spec)
        if found:
            return found
        if done.outcome is Outcome.DONE:
            raise AmbiguousError(
                f"submit {spec.job}: {done.text or 'accepted'}, but no job has that key: the controller lost it, or "
                "a plugin changed its name or comment; look at squeue before it is submitted again"
            )
        raise error_of_write(f"submit {spec.job}", done.outcome, done.text)

    async def _drop_doubles(self, found: list[JobRecord]) -> JobRecord:
        """The lowest id wins. Doubles are held and never started, so ending them ends no work."""
        winner = found[0]
        for double in found[1:]:
            if double.job.phase is Phase.PENDING and double.job.restarts == 0:
                job_id = double.job.native_id
                done = await self.commands.run("scancel", job_id)
                await read_back(
                    f"cancel the double {job_id}",
                    done,
                    lambda job_id=job_id: self.view.job(job_id),  # type: ignore[misc]
                    lambda r: r.job.phase.ended or r.job.phase is Phase.ABSENT,
                    self.commands.settings.read_back,
                )
        return winner

    async def _let_go(self, winner: JobRecord, spec: JobSpec) -> NativeJob:
        """Releases the winner of `sbatch -H` if it still waits there; a later hold of ours or of a person stays."""
        job = winner.job
        fresh = job.phase is Phase.PENDING and job.restarts == 0 and job.reason == "JobHeldUser"
        if not fresh or not job.held or winner.marks.ours:
            return job
        job_id = job.native_id
        done = await self.commands.run("scontrol", "release", job_id)
        seen = await read_back(
            f"release {spec.job} (job {job_id})",
            done,
            lambda: self.view.known_job(job_id),
            lambda r: not r.job.held,
            self.commands.settings.read_back,
        )
        if not is_of(seen.job, spec):
            raise PermanentError(f"job {job_id} is not {spec.job} any more; look at it before anything else")
        return seen.job


def is_of(job: NativeJob, spec: JobSpec) -> bool:
    """Made by that very submission."""
    return job.key == spec.job and job.tokens.epoch == spec.epoch


def check_spec(spec: JobSpec) -> None:
    """Refuses what could never run, before anything exists."""
    if not re.match(NAME_PATTERN, spec.job):
        raise InvalidInputError(f"{spec.job!r} is no job name; letters, digits and . _ : - only")
    if not spec.name or re.search(r"[\x00-\x1f,]", spec.name):
        raise InvalidInputError(f"{spec.name!r} is no Slurm job name: no commas and no control characters")
    if not spec.script.startswith("#!"):
        raise InvalidInputError("the batch script must start with #! and an interpreter")
    if "\x00" in spec.script or re.search(r"[\x00-\x1f]", spec.comment):
        raise InvalidInputError("script and comment may hold no control characters (the script: no NUL)")
    for option in spec.options:
        if not option.startswith("-") or option == "--":
            raise InvalidInputError(f"{option!r} is no option; write each as one argument, e.g. --nodes=2")
        if option.partition("=")[0] in _OURS:
            raise InvalidInputError(f"{option!r} is set by the runbook; leave it out")
    check_env(spec)
    if spec.epoch or spec.env:
        _check_export(spec)
    named = parse_tokens(spec.comment).job
    if named not in {None, spec.job}:
        raise InvalidInputError(f"the comment names the job {named}, the submit {spec.job}; they must be equal")


def _check_export(spec: JobSpec) -> None:
    """Its ranks must see their epoch, or an older writer could not be told from them."""
    written = re.findall(r"^#SBATCH\s+(--export[=\s]\s*\S+)", spec.script, re.MULTILINE)
    for option in (*written, *(o for o in spec.options if o.startswith("--export"))):
        value = re.split(r"[=\s]+", option, maxsplit=1)[-1]
        if "ALL" not in value.upper().split(","):
            raise InvalidInputError(
                f"{option!r} keeps {EPOCH_ENV} from its ranks; write --export=ALL before the others"
            )


def comment_of(spec: JobSpec) -> str:
    """The user's text, and our tokens where they are missing."""
    tokens = parse_tokens(spec.comment)
    words = [spec.comment] if spec.comment else []
    if not tokens.supervise:
        words.append(f"{TOKEN_PREFIX}supervise")
    if tokens.job is None:
        words.append(f"{TOKEN_PREFIX}job={spec.job}")
    return with_epoch(" ".join(words), spec.epoch)


def arguments(spec: JobSpec) -> list[str]:
    """Arguments of `sbatch`: ours come last and win. The script goes over standard input."""
    own = [*spec.options]
    if not any(option.startswith("--open-mode") for option in own):
        own.append("--open-mode=append")  # Slurm truncates the output at a requeue: the last words would be lost
    if spec.user is not None and spec.user != pwd.getpwuid(os.getuid()).pw_name:
        own.append(f"--uid={spec.user}")
    return [
        "--parsable",
        *own,
        f"--chdir={spec.workdir}",
        f"--comment={comment_of(spec)}",
        f"--job-name={spec.name}.{spec.job}",
        "--requeue",
        "--hold",
    ]


def environment(spec: JobSpec, epoch: int) -> dict[str, str]:
    """What the job's environment starts from: the job's user's home and a plain path, nothing of the worker's.
    `epoch`: what its own is counted from."""
    user = spec.user or pwd.getpwuid(os.getuid()).pw_name
    try:
        home = pwd.getpwnam(user).pw_dir
    except KeyError as error:
        raise InvalidInputError(f"there is no user {user!r} on this machine") from error
    return {
        **spec.env,
        "HOME": home,
        "USER": user,
        "LC_ALL": "C.UTF-8",
        EPOCH_ENV: str(epoch + spec.epoch),
    }
