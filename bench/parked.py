"""What many runbooks cost that only wait: memory and processor time of the real worker process and of the server."""

import asyncio
import time
from pathlib import Path

from activities.backends.sim import ClusterShape, SimBackend, SimSettings, create_world
from activities.backends.sim.faults import Faults
from bench.machine import cpu_seconds, resident_mib
from bench.stand import Stand, until
from fleet.identity import job_workflow_id
from fleet.model import Value
from fleet.orders import JobSpec
from workers.fleets import ALL_AUTO
from workflows.attempts import LOOK_EVERY

CLUSTER = "alpha"
QUIET = 10.0
"""Seconds between the last adoption and the first reading."""
START_LIMIT = 600.0


class Parked(Value):
    """`count` jobs that train, each with its own runbook that watches it; and the same worker before, with none."""

    count: int
    seconds: float
    """How long the processor time was read: a whole round of looks."""
    adopted_in: float
    """Seconds from the submit of the first job until the last runbook watches."""
    adopted_cpu: float
    """Processor seconds of the worker meanwhile."""
    worker_mib: float
    worker_mib_empty: float
    worker_cpu: float
    """Share of one core, 0 to 1."""
    worker_cpu_empty: float
    server_mib: float
    server_cpu: float
    server_cpu_empty: float
    loop_cpu: float
    """Of a plain asyncio loop in one process that does the same reads and nothing else."""


async def park(place: Stand, count: int) -> Parked:
    """Raises TemporaryError when the runbooks do not all come to watch."""
    folder = place.folder / "parked"
    fleet = await asyncio.to_thread(_write_fleet, folder, count)
    window = LOOK_EVERY.total_seconds()
    async with place.worker(fleet, CLUSTER) as pid:
        await asyncio.sleep(QUIET)
        empty_mib = resident_mib(pid)
        empty, server_empty = await _cpu(pid, place.server_pid, window / 2)
        start, before = time.monotonic(), cpu_seconds(pid)
        ids = await asyncio.to_thread(_submit, folder, count)
        await until(lambda: _all_watch(place, count), START_LIMIT, f"{count} runbooks to watch their jobs", every=2)
        adopted_in, adopted_cpu = time.monotonic() - start, cpu_seconds(pid) - before
        await asyncio.sleep(QUIET)
        cpu, server = await _cpu(pid, place.server_pid, window)
        mib, server_mib = resident_mib(pid), resident_mib(place.server_pid)
    return Parked(
        count=count,
        seconds=window,
        adopted_in=adopted_in,
        adopted_cpu=adopted_cpu,
        worker_mib=mib,
        worker_mib_empty=empty_mib,
        worker_cpu=cpu,
        worker_cpu_empty=empty,
        server_mib=server_mib,
        server_cpu=server,
        server_cpu_empty=server_empty,
        loop_cpu=await _plain_loop(folder, ids, window),
    )


def _write_fleet(folder: Path, count: int) -> Path:
    folder.mkdir()
    create_world(folder / "world.sqlite", {CLUSTER: ClusterShape(nodes=count, gpus=8)})
    fleet = folder / "fleet.yaml"
    fleet.write_text(f"version: 1\nclusters:\n  {CLUSTER}: {{kind: sim, path: world.sqlite}}\n{ALL_AUTO}")
    return fleet


def _submit(folder: Path, count: int) -> list[str]:
    faults = Faults(folder / "world.sqlite", CLUSTER)
    try:
        return [faults.person_submit(_spec(number)) for number in range(count)]
    finally:
        faults.close()


def _spec(number: int) -> JobSpec:
    job = f"parked-{number}"
    script = "#!/bin/sh\n#SIM nodes=1 gpus=8 steps=1000000 step_time=1 checkpoint_every=100\n"
    return JobSpec(job=job, name=job, comment=f"gpu-runbooks.io/supervise gpu-runbooks.io/job={job}", script=script)


async def _all_watch(place: Stand, count: int) -> bool:
    for number in range(count):
        view = await place.view(job_workflow_id(f"parked-{number}"))
        if view is None or view.ledger is None or view.ledger.last is None or view.step != "watching":
            return False
    return True


async def _cpu(worker: int, server: int, seconds: float) -> tuple[float, float]:
    """Shares of one core that the two processes used meanwhile."""
    before = cpu_seconds(worker), cpu_seconds(server)
    start = time.monotonic()
    await asyncio.sleep(seconds)
    spent = time.monotonic() - start
    return (cpu_seconds(worker) - before[0]) / spent, (cpu_seconds(server) - before[1]) / spent


async def _plain_loop(folder: Path, ids: list[str], seconds: float) -> float:
    """The cluster's watch, and one look at each job a round: what a script without durable runbooks would read."""
    backend = SimBackend(CLUSTER, SimSettings(path=folder / "world.sqlite"))

    async def watch() -> None:
        async for _ in backend.watch():
            pass

    async def look() -> None:
        for native_id in ids:
            await backend.job(native_id)
            await backend.progress(native_id, 0)
            await backend.nodes()
            await asyncio.sleep(seconds / len(ids) / 2)

    start, before = time.monotonic(), time.process_time()
    watching = asyncio.create_task(watch())
    await look()
    await asyncio.sleep(max(0.0, seconds - (time.monotonic() - start)))
    spent = (time.process_time() - before) / (time.monotonic() - start)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await backend.close()
    return spent
