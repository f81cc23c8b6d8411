"""Tries: counted for each rung *and* each cause, given back only by a newer complete checkpoint, so many times a day.

What is spent is always computed from the ledger; nobody keeps a count beside it.
"""

from fleet.ledger import Attempt, Ledger, Rung
from fleet.model import Value

DAY = 86400.0
"""Seconds; days begin at 00:00 UTC."""
ORDER_RULE = "order"
"""Rule id of a person's order: nothing failed, so nothing counts double."""
NEVER_EARLY = frozenset({ORDER_RULE, "text:cuda_fabric_not_ready", "fabric_starting", "fabric_not_ready"})
"""Rules of what says nothing about a job's own first minutes: an order, and a node whose fabric was not ready when
the job came (trouble case PC-F10)."""

_PAYING = {Rung.IN_PLACE, Rung.IN_CLUSTER, Rung.ACROSS_CLUSTERS}


class Budget(Value):
    """Tries of one rung for one cause."""

    rung: Rung
    cause: str
    tries: int
    """Allowed in all."""
    spent: int
    """Charged since the last reset; may exceed `tries`, for an early failure charges 2."""
    made: int
    """Attempts behind that charge."""

    @property
    def open(self) -> bool:
        """Another try is allowed."""
        return self.spent < self.tries

    def left_after(self, charge: int) -> int:
        """Tries left once `charge` is paid."""
        return max(0, self.tries - self.spent - charge)


def budget(ledger: Ledger, rung: Rung, cause: str, tries: int, early_failure: float) -> Budget:
    """What is spent of `tries` on `rung` for `cause`; first and observed starts cost nothing.

    An attempt costs what is written on it, and at least 2 when the one before failed within `early_failure` seconds.
    """
    costs = [_cost(ledger, n, early_failure) for n in _charged(ledger, rung, cause)]
    return Budget(rung=rung, cause=cause, tries=tries, spent=sum(costs), made=len(costs))


def charge(last: Attempt | None, at: float, early_failure: float) -> int:
    """What the next try costs after `last` failed: 2 after an early failure. `at` stands for an end not yet noted."""
    if last is None or last.running_at is None:
        return 1
    ended = last.ended_at if last.ended_at is not None else at
    return 2 if ended - last.running_at < early_failure else 1


def record_checkpoint(ledger: Ledger, step: int, at: float, resets_per_day: int) -> Ledger:
    """Notes a complete checkpoint of `step`, seen at `at`; an older or equal one changes nothing.

    It gives tries back only when some are spent, when it is newer than where the running attempt resumed, and at most
    `resets_per_day` times in a UTC day. The saves of a healthy job use none of these up.
    """
    if ledger.complete_checkpoint is not None and step <= ledger.complete_checkpoint:
        return ledger
    noted = ledger.model_copy(update={"complete_checkpoint": step})
    resumed = ledger.last.progress.resumed_from if ledger.last else None
    if not _charged(ledger) or (resumed is not None and step <= resumed):
        return noted
    today = ledger.resets_today if _same_day(ledger.reset_at, at) else 0
    if today >= resets_per_day:
        return noted
    return noted.model_copy(update={"reset_at": at, "resets_today": today + 1})


def _charged(ledger: Ledger, rung: Rung | None = None, cause: str | None = None) -> list[int]:
    """Places of the attempts whose charge still counts, on one rung for one cause or all."""
    return [
        place
        for place, a in enumerate(ledger.attempts)
        if a.rung in _PAYING
        and (rung is None or (a.rung is rung and a.cause == cause))
        and not _given_back(a, ledger.reset_at)
    ]


def _given_back(attempt: Attempt, reset_at: float | None) -> bool:
    """The checkpoint was seen after this attempt ran. One without a time is not: tries come back on proof only.

    The order may be dated back to the old attempt's end, and a checkpoint that is found while recovering is the old
    attempt's work, so the time that counts is when the new one runs.
    """
    since = attempt.running_at if attempt.running_at is not None else attempt.ordered_at
    return reset_at is not None and 0 < since < reset_at


def _cost(ledger: Ledger, place: int, early_failure: float) -> int:
    attempt = ledger.attempts[place]
    before = ledger.attempts[place - 1] if place else None
    if attempt.cause in NEVER_EARLY or before is None or before.ended_at is None:
        return max(1, attempt.charge)
    return max(attempt.charge, charge(before, before.ended_at, early_failure))


def _same_day(before: float | None, at: float) -> bool:
    """A clock that went back does not begin a new day."""
    return before is not None and at // DAY <= before // DAY
