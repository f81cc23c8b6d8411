"""The freeze: nothing new is changed while it is on, and everything goes on afterwards."""

import pytest

from fleet.runbooks import Update
from tests.workflows.conftest import Opener
from tests.workflows.stage import Stage


async def test_a_freeze_stops_every_change_and_outlives_its_worker(stage: Stage) -> None:
    native_id = await stage.supervise()
    checkpoint = stage.gates.set("job/train/failover/2", "request_checkpoint", "after")
    sick = (await stage.nodes_of())[0]
    await stage.lose_gpu(sick)
    await checkpoint.wait()
    await stage.at_step(f"node/alpha/{sick}", "evacuate")
    await stage.freeze("fleet")
    frozen_at = stage.faults.now()
    checkpoint.open()
    await stage.until(lambda: _frozen(stage, "job/train/failover/2"), "the failover says that it is frozen")
    before = stage.ops()
    await stage.stop_worker()
    await stage.start_worker()
    await stage.stays(lambda: stage.ops() == before, "nothing is changed", seconds=3)
    assert "an unfreeze" in (await stage.view("job/train/failover/2")).waits_for
    assert "stop" not in before
    late = [e for e in stage.faults.effects() if e.at > frozen_at + 5]
    assert late == []
    await stage.freeze("fleet", Update.UNFREEZE)
    await stage.trains_again("train", native_id, 2)
    assert "back at work" in await stage.result(f"node/alpha/{sick}")


async def test_a_freeze_of_one_cluster_leaves_the_other_alone(open_stage: Opener) -> None:
    stage = await open_stage()
    await stage.start_worker("alpha", "beta")
    await stage.freeze("alpha")
    await stage.submit(stage.spec("far"), cluster="beta")
    await stage.until(lambda: stage.beta.effects("adopt"), "beta goes on")
    stage.faults.person_submit(stage.spec("near"))
    await stage.until(lambda: _frozen(stage, "job/near"), "alpha waits")
    assert "adopt" not in stage.ops()


async def _frozen(stage: Stage, workflow_id: str) -> bool:
    try:
        return any("frozen, waiting" in line for line in (await stage.view(workflow_id)).story)
    except Exception:  # noqa: BLE001 - the runbook has not begun yet
        return False


async def test_a_freeze_needs_a_name_and_a_reason_and_keeps_its_first_author(stage: Stage) -> None:
    guard = stage.handle("guard/alpha")
    await stage.until(lambda: stage.runs("guard/alpha"), "the guard runs")
    with pytest.raises(Exception, match="update failed"):
        await guard.execute_update(Update.FREEZE, {"by": "ada", "reason": ""})
    await stage.freeze("alpha")
    await guard.execute_update(Update.FREEZE, {"by": "bob", "reason": "me too"})
    view = await stage.view("guard/alpha")
    assert view.freeze
    assert view.freeze.by == "ada"
