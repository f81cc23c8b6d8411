"""The clusters that `recovery` breaks, and the truth about when a job ran and when it made its first new step.

`alpha` is supervised; `beta` is the same cluster, left to its scheduler. The times do not come from our own spans:
on Slurm they are slurmctld's log (to the millisecond) and the job's own output, in the same way for both clusters.
"""

import asyncio
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from activities.backends.sim import SimBackend, SimSettings
from activities.backends.sim.faults import Faults
from activities.backends.training_log import parse_progress
from bench.stand import REPOSITORY
from fleet.errors import PermanentError
from fleet.model import Progress
from fleet.orders import JobSpec
from workers.fleets import ALL_AUTO, write_sim_fleet

OURS, ALONE = "alpha", "beta"
NODES = 4
"""Nodes of each cluster: two for the job, two to go to."""
TOTAL_STEPS, STEP_TIME, SAVE_EVERY = 2000, 0.3, 10
CRED_EXPIRE = 120
"""Slurm's own default, seconds; its requeue delay is one more."""
_TOKEN = "gpu-runbooks.io/"  # noqa: S105 - a label prefix


class Side(Protocol):
    """The clusters of one backend."""

    fleet: Path
    alone: str
    """What happens to the node of the job that is left alone, in words."""

    async def open(self) -> None:
        """Starts both clusters. Raises PermanentError where that cannot be."""

    async def submit(self, cluster: str, job: str, *, supervised: bool) -> str:
        """As a researcher would; gives the native id."""

    async def progress(self, cluster: str, native_id: str, restarts: int) -> Progress:
        """What that attempt itself says."""

    async def nodes_of(self, cluster: str, native_id: str) -> tuple[str, ...]:
        """Nodes that the running job holds."""

    async def running_at(self, cluster: str, native_id: str, after: float) -> float | None:
        """When it was started the first time after `after`, by the scheduler's own word."""

    async def mark_dead(self, cluster: str, node: str) -> None:
        """The scheduler learns at once that the node is dead: the best case for its own requeue."""

    async def crash(self, cluster: str, node: str) -> None:
        """The node loses its power."""

    async def cancel(self, cluster: str, native_id: str) -> None:
        """Ends the job, as its owner would."""

    async def close(self) -> None:
        """Takes everything away."""


class SlurmSide:
    """Two real private Slurm clusters of the lab."""

    alone = "Slurm's own requeue, its defaults"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fleet = folder / "fleet.yaml"
        self.lab = REPOSITORY / "deploy" / "lab" / "slurm_lab.sh"

    async def open(self) -> None:
        await self._lab("check")
        first = _free_block(2 * (NODES + 1))
        for place, cluster in enumerate((OURS, ALONE)):
            port = str(first + place * (NODES + 1))
            await self._lab("start", cluster, "-n", str(NODES), "-p", port, "-r", str(CRED_EXPIRE))
        power = "\n".join(
            f'      {key}: [{self.lab}, --root, {self.folder}, {verb}, {OURS}, "{{node}}"]'
            for key, verb in (("off", "power-off"), ("on", "power-on"), ("status", "power-status"))
        )
        check = f'[python3, {REPOSITORY}/deploy/lab/check_gpus.py, --expect, "{{gpus}}"]'
        self.fleet.write_text(
            f"version: 1\nclusters:\n  {OURS}:\n    kind: slurm\n    conf: {self._conf(OURS)}\n"
            f"    power:\n{power}\n    check: {check}\n{ALL_AUTO}"
        )

    async def submit(self, cluster: str, job: str, *, supervised: bool) -> str:
        checkpoints = self.folder / f"{cluster}-{job}"
        checkpoints.mkdir()
        words = [
            f"--output={self._output(cluster, job)}",
            f"--job-name={job}",
            f"--comment={comment(job, supervised)}",
        ]
        training = REPOSITORY / "deploy" / "lab" / "training"
        env = {
            "TRAIN": str(training / "train.py"),
            "CHECKPOINTS": str(checkpoints),
            "STEPS": str(TOTAL_STEPS),
            "STEP_TIME": str(STEP_TIME),
            "CHECKPOINT_EVERY": str(SAVE_EVERY),
        }
        said = await self._slurm(cluster, "sbatch", "--parsable", *words, str(training / "job.sbatch"), env=env)
        (self.folder / f"{cluster}-{said.strip()}.name").write_text(job)
        return said.strip()

    async def progress(self, cluster: str, native_id: str, restarts: int) -> Progress:
        job = (self.folder / f"{cluster}-{native_id}.name").read_text()
        output = self._output(cluster, job)
        return parse_progress(output.read_text(errors="replace") if output.exists() else "", restarts)

    async def nodes_of(self, cluster: str, native_id: str) -> tuple[str, ...]:
        nodes = (await self._slurm(cluster, "squeue", "-h", "-j", native_id, "-o", "%N")).strip()
        names = await self._slurm(cluster, "scontrol", "show", "hostnames", nodes)
        return tuple(names.split())

    async def running_at(self, cluster: str, native_id: str, after: float) -> float | None:
        log = self.folder / cluster / "log" / "slurmctld.log"
        return started_at(log.read_text(errors="replace"), native_id, after)

    async def mark_dead(self, cluster: str, node: str) -> None:
        await self._slurm(cluster, "scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=dead")

    async def crash(self, cluster: str, node: str) -> None:
        await self._lab("node-crash", cluster, node)

    async def cancel(self, cluster: str, native_id: str) -> None:
        await self._slurm(cluster, "scancel", native_id)

    async def close(self) -> None:
        for cluster in (OURS, ALONE):
            await self._lab("rm", cluster)

    def _conf(self, cluster: str) -> str:
        return str(self.folder / cluster / "etc" / "slurm.conf")

    def _output(self, cluster: str, job: str) -> Path:
        return self.folder / f"{cluster}-{job}.out"

    async def _lab(self, *words: str) -> str:
        return await _call(str(self.lab), "--root", str(self.folder), *words)

    async def _slurm(self, cluster: str, program: str, *words: str, env: Mapping[str, str] | None = None) -> str:
        return await _call(program, *words, env={"SLURM_CONF": self._conf(cluster), **(env or {})})


