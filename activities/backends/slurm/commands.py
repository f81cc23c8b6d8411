"""Runs Slurm's programs: absolute path, argument list, an environment of our own, a limit, and no shell."""

import os
import pwd
from collections.abc import Mapping, Sequence
from pathlib import Path

from activities.backends.programs import Ended, run_program
from activities.backends.slurm.outcomes import Outcome, classify, error_of_read
from activities.backends.slurm.settings import SlurmSettings
from activities.presence import check_presence
from fleet.errors import PermanentError

DEFAULT_LIMIT = 15.0
"""Seconds: Slurm's default MessageTimeout (10) and five, until the probe has read the cluster's own."""
GRACE = 5.0
"""Seconds that a command may take beyond MessageTimeout: a dead controller costs up to 9 s (measured)."""
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


class Finished(Ended):
    """A Slurm program that ended, and what its words mean."""

    @property
    def outcome(self) -> Outcome:
        return Outcome.UNKNOWN if self.timed_out else classify(self.rc, self.err)


async def run_argv(
    argv: Sequence[str], env: Mapping[str, str], limit: float, stdin: str | None = None, cwd: str | None = None
) -> Finished:
    """Runs one program in its own process group and ends the whole group at the limit, or when we are cancelled."""
    done = await run_program(argv, env, limit, stdin, cwd)
    return Finished(**done.model_dump())


class Commands:
    """Slurm's programs for one cluster."""

    def __init__(self, settings: SlurmSettings) -> None:
        self.settings = settings
        self.limit = DEFAULT_LIMIT
        self.calls: dict[str, int] = {}
        """How often each program ran, for `doctor` and for tests of the shared poll."""

    def environment(self, **more: str) -> dict[str, str]:
        """Nothing of the caller's: no SLURM_*, SBATCH_*, SQUEUE_* or SCANCEL_* can change a command's meaning.

        The cluster's own programs come first: a job is submitted with this PATH and finds its `srun` by it.
        """
        home = pwd.getpwuid(os.getuid()).pw_dir
        return {
            "PATH": f"{self.settings.bin_dir}:{SYSTEM_PATH}",
            "HOME": home,
            "LC_ALL": "C",
            "TZ": "UTC",
            "SLURM_CONF": self.settings.conf,
        } | more

    def check_conf(self) -> None:
        """Raises PermanentError at once; Slurm's own programs wait 60 s for a missing file."""
        if not os.access(self.settings.conf, os.R_OK) or not Path(self.settings.conf).is_file():
            raise PermanentError(f"cannot read {self.settings.conf}; correct `conf` of this cluster in fleet.yaml")

    async def run(
        self,
        program: str,
        *args: str,
        stdin: str | None = None,
        limit: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Finished:
        """Runs a write and judges nothing. Raises TemporaryError when our step may be another worker's by now."""
        check_presence()
        return await self._run(program, *args, stdin=stdin, limit=limit, env=env)

    async def _run(
        self,
        program: str,
        *args: str,
        stdin: str | None = None,
        limit: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Finished:
        self.check_conf()
        self.calls[program] = self.calls.get(program, 0) + 1
        argv = (f"{self.settings.bin_dir}/{program}", *args)
        return await run_argv(argv, self.environment(**(env or {})), limit or self.limit, stdin)

    async def read(self, program: str, *args: str) -> str:
        """Standard output of a successful read. Raises TemporaryError, NotFoundError or PermanentError."""
        done = await self._run(program, *args)
        if done.rc != 0 or done.timed_out:  # with 0, words on stderr are of retries that went well
            raise error_of_read(f"{program} {args[0] if args else ''}".strip(), done.outcome, done.text)
        return done.out
