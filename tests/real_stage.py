"""What every scenario on a real cluster has: the runbooks over it, a person's command line, and patience."""

import asyncio
import inspect
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, cast

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from clients.embedded import HOME_VARIABLE
from clients.questions import make_answer
from fleet.identity import job_workflow_id
from fleet.people import Choice, Outcome, Question
from fleet.runbooks import VIEW, Runbook, Update, View
from tests.clients.stage import RUNBOOK, Ran
from tests.workflows.stage import text_of


class RealStage:
    """Base of the stages on real Slurm and on real Kubernetes."""

    patience: ClassVar[float]
    """Seconds in which a condition must come true; far more than it takes on an idle machine."""
    ends_within: ClassVar[float]
    """The same for a runbook's end."""
    look_every: ClassVar[float]
    """Seconds between two looks."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client = client
        self.folder = folder
        self.policy_file = folder / "fleet.yaml"

    async def cli(self, *argv: str, stdin: str = "") -> Ran:
        """A person's `runbook ...`, as a process of its own."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TEMPORAL_", "GPU_RUNBOOKS_"))}
        env = {
            **kept,
            HOME_VARIABLE: str(self.folder),
            "TEMPORAL_ADDRESS": self.client.service_client.config.target_host,
            "TEMPORAL_NAMESPACE": self.client.namespace,
            "GPU_RUNBOOKS_FLEET": str(self.policy_file),
            "GPU_RUNBOOKS_AS": "ada",
            "TERM": "dumb",
        }
        done = await asyncio.to_thread(
            subprocess.run, [*RUNBOOK, *argv], env=env, input=stdin, capture_output=True, text=True, cwd=self.folder
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    # -- runbooks

    async def trains(self, job: str, attempt: int) -> View:
        """Waits until the job's runbook watches that attempt, and for later ones until a step of it was seen."""

        async def there() -> View | None:
            view = await self.view_if(job_workflow_id(job))
            last = view.ledger.last if view and view.ledger else None
            seen = last is not None and last.generation == attempt and view is not None and view.step == "watching"
            return view if seen and last and (attempt == 1 or last.progress.step) else None

        return cast(View, await self.until(there, f"{job} trains in attempt {attempt}"))

    async def view(self, workflow_id: str) -> View:
        view: View = await self.client.get_workflow_handle(workflow_id).query(VIEW, result_type=View)
        return view

    async def view_if(self, workflow_id: str) -> View | None:
        try:
            return await self.view(workflow_id)
        except RPCError:
            return None

    async def result(self, workflow_id: str) -> Any:
        """Waits for the end; a failure is raised."""

        async def ended() -> bool:
            try:
                seen = await self.client.get_workflow_handle(workflow_id).describe()
            except RPCError:
                return False
            return seen.status is not WorkflowExecutionStatus.RUNNING

        await self.until(ended, f"{workflow_id} has ended", limit=self.ends_within)
        return text_of(await self.client.get_workflow_handle(workflow_id).result())

    async def question(self, parent: str, limit: float | None = None) -> Question:
        """The newest open question of a runbook; of any for an empty name."""

        async def there() -> Question | None:
            async for row in self.client.list_workflows(
                f"WorkflowType='{Runbook.ASK}' AND ExecutionStatus='Running'"
            ):
                if not parent or row.id.startswith(f"{parent}/ask/"):
                    view = await self.view_if(row.id)
                    if view and view.question and view.outcome is None:
                        return view.question
            return None

        return cast(Question, await self.until(there, f"{parent} asks a person", limit))

    async def answer(self, question: Question, choice: Choice, by: str = "grace") -> Outcome:
        said = make_answer(question, choice, by, "seen")
        outcome: Outcome = await self.client.get_workflow_handle(question.id).execute_update(
            Update.ANSWER, said, result_type=Outcome, id=f"answer-{said.nonce}"
        )
        return outcome

    async def runbooks(self) -> set[str]:
        """Ids of all that ever ran here."""
        return {row.id async for row in self.client.list_workflows()}

    async def running(self) -> set[str]:
        """Ids of those that run now."""
        return {row.id async for row in self.client.list_workflows('ExecutionStatus="Running"')}

    async def stories(self) -> str:
        """What every runbook told, for a failure."""
        lines = []
        for name in sorted(await self.runbooks()):
            view = await self.view_if(name)
            if view is not None:
                lines += [f"{name}: at {view.step}, waits for {view.waits_for}; {view.result}"]
                lines += [f"    {line}" for line in view.story]
        return "\n".join(lines)

    # -- waiting

    async def until(
        self, look: Callable[[], Any], what: str, limit: float | None = None, every: float | None = None
    ) -> Any:
        """Looks until there is something and returns it."""
        deadline = time.monotonic() + (self.patience if limit is None else limit)
        while True:
            found = look()
            seen = await found if inspect.isawaitable(found) else found
            if seen:
                return seen
            assert time.monotonic() < deadline, f"waited in vain: {what}{await self.scene()}"
            await asyncio.sleep(self.look_every if every is None else every)

    async def scene(self) -> str:
        """What is added to a wait in vain."""
        return ""
