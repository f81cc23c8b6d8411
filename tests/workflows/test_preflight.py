"""`PreflightTargets` says of each protected job what keeps another cluster from receiving it, and changes nothing."""

import asyncio
import getpass
from dataclasses import replace
from datetime import timedelta

import pytest

from activities import api, preflight_api
from clients import names, preflights
from fleet.preflight import Check, CheckName, Preflight, Readiness
from fleet.runbooks import PreflightInput, Runbook
from tests.workflows.conftest import Opener
from tests.workflows.schedules import schedule_of
from tests.workflows.stage import Handle, Stage
from tests.workflows.storage import add_sites, root, save, saving


@pytest.fixture
async def fleet(open_stage: Opener) -> Stage:
    """Both clusters and both sites have a worker."""
    stage = await open_stage()
    add_sites(stage)
    await stage.start_worker("alpha", "beta", sites=("near", "far"))
    return stage


async def look(stage: Stage, *jobs: str) -> Handle:
    return await stage.client.start_workflow(
        Runbook.PREFLIGHT, PreflightInput(jobs=jobs), id="preflight/fleet", task_queue="runbooks"
    )


async def readiness(stage: Stage, job: str = "train") -> Readiness:
    """What a look now finds, as the CLI reads it."""
    await asyncio.wait_for((await look(stage, job)).result(), 60)
    found = await preflights.of_job(stage.client, job)
    assert found is not None
    return found


async def beta(stage: Stage, job: str = "train") -> Preflight:
    (target,) = (await readiness(stage, job)).targets
    assert target.cluster == "beta"
    return target


def check(found: Preflight, name: CheckName) -> Check:
    return next(one for one in found.checks if one.name is name)


async def running(stage: Stage, **more: str) -> None:
    """A job trains on alpha, submitted through us."""
    await stage.submit(saving(stage, **more))
    await stage.runs_in("train", 1)


async def test_a_job_whose_target_has_all_it_needs_is_ready_and_its_newest_checkpoint_is_named(fleet: Stage) -> None:
    save(fleet, 10)
    save(fleet, 20)
    save(fleet, 30, complete=False)
    await running(fleet)
    before = fleet.ops()
    found = await readiness(fleet)
    (target,) = found.targets
    assert target.ready, target.text
    assert target.room_now
    assert [one.name for one in target.checks] == list(CheckName)
    assert found.checkpoint is not None
    assert (found.checkpoint.site, found.checkpoint.step) == ("near", 20)
    assert "step_00000030" in found.note
    assert "held" in " ".join(found.protections)
    assert fleet.ops() == before
    assert list((fleet.folder / "far").iterdir()) == [], "a look leaves nothing behind"
    await fleet.record("preflight/fleet", "preflight-ready")


async def test_a_cluster_that_is_full_now_could_hold_the_job_when_it_is_empty(fleet: Stage) -> None:
    fleet.beta.person_submit(fleet.spec("other", tokens="-"))
    await running(fleet)
    found = await beta(fleet)
    assert found.ready
    assert not found.room_now
    assert "when it is empty; now 0 of its 2 nodes" in check(found, CheckName.CAPACITY).why


async def test_a_cluster_that_is_too_small_could_never_hold_it(fleet: Stage) -> None:
    spec = saving(fleet)
    await fleet.submit(spec.model_copy(update={"script": spec.script.replace("nodes=2", "nodes=3")}))
    await fleet.runs_in("train", 1)
    found = check(await beta(fleet), CheckName.CAPACITY)
    assert not found.ok
    assert "3 nodes" in found.why
    assert "it has 2" in found.why


async def test_a_user_that_the_targets_machine_does_not_know_is_told_before_any_fault(fleet: Stage) -> None:
    save(fleet, 10)
    await running(fleet, user="nobody-knows-her")
    found = await beta(fleet)
    owner = check(found, CheckName.OWNER)
    assert not found.ready
    assert not owner.ok
    assert "knows no user nobody-knows-her" in owner.why
    assert "root or as nobody-knows-her" in owner.do


async def test_an_environment_that_is_missing_there_is_named(fleet: Stage) -> None:
    spec = saving(fleet).model_copy(update={"workdir": str(fleet.folder / "gone")})
    await fleet.submit(spec)
    await fleet.runs_in("train", 1)
    found = check(await beta(fleet), CheckName.ENVIRONMENT)
    assert not found.ok
    assert str(fleet.folder / "gone") in found.why


async def test_storage_that_is_not_mounted_there_is_named_with_what_to_do(fleet: Stage) -> None:
    save(fleet, 10)
    await running(fleet)
    (fleet.folder / "far").rmdir()
    found = await beta(fleet)
    assert "mount it there" in check(found, CheckName.STORAGE).why
    assert not check(found, CheckName.SPACE).ok


