"""Buckets sum to the wall clock whatever the ledger holds; each second goes where a person would put it."""

import math
import random
from itertools import pairwise

import pytest

from fleet import ettr as measure
from fleet.ettr import BUCKET_OF, Bucket, buckets, ettr, expected_ettr, steps_lost, wall_clock
from fleet.faults.evidence import FaultClass
from fleet.ledger import Attempt, Ledger, Rung, Span, Stage
from fleet.model import Progress
from tests.fleet.make import T0, attempt, ledger, steps, verdict


def span(stage: Stage, start: float, end: float | None) -> Span:
    return Span(stage=stage, start=T0 + start, end=None if end is None else T0 + end)


def nonzero(book: Ledger, now: float) -> dict[str, float]:
    return {b.value: round(s, 6) for b, s in buckets(book, T0 + now).items() if s}


def test_every_stage_has_its_bucket() -> None:
    assert set(BUCKET_OF) == set(Stage)
    assert BUCKET_OF[Stage.PERSON] is Bucket.PERSON
    assert BUCKET_OF[Stage.REQUEUE] is Bucket.QUEUE
    assert BUCKET_OF[Stage.FIRST_STEP] is BUCKET_OF[Stage.LOAD] is Bucket.LOAD


# -- one job, by hand


def test_a_job_in_the_queue_is_queue() -> None:
    assert nonzero(ledger(attempt(1, start=0, running_at=None)), 50) == {"queue": 50}


def test_a_job_without_an_attempt_yet_is_other() -> None:
    assert nonzero(ledger(), 50) == {"other": 50}


def test_a_running_job_queues_loads_and_trains() -> None:
    book = ledger(attempt(1, start=0, running_at=T0 + 10, progress=steps(1, 80, 30, 110)))

    assert nonzero(book, 112) == {"queue": 10, "load": 20, "productive": 82}
    assert ettr(book, T0 + 112) == pytest.approx(82 / 112)


def test_a_job_that_runs_and_has_made_no_step_loads() -> None:
    assert nonzero(ledger(attempt(1, start=0, running_at=T0 + 10)), 40) == {"queue": 10, "load": 30}


def recovered() -> Ledger:
    """Steps 1 to 101 in 100 s; a fault; the next attempt resumes from 81 and trains."""
    lost = attempt(
        1, start=0, end=130, running_at=T0, progress=steps(1, 101, 0, 100), verdict=verdict(FaultClass.HARDWARE)
    )
    spans = (
        span(Stage.DETECT, 100, 105),
        span(Stage.DECIDE, 105, 106),
        span(Stage.PERSON, 106, 116),
        span(Stage.ISOLATE, 116, 118),
        span(Stage.FENCE, 118, 125),
        span(Stage.STOP, 125, 130),
        span(Stage.REQUEUE, 130, 131),
        span(Stage.START, 131, 133),
        span(Stage.LOAD, 133, 138),
        span(Stage.FIRST_STEP, 138, 140),
    )
    again = attempt(
        2,
        Rung.IN_CLUSTER,
        start=130,
        running_at=T0 + 131,
        progress=steps(82, 132, 140, 190, 81),
        spans=spans,
        cause="r1",
    )
    return ledger(lost, again)


def test_a_recovery_is_split_by_its_stages_and_lost_steps_are_rework() -> None:
    assert nonzero(recovered(), 200) == {
        "productive": 80 + 60,
        "rework": 20,
        "detect": 5,
        "decide": 1,
        "person": 10,
        "isolate": 2,
        "fence": 7,
        "stop": 5,
        "queue": 1,
        "start": 2,
        "load": 7,
    }
    assert steps_lost(recovered()) == 20


def test_without_stages_the_attempts_own_times_say_the_rest() -> None:
    first, second = recovered().attempts
    book = ledger(first, second.model_copy(update={"spans": (), "ordered_at": T0 + 128.0, "running_at": T0 + 131.0}))

    assert nonzero(book, 200) == {"productive": 140, "rework": 20, "detect": 28, "queue": 3, "load": 9}


