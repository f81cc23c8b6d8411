"""The reads through pyslurm: the parent's side of `pyslurm_child.py`, and the choice of the transport.

pyslurm is never imported here. One child serves one cluster. A child that crashes, hangs or answers nonsense is ended
and started anew by the next read, and the read that met it goes by Slurm's commands: pyslurm makes reads faster and
is never the reason for which a cluster cannot be read.
"""

import asyncio
import collections
import contextlib
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import structlog

from activities.backends.slurm.commands import Commands
from activities.backends.slurm.hostlist import expand
from activities.backends.slurm.normalise import JobRecord, NodeRecord, entries, job_record, node_record
from activities.backends.slurm.outcomes import Outcome, classify, error_of_read
from activities.backends.slurm.reads import Reservation, SlurmReads, release_of
from fleet.errors import PermanentError
from fleet.model import NativeJob

CHILD = Path(__file__).with_name("pyslurm_child.py")
INTERPRETER = "GPU_RUNBOOKS_PYSLURM_PYTHON"
"""Environment variable: the Python that has pyslurm, where it is not the worker's own."""
LONGEST_ANSWER = 512 * 1024 * 1024
"""Bytes. A job takes about 1.1 KB, so this is far beyond Slurm's own limits on jobs."""
START_LIMIT = 10.0
"""Seconds for starting the interpreter and importing pyslurm (0.1 s measured; a cold network disk takes longer)."""

Attempt = tuple[str, int, float | None]
"""Native id, restarts and start: an id that is used again after a crash of the controller starts at another time."""
Exit = tuple[int | None, int | None]
"""Exit code and signal."""

_log = structlog.get_logger(__name__)


class ChildFault(Exception):  # noqa: N818  # no error for callers: the read goes by the commands instead
    """The child failed, not the controller."""


def interpreter() -> str:
    """The Python that runs the child."""
    return os.environ.get(INTERPRETER) or sys.executable


