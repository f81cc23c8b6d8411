"""A job without a cluster: where it goes, what happens where it gets no nodes, and who is asked at the end."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from activities import place_api
from activities.backends.sim import SimBackend, SimSettings
from fleet.identity import job_workflow_id
from fleet.ledger import Rung
from fleet.model import NativeJob, Phase
from fleet.people import Choice
from fleet.placement import Request
from fleet.placing import ClusterWords, PlaceWish
from fleet.runbooks import FreezeOrder, Runbook, SuperviseInput, Update
from tests.workflows.conftest import Opener
from tests.workflows.stage import Handle, Stage
from workflows.attributes import CLUSTER

PLACE = "job/train/place/1"
SOON = 0.6
"""Seconds in which a job must run; what is free on sim starts at once."""


@pytest.fixture
async def both(open_stage: Opener) -> Stage:
    """Alpha has four nodes, beta two; a worker for both."""
    stage = await open_stage()
    await stage.start_worker("alpha", "beta")
    return stage


def wish(stage: Stage, nodes: int = 2, *, within: float = 30.0, **more: Any) -> PlaceWish:
    spec = stage.spec(tokens="gpu-runbooks.io/checkpoint=/ckpt/train")
    return PlaceWish(
        request=Request(job="train", nodes=nodes, gpus_per_node=8, gpu_models=("H100",)),
        name=spec.name,
        templates={"sim": spec.script},
        comment=spec.comment,
        start_within=within,
        **more,
    )


async def submit(stage: Stage, wanted: PlaceWish) -> Handle:
    return await stage.client.start_workflow(
        Runbook.SUPERVISE,
        SuperviseInput(job=wanted.job, cluster="", wish=wanted, by="ada"),
        id=job_workflow_id(wanted.job),
        task_queue="runbooks",
    )


async def on(stage: Stage, cluster: str) -> list[NativeJob]:
    """Jobs named train there, by the fleet's own record."""
    backend = SimBackend(cluster, SimSettings(path=stage.world))
    try:
        return [j for j in await backend.jobs(max_age=0) if j.key == "train"]
    finally:
        await backend.close()


def occupied(stage: Stage, cluster: str, nodes: int) -> str:
    """Somebody else's job takes so many nodes there for long."""
    return faults(stage, cluster).person_submit(stage.spec(f"other-{cluster}", tokens="-", signal=False, nodes=nodes))


def faults(stage: Stage, cluster: str) -> Any:
    return {"alpha": stage.faults, "beta": stage.beta}[cluster]


def no_two_ran(stage: Stage) -> None:
    """Never did two attempts of the job live at once, in whatever cluster."""
    started = [
        e for c in ("alpha", "beta") for n in faults(stage, c).native_ids("train") for e in _starts(stage, c, n)
    ]
    assert len(started) == 1


def _starts(stage: Stage, cluster: str, native_id: str) -> tuple[Any, ...]:
    return tuple(faults(stage, cluster).effects("attempt", native_id))


async def test_a_job_goes_to_the_cluster_that_fits_best_and_is_supervised_there(both: Stage) -> None:
    """Two nodes fill beta and leave alpha whole for larger jobs."""
    await submit(both, wish(both))
    view = await both.runs_in("train", 1)
    (native,) = await on(both, "beta")
    assert await on(both, "alpha") == []
    assert (native.phase, native.adopted) == (Phase.RUNNING, True)
    assert view.ledger
    assert view.ledger.last
    assert (view.ledger.last.cluster, view.ledger.last.rung) == ("beta", Rung.FIRST)
    placed = await both.handle(PLACE).result()
    assert (placed["ended"], placed["cluster"]) == ("placed", "beta")
    shown = await both.view(PLACE)
    assert shown.placement
    assert shown.placement.order == ("beta", "alpha")
    page = await both.page(PLACE)
    assert "before alpha by fragmentation" in page
    assert "after beta by fragmentation" in page
    described = await both.handle("job/train").describe()
    assert described.typed_search_attributes.get(CLUSTER) == "beta"
    await both.record(PLACE, "place-first-choice")