def test_a_gap_that_nobody_claims_is_other() -> None:
    book = ledger(attempt(1, start=0, end=10), attempt(2, Rung.OBSERVED, start=25))

    assert nonzero(book, 30) == {"load": 15, "other": 15}


def test_training_while_a_person_is_asked_stays_training() -> None:
    first, second = recovered().attempts
    book = ledger(first, second.model_copy(update={"spans": (span(Stage.PERSON, 50, 131),)}))

    assert nonzero(book, 200) == {"productive": 140, "rework": 20, "person": 31, "load": 9}


def test_an_older_resume_takes_from_earlier_attempts_too() -> None:
    """The third attempt resumes from 51, older than where the second began."""
    first, second = recovered().attempts
    third = attempt(3, Rung.IN_CLUSTER, start=200, progress=steps(52, 62, 210, 220, 51))
    book = ledger(first, second.model_copy(update={"ended_at": T0 + 200}), third)

    found = buckets(book, T0 + 220)
    assert found[Bucket.PRODUCTIVE] == pytest.approx(50 + 10)
    assert found[Bucket.REWORK] == pytest.approx(50 + 50)
    assert steps_lost(book) == 50 + 51


def test_a_first_step_at_or_below_the_resumed_one_does_work_again() -> None:
    first, second = recovered().attempts
    again = second.model_copy(update={"progress": steps(71, 121, 140, 190, 81)})

    assert steps_lost(ledger(first, again)) == 31
    assert buckets(ledger(first, again), T0 + 200)[Bucket.REWORK] == pytest.approx(31)


def test_after_a_last_failure_the_newest_complete_checkpoint_is_what_is_kept() -> None:
    last = attempt(1, start=0, end=110, progress=steps(1, 101, 0, 100))

    assert steps_lost(ledger(last, complete_checkpoint=61)) == 40
    assert nonzero(ledger(last, complete_checkpoint=61), 115) == {
        "productive": 60,
        "rework": 40,
        "detect": 10,
        "other": 5,
    }
    assert steps_lost(ledger(last)) == 0, "nothing known, nothing claimed"


def test_a_finished_job_keeps_its_last_steps_and_its_clock_stops() -> None:
    """Also the steps after the last checkpoint: nothing has to be done again."""
    whole = attempt(1, start=0, end=100, progress=steps(1, 95, 5, 99))
    book = ledger(whole, done_at=T0 + 101, complete_checkpoint=90)

    assert nonzero(book, 500) == {"load": 5, "productive": 95, "other": 1}
    assert wall_clock(book, T0 + 500) == 101
    assert steps_lost(book) == 0


def test_the_sliding_ettr_sees_its_window_only() -> None:
    book = recovered()

    assert ettr(book, T0 + 200, since=T0 + 140) == 1.0
    assert ettr(book, T0 + 140, since=T0 + 100) == 0.0
    assert ettr(book, T0 + 200, since=T0 - 10_000) == ettr(book, T0 + 200)


def test_before_any_time_passed_everything_is_zero() -> None:
    assert ettr(ledger(), T0) == 0.0
    assert wall_clock(ledger(), T0 - 5) == 0.0
    assert sum(buckets(ledger(), T0 - 5).values()) == 0.0


def test_an_open_stage_lasts_until_now_or_until_the_attempt_trains() -> None:
    waiting = attempt(2, Rung.IN_CLUSTER, start=20, running_at=None, spans=(span(Stage.PERSON, 20, None),))
    assert nonzero(ledger(attempt(1, start=0, end=20), waiting), 50) == {"load": 20, "person": 30}

    trains = attempt(2, Rung.IN_CLUSTER, start=20, spans=(span(Stage.LOAD, 20, None),), progress=steps(1, 2, 30, 31))
    assert nonzero(ledger(attempt(1, start=0, end=20), trains), 50) == {"load": 30, "productive": 20}


# -- more than one cluster


