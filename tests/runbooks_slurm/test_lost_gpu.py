"""A job on real Slurm loses a GPU and trains again elsewhere from its last checkpoint; the node comes back healed."""

import asyncio
import re

from temporalio.api.enums.v1 import EventType

from fleet.model import NodeState, Phase, ReceiptGrade
from tests.clients.stage import XID_79
from tests.runbooks_slurm.scenario import scenario
from tests.runbooks_slurm.stage import Stage
from tests.runbooks_slurm.training import complete_of, resumed, saved, steps_of, undisturbed
from tests.runbooks_slurm.watching import watching

STEPS = 1000


@scenario()
async def test_xid_79_moves_the_job_from_its_last_checkpoint_and_heals_the_node(stage: Stage) -> None:
    calm = await asyncio.to_thread(undisturbed, stage.folder / "calm", STEPS)
    native_id = await stage.train(steps=STEPS)
    old = await stage.nodes_of("train")
    sick = old[1]
    before = await stage.node(sick)
    async with watching(stage.lab, native_id) as seen:
        handed_in = await stage.cli("evidence", f"alpha/{sick}", "-", stdin=XID_79)
        assert handed_in.code == 0, handed_in.err
        view = await stage.trains("train", 2)
        running = await stage.native(native_id)
        stage.hurry()
        assert "done" in await stage.result("job/train")
        assert await stage.result(f"node/alpha/{sick}") == "repaired, checked and back at work"
    assert (running.native_id, running.restarts, running.excluded) == (native_id, 1, (sick,))
    assert sick not in running.nodes
    assert seen.never_two_at_once()

    lines = stage.output("train")
    steps = steps_of(lines)
    last_saved = complete_of(stage.folder_of("train"), "0.0")[-1]
    story = "\n".join((await stage.view("job/train/failover/2")).story)
    asked_for = re.search(r"saved step (\d+)", story)
    assert asked_for
    assert int(asked_for[1]) in saved(lines, "0.0")
    assert resumed(lines, "0.1") == last_saved
    assert [s for s, _, g in steps if g == "0.1"] == list(range(last_saved + 1, STEPS + 1))
    assert {s: loss for s, loss, _ in steps} == calm
    assert all(loss == calm[s] for s, loss, _ in steps)
    ended = await stage.native(native_id)
    assert (ended.phase, ended.exit_code, ended.restarts) == (Phase.SUCCEEDED, 0, 1)

    assert_isolated_stopped_started(stage, native_id, sick)
    assert_fenced_before_started(stage, native_id)
    first = view.ledger.attempts[0] if view.ledger else None
    assert first is not None
    assert first.receipt is not None
    assert {r.node: r.grade for r in first.receipt.nodes} == dict.fromkeys(old, ReceiptGrade.DAEMON_GONE)
    assert await steps_taken(stage, "job/train/failover/2") == ORDER

    healed = await stage.node(sick)
    assert healed.booted_at > before.booted_at + 2
    assert (healed.state, healed.drained, healed.reason, healed.op) == (NodeState.UP, False, "", None)
    assert healed.reserved_by is None
    assert "No reservations" in await stage.scontrol("show", "reservations")
    assert "gpu-runbooks" not in await stage.scontrol("show", "nodes")


ORDER = [
    "request_checkpoint",
    "stop_job",
    "prove_stopped",
    "tell_node",
    "start_attempt",
    "wait_running",
    "wait_step",
]


async def steps_taken(stage: Stage, workflow_id: str) -> list[str]:
    """Activities that a runbook scheduled, in order; each was over before the next began."""
    names: list[str] = []
    history = await stage.client.get_workflow_handle(workflow_id).fetch_history()
    for event in history.events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            names.append(event.activity_task_scheduled_event_attributes.activity_type.name)
    return names


def assert_isolated_stopped_started(stage: Stage, native_id: str, node: str) -> None:
    """The order in slurmctld's own log, each once."""
    log = stage.log("slurmctld.log")
    places = []
    for pattern in (
        rf"update_node: node {node} state set to DRAIN",
        rf"Requeuing JobId={native_id}\b",
        rf"(?:Allocate|Started) JobId={native_id} ",
    ):
        places.append([m.start() for m in re.finditer(pattern, log)])
    isolated, stopped, started = places
    assert len(stopped) == 1
    assert len(started) == 2
    assert isolated[0] < stopped[0] < started[1]


def assert_fenced_before_started(stage: Stage, native_id: str) -> None:
    """Both nodes of the first attempt had ended it before one of the second began."""
    hooks = re.findall(rf"^\S+ (prolog|epilog)  node=\S+ job={native_id} ", stage.log("hooks.log"), re.MULTILINE)
    assert hooks == ["prolog"] * 2 + ["epilog"] * 2 + ["prolog"] * 2 + ["epilog"] * 2
