"""What a lease proves about the ranks of an attempt, and when it proves nothing."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.faults.evidence import Culprit, FaultClass, Verdict
from fleet.lease import (
    CLOCK_RATE,
    NOTICED_LATE,
    STEPS_MISSED,
    ClusterLoss,
    LeaseKey,
    LeaseLapse,
    LeaseState,
    LeaseTerms,
    LeaseVerdict,
    Seat,
    SeatSeen,
    SeatState,
    hung_before,
    lease_receipt,
    objections,
    open_for,
)
from fleet.ledger import Attempt, Rung
from fleet.model import Progress, ReceiptGrade

LOST_AT = 10_000.0
TERMS = LeaseTerms(term=600, grace=30)
ATTEMPT = Attempt(generation=3, cluster="north", native_id="77", restarts=2, rung=Rung.IN_CLUSTER, nodes=("n1", "n2"))
KEY = LeaseKey(cluster="north", native_id="77", restarts=2)
LOSS = ClusterLoss(reachable=False, answered_at=LOST_AT)


def seat(
    node: str, who: int = 1, *, state: SeatState = SeatState.HELD, renewed_at: float | None = LOST_AT
) -> SeatSeen:
    return SeatSeen(
        seat=Seat(node=node, who=f"{who:012x}", terms=TERMS), state=state, since=LOST_AT, renewed_at=renewed_at
    )


def lapse(*seats: SeatSeen, **changes: Any) -> LeaseLapse:
    given: dict[str, Any] = {
        "key": KEY,
        "seats": seats or (seat("n1"), seat("n2")),
        "revoked_at": LOST_AT + 60,
        "waited": TERMS.lapse_after,
        "seen_at": LOST_AT + 60 + TERMS.lapse_after,
    }
    return LeaseLapse(**(given | changes))


def judged(found: LeaseLapse, loss: ClusterLoss = LOSS, *, checks: bool = True) -> LeaseVerdict:
    return lease_receipt(ATTEMPT, found, checks_generation=checks, loss=loss)


def test_silence_long_enough_after_the_taking_back_is_the_weakest_receipt_for_every_node() -> None:
    proof = judged(lapse()).receipt
    assert proof is not None
    assert (proof.generation, proof.native_id, proof.grade()) == (3, "77", ReceiptGrade.LEASE_EXPIRED)
    assert [n.node for n in proof.nodes] == ["n1", "n2"]


def test_launchers_that_said_that_nothing_runs_need_not_be_waited_for() -> None:
    left = [seat(n, state=SeatState.LEFT) for n in ATTEMPT.nodes]
    assert open_for(tuple(left), 0.0) == 0.0
    assert judged(lapse(*left, waited=0.0)).receipt is not None


@pytest.mark.parametrize(
    ("found", "loss", "checks", "why"),
    [
        (lapse(), LOSS, False, "generation-check"),
        (lapse(), LOSS.model_copy(update={"reachable": True}), True, "can be reached"),
        (lapse(), LOSS.model_copy(update={"hung": ("n2",)}), True, "n2 was hung"),
        (lapse(found=False, seats=()), LOSS, True, "no launcher holds a lease"),
        (lapse(seat("n1")), LOSS, True, "n2 has no launcher"),
        (lapse(revoked_at=None), LOSS, True, "not taken back"),
        (lapse(waited=TERMS.lapse_after - 1), LOSS, True, "another 1 s"),
        (lapse(seat("n1"), seat("n2", renewed_at=LOST_AT - 300)), LOSS, True, "n2 was silent for 300 s while"),
        (lapse(key=KEY.model_copy(update={"restarts": 1})), LOSS, True, "with 1 restarts"),
        (lapse(refused=("alpha is frozen",)), LOSS, True, "alpha is frozen"),
    ],
)
def test_what_a_lapse_does_not_prove_gets_no_receipt_and_the_reason(
    found: LeaseLapse, loss: ClusterLoss, checks: bool, why: str
) -> None:
    verdict = judged(found, loss, checks=checks)
    assert verdict.receipt is None
    assert any(why in text for text in verdict.why_not), verdict.why_not


def test_every_launcher_of_a_node_counts_and_not_only_one() -> None:
    verdict = judged(lapse(seat("n1"), seat("n2", 1, state=SeatState.LEFT), seat("n2", 2), waited=10.0))
    assert verdict.receipt is None


def test_a_launcher_that_never_renewed_never_started_anything() -> None:
    assert judged(lapse(seat("n1"), seat("n2", renewed_at=None))).receipt is not None


def test_an_attempt_whose_nodes_nobody_knows_is_not_covered() -> None:
    nowhere = ATTEMPT.model_copy(update={"nodes": ()})
    assert objections(nowhere, LeaseState(seats=(seat("n1"),)), checks_generation=True, loss=LOSS)


def test_nothing_is_held_against_a_lease_that_covers_a_lost_cluster() -> None:
    state = LeaseState(seats=(seat("n1"), seat("n2")))
    assert objections(ATTEMPT, state, checks_generation=True, loss=LOSS) == ()


@given(
    term=st.floats(1, 86400),
    grace=st.floats(0, 3600),
    before=st.floats(0, 60),
    rate=st.floats(-CLOCK_RATE / 2, CLOCK_RATE / 2),
)
def test_ranks_are_killed_before_the_lease_counts_as_lapsed_whatever_the_clocks_rates(
    term: float, grace: float, before: float, rate: float
) -> None:
    """The last renewal was sent before the lease was taken back (time 0); the launcher's clock is off by a rate."""
    terms = LeaseTerms(term=term, grace=grace)
    killed_at = -before + (terms.term + terms.grace) / (1 + rate)
    assert killed_at < terms.lapse_after


@given(term=st.floats(1, 86400))
def test_a_term_has_room_for_several_renewals(term: float) -> None:
    assert LeaseTerms(term=term).every * 5 < term


RUNNING = ATTEMPT.model_copy(update={"running_at": LOST_AT - 5000})
TRAINED = Progress(first_step=1, step=41, first_step_at=LOST_AT - 4000, seen_at=LOST_AT)
"""A step each 100 s."""


def blamed(node: str | None) -> Verdict:
    return Verdict(fault=FaultClass.HARDWARE, culprit=Culprit(node=node), rule="hang:missing_rank")


@pytest.mark.parametrize(
    ("attempt", "hung"),
    [
        (RUNNING.model_copy(update={"progress": TRAINED}), ()),
        (RUNNING.model_copy(update={"progress": TRAINED, "verdict": blamed("n2")}), ("n2",)),
        (RUNNING.model_copy(update={"progress": TRAINED, "verdict": blamed(None)}), ("n1", "n2")),
        (RUNNING, ("n1", "n2")),
        (ATTEMPT.model_copy(update={"running_at": LOST_AT - 60}), ()),
    ],
    ids=["trains", "a verdict blames a node", "a verdict blames no node", "never a step", "has just begun"],
)
def test_what_may_have_hung_before_the_loss_is_told_by_a_verdict_or_by_steps_that_stayed_away(
    attempt: Attempt, hung: tuple[str, ...]
) -> None:
    assert hung_before(attempt, LOST_AT) == hung


def test_steps_that_stopped_long_before_the_loss_make_every_node_hung_and_slow_ones_do_not() -> None:
    late = NOTICED_LATE + STEPS_MISSED * 100
    stopped = RUNNING.model_copy(update={"progress": TRAINED})
    assert hung_before(stopped, LOST_AT + late) == ()
    assert hung_before(stopped, LOST_AT + late + 1) == ("n1", "n2")