class SimSide:
    """The embedded fleet; its scheduler behaves as Slurm with its defaults was measured to behave."""

    alone = "the simulated scheduler's own requeue"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fleet = folder / "fleet.yaml"

    async def open(self) -> None:
        write_sim_fleet(self.folder, (OURS, ALONE), fresh=True)
        world = self.folder / "world.sqlite"
        self.faults = {name: Faults(world, name) for name in (OURS, ALONE)}
        self.backends = {name: SimBackend(name, SimSettings(path=world)) for name in (OURS, ALONE)}

    async def submit(self, cluster: str, job: str, *, supervised: bool) -> str:
        script = (
            f"#!/bin/sh\n#SIM nodes=2 gpus=8 steps={TOTAL_STEPS} step_time={STEP_TIME} "
            f"checkpoint_every={SAVE_EVERY} save_time=0.2 load_time=1\n"
        )
        spec = JobSpec(job=job, name=job, comment=comment(job, supervised), script=script)
        return await asyncio.to_thread(self.faults[cluster].person_submit, spec)

    async def progress(self, cluster: str, native_id: str, restarts: int) -> Progress:
        return await self.backends[cluster].progress(native_id, restarts)

    async def nodes_of(self, cluster: str, native_id: str) -> tuple[str, ...]:
        return (await self.backends[cluster].job(native_id)).nodes

    async def running_at(self, cluster: str, native_id: str, after: float) -> float | None:
        began = (await self.backends[cluster].job(native_id)).started_at
        return began if began is not None and began > after else None

    async def mark_dead(self, cluster: str, node: str) -> None:
        await self.crash(cluster, node)  # the simulated scheduler cannot be told; it notices by itself

    async def crash(self, cluster: str, node: str) -> None:
        await asyncio.to_thread(self.faults[cluster].crash_node, node)

    async def cancel(self, cluster: str, native_id: str) -> None:
        await asyncio.to_thread(self.faults[cluster].person_cancel, native_id)

    async def close(self) -> None:
        for name, faults in getattr(self, "faults", {}).items():
            faults.close()
            await self.backends[name].close()


def xid_79(node: str) -> str:
    """The kernel's line of just now. It is dated: the same undated line twice is taken for one event."""
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    what = "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    return f"{now} {node} kernel: NVRM: Xid (PCI:0000:ab:00): {what}"


def comment(job: str, supervised: bool) -> str:
    """The words of a job's owner; the same for both jobs but for the opt-in."""
    words = [f"job={job}", "checkpoint-signal=USR1", f"total-steps={TOTAL_STEPS}", "generation-check=yes"]
    return " ".join(_TOKEN + word for word in (["supervise", *words] if supervised else words))


_STARTED = re.compile(r"^\[(?P<at>[\dT:.-]+)\] .*(?:Allocate|Started) JobId=(?P<job>\d+) ", re.MULTILINE)


def started_at(log: str, native_id: str, after: float) -> float | None:
    """When slurmctld gave the job its nodes the first time after `after`, by its log (local time)."""
    for match in _STARTED.finditer(log):
        at = datetime.fromisoformat(match["at"]).timestamp()
        if match["job"] == native_id and at > after:
            return at
    return None


async def _call(*argv: str, env: Mapping[str, str] | None = None) -> str:
    """Output of a program that succeeds. Raises PermanentError with its own words, which name what to install."""
    program = shutil.which(argv[0], path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise PermanentError(f"{argv[0]} is missing; install it with `deploy/lab/packages.sh`")

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *argv[1:]],
            env={**os.environ, "LC_ALL": "C", **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    done = await asyncio.to_thread(run)
    if done.returncode != 0:
        raise PermanentError(f"{' '.join(argv[:6])}: {(done.stderr or done.stdout).strip()[-600:]}")
    return done.stdout


def _free_block(length: int) -> int:
    """First of `length` ports below the embedded server's range in which nobody listens."""
    for first in range(15000, 17000, length):
        if all(_is_free(port) for port in range(first, first + length)):
            return first
    raise PermanentError("no free block of ports between 15000 and 17000")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
