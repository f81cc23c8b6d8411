"""Runs programs of the worker's machine: argument list, given environment, a limit, and no shell."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

from fleet.errors import PermanentError
from fleet.model import Value


class Ended(Value):
    """A program that ended, or was ended at its limit (`timed_out`)."""

    rc: int
    out: str
    err: str
    timed_out: bool = False

    @property
    def text(self) -> str:
        """Its words on one line, for people."""
        words = " ".join((self.err.strip() or self.out.strip()).split())
        if self.timed_out:
            return f"ended by us at its limit {words}".strip()
        return words[:500] or f"exit code {self.rc}"


async def run_program(
    argv: Sequence[str], env: Mapping[str, str], limit: float, stdin: str | None = None, cwd: str | None = None
) -> Ended:
    """Runs one program in its own process group and ends the whole group at the limit, or when we are cancelled."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
        raise PermanentError(f"cannot run {argv[0]}: {error.strerror}; install it or correct its path") from error
    try:
        async with asyncio.timeout(limit):
            out, err = await process.communicate(stdin.encode() if stdin is not None else None)
    except TimeoutError:
        await _end_group(process)
        return Ended(rc=-1, out="", err="", timed_out=True)
    except BaseException:
        await _end_group(process)
        raise
    return Ended(rc=process.returncode or 0, out=out.decode(errors="replace"), err=err.decode(errors="replace"))


async def _end_group(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
