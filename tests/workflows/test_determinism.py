"""What replays and what would not: the source by rule, its commands by a fingerprint, recorded runs by replay."""

import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

import workflows.all
from tests.workflows.fingerprint import BASELINE
from tests.workflows.source import fingerprint, lint, passed_through
from tests.workflows.stage import HISTORIES
from workers.worker import PASS_THROUGH

RECORDED = sorted(HISTORIES.glob("*.json"))


def test_nothing_that_runbooks_run_would_give_another_result_on_a_replay() -> None:
    modules = passed_through()
    assert {"workflows.recovery", "fleet.ladder", "fleet.people", "activities.api"} <= set(modules)
    assert "activities.jobs" not in modules
    found = [f for name, file in modules.items() for f in lint(name, file.read_text())]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "import random",
        "from time import monotonic",
        "x = datetime.now(UTC)",
        "x = uuid.uuid4()",
        "x = Path('f').read_text()",
        "open('f')",
        "await asyncio.wait(tasks)",
        "await asyncio.sleep(1)",
        "for x in {1, 2}: pass",
        "for x in set(names): pass",
        "a = {1}\nfor x in a: pass",
        "a: set[str] = f()\ntext = ', '.join(a)",
        "a = set(b) - set(c)\nx = tuple(a)",
        "x = [n for n in {y for y in z}]",
        "x = (*set(a), 1)",
    ],
)
def test_the_lint_finds_what_does_not_replay(line: str) -> None:
    assert lint("m", line)


@pytest.mark.parametrize(
    "line",
    [
        "x = workflow.now()",
        "x = sorted({1, 2})",
        "x = tuple(sorted(set(a)))",
        "x = any(n in a for n in set(b))",
        "for x in sorted(set(names)): pass",
        "x = 1 in {1, 2}",
        "x = {n for n in set(a)}",
        "await workflow.sleep(1)",
    ],
)
def test_the_lint_lets_pass_what_replays(line: str) -> None:
    assert lint("m", line) == []


def test_the_commands_of_the_runbooks_are_those_that_were_reviewed() -> None:
    """When this fails on purpose: `uv run python -m tests.workflows.fingerprint`, and review the difference."""
    assert fingerprint() == json.loads(BASELINE.read_text())


def test_the_fingerprint_sees_a_changed_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    steps = fingerprint()["fencing.Fencing.fence"]
    assert steps.count("timer") == 1
    assert fingerprint()["recovery.Recovery.start"] == ["search attributes by at()", "activity START_ATTEMPT"]
    folder = tmp_path / "workflows"
    folder.mkdir()
    source = Path(workflows.all.__file__).with_name("recovery.py").read_text()
    (folder / "recovery.py").write_text(source.replace("api.STOP_JOB", "api.HOLD_JOB"))
    monkeypatch.setattr("tests.workflows.source.ROOT", tmp_path)
    assert fingerprint()["recovery.Recovery.stop"] != json.loads(BASELINE.read_text())["recovery.Recovery.stop"]


def replayer() -> Replayer:
    """With the production converter and sandbox."""
    return Replayer(
        workflows=list(workflows.all.ALL),
        data_converter=pydantic_data_converter,
        workflow_runner=SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASS_THROUGH)
        ),
    )


def test_a_run_of_each_runbook_is_recorded() -> None:
    kinds = {_started(json.loads(file.read_text()))["workflowType"]["name"] for file in RECORDED}
    assert kinds == {w.__name__ for w in workflows.all.ALL}


def _started(history: dict[str, Any]) -> dict[str, Any]:
    started: dict[str, Any] = history["events"][0]["workflowExecutionStartedEventAttributes"]
    return started


def history(name: str) -> str:
    return (HISTORIES / f"{name}.json").read_text()


@pytest.mark.parametrize("name", [file.stem for file in RECORDED])
async def test_a_recorded_run_replays(name: str) -> None:
    identity = _started(json.loads(history(name)))["workflowId"]  # marks are made of it
    await replayer().replay_workflow(WorkflowHistory.from_json(identity, history(name)))


async def test_a_replay_fails_when_a_step_is_another_one() -> None:
    text = history("failover-gpu-lost")
    assert '"stop_job"' in text
    changed = WorkflowHistory.from_json("changed", text.replace('"stop_job"', '"hold_job"'))
    with pytest.raises(Exception, match=r"(?i)nondetermini"):
        await replayer().replay_workflow(changed)