async def test_a_link_out_of_the_sites_storage_is_never_written_through(fleet: Stage) -> None:
    save(fleet, 10)
    elsewhere = fleet.folder / "elsewhere"
    elsewhere.mkdir()
    root(fleet, site="far").symlink_to(elsewhere)
    await running(fleet)
    found = check(await beta(fleet), CheckName.STORAGE)
    assert not found.ok
    assert "leads out of" in found.why
    assert list(elsewhere.iterdir()) == []


async def test_what_others_wrote_under_the_checkpoints_name_is_told(fleet: Stage) -> None:
    folder = save(fleet, 10)
    theirs = root(fleet, site="far") / folder.name
    theirs.mkdir(parents=True)
    (theirs / "rank_0.json").write_text("another training's")
    await running(fleet)
    found = check(await beta(fleet), CheckName.STORAGE)
    assert not found.ok
    assert "is another one: move it away" in found.why
    assert [path.name for path in root(fleet, site="far").iterdir()] == [folder.name]


async def test_a_cluster_and_a_site_without_a_worker_are_told_and_the_others_are_looked_at(
    open_stage: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "SCHEDULE_TO_START", timedelta(seconds=1))
    stage = await open_stage()
    add_sites(stage)
    await stage.start_worker("alpha", sites=("near",))
    save(stage, 10)
    await running(stage)
    found = await readiness(stage)
    assert found.checkpoint is not None
    assert found.checkpoint.step == 10
    (target,) = found.targets
    assert "runbook worker --cluster beta" in check(target, CheckName.CREDENTIALS).why
    assert "runbook worker --data far" in check(target, CheckName.STORAGE).why
    assert not any(one.ok for one in target.checks)


async def test_a_job_is_known_while_its_own_cluster_does_not_answer(
    fleet: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight_api, "READ_HOME", replace(preflight_api.READ_HOME, budget=timedelta(seconds=2)))
    native_id = fleet.faults.person_submit(saving(fleet))
    await fleet.until(lambda: fleet.faults.effects("adopt", native_id), "it is adopted")
    await fleet.runs_in("train", 1)
    assert (await beta(fleet)).ready
    fleet.faults.controller_freeze()
    found = await readiness(fleet)
    assert found.targets[0].ready
    assert "does not answer" in found.protections[0]


async def test_an_adopted_job_goes_on_as_its_own_user_from_the_script_that_was_saved(fleet: Stage) -> None:
    save(fleet, 10)
    native_id = fleet.faults.person_submit(saving(fleet))
    await fleet.until(lambda: fleet.faults.effects("adopt", native_id), "it is adopted")
    await fleet.runs_in("train", 1)
    found = await readiness(fleet)
    assert found.targets[0].ready, found.targets[0].text
    assert f"as {getpass.getuser()}" in check(found.targets[0], CheckName.RUN_AS).why
    assert "its owner asked for supervision" in found.protections


async def test_all_jobs_under_supervision_are_looked_at_and_summed_up(fleet: Stage) -> None:
    await running(fleet)
    await fleet.submit(saving(fleet, "second", user="nobody-knows-her"))
    await fleet.runs_in("second", 1)
    result = (await (await look(fleet)).result())["text"]
    assert result.startswith("1 of 2 jobs could move to another cluster")
    assert any("second -> beta: owner:" in line for line in (await fleet.view("preflight/fleet")).story)


async def test_the_schedule_follows_the_policys_interval_and_a_pause_stays(fleet: Stage) -> None:
    schedule = await schedule_of(fleet, "preflight")
    assert (await schedule.describe()).schedule.spec.intervals[0].every == timedelta(hours=6)
    await schedule.pause(note="ada is on holiday")
    await fleet.stop_worker()
    fleet.policy_file.write_text(
        fleet.policy_file.read_text().replace("limits:\n", "limits:\n  preflight_interval: 1h\n")
    )
    await fleet.start_worker("alpha", "beta")

    async def followed() -> bool:
        return (await schedule.describe()).schedule.spec.intervals[0].every == timedelta(hours=1)

    await fleet.until(followed, "the schedule follows the policy")
    assert (await schedule.describe()).schedule.state.paused
    await schedule.trigger()

    async def begun() -> str:
        return next((a.action.workflow_id for a in (await schedule.describe()).info.recent_actions), "")

    identity = await fleet.until(begun, "the schedule has started a run")
    assert names.workflow_id(identity) == identity
    assert (await fleet.handle(identity).result())["text"] == "no job is under supervision"