def moved() -> Ledger:
    """Steps 1 to 101 on alpha; alpha is lost; the checkpoint of step 81 is copied to beta and trained on there."""
    lost = attempt(1, start=0, end=130, progress=steps(1, 101, 0, 100))
    spans = (span(Stage.DETECT, 100, 110), span(Stage.FENCE, 110, 130), span(Stage.COPY, 130, 160))
    there = attempt(
        2, Rung.ACROSS_CLUSTERS, start=160, running_at=T0 + 170, progress=steps(82, 122, 180, 220, 81), spans=spans
    )
    return ledger(lost, there.model_copy(update={"cluster": "beta", "native_id": "job/ml/train"}))


def test_a_move_to_another_cluster_is_one_story_on_one_wall_clock() -> None:
    assert nonzero(moved(), 230) == {
        "productive": 80 + 50,
        "rework": 20,
        "detect": 10,
        "fence": 20,
        "copy": 30,
        "queue": 10,
        "load": 10,
    }
    assert steps_lost(moved()) == 20


def test_windows_that_follow_each_other_sum_to_the_whole_whichever_cluster_they_fall_into() -> None:
    book, edges = moved(), [T0, T0 + 90.5, T0 + 141.25, T0 + 163, T0 + 230]
    parts = [buckets(book, end, since) for since, end in pairwise(edges)]

    assert [sum(part.values()) for part in parts] == [end - since for since, end in pairwise(edges)]
    assert sum(part[Bucket.COPY] for part in parts) == buckets(book, edges[-1])[Bucket.COPY] == 30


# -- any ledger


def some_time(rng: random.Random) -> float:
    return T0 + rng.choice([rng.uniform(-500, 20_000), rng.randint(0, 20_000), rng.random() * 1e-6])


def maybe(rng: random.Random) -> float | None:
    return None if rng.random() < 0.25 else some_time(rng)


def some_attempt(rng: random.Random, generation: int) -> Attempt:
    """Times overlap, are missing and run backwards on purpose."""
    progress = Progress(
        step=rng.choice([None, rng.randint(-5, 500)]),
        first_step=rng.choice([None, rng.randint(-5, 500)]),
        resumed_from=rng.choice([None, rng.randint(-5, 500)]),
        saved=rng.choice([None, rng.randint(0, 500)]),
        seen_at=maybe(rng),
        first_step_at=maybe(rng),
    )
    spans = tuple(
        Span(stage=rng.choice(list(Stage)), start=some_time(rng), end=maybe(rng)) for _ in range(rng.randint(0, 8))
    )
    return Attempt(
        generation=generation,
        cluster=rng.choice(["alpha", "beta", "gamma"]),
        native_id=rng.choice(["7", "job/ml/train"]),
        restarts=0,
        rung=rng.choice(list(Rung)),
        ordered_at=rng.choice([0.0, some_time(rng)]),
        running_at=maybe(rng),
        ended_at=maybe(rng),
        progress=progress,
        spans=spans,
    )


@pytest.mark.parametrize("seed", range(400))
def test_buckets_sum_exactly_to_the_wall_clock(seed: int) -> None:
    rng = random.Random(seed)
    book = Ledger(
        job="train",
        submitted_at=some_time(rng),
        attempts=tuple(some_attempt(rng, n) for n in range(1, rng.randint(1, 7))),
        complete_checkpoint=rng.choice([None, rng.randint(0, 500)]),
        done_at=rng.choice([None, some_time(rng)]),
    )
    now, since = some_time(rng), rng.choice([None, some_time(rng)])

    found = buckets(book, now, since)

    assert sum(found.values()) == wall_clock(book, now, since)
    assert set(found) == set(Bucket)
    assert all(seconds >= 0 for seconds in found.values())
    assert 0 <= ettr(book, now, since) <= 1
    end = now if book.done_at is None else min(now, book.done_at)
    start = book.submitted_at if since is None else max(book.submitted_at, since)
    assert wall_clock(book, now, since) == pytest.approx(max(0.0, end - start), abs=2e-6)


# -- closed forms; vectors of the reference (its own arithmetic, rates per node and day, times in minutes)

MINUTE = 60.0


