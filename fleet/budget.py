"""Tries: counted for each rung *and* each cause, given back only by a newer complete checkpoint, so many times a day.

A charge is written once, on the attempt that it paid for (`Attempt.charge`), and never changed: what is left is
always computed from the ledger.
"""

from fleet.ledger import Attempt, Ledger, Rung
from fleet.model import Value
from fleet.policy import Policy

DAY = 86400.0
"""Seconds; days begin at 00:00 UTC."""


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


def budget(ledger: Ledger, rung: Rung, cause: str, tries: int) -> Budget:
    """What is spent of `tries` on `rung` for `cause`. First and observed starts cost nothing."""
    paid = [a for a in _charged(ledger) if a.rung is rung and a.cause == cause]
    return Budget(rung=rung, cause=cause, tries=tries, spent=sum(max(1, a.charge) for a in paid), made=len(paid))


def charge(ledger: Ledger, at: float, policy: Policy) -> int:
    """What the next try costs: 2 when the last attempt failed within `early_failure` of its start, else 1."""
    last = ledger.last
    if last is None or last.running_at is None:
        return 1
    ended = last.ended_at if last.ended_at is not None else at
    return 2 if ended - last.running_at < policy.limits.early_failure else 1


def record_checkpoint(ledger: Ledger, step: int, at: float, policy: Policy) -> Ledger:
    """Notes a complete checkpoint of `step`, seen at `at`; an older or equal one changes nothing.

    It gives tries back only when some are spent, when it is newer than where the attempt that spent them resumed,
    and at most `budget_resets_per_day` times in a UTC day: a healthy job's saves must not use the day's resets up.
    """
    if ledger.complete_checkpoint is not None and step <= ledger.complete_checkpoint:
        return ledger
    noted = ledger.model_copy(update={"complete_checkpoint": step})
    resumed = ledger.last.progress.resumed_from if ledger.last else None
    if not _charged(ledger) or (resumed is not None and step <= resumed):
        return noted
    today = ledger.resets_today if _same_day(ledger.reset_at, at) else 0
    if today >= policy.limits.budget_resets_per_day:
        return noted
    return noted.model_copy(update={"reset_at": at, "resets_today": today + 1})


def _charged(ledger: Ledger) -> list[Attempt]:
    """Attempts whose charge still counts. One without a time counts: tries are given back on proof only."""
    paying = (a for a in ledger.attempts if a.rung in {Rung.IN_PLACE, Rung.IN_CLUSTER, Rung.ACROSS_CLUSTERS})
    return [a for a in paying if ledger.reset_at is None or not _before(a, ledger.reset_at)]


def _before(attempt: Attempt, reset_at: float) -> bool:
    when = attempt.ordered_at or attempt.running_at
    return when is not None and when < reset_at


def _same_day(before: float | None, at: float) -> bool:
    """A clock that went back does not begin a new day."""
    return before is not None and at // DAY <= before // DAY
