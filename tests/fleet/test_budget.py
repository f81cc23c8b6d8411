"""Tries come back only for a newer complete checkpoint, and only so often a day."""

import pytest

from fleet.budget import DAY, budget, charge, record_checkpoint
from fleet.ledger import Ledger, Rung
from fleet.model import Progress
from tests.fleet.make import T0, attempt, ledger

EARLY = 600.0


def spent(book: Ledger, cause: str = "r1") -> int:
    return budget(book, Rung.IN_CLUSTER, cause, 2, EARLY).spent


def failing(**more: object) -> Ledger:
    """One failover after an hour; charged."""
    return ledger(
        attempt(1, start=0, end=3600),
        attempt(2, Rung.IN_CLUSTER, start=3700, cause="r1"),
        **more,
    )


def test_a_newer_checkpoint_gives_the_tries_back() -> None:
    book = record_checkpoint(failing(), 200, T0 + 5000, 4)

    assert (spent(failing()), spent(book)) == (1, 0)
    assert (book.complete_checkpoint, book.reset_at, book.resets_today) == (200, T0 + 5000, 1)


@pytest.mark.parametrize("step", [199, 200])
def test_an_older_or_equal_checkpoint_changes_nothing(step: int) -> None:
    book = failing(complete_checkpoint=200)

    assert record_checkpoint(book, step, T0 + 5000, 4) is book


def test_a_checkpoint_of_a_healthy_job_uses_no_reset() -> None:
    book = ledger(attempt(1, start=0))
    for step in range(1, 50):
        book = record_checkpoint(book, step, T0 + step, 4)

    assert (book.complete_checkpoint, book.reset_at, book.resets_today) == (49, None, 0)


def test_a_second_checkpoint_after_one_reset_uses_no_other() -> None:
    book = record_checkpoint(record_checkpoint(failing(), 200, T0 + 5000, 4), 300, T0 + 6000, 4)

    assert (book.complete_checkpoint, book.resets_today) == (300, 1)


def test_a_checkpoint_no_newer_than_where_the_attempt_resumed_is_the_old_attempts_work() -> None:
    book = failing().with_last(progress=Progress(resumed_from=200))

    late = record_checkpoint(book, 200, T0 + 5000, 4)
    assert (late.complete_checkpoint, spent(late)) == (200, 1)
    assert spent(record_checkpoint(book, 201, T0 + 5000, 4)) == 0


def test_a_checkpoint_seen_while_recovering_does_not_pay_for_that_recovery() -> None:
    """The order is dated back to the old attempt's end; the checkpoint was found between that and the new run."""
    once = failing().with_last(ended_at=T0 + 9000)
    noted = record_checkpoint(once, 200, T0 + 9010, 4)
    book = noted.with_attempt(attempt(3, Rung.IN_CLUSTER, start=9030, cause="r1", ordered_at=T0 + 9000))

    assert spent(book) == 1


def test_the_days_resets_have_an_end() -> None:
    book = failing(resets_today=4, reset_at=T0 + 10)
    capped = record_checkpoint(book, 200, T0 + 5000, 4)

    assert (capped.complete_checkpoint, capped.resets_today, spent(capped)) == (200, 4, 1)


def test_a_new_utc_day_brings_new_resets() -> None:
    book = failing(resets_today=4, reset_at=T0 + 10)
    tomorrow = (T0 // DAY + 1) * DAY

    assert spent(record_checkpoint(book, 200, tomorrow - 1, 4)) == 1
    fresh = record_checkpoint(book, 200, tomorrow, 4)
    assert (spent(fresh), fresh.resets_today) == (0, 1)


def test_a_clock_that_goes_back_brings_none() -> None:
    book = failing(resets_today=4, reset_at=T0 + 10)

    assert spent(record_checkpoint(book, 200, T0 - 2 * DAY, 4)) == 1


def test_no_resets_a_day_means_never() -> None:
    assert spent(record_checkpoint(failing(), 200, T0 + 5000, 0)) == 1


def test_a_charge_without_a_time_is_never_given_back() -> None:
    book = ledger(
        attempt(1, start=0),
        attempt(2, Rung.IN_CLUSTER, start=0, ordered_at=0.0, running_at=None, cause="r1"),
        reset_at=T0 + 9000,
    )

    assert spent(book) == 1


@pytest.mark.parametrize(("lived", "cost"), [(599.0, 2), (600.0, 1)])
def test_an_attempt_after_an_early_failure_cost_two_whatever_is_written_on_it(lived: float, cost: int) -> None:
    book = ledger(
        attempt(1, start=0, end=lived), attempt(2, Rung.IN_CLUSTER, start=lived, end=9000, cause="r1", charge=1)
    )

    assert spent(book) == cost


def test_what_is_written_on_an_attempt_counts_too() -> None:
    book = ledger(attempt(1, start=0, end=3600), attempt(2, Rung.IN_CLUSTER, start=3600, cause="r1", charge=2))

    assert spent(book) == 2


def test_a_budget_is_open_until_it_is_spent() -> None:
    one = budget(failing(), Rung.IN_CLUSTER, "r1", 2, EARLY)
    none = budget(failing(), Rung.IN_CLUSTER, "r1", 1, EARLY)

    assert (one.open, one.left_after(1), one.left_after(2)) == (True, 0, 0)
    assert not none.open


def test_a_first_start_has_nothing_to_fail_early() -> None:
    assert charge(None, T0, EARLY) == 1
