"""The simulated training as pure functions of time."""

import random

import pytest

from activities.backends.sim.training import Track, TrainingPlan, ends_at, parse_script, run_until
from fleet.errors import InvalidInputError

PLAN = TrainingPlan(steps=100, step_time=0.5, checkpoint_every=20, save_time=0.25, load_time=1.0)


def test_steps_and_saves_fall_at_their_times() -> None:
    moved = run_until(PLAN, Track(step=0, at=10.0), 10.0 + 20 * 0.5 + 0.25 + 0.6)
    assert moved.saves == ((20, 20.25),)
    assert moved.track == Track(step=21, at=20.75)
    assert moved.ended is None


def test_nothing_moves_while_it_loads() -> None:
    assert run_until(PLAN, Track(step=40, at=11.0), 10.5).track == Track(step=40, at=11.0)


def test_a_save_under_way_is_not_complete() -> None:
    moved = run_until(PLAN, Track(step=0, at=0.0), 10.1)
    assert moved.saves == ()
    assert moved.track == Track(step=20, at=10.0, saving=True)


def test_an_asked_save_comes_after_the_next_step_and_once() -> None:
    moved = run_until(PLAN, Track(step=3, at=0.0, save_asked=True), 2.0)
    assert [step for step, _ in moved.saves] == [4]
    assert not moved.track.save_asked


@pytest.mark.parametrize("seed", range(20))
def test_many_small_looks_see_the_same_as_one(seed: int) -> None:
    rng = random.Random(seed)
    plan = PLAN.model_copy(update={"steps": 90, "fail_at": rng.choice([None, 40, 47]), "checkpoint_every": 7})
    track = Track(step=5, at=2.0, save_asked=seed % 2 == 0)
    saves: list[tuple[int, float]] = []
    ended: str | None = None
    now = 0.0
    whole = run_until(plan, track, 30.0)
    while now < 30.0 and ended is None:
        now = min(30.0, now + rng.random())
        moved = run_until(plan, track, now)
        track, ended = moved.track, moved.ended
        saves.extend(moved.saves)
    assert ended == whole.ended
    assert track.step == whole.track.step
    assert track.at == pytest.approx(whole.track.at)
    assert [step for step, _ in saves] == [step for step, _ in whole.saves]


@pytest.mark.parametrize("fail_at", [None, 40, 47, 100])
@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize(("step", "every"), [(0, 20), (19, 20), (20, 20), (39, 13), (99, 7)])
def test_the_end_is_foretold(step: int, every: int, asked: bool, fail_at: int | None) -> None:
    plan = PLAN.model_copy(update={"fail_at": fail_at, "checkpoint_every": every})
    track = Track(step=step, at=5.0, save_asked=asked)
    end = ends_at(plan, track)
    assert run_until(plan, track, end).ended is not None
    assert run_until(plan, track, end - 0.01).ended is None


def test_a_script_says_what_is_simulated_and_options_win() -> None:
    plan = parse_script("#!/bin/sh\n#SIM nodes=2 steps=7\n#SIM step_time=0.1\ntrue\n", ("--nodes=3", "--no-requeue"))
    assert (plan.nodes, plan.steps, plan.step_time, plan.requeue) == (3, 7, 0.1, False)


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("echo", ()),
        ("#!/bin/sh\n#SIM stepz=3\n", ()),
        ("#!/bin/sh\n#SIM steps=none\n", ()),
        ("#!/bin/sh\n#SIM nodes=0\n", ()),
        ("#!/bin/sh\n", ("--qos=high",)),
    ],
)
def test_a_script_that_cannot_be_read_is_refused(script: str, options: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInputError, match="nothing was submitted"):
        parse_script(script, options)
