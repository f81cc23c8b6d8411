"""The acts of the demo, told as they are seen; on a terminal with a live footer below the story."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text
from temporalio.client import Client
from temporalio.service import RPCError

from fleet.errors import FleetError, TemporaryError
from fleet.ettr import buckets, ettr
from fleet.faults.parse import parse_any
from fleet.identity import job_workflow_id, node_workflow_id, watch_workflow_id
from fleet.report import job_report, render_text
from fleet.runbooks import VIEW, EvidenceBatch, Runbook, Signal, View
from workers.demo_stage import JOB, STEPS_FIRST, Stage

LOOK_EVERY = 0.4
"""Seconds between two looks at the runbooks; each look is a task for the worker."""
OVER = "over"
"""Last step of a job's and of a node's runbook: its story is complete then."""


class Play:
    """One recovery, from the submit to the report."""

    def __init__(self, client: Client, stage: Stage, console: Console) -> None:
        self.client = client
        self.stage = stage
        self.console = console
        self.began = time.monotonic()
        self.told: set[tuple[str, str]] = set()
        self.views: dict[str, View] = {}
        self.node = ""

    async def run(self) -> bool:
        """True when the job trains again to its end and the node is back at work."""
        live = Live(get_renderable=self.footer, console=self.console, refresh_per_second=4, transient=True)
        with live if self.console.is_terminal else contextlib.nullcontext():
            done, healed = await self._acts()
        self.console.print()
        if done.ledger is not None:
            self.console.print(render_text(job_report(done.ledger, time.time(), done.story)))
        return done.result == "done" and "back at work" in healed.result

    async def _acts(self) -> tuple[View, View]:
        await self.until(self.watched)
        self.say(f"a researcher submits {JOB} to {self.stage.cluster} ({self.stage.watch})", "bold")
        await self.stage.submit()
        first = await self.until(self.trains)
        nodes = first.ledger.last.nodes if first.ledger and first.ledger.last else ()
        self.node = nodes[-1]
        self.say(f"it trains on {', '.join(nodes)}; a checkpoint is there", "bold")
        line, unreal = await self.stage.break_gpu(self.node)
        self.say(f"a GPU of {self.node} breaks: {line}", "red")
        if unreal:
            self.say(f"({unreal})", "dim")
        await self.report_evidence(line)
        healed = await self.until_over(node_workflow_id(self.stage.cluster, self.node))
        done = await self.until_over(job_workflow_id(JOB))
        return done, healed

    async def report_evidence(self, line: str) -> None:
        """As `runbook evidence CLUSTER/NODE -` does."""
        parsed = parse_any(line, cluster=self.stage.cluster, node=self.node, seen_at=time.time())
        await self.client.get_workflow_handle(watch_workflow_id(self.stage.cluster)).signal(
            Signal.EVIDENCE, EvidenceBatch(evidence=parsed.evidence)
        )

    # -- waiting

    async def watched(self) -> View | None:
        """The cluster's watch runs on a worker, so that what happens from now on is seen."""
        watch = watch_workflow_id(self.stage.cluster)
        with contextlib.suppress(RPCError):
            seen = await self.client.get_workflow_handle(watch).describe()
            if any(step.HasField("last_started_time") for step in seen.raw_description.pending_activities):
                return View(workflow=watch, kind=Runbook.WATCH)
        return None

    async def trains(self) -> View | None:
        """The first attempt is under supervision and has made enough steps."""
        view = self.views.get(job_workflow_id(JOB))
        if view is None or view.ledger is None or view.ledger.last is None:
            return None
        if view.result:
            raise TemporaryError(
                "the training was over before a fault could hit it: this machine is too busy", delay=60
            )
        return view if await self.stage.steps() >= STEPS_FIRST else None

    async def until_over(self, workflow_id: str) -> View:
        """Waits for a runbook's end."""

        async def over() -> View | None:
            view = self.views.get(workflow_id)
            return view if view and view.step == OVER else None

        return await self.until(over)

    async def until(self, seen: Callable[[], Awaitable[View | None]]) -> View:
        """Looks at the runbooks and tells what is new in them, until it is so."""
        while True:
            await self.look()
            self.retell()
            if (found := await seen()) is not None:
                return found
            await asyncio.sleep(LOOK_EVERY)

    async def look(self) -> None:
        """Asks each runbook of the story for its view; one that is not there yet, or busy, keeps the last one."""
        ids = [job_workflow_id(JOB), f"{job_workflow_id(JOB)}/failover/2"]
        if self.node:
            ids.append(node_workflow_id(self.stage.cluster, self.node))
        asked = [i for i in ids if not (i in self.views and self.views[i].step == OVER)]
        for workflow_id, view in zip(asked, await asyncio.gather(*map(self._view, asked)), strict=True):
            if view is not None:
                self.views[workflow_id] = view

    async def _view(self, workflow_id: str) -> View | None:
        with contextlib.suppress(RPCError, FleetError):
            seen: View = await self.client.get_workflow_handle(workflow_id).query(VIEW, result_type=View)
            return seen
        return None

    # -- telling

    def say(self, text: str, style: str = "") -> None:
        """One line of the play, with the seconds since its start."""
        stamp = (f"{time.monotonic() - self.began:5.1f} s  ", "dim")
        self.console.print(Text.assemble(stamp, (text, style)))

    def retell(self) -> None:
        """New lines of the runbooks' stories, in the order in which they happened."""
        new = [(line, i) for i, view in self.views.items() for line in view.story if (i, line) not in self.told]
        for line, workflow_id in sorted(new, key=lambda n: n[0][:8]):  # a line begins with its time, HH:MM:SS
            self.told.add((workflow_id, line))
            stamp = (f"{time.monotonic() - self.began:5.1f} s  ", "dim")
            self.console.print(Text.assemble(stamp, (f"{workflow_id}: ", "cyan"), line[9:]))

    def footer(self) -> Text:
        """Where each runbook stands now, and where the job's time went."""
        lines = [Text()]
        for workflow_id, view in self.views.items():
            if not view.result and view.step != OVER:
                waits = f", waits for {view.waits_for}" if view.waits_for else ""
                lines.append(Text.assemble((f"  {workflow_id}", "cyan"), f"  {view.step}{waits}"))
        job = self.views.get(job_workflow_id(JOB))
        if job is not None and job.ledger is not None and job.ledger.last is not None:
            now = time.time()
            spent = "  ".join(f"{name} {took:.0f}s" for name, took in buckets(job.ledger, now).items() if took >= 0.5)
            lines.append(Text(f"  attempt {job.ledger.generation}  ETTR {ettr(job.ledger, now):.2f}  {spent}", "dim"))
        return Text("\n").join(lines)
