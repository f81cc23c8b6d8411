"""`FindLemons` proposes, within limits and modes, asks once about one record, and never acts by itself."""

import asyncio
import itertools
import json
import time
from datetime import timedelta

import pytest

from activities import api
from clients import names
from fleet.people import Choice
from fleet.runbooks import LemonsInput, Runbook
from fleet.strikes import Strike, StrikeKind
from tests.workflows.conftest import Opener
from tests.workflows.schedules import schedule_of
from tests.workflows.stage import Handle, Stage

_DAYS = itertools.count(1)


@pytest.fixture
async def fleet(open_stage: Opener) -> Stage:
    """Both clusters have a worker, and two nodes of alpha may be out."""
    stage = await open_stage(nodes=6)
    stage.write_policy(limits={"nodes_out": "2", "nodes_out_percent": '"50%"'})
    await stage.start_worker("alpha", "beta")
    return stage


async def lose_jobs(stage: Stage, node: str, *days_ago: float) -> None:
    """Single-node jobs ended because of the node."""
    assert stage.runtime is not None
    kind, now = StrikeKind.SINGLE_NODE_FAIL, time.time()
    await stage.runtime.store.add_strikes(
        [
            Strike(kind=kind, cluster="alpha", node=node, at=now - days * 86400, source=f"{node} {days}")
            for days in days_ago
        ]
    )


async def search(stage: Stage) -> Handle:
    """A run as the schedule starts it."""
    return await stage.client.start_workflow(
        Runbook.LEMONS,
        LemonsInput(),
        id=f"lemons-2026-01-{next(_DAYS):02}T10:00:00Z",
        task_queue="runbooks",
    )


async def result(handle: Handle) -> str:
    return str((await handle.result())["text"])


async def test_an_approved_lemon_is_isolated_by_its_own_runbook_and_left_to_a_person(fleet: Stage) -> None:
    await lose_jobs(fleet, "alpha3", 1, 5, 9)
    found = await search(fleet)
    question = await fleet.question(found.id)
    assert question.plan.title == "Quarantine alpha/alpha3"
    assert question.default is Choice.DENY
    assert "single-node jobs ended 3 (fleet 0)" in question.evidence[0]
    assert "alpha: at most 2 of 6 nodes out, 0 are" in question.why
    assert fleet.ops() == []
    await fleet.answer(question, Choice.APPROVE)
    assert await result(found) == "alpha/alpha3: grace answered approve"
    await fleet.record(found.id, "lemons-approved")
    person = await fleet.question("node/alpha/alpha3")
    assert (await fleet.node("alpha3")).isolated_by_us
    assert "alpha/alpha3 comes back with trouble" in person.why
    assert fleet.ops() == ["isolate"]
    await fleet.answer(person, Choice.TAKE_OVER)
    await fleet.result("node/alpha/alpha3")
    assert (await fleet.node("alpha3")).isolated_by_us
    again = await search(fleet)
    assert await result(again) == "1 lemons, nothing to propose"


async def test_a_denied_lemon_is_asked_about_again_only_when_its_record_grows(fleet: Stage) -> None:
    await lose_jobs(fleet, "alpha3", 1, 5)
    first = await search(fleet)
    await fleet.answer(await fleet.question(first.id), Choice.DENY)
    assert await result(first) == "alpha/alpha3: grace answered deny"
    second = await search(fleet)
    assert await result(second) == "1 lemons, nothing to propose"
    assert any("grace answered deny; no strike since" in line for line in (await fleet.view(second.id)).story)
    await lose_jobs(fleet, "alpha3", 0)
    third = await search(fleet)
    assert "single-node jobs ended 3" in (await fleet.question(third.id)).evidence[0]
    assert fleet.ops() == []


async def test_a_healthy_fleet_asks_nobody(fleet: Stage) -> None:
    await lose_jobs(fleet, "alpha3", 1)
    await lose_jobs(fleet, "alpha4", 40, 45, 50)
    assert await result(await search(fleet)) == "no lemons"


