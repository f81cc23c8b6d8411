"""`runbook demo`: a job trains, a GPU falls off the bus, the runbooks recover both, and the incident report ends it.

The same on the embedded fleet and, with `--backend slurm` or `kubernetes`, on a real lab of this machine.
"""

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from rich.console import Console

from clients.embedded import home
from fleet.errors import PermanentError
from workers.demo_stage import Stage

LIMIT = 170.0
"""Seconds from the submit to the end; the whole demo must stay under three minutes."""


def demo(
    *, backend: Literal["sim", "slurm", "kubernetes"] = "sim", keep: bool = False, state: str | None = None
) -> int:
    """Show one recovery from end to end: server, worker, a job, XID 79, the report.

    Parameters
    ----------
    backend
        sim: the embedded fleet, nothing to install. slurm: two real private Slurm clusters (root, Debian's packages).
        kubernetes: a real private cluster of three nodes, with the server and the worker in its own network (root).
    keep
        Leave the server (and the lab) running, to look around in the Temporal UI.
    state
        State folder; default $GPU_RUNBOOKS_HOME or ./.runbook.
    """
    from workers.logs import configure_logs
    from workers.server import ensure_server, stop_server

    folder = home(state) / f"demo-{backend}"
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(markup=False, emoji=False, highlight=False, soft_wrap=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a polite end cleans up too
    log = (folder / "worker.log").open("a", encoding="utf-8")
    with log, _network(backend, folder, console, keep=keep):
        configure_logs(stream=log)
        stop_server(folder)
        for old in folder.glob("temporal.sqlite*"):
            old.unlink()
        info = ensure_server(folder)
        console.print(f"Temporal UI   {info.ui}   (worker log: {folder / 'worker.log'})")
        try:
            ok = asyncio.run(_demo(backend, folder, console, keep=keep))
        finally:
            if keep:
                dev = f"runbook dev --state {folder}"
                console.print(f"left running: {info.ui}; end it with `{dev} --stop`")
                console.print(f"the pages of its runbooks need a worker: `{dev}`")
            else:
                stop_server(folder)
    return 0 if ok else 1


@contextlib.contextmanager
def _network(backend: str, folder: Path, console: Console, *, keep: bool) -> Iterator[None]:
    """The Kubernetes lab comes before the server and goes after it, for both live in its network namespace."""
    if backend != "kubernetes":
        yield
        return
    from workers.demo_kubernetes import close_lab, open_lab

    console.print(
        "starting a private Kubernetes cluster; it, the server and its UI are in a network of their own ..."
    )
    lab = open_lab(folder)
    try:
        yield
    finally:
        for line in close_lab(lab, folder, keep=keep):
            console.print(line)


async def _demo(backend: str, folder: Path, console: Console, *, keep: bool) -> bool:
    stage = await _stage(backend, folder, console)
    try:
        return await _on_stage(stage, folder, console)
    finally:
        for line in await stage.close(keep=keep):
            console.print(line)


async def _stage(backend: str, folder: Path, console: Console) -> Stage:
    if backend == "slurm":
        from workers.demo_slurm import SlurmStage

        console.print("starting two private Slurm clusters ...")
        return await SlurmStage.open(folder)
    if backend == "kubernetes":
        from workers.demo_kubernetes import KubernetesStage
        from workers.demo_slurm import lab_root
        from workers.lab_k8s import K8sLab

        return KubernetesStage(K8sLab(lab_root(folder)), folder / "fleet.yaml")
    from workers.demo_sim import SimStage

    return SimStage(folder)


async def _on_stage(stage: Stage, folder: Path, console: Console) -> bool:
    """Runs the worker beside the play; the end of either ends the other."""
    from clients.connection import connect_to, find_target
    from workers.demo_play import Play
    from workers.dev import clusters_of, serve

    client = await connect_to(find_target(state_dir=folder))
    stop = asyncio.Event()
    working = asyncio.create_task(serve(stage.fleet, clusters_of(stage.fleet), folder, runbooks=True, stop=stop))
    playing = asyncio.create_task(Play(client, stage, console).run())
    try:
        await asyncio.wait({working, playing}, timeout=LIMIT, return_when=asyncio.FIRST_COMPLETED)
        if playing.done():
            return playing.result()
        if not working.done():
            console.print(f"the demo did not end in {LIMIT:.0f} s; the worker log says why")
            return False
        working.result()
        raise PermanentError("the demo was interrupted")
    finally:
        playing.cancel()
        stop.set()
        await asyncio.wait({playing})  # an error of it is raised above; the worker ends in any case
        await working
