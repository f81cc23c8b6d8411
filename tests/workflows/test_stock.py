"""Where a new job's checkpoint and dataset are decides where it goes; what is not there is brought first, proven."""

import asyncio
import getpass
import hashlib
from datetime import timedelta
from pathlib import Path

import pytest

import workflows.stocking
from activities.backends.sim import SimBackend, SimSettings
from fleet.identity import TOKEN_PREFIX, job_workflow_id
from fleet.model import NativeJob
from fleet.people import Choice
from fleet.placement import CriterionName, Request
from fleet.placing import PlaceWish
from fleet.runbooks import Runbook, SuperviseInput, View
from tests.copying.making import flip, tree
from tests.workflows.conftest import Opener
from tests.workflows.stage import Handle, Stage
from tests.workflows.storage import add_sites, root, save

PLACE = "job/train/place/1"


@pytest.fixture
async def fleet(open_stage: Opener) -> Stage:
    stage = await open_stage()
    add_sites(stage)
    await stage.start_worker("alpha", "beta", sites=("near", "far"))
    return stage


def wish(stage: Stage, **more: object) -> PlaceWish:
    spec = stage.spec(tokens=f"{TOKEN_PREFIX}checkpoint={root(stage)}", checkpoint_every=1_000_000)
    given = {
        "request": Request(job="train", nodes=2, gpus_per_node=8),
        "name": "train",
        "templates": {"sim": spec.script},
        "comment": spec.comment,
        "user": getpass.getuser(),
        "start_within": 30.0,
    }
    return PlaceWish.model_validate(given | more)


async def submit(stage: Stage, wanted: PlaceWish) -> Handle:
    return await stage.client.start_workflow(
        Runbook.SUPERVISE,
        SuperviseInput(job="train", cluster="", wish=wanted, by="ada"),
        id=job_workflow_id("train"),
        task_queue="runbooks",
    )


async def placed(stage: Stage, wanted: PlaceWish) -> tuple[str, View]:
    """The cluster where it runs, and the placement's view."""
    await submit(stage, wanted)
    view = await stage.runs_in("train", 1)
    assert view.ledger is not None
    assert view.ledger.last is not None
    return view.ledger.last.cluster, await stage.view(PLACE)


def facts(view: View, name: CriterionName) -> dict[str, str]:
    assert view.placement is not None
    return {c.cluster: c.facts.get(name, c.why) for c in view.placement.candidates}


def fill(stage: Stage, cluster: str, nodes: int) -> None:
    faults = stage.faults if cluster == "alpha" else stage.beta
    faults.person_submit(stage.spec("other", tokens="-", nodes=nodes))


async def resumed(stage: Stage) -> int | None:
    """What the attempt on beta itself says that it resumed from."""
    backend = SimBackend("beta", SimSettings(path=stage.world))
    (native,) = await jobs_on(stage, "beta")

    async def said() -> int | None:
        return (await backend.progress(native.native_id, 0)).resumed_from

    try:
        found = await stage.until(said, "the attempt says what it resumed from")
        return found if isinstance(found, int) else None
    finally:
        await backend.close()


async def test_it_goes_where_its_newest_checkpoint_is_and_the_choice_says_what_moving_it_costs(fleet: Stage) -> None:
    save(fleet, 20, site="far")
    save(fleet, 10)
    cluster, view = await placed(fleet, wish(fleet))
    assert cluster == "beta"
    said = facts(view, CriterionName.CHECKPOINT)
    assert said["beta"] == "step 20 there"
    assert said["alpha"].endswith("from far")
    assert await resumed(fleet) == 20
    assert not (root(fleet) / "step_00000020.g1.0").exists(), "nothing was moved"