async def test_a_job_that_gets_no_nodes_in_time_is_held_there_runs_elsewhere_and_is_then_cancelled(
    both: Stage,
) -> None:
    """Somebody's job takes beta's nodes between the choice and the start."""
    gate = both.gates.set(PLACE, "submit_job", "before")
    await submit(both, wish(both, within=SOON))
    await gate.wait()
    occupied(both, "beta", 2)
    gate.open()
    await both.runs_in("train", 1)
    (there,), (here,) = await on(both, "beta"), await on(both, "alpha")
    assert (there.phase, here.phase) == (Phase.CANCELLED, Phase.RUNNING)
    no_two_ran(both)
    hold = both.beta.effects("hold", there.native_id)[0].at
    cancel = both.beta.effects("cancel", there.native_id)[0].at
    (submitted,) = both.faults.effects("submit", here.native_id)
    assert hold < submitted.at < cancel
    assert "not running in time (Resources)" in await both.page(PLACE)
    await both.record(PLACE, "place-second-choice")


async def test_ranks_that_have_nodes_while_others_wait_are_proven_gone_before_the_next_cluster(
    both: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where pods are scheduled one by one: the job waits, and a part of it holds a node."""
    whole = SimBackend.job

    async def in_part(self: SimBackend, native_id: str) -> NativeJob:
        native = await whole(self, native_id)
        placed = self.cluster == "beta" and native.phase is Phase.PENDING
        return native.model_copy(update={"nodes": ("beta1",)}) if placed else native

    monkeypatch.setattr(SimBackend, "job", in_part)
    gate = both.gates.set(PLACE, "submit_job", "before")
    await submit(both, wish(both, within=SOON))
    await gate.wait()
    occupied(both, "beta", 2)
    proven = both.gates.set(PLACE, "prove_stopped", "after")
    gate.open()
    await proven.wait()
    assert [j.phase for j in await on(both, "beta")] == [Phase.CANCELLED]
    assert await on(both, "alpha") == []
    proven.open()
    await both.runs_in("train", 1)
    no_two_ran(both)


async def test_a_job_that_starts_in_the_last_moment_stays_where_it_is(both: Stage) -> None:
    gate = both.gates.set(PLACE, "submit_job", "before")
    await submit(both, wish(both, within=SOON))
    await gate.wait()
    other = occupied(both, "beta", 2)
    late = both.gates.set(PLACE, "read_job", "before")
    gate.open()
    await late.wait()
    both.beta.person_cancel(other)
    await both.until(lambda: _running(both, "beta"), "it runs on beta")
    late.open()
    await both.runs_in("train", 1)
    assert await on(both, "alpha") == []
    no_two_ran(both)


async def _running(stage: Stage, cluster: str) -> bool:
    return any(j.phase is Phase.RUNNING for j in await on(stage, cluster))


async def test_where_no_cluster_has_room_a_person_is_asked_with_the_reason_of_each(both: Stage) -> None:
    occupied(both, "alpha", 3)
    await submit(both, wish(both, nodes=3))
    question = await both.question(PLACE)
    assert question.default is Choice.ABORT
    assert [line.partition(":")[0] for line in question.evidence] == ["alpha", "beta"]
    assert "1 of its 4 nodes with 8 H100 are free, 3 are wanted" in question.evidence[0]
    assert "3 nodes with 8 H100 are wanted, it has 2" in question.evidence[1]
    await both.answer(question, Choice.ABORT)
    assert "not placed (abort by" in await both.result("job/train")
    assert [await on(both, c) for c in ("alpha", "beta")] == [[], []]
    await both.record(PLACE, "place-nowhere")


async def test_retry_lets_the_held_job_wait_on_and_it_runs_once_there_is_room(both: Stage) -> None:
    wanted = wish(both, within=SOON, clusters={"beta": ClusterWords()})
    gate = both.gates.set(PLACE, "submit_job", "before")
    await submit(both, wanted)
    await gate.wait()
    other = occupied(both, "beta", 2)
    gate.open()
    question = await both.question(PLACE)
    (waits,) = await on(both, "beta")
    assert (waits.phase, waits.held) == (Phase.PENDING, True)
    both.beta.person_cancel(other)
    await both.stays(lambda: _waits(both), "it stays held although there is room", 0.5)
    await both.answer(question, Choice.RETRY)
    await both.runs_in("train", 1)
    (runs,) = await on(both, "beta")
    assert (runs.native_id, runs.phase) == (waits.native_id, Phase.RUNNING)
    no_two_ran(both)


async def _waits(stage: Stage) -> bool:
    return [j.phase for j in await on(stage, "beta")] == [Phase.PENDING]


async def test_after_a_no_nothing_of_the_job_waits_anywhere(both: Stage) -> None:
    gate = both.gates.set(PLACE, "submit_job", "before")
    await submit(both, wish(both, within=SOON, clusters={"beta": ClusterWords()}))
    await gate.wait()
    occupied(both, "beta", 2)
    gate.open()
    await both.answer(await both.question(PLACE), Choice.ABORT)
    assert "nothing of the job is in any cluster" in await both.result("job/train")
    assert [j.phase for j in await on(both, "beta")] == [Phase.CANCELLED]


async def test_a_cluster_whose_trial_refuses_the_job_is_passed_over(both: Stage) -> None:
    await submit(both, wish(both, clusters={"alpha": ClusterWords(), "beta": ClusterWords(options=("--account=x",))}))
    await both.runs_in("train", 1)
    assert await on(both, "beta") == []
    assert "its trial refuses the job: the simulated cluster knows no submit option '--account'" in await both.page(
        PLACE
    )


async def test_a_cluster_that_does_not_answer_is_no_reason_to_wait(
    both: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place_api, "READ_ROOM", replace(place_api.READ_ROOM, budget=timedelta(seconds=2)))
    both.beta.controller_freeze()
    await submit(both, wish(both))
    view = await both.runs_in("train", 1)
    assert view.ledger
    assert view.ledger.last
    assert view.ledger.last.cluster == "alpha"
    assert "beta:** it cannot be asked" in await both.page(PLACE)


async def test_a_job_that_somebody_holds_meanwhile_is_left_to_them(both: Stage) -> None:
    gate = both.gates.set(PLACE, "submit_job", "before")
    await submit(both, wish(both, within=SOON))
    await gate.wait()
    occupied(both, "beta", 2)
    late = both.gates.set(PLACE, "wait_placed", "before")
    gate.open()
    await late.wait()
    (waits,) = await on(both, "beta")
    both.beta.person_hold(waits.native_id)
    late.open()
    assert "somebody holds it in beta" in await both.result("job/train")
    assert await on(both, "alpha") == []
    (left,) = await on(both, "beta")
    assert (left.phase, left.held, left.adopted) == (Phase.PENDING, True, False)


async def test_a_cancel_says_what_waits_where_and_ends_nothing(both: Stage) -> None:
    gate = both.gates.set(PLACE, "submit_job", "before")
    await submit(both, wish(both))
    await gate.wait()
    occupied(both, "beta", 2)
    gate.open()
    await both.until(lambda: both.beta.effects("submit"), "it is submitted")
    await both.at_step(PLACE, "running")
    await both.handle("job/train").cancel()
    await both.ended(PLACE)
    (native,) = await on(both, "beta")
    assert native.phase is Phase.PENDING
    assert f"beta/{native.native_id} was pending when last seen" in await both.page(PLACE)


async def test_under_a_freeze_nothing_is_submitted(both: Stage) -> None:
    await both.handle("guard/fleet").execute_update(Update.FREEZE, FreezeOrder(by="ada", reason="audit"))
    await submit(both, wish(both))
    await both.until(lambda: _waits_for_unfreeze(both), "it waits for an unfreeze")
    assert [await on(both, c) for c in ("alpha", "beta")] == [[], []]
    await both.handle("guard/fleet").execute_update(Update.UNFREEZE, FreezeOrder(by="ada", reason="done"))
    await both.runs_in("train", 1)


async def _waits_for_unfreeze(stage: Stage) -> bool:
    return "unfreeze" in (await stage.at_step(PLACE, "submit")).waits_for
