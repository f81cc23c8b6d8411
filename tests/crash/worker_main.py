"""A worker as `runbook worker` runs it, with a crash point in it. `tests/crash/nursery.py` starts it.

Its folder holds `fleet.yaml`, the server's state and `case.json`. It ends by a signal only.
"""

import functools
from pathlib import Path
from typing import Any

from temporalio import activity

from activities.backends.factory import make_backend
from activities.backends.port import ClusterBackend
from activities.backends.sim import SimBackend
from activities.backends.sim.faults import Faults
from activities.runtime import Runtime
from activities.store import AsyncHistoryStore
from clients.connection import connect_to, find_target
from clients.embedded import read_state
from fleet.policy import Policy
from fleet.policy_file import parse_policy
from fleet.runbooks import Runbook
from tests.crash.around import befall
from tests.crash.boundary import WRITES, Case, CrashPoint, KillAt
from workers.dev import clusters_of
from workers.logs import LogContext
from workers.worker import run_worker, store_url

MARKER = "hit"
"""Made in the folder by the process that met the boundary; holds its pid."""
LOSE = "lose-next-answer"
"""Its presence tells the wrapped Slurm programs to lose the answer of the next write."""


async def work(folder: Path) -> None:
    """Connects and works until it is killed."""
    fleet = folder / "fleet.yaml"
    point = crash_point(folder, fleet)

    def made(cluster: str, policy: Policy, where: Path) -> ClusterBackend:
        backend = make_backend(cluster, policy, where)
        for name in WRITES:
            setattr(backend, name, _around(getattr(backend, name), point, name))
        commands = getattr(backend, "commands", None)
        if commands is not None:
            commands.run = _first(commands.run, point)
        return backend

    target = find_target(state_dir=folder)
    runtime = Runtime(
        policy_file=fleet,
        client=await connect_to(target),
        make_backend=made,
        store=await AsyncHistoryStore.open(store_url(fleet, folder)),
        unsigned_ok=target.embedded,
    )
    sites = tuple(runtime.policy().sites)
    await run_worker(runtime, clusters_of(fleet), sites=sites, interceptors=[LogContext(), KillAt(point)])


def crash_point(folder: Path, fleet: Path) -> CrashPoint:
    """The case's fault, as this folder's server and cluster can have it."""

    def server_pid() -> int:
        info = read_state(folder)
        assert info is not None
        return info.pid

    def lose_answer() -> None:
        cluster = clusters_of(fleet)[0]
        policy = parse_policy(fleet.read_text(), str(fleet))
        backend = make_backend(cluster, policy, folder)
        if isinstance(backend, SimBackend):
            faults = Faults(folder / "world.sqlite", cluster)
            faults.lose_next_answer()
            faults.close()
        else:
            (folder / LOSE).touch()

    case = Case.model_validate_json((folder / "case.json").read_text())
    return CrashPoint(case, folder / MARKER, server_pid, lose_answer, functools.partial(befall, folder))


def _around(write: Any, point: CrashPoint, name: str) -> Any:
    """The write, with the crash point before it, and between its effect and its answer."""

    async def call(*args: Any) -> Any:
        point(name, "before its write")
        result = await write(*args)
        point(name, "after its write")
        return result

    return call


def _first(run: Any, point: CrashPoint) -> Any:
    """A command of Slurm, with the crash point between the decision for it and its start."""

    async def call(program: str, *args: str, **options: Any) -> Any:
        if args and activity.in_activity() and activity.info().workflow_type == Runbook.FAILOVER:
            point(args[0], "before the command")
        return await run(program, *args, **options)

    return call
