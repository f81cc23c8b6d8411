"""`runbook demo`: a job trains, a GPU falls off the bus, the runbooks recover both, and the incident report ends it.

The same on the embedded fleet and, with `--backend slurm`, on a real Slurm lab of this machine.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal, Protocol

from rich.console import Console
from temporalio.client import Client
from temporalio.service import RPCError

from clients.connection import connect_to, find_target
from clients.embedded import home
from fleet.errors import FleetError
from fleet.faults.parse import parse_any
from fleet.identity import job_workflow_id, node_workflow_id, watch_workflow_id
from fleet.report import job_report, render_text
from fleet.runbooks import VIEW, EvidenceBatch, Signal, View
from workers.dev import clusters_of, serve
from workers.logs import configure_logs

JOB = "demo-train"
TOTAL_STEPS = 80
STEPS_FIRST = 12
"""Steps before the fault, so that a periodic checkpoint exists."""
LIMIT = 170.0
"""Seconds; the whole demo must stay under three minutes."""


class Stage(Protocol):
    """What the demo needs of a backend."""

    cluster: str
    fleet: Path
    watch: str
    """What a person may run meanwhile to look at the backend itself."""

    async def submit(self) -> None:
        """Puts the training job into the cluster as a researcher would."""

    async def break_gpu(self, node: str) -> str:
        """Breaks a GPU; returns the kernel's line about it."""

    async def close(self) -> None:
        """Takes everything away again."""


def demo(*, backend: Literal["sim", "slurm"] = "sim", keep: bool = False, state: str | None = None) -> int:
    """Show one recovery from end to end: server, worker, a job, XID 79, the report.

    Parameters
    ----------
    backend
        sim: the embedded fleet, nothing to install. slurm: two real private Slurm clusters (root, Debian's packages).
    keep
        Leave the server (and the lab) running, to look around in the Temporal UI.
    state
        State folder; default $GPU_RUNBOOKS_HOME or ./.runbook.
    """
    from workers.server import ensure_server, stop_server

    folder = home(state) / f"demo-{backend}"
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(emoji=False, soft_wrap=True)
    with (folder / "worker.log").open("a", encoding="utf-8") as log:
        configure_logs(stream=log)
        stop_server(folder)
        for old in folder.glob("temporal.sqlite*"):
            old.unlink()
        info = ensure_server(folder)
        console.print(f"Temporal UI   {info.ui}   (worker log: {folder / 'worker.log'})")
        try:
            ok = asyncio.run(_demo(backend, folder, console))
        finally:
            if keep:
                console.print(f"left running: {info.ui}; stop it with `runbook dev --stop --state {folder}`")
            else:
                stop_server(folder)
    return 0 if ok else 1


async def _demo(backend: str, folder: Path, console: Console) -> bool:
    stage = await _stage(backend, folder)
    try:
        client = await connect_to(find_target(state_dir=folder))
        stop = asyncio.Event()
        working = asyncio.create_task(serve(stage.fleet, clusters_of(stage.fleet), folder, runbooks=True, stop=stop))
        try:
            return await asyncio.wait_for(Play(client, stage, console).run(), LIMIT)
        except TimeoutError:
            console.print(f"[red]the demo did not end in {LIMIT:.0f} s[/red]; the worker log says why")
            return False
        finally:
            stop.set()
            await working
    finally:
        await stage.close()


async def _stage(backend: str, folder: Path) -> Stage:
    if backend == "slurm":
        from workers.demo_slurm import SlurmStage

        return await SlurmStage.open(folder)
    from workers.demo_sim import SimStage

    return SimStage(folder)


class Play:
    """The acts of the demo, each told when it is seen."""

    def __init__(self, client: Client, stage: Stage, console: Console) -> None:
        self.client = client
        self.stage = stage
        self.console = console
        self.began = time.monotonic()
        self.told: set[str] = set()
        self.node = ""

    async def run(self) -> bool:
        """True when the job trains again to its end and the node is back."""
        self.say(f"a researcher submits [b]{JOB}[/b] to {self.stage.cluster} ({self.stage.watch})")
        await self.stage.submit()
        first = await self.until(self.trains)
        attempt = first.ledger.last if first.ledger else None
        if attempt is None:
            return False
        self.node = attempt.nodes[-1]
        self.say(f"it trains on {', '.join(attempt.nodes)}; a checkpoint is there")
        line = await self.stage.break_gpu(self.node)
        self.say(f"[red]a GPU of {self.node} breaks[/red]: {line}")
        await self.report_evidence(line)
        await self.until(self.trains_again)
        healed = await self.until_over(node_workflow_id(self.stage.cluster, self.node))
        done = await self.until_over(job_workflow_id(JOB))
        self.console.print()
        if done.ledger is not None:
            self.console.print(render_text(job_report(done.ledger, time.time(), done.story)), markup=False)
        return done.result == "done" and "back at work" in healed.result

    def say(self, text: str) -> None:
        """One line of the play, with the seconds since its start."""
        self.console.print(f"[dim]{time.monotonic() - self.began:5.1f} s[/dim]  {text}", highlight=False)

    async def report_evidence(self, line: str) -> None:
        """As `runbook evidence CLUSTER/NODE -` does."""
        parsed = parse_any(line, cluster=self.stage.cluster, node=self.node, seen_at=time.time())
        await self.client.get_workflow_handle(watch_workflow_id(self.stage.cluster)).signal(
            Signal.EVIDENCE, EvidenceBatch(evidence=parsed.evidence)
        )

    async def trains(self) -> View | None:
        """The first attempt has made enough steps."""
        view = await self.look(job_workflow_id(JOB))
        steps = await self.steps()
        return view if view and view.ledger and view.ledger.last and steps >= STEPS_FIRST else None

    async def steps(self) -> int:
        """Last step in the job's own output."""
        progress = getattr(self.stage, "steps", None)
        return await progress() if progress else 0

    async def trains_again(self) -> View | None:
        """A second attempt has shown a new step."""
        view = await self.look(job_workflow_id(JOB))
        last = view.ledger.last if view and view.ledger else None
        return view if last and last.generation > 1 and last.progress.step else None

    async def until(self, look: Callable[[], Awaitable[View | None]]) -> View:
        """Waits and tells what the runbooks tell meanwhile."""
        while True:
            seen = await look()
            if seen is not None:
                return seen
            await self.retell()
            await asyncio.sleep(0.3)

    async def until_over(self, workflow_id: str) -> View:
        """Waits for a runbook's end."""

        async def over() -> View | None:
            view = await self.look(workflow_id)
            return view if view and view.result else None

        return await self.until(over)

    async def retell(self) -> None:
        """New lines of the job's, its recovery's and the node's story."""
        recovery = f"{job_workflow_id(JOB)}/failover/2"
        node = node_workflow_id(self.stage.cluster, self.node)
        for workflow_id in (job_workflow_id(JOB), recovery, *([node] if self.node else [])):
            view = await self.look(workflow_id)
            for line in view.story if view else ():
                if (workflow_id + line) not in self.told:
                    self.told.add(workflow_id + line)
                    self.say(f"[cyan]{workflow_id}[/cyan] {line.split(' ', 1)[-1]}")

    async def look(self, workflow_id: str) -> View | None:
        """The runbook's view; None while there is none."""
        with contextlib.suppress(RPCError, FleetError):
            seen: View = await self.client.get_workflow_handle(workflow_id).query(VIEW, result_type=View)
            return seen
        return None
