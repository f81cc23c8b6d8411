"""`ReplicateCheckpoints` brings each k-th complete checkpoint to the other site, proven, and leaves others alone."""

import asyncio
import itertools
import re
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from activities import api
from activities.checkpoints import look
from fleet.runbooks import ReplicateInput, Runbook
from tests.copying.making import flip, tree
from tests.workflows.conftest import Opener
from tests.workflows.stage import Stage
from tests.workflows.storage import add_sites, root, save, saving

_TIMES = itertools.count(10)


async def open_fleet(open_stage: Opener, copies: str = "replicate_every: 2") -> Stage:
    """Both clusters and both sites have a worker, `near` replicates to `far`, and a job runs on alpha."""
    stage = await open_stage()
    add_sites(stage, near=", replicate_to: [far]", more=f"copies: {{{copies}}}")
    await stage.start_worker("alpha", "beta", sites=("near", "far"))
    await stage.submit(saving(stage))
    await stage.runs_in("train", 1)
    return stage


@pytest.fixture
async def fleet(open_stage: Opener) -> Stage:
    return await open_fleet(open_stage)


def identity() -> str:
    """As the schedule names a run."""
    return f"replicas-2026-01-01T10:00:{next(_TIMES)}Z"


async def replicate(stage: Stage, workflow_id: str = "") -> dict[str, Any]:
    found = await stage.client.start_workflow(
        Runbook.REPLICATE, ReplicateInput(), id=workflow_id or identity(), task_queue="runbooks"
    )
    result: dict[str, Any] = await asyncio.wait_for(found.result(), 60)
    return result


def steps(stage: Stage, site: str = "far") -> list[int | None]:
    """Steps that are complete there, the newest first."""
    place = root(stage, site=site)
    return [c.entry.step for c in look(place).candidates if c.complete] if place.is_dir() else []


def ours(folder: Path) -> list[str]:
    """What of ours is left in a root beside its receipts."""
    place = folder / ".gpu-runbooks"
    return sorted(path.name for path in place.iterdir()) if place.is_dir() else []


async def test_the_newest_complete_one_is_copied_and_proven_and_each_kth_after_it(fleet: Stage) -> None:
    for step in (10, 20):
        save(fleet, step)
    save(fleet, 30, complete=False)
    first = identity()
    assert (await replicate(fleet, first))["text"] == "1 copied"
    await fleet.record(first, "replicate-first")
    assert steps(fleet) == [20]
    near, far = tree(root(fleet)), tree(root(fleet, site="far"))
    assert far == {path: data for path, data in near.items() if path.startswith("step_00000020")}
    assert ours(root(fleet, site="far")) == ["receipts"]
    assert ours(root(fleet)) == [], "the links that protected the source are gone"
    shutil.rmtree(root(fleet) / "step_00000030.g1.0")
    save(fleet, 30)
    assert (await replicate(fleet))["text"] == "0 copied"
    save(fleet, 40)
    shutil.rmtree(root(fleet) / "step_00000010.g1.0")
    assert (await replicate(fleet))["text"] == "1 copied"
    assert steps(fleet) == [40, 20]


async def test_a_copy_in_advance_keeps_to_its_own_rate(open_stage: Opener) -> None:
    stage = await open_fleet(open_stage, "replicate_every: 1, replicate_bandwidth: 100kB/s")
    size = sum(path.stat().st_size for path in save(stage, 10, lines=10_000).iterdir())
    found = identity()
    assert (await replicate(stage, found))["text"] == "1 copied"
    said = re.findall(r"read back in (\d+) s", " ".join((await stage.view(found)).story))
    assert [int(seconds) >= size / 100_000 / 2 for seconds in said] == [True], (said, size)


async def test_a_checkpoint_that_is_damaged_at_its_source_is_not_passed_on(fleet: Stage) -> None:
    save(fleet, 10)
    flip(save(fleet, 20) / "rank_0.json", 5)
    assert (await replicate(fleet))["text"] == "1 copied"
    assert steps(fleet) == [10]


async def test_what_others_wrote_under_its_name_is_left_alone_and_told(fleet: Stage) -> None:
    theirs = root(fleet, site="far") / save(fleet, 10).name
    theirs.mkdir(parents=True)
    (theirs / "rank_0.json").write_text("another training's")
    result = await replicate(fleet)
    assert result["text"].startswith("0 copied, 1 not")
    assert not result["ok"]
    assert [path.name for path in theirs.iterdir()] == ["rank_0.json"]
    assert (theirs / "rank_0.json").read_text() == "another training's"


async def test_files_are_not_given_to_a_user_whom_the_machine_does_not_know(open_stage: Opener) -> None:
    stage = await open_stage()
    add_sites(stage, near=", replicate_to: [far]", more="copies: {replicate_every: 1}")
    await stage.start_worker("alpha", "beta", sites=("near", "far"))
    await stage.submit(saving(stage, user="nobody-knows-her"))
    await stage.runs_in("train", 1)
    save(stage, 10)
    found = identity()
    assert not (await replicate(stage, found))["ok"]
    assert any("knows no user nobody-knows-her" in line for line in (await stage.view(found)).story)
    assert steps(stage) == []


async def test_without_replicate_every_nothing_is_copied_and_no_schedule_is_kept(fleet: Stage) -> None:
    save(fleet, 10)
    schedules = {row.id async for row in await fleet.client.list_schedules()}
    assert "replicas" in schedules
    await fleet.stop_worker()
    text = fleet.policy_file.read_text()
    fleet.policy_file.write_text(text.replace("replicate_every: 2", "replicate_every: 0"))
    await fleet.start_worker("alpha", "beta", sites=("near", "far"))

    async def gone() -> bool:
        return "replicas" not in {row.id async for row in await fleet.client.list_schedules()}

    await fleet.until(gone, "the schedule is gone")
    assert (await replicate(fleet))["text"] == "0 copied"
    assert steps(fleet) == []


async def test_a_target_without_a_mover_is_told(open_stage: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "SCHEDULE_TO_START", timedelta(seconds=1))
    stage = await open_stage()
    add_sites(stage, near=", replicate_to: [far]", more="copies: {replicate_every: 1}")
    await stage.start_worker("alpha", "beta", sites=("near",))
    await stage.submit(saving(stage))
    await stage.runs_in("train", 1)
    save(stage, 10)
    found = identity()
    assert not (await replicate(stage, found))["ok"]
    assert any("runbook worker --data far" in line for line in (await stage.view(found)).story)