async def test_what_is_not_where_it_can_run_is_brought_there_before_it_is_submitted(fleet: Stage) -> None:
    save(fleet, 20)
    fill(fleet, "alpha", 4)
    cluster, view = await placed(fleet, wish(fleet))
    assert cluster == "beta"
    assert await resumed(fleet) == 20
    assert tree(root(fleet, site="far")) == tree(root(fleet))
    steps = [line.split(" ", 1)[1] for line in view.story]
    brought = next(n for n, line in enumerate(steps) if "its checkpoint is at far" in line)
    assert brought < next(n for n, line in enumerate(steps) if line.startswith("submitted to beta"))
    await fleet.record(PLACE, "place-brought")


async def test_a_checkpoint_that_is_damaged_on_the_way_starts_nothing(fleet: Stage) -> None:
    folder = save(fleet, 20)
    fill(fleet, "alpha", 4)
    copying = fleet.gates.set(PLACE, "prove_copy", "before")
    await submit(fleet, wish(fleet))
    await copying.wait()
    for path in (fleet.folder / "far").rglob("rank_0.json"):
        flip(path, 3)
    copying.open()
    await fleet.runs_in("train", 1)
    assert (root(fleet, site="far") / folder.name / "rank_0.json").read_bytes() == (
        folder / "rank_0.json"
    ).read_bytes()
    assert any("copied again" in line for line in (await fleet.view(PLACE)).story)


async def test_a_site_that_cannot_be_asked_keeps_the_job_from_beginning_anew(
    open_stage: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflows.stocking, "LOOK_LIMIT", timedelta(seconds=1))
    stage = await open_stage()
    add_sites(stage)
    await stage.start_worker("alpha", "beta", sites=("far",))
    save(stage, 20)
    job = await submit(stage, wish(stage))
    question = await stage.question(PLACE)
    assert "whether a site holds a newer checkpoint" in question.why
    assert "runbook worker --data near" in question.why
    assert await jobs_on(stage, "beta") == []
    await stage.answer(question, Choice.ABORT)
    assert "not placed" in str((await asyncio.wait_for(job.result(), 60))["text"])


async def jobs_on(stage: Stage, cluster: str) -> list[NativeJob]:
    backend = SimBackend(cluster, SimSettings(path=stage.world))
    try:
        return [j for j in await backend.jobs(max_age=0) if j.key == "train"]
    finally:
        await backend.close()


async def test_no_checkpoint_anywhere_lets_it_go_where_there_is_room(fleet: Stage) -> None:
    root(fleet).mkdir()
    (root(fleet, site="far") / ".gpu-runbooks" / "receipts").mkdir(parents=True)
    fill(fleet, "alpha", 4)
    cluster, view = await placed(fleet, wish(fleet))
    assert cluster == "beta"
    assert facts(view, CriterionName.CHECKPOINT)["beta"] == "none needed"


def dataset(stage: Stage, site: str = "near") -> Path:
    """A dataset with its manifest; gives the manifest."""
    folder = stage.folder / site / "c4"
    folder.mkdir()
    lines = []
    for number in range(3):
        data = f"shard {number}\n".encode() * 1000
        (folder / f"{number}.bin").write_bytes(data)
        lines.append(f"{hashlib.sha256(data).hexdigest()}  {number}.bin")
    (folder / "SHA256SUMS").write_text("\n".join(lines) + "\n")
    return folder / "SHA256SUMS"


async def test_a_dataset_is_brought_by_its_manifest_and_is_there_for_the_next_job(fleet: Stage) -> None:
    sums = dataset(fleet)
    (sums.parent / "notes.txt").write_text("not in the manifest")
    fill(fleet, "alpha", 4)
    wanted = wish(fleet, dataset_on=("alpha",), dataset=str(sums))
    cluster, view = await placed(fleet, wanted)
    assert cluster == "beta"
    assert facts(view, CriterionName.DATASET)["beta"].endswith("from near")
    brought = tree(fleet.folder / "far" / "c4")
    assert {name: data for name, data in brought.items() if name != "SHA256SUMS"} == {
        f"{n}.bin": (sums.parent / f"{n}.bin").read_bytes() for n in range(3)
    }