class PyslurmChild:
    """One child process: started by the first call, ended by `close` or by its own fault."""

    def __init__(self, commands: Commands, python: str | None = None) -> None:
        self.commands = commands
        self.python = python or interpreter()
        self.starts = 0
        """How often a child was started, for `doctor` and tests."""
        self._process: asyncio.subprocess.Process | None = None
        self._stderr: asyncio.Task[None] | None = None
        self._last_words: collections.deque[str] = collections.deque(maxlen=5)
        self._asked = 0
        self._one_at_a_time = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def call(self, name: str) -> Mapping[str, Any]:
        """Data of one call. Raises ChildFault, or an error of `fleet.errors` for what the controller said."""
        self.commands.check_conf()
        async with self._one_at_a_time:
            try:
                answer = await self._ask(name)
            except BaseException:
                await self._end()
                raise
        if "error" in answer:
            outcome = classify(1, str(answer["error"]))
            if outcome in {Outcome.NOT_DELIVERED, Outcome.UNKNOWN}:
                raise error_of_read(f"pyslurm {name}", outcome, str(answer["error"]))
            raise ChildFault(f"pyslurm {name}: {answer['error']} ({answer.get('errno')})")
        if "fault" in answer or not isinstance(answer.get("data"), dict):
            raise ChildFault(f"pyslurm {name}: {answer.get('fault', 'an answer without data')}")
        data: Mapping[str, Any] = answer["data"]
        return data

    async def close(self) -> None:
        """Ends the child; a later call starts another one."""
        async with self._one_at_a_time:
            await self._end()

    async def _ask(self, name: str) -> Mapping[str, Any]:
        process = self._process
        if process is None or process.returncode is not None:
            process = await self._start()
            await self._exchange(process, "hello", START_LIMIT)
        return await self._exchange(process, name, self.commands.limit)

    async def _exchange(self, process: asyncio.subprocess.Process, name: str, limit: float) -> Mapping[str, Any]:
        assert process.stdin is not None  # noqa: S101  # a pipe, as stdout
        assert process.stdout is not None  # noqa: S101
        self._asked += 1
        try:
            async with asyncio.timeout(limit):
                process.stdin.write(json.dumps({"id": self._asked, "call": name}).encode() + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
        except TimeoutError as error:
            raise ChildFault(f"pyslurm {name}: no answer within {limit:g} s") from error
        except (BrokenPipeError, ConnectionResetError, ValueError) as error:
            raise ChildFault(f"pyslurm {name}: {error or type(error).__name__}; {await self._death()}") from error
        if not line.endswith(b"\n"):
            raise ChildFault(f"pyslurm {name}: {await self._death()}")
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise ChildFault(f"pyslurm {name}: no JSON: {line[:200]!r}") from error
        if not isinstance(answer, dict) or answer.get("id") != self._asked:
            raise ChildFault(f"pyslurm {name}: an answer to another question: {line[:200]!r}")
        return answer

    async def _start(self) -> asyncio.subprocess.Process:
        await self._end()
        try:
            process = await asyncio.create_subprocess_exec(
                self.python,
                "-I",  # nothing of our tree or the caller's PYTHON* can stand in for a module of the child
                str(CHILD),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self.commands.environment(LC_ALL="C.UTF-8", PYSLURM_DISABLE_AUTO_INIT="1"),
                start_new_session=True,
                limit=LONGEST_ANSWER,
            )
        except OSError as error:
            raise ChildFault(f"cannot run {self.python}: {error.strerror}") from error
        self._process = process
        self._last_words.clear()
        self._stderr = asyncio.create_task(self._keep_last_words(process))
        self.starts += 1
        return process

    async def _keep_last_words(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None  # noqa: S101  # a pipe
        while chunk := await process.stderr.read(4096):
            self._last_words.extend(line[:200] for line in chunk.decode(errors="replace").splitlines())

    async def _death(self) -> str:
        """How the child ended, with its last words."""
        process = self._process
        await self._end()
        words = " | ".join(self._last_words)
        return f"the child ended ({process.returncode if process else 'never started'}) {words}".strip()

    async def _end(self) -> None:
        process, self._process = self._process, None
        task, self._stderr = self._stderr, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            if process.stdin is not None:
                process.stdin.close()
        if task is not None:
            await asyncio.wait([task])


class PyslurmReads:
    """Jobs, nodes and reservations by the child; the controller's configuration and its ping by the commands."""

    def __init__(self, cluster: str, cli: SlurmReads, child: PyslurmChild) -> None:
        self.cluster = cluster
        self.cli = cli
        self.child = child
        self._exits: dict[Attempt, Exit] = {}
        """How attempts ended, as Slurm's commands told it once."""

    async def ping(self) -> None:
        await self.cli.ping()

    async def config(self) -> Mapping[str, str]:
        return await self.cli.config()

    async def list_jobs(self) -> tuple[JobRecord, ...]:
        try:
            answer = await self.child.call("jobs")
        except ChildFault as fault:
            self._tell(fault)
            return await self.cli.list_jobs()
        raws = entries(answer, "jobs")
        records = tuple(job_record(raw, self.cluster) for raw in raws)
        unsure = {record.job_id for record, raw in zip(records, raws, strict=True) if raw.get("unsure")}
        return await self._complete(records, unsure) if unsure else records

    async def list_nodes(self) -> tuple[NodeRecord, ...]:
        try:
            answer = await self.child.call("nodes")
        except ChildFault as fault:
            self._tell(fault)
            return await self.cli.list_nodes()
        return tuple(node_record(raw) for raw in entries(answer, "nodes"))

    async def list_reservations(self) -> tuple[Reservation, ...]:
        try:
            answer = await self.child.call("reservations")
        except ChildFault as fault:
            self._tell(fault)
            return await self.cli.list_reservations()
        return tuple(
            Reservation(name=raw["name"], nodes=expand(raw["nodes"]), maintenance=raw["maintenance"])
            for raw in entries(answer, "reservations")
        )

    async def close(self) -> None:
        await self.child.close()
        await self.cli.close()

    async def _complete(self, records: tuple[JobRecord, ...], unsure: set[str]) -> tuple[JobRecord, ...]:
        """Takes the exit codes of the named jobs from Slurm's commands, once for each attempt that ended.

        Unknown stays None: a job that went on or was purged meanwhile is right at the next read.
        """
        doubtful = {_attempt(record.job) for record in records if record.job_id in unsure}
        exits = {attempt: told for attempt, told in self._exits.items() if attempt in doubtful}
        if len(exits) < len(doubtful):
            read = {_attempt(r.job): (r.job.exit_code, r.job.exit_signal) for r in await self.cli.list_jobs()}
            exits |= {attempt: read[attempt] for attempt in doubtful - exits.keys() if attempt in read}
        self._exits = exits
        return tuple(
            _with_exit(record, exits.get(_attempt(record.job), (None, None))) if record.job_id in unsure else record
            for record in records
        )

    def _tell(self, fault: ChildFault) -> None:
        _log.warning("pyslurm failed; this read goes by Slurm's commands", cluster=self.cluster, fault=str(fault))


def _attempt(job: NativeJob) -> Attempt:
    return job.native_id, job.restarts, job.started_at


def _with_exit(record: JobRecord, told: Exit) -> JobRecord:
    code, signal_number = told
    job = record.job.model_copy(update={"exit_code": code, "exit_signal": signal_number})
    return record.model_copy(update={"job": job})


class ChosenReads:
    """The transport that `transport` names, chosen at the first read: the controller must be asked for its release.

    `auto` takes pyslurm where a child can import it and its major.minor equals the controller's, else the commands.
    `pyslurm` raises PermanentError where that is not so.
    """

    def __init__(
        self, cluster: str, commands: Commands, cli: SlurmReads, transport: Literal["auto", "cli", "pyslurm"]
    ) -> None:
        self.cluster = cluster
        self.commands = commands
        self.cli = cli
        self.transport = transport
        self.reads: SlurmReads | None = cli if transport == "cli" else None
        """What was chosen; None before the first read."""
        self._choosing = asyncio.Lock()

    async def ping(self) -> None:
        await self.cli.ping()

    async def config(self) -> Mapping[str, str]:
        return await self.cli.config()

    async def list_jobs(self) -> tuple[JobRecord, ...]:
        return await (await self._chosen()).list_jobs()

    async def list_nodes(self) -> tuple[NodeRecord, ...]:
        return await (await self._chosen()).list_nodes()

    async def list_reservations(self) -> tuple[Reservation, ...]:
        return await (await self._chosen()).list_reservations()

    async def close(self) -> None:
        await (self.reads or self.cli).close()

    async def _chosen(self) -> SlurmReads:
        async with self._choosing:
            if self.reads is None:
                self.reads = await self._choose()
            return self.reads

    async def _choose(self) -> SlurmReads:
        child = PyslurmChild(self.commands)
        why = f"{child.python} has no pyslurm"
        try:
            if (ours := await pyslurm_version(child)) is not None:
                theirs = (await self.cli.config()).get("SLURM_VERSION", "")
                if release_of(ours) == release_of(theirs):
                    return PyslurmReads(self.cluster, self.cli, child)
                why = f"{child.python} has pyslurm {ours} and the controller is of {theirs}"
        except BaseException:
            await child.close()
            raise
        await child.close()
        if self.transport == "pyslurm":
            raise PermanentError(
                f"{self.cluster}: {why}; install the pyslurm of the controller's release, name its Python in "
                f"{INTERPRETER}, or set `transport: auto` in fleet.yaml"
            )
        return self.cli


async def pyslurm_version(child: PyslurmChild) -> str | None:
    """Version of the pyslurm that the child imports, None when it cannot; the controller is not asked."""
    if child.python == sys.executable and importlib.util.find_spec("pyslurm") is None:  # looks, and imports nothing
        return None
    try:
        return str((await child.call("hello"))["version"])
    except ChildFault as fault:
        _log.debug("pyslurm is not to be had", python=child.python, fault=str(fault))
        return None
