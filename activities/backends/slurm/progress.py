"""An attempt's own output: its last steps, its last words, and the dumps of its ranks.

The file is the `log=` token's, else the job's StdOut. It may be missing, replaced, or hold several attempts (with
`--open-mode=append`); only lines of the generation asked for count. It is read only if it is a plain file of the
job's own user: the worker may read more than the user may.
"""

import asyncio
import pwd
import re

from activities.backends.dumps import read_dumps
from activities.backends.port import Dumps
from activities.backends.slurm.commands import Commands
from activities.backends.slurm.view import ClusterView
from activities.backends.tail import read_tail
from activities.backends.training_log import keep_first, parse_progress
from fleet.errors import NotFoundError
from fleet.model import NativeJob, Phase, Progress


class Outputs:
    """`progress`, `log_tail` and `dumps` of one cluster."""

    def __init__(self, commands: Commands, view: ClusterView) -> None:
        self.commands = commands
        self.view = view
        self._paths: dict[str, str] = {}
        self._first: dict[tuple[str, int], Progress] = {}

    async def progress(self, native_id: str, restarts: int) -> Progress:
        job, path = await self._file_of(native_id)
        if path is None:
            return Progress()
        text = await asyncio.to_thread(read_tail_of, path, job.user)
        seen = parse_progress(text, restarts, self._epoch(job))
        known = self._first.get((job.fingerprint, restarts), Progress())
        merged = keep_first(known, seen)
        self._first[(job.fingerprint, restarts)] = merged
        return merged

    def _epoch(self, job: NativeJob) -> int | None:
        """What its ranks print. The job of an earlier submission may have written into the same file before; of a
        first one nobody knows, for its user may have set it."""
        return self.commands.settings.epoch + job.tokens.epoch if job.tokens.epoch else None

    async def log_tail(self, native_id: str, lines: int) -> tuple[str, ...]:
        job, path = await self._file_of(native_id)
        if path is None:
            return ()
        text = await asyncio.to_thread(read_tail_of, path, job.user)
        return tuple(text.splitlines()[-max(lines, 0) :]) if lines > 0 else ()

    async def dumps(self, native_id: str, since: float) -> Dumps:
        job = await self._job(native_id)
        if not job.tokens.dumps:
            return Dumps()
        return await asyncio.to_thread(read_dumps, job.tokens.dumps, lambda s: owned_by(s.st_uid, job.user), since)

    async def _job(self, native_id: str) -> NativeJob:
        for record in await self.view.jobs(self.commands.settings.poll_interval):
            if record.called(native_id):
                return record.job
        return (await self.view.job(native_id)).job

    async def _file_of(self, native_id: str) -> tuple[NativeJob, str | None]:
        job = await self._job(native_id)
        if job.phase is Phase.ABSENT:
            return job, None
        if job.tokens.log:
            return job, job.tokens.log
        if job.fingerprint not in self._paths:
            try:
                text = await self.commands.read("scontrol", "show", "job", job.native_id)
            except NotFoundError:
                return job, None
            self._paths[job.fingerprint] = stdout_of(text)
        return job, self._paths[job.fingerprint] or None


def stdout_of(text: str) -> str:
    """StdOut of `scontrol show job`. The last such line: a comment, which may hold anything, stands before it."""
    found = re.findall(r"^   StdOut=(/.*)$", text, re.MULTILINE)
    return str(found[-1]).strip() if found else ""


def read_tail_of(path: str, user: str) -> str:
    """The end of the user's own file; empty when it is missing, foreign or no plain file."""
    return read_tail(path, lambda status: owned_by(status.st_uid, user))


def owned_by(uid: int, user: str) -> bool:
    try:
        return pwd.getpwnam(user).pw_uid == uid
    except KeyError:
        return False