async def test_no_more_are_proposed_than_may_be_out(fleet: Stage) -> None:
    for node, days in (("alpha1", (1, 5)), ("alpha2", (1, 4, 8)), ("alpha3", (1, 3, 6, 9))):
        await lose_jobs(fleet, node, *days)
    fleet.write_policy(limits={"nodes_out": "1", "lemon_quantile": '"50%"'})
    question = await fleet.question((await search(fleet)).id)
    assert question.plan.title == "Quarantine alpha/alpha3"
    assert "2 more for another day" in question.why


async def test_a_node_that_is_out_already_is_told_and_not_proposed(fleet: Stage) -> None:
    await lose_jobs(fleet, "alpha3", 1, 5)
    fleet.faults.person_drain("alpha3", "memory to be replaced")
    found = await search(fleet)
    assert await result(found) == "1 lemons, nothing to propose"
    assert any("alpha3 is out already" in line for line in (await fleet.view(found.id)).story)


async def test_the_observe_mode_asks_nobody(fleet: Stage) -> None:
    fleet.write_policy(modes={"isolate": "observe"})
    await lose_jobs(fleet, "alpha3", 1, 5)
    assert await result(await search(fleet)) == "observe only, not proposed: alpha/alpha3"
    assert fleet.ops() == []


async def test_a_cluster_that_cannot_be_read_hides_no_other(
    open_stage: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "SCHEDULE_TO_START", timedelta(seconds=1))
    stage = await open_stage()
    await stage.start_worker("alpha")
    await lose_jobs(stage, "alpha3", 1, 5)
    found = await search(stage)
    assert "alpha/alpha3" in (await stage.question(found.id)).plan.title
    story = (await stage.view(found.id)).story
    assert any("beta could not be read" in line and "runbook worker --cluster beta" in line for line in story)


async def test_what_happens_to_a_node_is_put_on_its_record(fleet: Stage) -> None:
    assert fleet.runtime is not None
    native_id = await fleet.supervise()
    sick = (await fleet.nodes_of())[0]
    await fleet.lose_gpu(sick)
    await fleet.trains_again("train", native_id, 2)
    assert "back at work" in await fleet.result(f"node/alpha/{sick}")
    record = await fleet.runtime.store.record(since=0)
    assert {(s.kind, s.node) for s in record.strikes} == {
        (StrikeKind.XID, sick),
        (StrikeKind.MULTI_NODE_FAIL, sick),
        (StrikeKind.REPAIR, sick),
        (StrikeKind.TAKEN_OUT, sick),
    }
    assert len(record.strikes) == 4
    (inventory,) = record.inventories
    assert (inventory.node, len(inventory.gpus)) == (sick, (await fleet.node(sick)).gpus)


async def test_the_history_is_tidied_but_for_what_is_under_way(fleet: Stage) -> None:
    assert fleet.runtime is not None
    store, old = fleet.runtime.store, time.time() - 500 * 86400
    await fleet.supervise()
    for job in ("train", "long-over"):
        await store.save_report(f"job/{job}", "job", json.dumps({"of": job}), at=old)
    found = await search(fleet)
    await found.result()
    assert [r.subject for r in await store.reports() if r.at == old] == ["job/train"]
    assert any("forgotten by age: 1 reports" in line for line in (await fleet.view(found.id)).story)


async def test_the_workers_schedule_starts_a_run_and_is_not_made_twice(fleet: Stage) -> None:
    schedule = await schedule_of(fleet, "lemons")
    await schedule.pause(note="ada is on holiday")
    await fleet.stop_worker()
    await fleet.start_worker("alpha", "beta")
    assert (await schedule.describe()).schedule.state.paused, "what a person has set stays"
    await schedule.trigger()

    async def begun() -> str:
        return next((a.action.workflow_id for a in (await schedule.describe()).info.recent_actions), "")

    identity = await fleet.until(begun, "the schedule has started a run")
    assert names.workflow_id(identity) == identity
    assert names.workflow_id(f"{identity}/ask/1") == f"{identity}/ask/1"
    assert await asyncio.wait_for(result(fleet.handle(identity)), 60) == "no lemons"