@pytest.mark.parametrize(
    ("nodes", "rate", "restart", "interval", "queue", "expected"),
    [
        (2000, 0.0065, 5, 60, 0, 0.684),
        (2000, 0.0065, 5, 5, 0, 0.932),
        (12500, 0.00234, 2, 2, 0, 0.939),
        (12500, 0.00234, 2, 2, 1, 0.920),
        (12500, 0.0065, 5, 7, 0, 0.520),
    ],
)
def test_expected_ettr(
    nodes: int, rate: float, restart: float, interval: float, queue: float, expected: float
) -> None:
    found = expected_ettr(nodes, rate, restart=restart * MINUTE, interval=interval * MINUTE, queue=queue * MINUTE)

    assert found == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(
    ("rate", "write", "interval", "expected"),
    [
        (0.0065, 5 * MINUTE, 38.4, 0.740),
        (0.0065, 10.0, 7.0, 0.921),
        (0.0010, 5 * MINUTE, 98.0, 0.898),
        (0.00234, 5 * MINUTE, 64.1, 0.844),
    ],
)
def test_expected_ettr_at_youngs_interval(rate: float, write: float, interval: float, expected: float) -> None:
    best = measure.best_interval(write, measure.mean_time_to_failure(1500, rate))

    assert best / MINUTE == pytest.approx(interval, abs=0.05)
    found = expected_ettr(1500, rate, restart=5 * MINUTE, interval=best, write=write)
    assert found == pytest.approx(expected, abs=5e-4)


def test_a_start_costs_a_short_job_more() -> None:
    long = expected_ettr(1, 0, restart=300, interval=600, queue=300)
    short = expected_ettr(1, 0, restart=300, interval=600, queue=300, runtime=600)

    assert (long, short) == (1.0, 0.5)


def test_expected_ettr_is_clamped_where_the_form_breaks() -> None:
    assert expected_ettr(10**6, 1, restart=300, interval=600) == 0.0


def test_checkpoint_intervals() -> None:
    write, mttf, recovery = 1 * MINUTE, 180 * MINUTE, 10 * MINUTE

    assert measure.best_interval(write, mttf) / MINUTE == pytest.approx(18.97, abs=0.005)
    assert measure.best_interval_daly(write, mttf) / MINUTE == pytest.approx(18.31, abs=0.005)
    assert measure.best_period(write, mttf, recovery) / MINUTE == pytest.approx(20.52, abs=0.005)
    assert measure.best_interval_daly(2 * mttf, mttf) == mttf


def test_first_order_waste() -> None:
    assert measure.waste(60, 1200, 10_800, 600) == pytest.approx(0.05 + 1200 / 21_600 + 600 / 10_800)


@pytest.mark.parametrize(
    ("gpus", "hours"), [(1024, 28.8), (4096, 7.2), (8192, 3.6), (16_384, 1.80), (131_072, 0.225)]
)
def test_mean_time_to_failure(gpus: int, hours: float) -> None:
    found = measure.mean_time_to_failure(gpus // 8, 0.0065) / 3600

    assert found == pytest.approx(hours, rel=5e-3)


def test_nothing_fails_at_a_rate_of_zero() -> None:
    assert math.isinf(measure.mean_time_to_failure(8, 0))


@pytest.mark.parametrize(
    ("terabytes", "minutes"),
    [
        (0.98, (13.1, 5.2, 1.3, 0.3)),
        (2.45, (32.7, 13.1, 3.3, 0.8)),
        (5.67, (75.6, 30.2, 7.6, 1.9)),
        (14.0, (186.7, 74.7, 18.7, 4.7)),
    ],
)
def test_copy_times_at_line_rate(terabytes: float, minutes: tuple[float, ...]) -> None:
    found = [measure.copy_time(terabytes * 1e12, gigabits * 1e9) / MINUTE for gigabits in (10, 25, 100, 400)]

    assert found == pytest.approx(minutes, abs=0.05)


def test_a_copy_pays_for_its_files_and_for_the_line_it_cannot_fill() -> None:
    assert measure.copy_time(1e9, 8e9, efficiency=0.5, files=600, per_file=0.1, streams=20) == pytest.approx(2 + 3)
