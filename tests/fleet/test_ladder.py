"""The ladder: each rule where it holds and where it does not."""

import random

import pytest

from fleet.budget import ORDER_RULE
from fleet.decision import Action, Decision
from fleet.faults.evidence import FaultClass, Verdict
from fleet.ladder import next_step, unusable
from fleet.ledger import Attempt, Ledger, Rung
from fleet.model import Progress
from tests.fleet.make import T0, attempt, decision_input, ledger, policy, steps, verdict

HARDWARE = FaultClass.HARDWARE
TRANSIENT = FaultClass.TRANSIENT
UNKNOWN = FaultClass.UNKNOWN
LATE = 3600.0
"""An attempt that lives this long did not fail early."""


def book(*rungs: Rung, cause: str = "r1", lives: float = LATE) -> Ledger:
    """A first attempt and one for each rung, each living `lives` seconds; the last has just failed."""
    made = [attempt(1, start=0, end=lives)]
    for n, rung in enumerate(rungs, start=2):
        made.append(attempt(n, rung, start=(n - 1) * lives, end=n * lives, cause=cause))
    return ledger(*made)


def decide(what: Verdict, ledger_: Ledger, more: str = "", **rest: object) -> Decision:
    return next_step(decision_input(what, ledger_, at=100_000, **rest), policy(more))  # type: ignore[arg-type]


PLACE, CLUSTER = Rung.IN_PLACE, Rung.IN_CLUSTER
RESTART, FAILOVER = Action.RESTART_IN_PLACE, Action.FAILOVER_IN_CLUSTER


@pytest.mark.parametrize(
    ("fault", "before", "action", "left"),
    [
        (HARDWARE, (), FAILOVER, 1),
        (HARDWARE, (CLUSTER,), FAILOVER, 0),
        (HARDWARE, (CLUSTER, CLUSTER), Action.ASK, 0),
        (TRANSIENT, (), RESTART, 1),
        (TRANSIENT, (PLACE,), RESTART, 0),
        (TRANSIENT, (PLACE, PLACE), FAILOVER, 1),
        (TRANSIENT, (PLACE, PLACE, CLUSTER), FAILOVER, 0),
        (TRANSIENT, (PLACE, PLACE, CLUSTER, CLUSTER), Action.ASK, 0),
        (UNKNOWN, (), RESTART, 0),
        (UNKNOWN, (PLACE,), FAILOVER, 0),
        (UNKNOWN, (PLACE, CLUSTER), Action.ASK, 0),
        (FaultClass.USER, (), Action.REFUSE, 0),
        (FaultClass.USER, (PLACE, CLUSTER), Action.REFUSE, 0),
        (FaultClass.INFORMATIONAL, (), Action.NOTHING, 0),
        (FaultClass.INFORMATIONAL, (PLACE, PLACE, CLUSTER), Action.NOTHING, 0),
    ],
)
def test_the_rungs_of_each_class(fault: FaultClass, before: tuple[Rung, ...], action: Action, left: int) -> None:
    found = decide(verdict(fault), book(*before))

    assert (action, left) == (found.action, found.budget_left)


def test_first_restart_in_place_waits_30_s_the_second_2_min() -> None:
    assert decide(verdict(TRANSIENT), book()).delay == 30
    assert decide(verdict(TRANSIENT), book(PLACE)).delay == 120


def test_the_last_delay_repeats_and_no_delays_mean_at_once() -> None:
    more = "limits: {in_place_tries: 3, in_place_delays: [5s]}"
    assert decide(verdict(TRANSIENT), book(PLACE, PLACE), more).delay == 5
    assert decide(verdict(TRANSIENT), book(), "limits: {in_place_delays: []}").delay == 0


def test_a_failover_waits_for_nothing() -> None:
    assert decide(verdict(HARDWARE), book()).delay == 0


def test_limits_of_the_policy_hold() -> None:
    assert decide(verdict(HARDWARE), book(), "limits: {in_cluster_tries: 0}").action is Action.ASK
    assert decide(verdict(TRANSIENT), book(), "limits: {in_place_tries: 0}").action is FAILOVER
    assert decide(verdict(UNKNOWN), book(), "limits: {in_place_tries: 0}").action is FAILOVER
    assert decide(verdict(UNKNOWN), book(PLACE), "limits: {in_place_tries: 9}").action is FAILOVER


def test_a_first_failure_right_after_the_start_leaves_one_try_in_place() -> None:
    early = book(lives=60)
    found = next_step(decision_input(verdict(TRANSIENT), early, at=60), policy())
    assert (found.action, found.charge, found.budget_left) == (RESTART, 2, 0)
    assert "counts double" in found.why

    after = ledger(*early.attempts, attempt(2, PLACE, start=60, end=LATE, cause="r1"))
    assert decide(verdict(TRANSIENT), after).action is FAILOVER, "the early failure cost both tries"


@pytest.mark.parametrize(("lived", "cost"), [(599.0, 2), (600.0, 1), (601.0, 1)])
def test_early_is_less_than_ten_minutes_after_the_start(lived: float, cost: int) -> None:
    running = ledger(attempt(1, start=0))

    assert next_step(decision_input(verdict(TRANSIENT), running, at=lived), policy()).charge == cost


@pytest.mark.parametrize("rule", ["text:cuda_fabric_not_ready", "fabric_starting", "fabric_not_ready"])
def test_a_node_that_was_not_ready_is_no_early_failure_of_the_job(rule: str) -> None:
    early = book(CLUSTER, cause=rule, lives=60)
    found = next_step(decision_input(verdict(HARDWARE, rule), early, at=120), policy())
    assert (found.action, found.charge, found.budget_left) == (FAILOVER, 1, 0)


def test_what_only_other_nodes_can_tell_is_not_tried_in_place() -> None:
    suspicion = verdict(UNKNOWN).model_copy(update={"elsewhere": True})
    found = decide(suspicion, book())
    assert (found.action, found.exclude) == (FAILOVER, ("alpha1", "alpha2"))
    assert decide(suspicion, book(CLUSTER)).action is Action.ASK


def test_an_attempt_that_never_ran_is_no_early_failure() -> None:
    never = ledger(attempt(1, start=0, running_at=None))

    assert next_step(decision_input(verdict(TRANSIENT), never, at=5), policy()).charge == 1


def test_budgets_are_per_cause() -> None:
    assert decide(verdict(HARDWARE, "other"), book(CLUSTER, CLUSTER)).action is FAILOVER


def test_budgets_are_per_rung() -> None:
    assert decide(verdict(HARDWARE), book(PLACE, PLACE)).action is FAILOVER


def test_observed_starts_cost_nothing() -> None:
    found = decide(verdict(HARDWARE), book(Rung.OBSERVED, Rung.OBSERVED, Rung.OBSERVED))

    assert (found.action, found.budget_left) == (FAILOVER, 1)


def test_only_a_newer_checkpoint_gives_tries_back() -> None:
    spent = book(CLUSTER, CLUSTER)

    assert decide(verdict(HARDWARE), spent).action is Action.ASK
    after = spent.model_copy(update={"reset_at": T0 + 2 * LATE + 1})
    assert decide(verdict(HARDWARE), after).action is FAILOVER
    before = spent.model_copy(update={"reset_at": T0 + LATE})
    assert decide(verdict(HARDWARE), before).action is Action.ASK


# -- nodes


def test_hardware_excludes_the_culprit() -> None:
    assert decide(verdict(HARDWARE, node="alpha2"), book()).exclude == ("alpha2",)


def test_culprits_of_earlier_hardware_faults_stay_excluded() -> None:
    before = attempt(1, start=0, end=LATE, verdict=verdict(HARDWARE, "xid-79", "alpha1"))
    now = ledger(before, attempt(2, CLUSTER, start=LATE, end=2 * LATE, cause="xid-79", nodes=("alpha2", "alpha3")))

    assert decide(verdict(HARDWARE, "xid-64", "alpha3"), now).exclude == ("alpha1", "alpha3")
    assert unusable(now, verdict(HARDWARE, "xid-64", "alpha3")) == ("alpha1", "alpha3")


def test_culprits_of_earlier_transient_faults_do_not() -> None:
    before = attempt(1, start=0, end=LATE, verdict=verdict(TRANSIENT, "t", "alpha1"))
    now = ledger(before, attempt(2, PLACE, start=LATE, end=2 * LATE, cause="t"))

    assert decide(verdict(HARDWARE, "xid-79", "alpha2"), now).exclude == ("alpha2",)


def test_elsewhere_without_a_culprit_means_none_of_the_old_nodes() -> None:
    assert decide(verdict(UNKNOWN), book(PLACE)).exclude == ("alpha1", "alpha2")


def test_nobody_restarts_in_place_on_a_node_that_had_a_hardware_fault() -> None:
    """Somebody else's requeue brought the job back there."""
    before = attempt(1, start=0, end=LATE, verdict=verdict(HARDWARE, "xid-79", "alpha1"))
    back = ledger(before, attempt(2, Rung.OBSERVED, start=LATE, end=2 * LATE))

    assert decide(verdict(TRANSIENT, "t"), back).action is FAILOVER


@pytest.mark.parametrize(("free", "action"), [(None, FAILOVER), (2, FAILOVER), (1, Action.ASK), (0, Action.ASK)])
def test_hardware_asks_when_the_cluster_cannot_hold_the_job(free: int | None, action: Action) -> None:
    """`free_nodes` counts the job's own healthy node and not the culprit."""
    assert decide(verdict(HARDWARE, node="alpha2"), book(), free_nodes=free).action is action


@pytest.mark.parametrize(("free", "action"), [(4, FAILOVER), (3, Action.ASK), (2, Action.ASK)])
def test_elsewhere_needs_nodes_beside_the_own_ones(free: int, action: Action) -> None:
    assert decide(verdict(UNKNOWN), book(PLACE), free_nodes=free).action is action


def test_a_question_about_missing_nodes_says_how_many() -> None:
    found = decide(verdict(HARDWARE, "xid-79", "alpha2", "GPU fell off the bus"), book(), free_nodes=1)

    assert found.why == (
        "GPU fell off the bus (xid-79) on alpha2: the job needs 2 nodes and alpha has 1 without alpha2 "
        "(1 too few); free or return nodes, or move the job by hand"
    )


def test_a_restart_in_place_needs_no_free_nodes() -> None:
    assert decide(verdict(TRANSIENT), book(), free_nodes=0).action is RESTART


# -- the same failure at the same step


def twice(
    *, rule: str = "r1", step: int | None = 120, nodes: tuple[str, ...] = ("alpha3", "alpha4"), **more: object
) -> Ledger:
    """A failure by r1 at step 120 on alpha1 and alpha2, then an attempt on `nodes` that reached `step`."""
    first = attempt(
        1,
        start=0,
        end=LATE,
        progress=steps(1, 120, 10, 1000),
        verdict=verdict(TRANSIENT, rule, **more),  # type: ignore[arg-type]
    )
    progress = steps(101, step, LATE + 10, LATE + 100, 100) if step else Progress(resumed_from=100)
    return ledger(first, attempt(2, CLUSTER, start=LATE, end=2 * LATE, cause="r1", nodes=nodes, progress=progress))


def test_the_same_failure_at_the_same_step_on_other_nodes_is_the_jobs_own() -> None:
    found = decide(verdict(TRANSIENT, title="NCCL timeout"), twice())

    assert found.action is Action.REFUSE
    assert found.why == (
        "NCCL timeout (r1) struck at training step 120 in attempts 1 and 2 on different nodes, so it is a fault of "
        "the job itself and it is not moved; its owner gets the cause"
    )


@pytest.mark.parametrize(
    ("ledger_", "why"),
    [
        (twice(step=121), "another step"),
        (twice(rule="r2"), "another rule before"),
        (twice(nodes=("alpha1", "alpha2")), "the same nodes"),
        (twice(nodes=("alpha2", "alpha3")), "a node in common may be the culprit"),
        (twice(nodes=()), "nodes not known"),
        (twice(step=None), "no step seen"),
    ],
)
def test_anything_else_is_not(ledger_: Ledger, why: str) -> None:
    assert decide(verdict(TRANSIENT), ledger_).action is RESTART, why


@pytest.mark.parametrize(("culprit", "action"), [("alpha3", Action.REFUSE), ("alpha2", FAILOVER)])
def test_known_culprits_decide_whether_the_nodes_differ(culprit: str, action: Action) -> None:
    book_ = twice(nodes=("alpha2", "alpha3"), node="alpha2")

    assert decide(verdict(HARDWARE, node=culprit), book_).action is action


def test_an_informational_event_is_never_the_jobs_own_fault() -> None:
    assert decide(verdict(FaultClass.INFORMATIONAL), twice()).action is Action.NOTHING


# -- orders


def ordered(want: Action, ledger_: Ledger, more: str = "", **rest: object) -> Decision:
    what = verdict(UNKNOWN, ORDER_RULE, title="ada ordered it: test")
    return decide(what, ledger_, more, want=want, **rest)


@pytest.mark.parametrize("want", [RESTART, FAILOVER])
def test_an_order_is_followed_within_its_budget(want: Action) -> None:
    rung = PLACE if want is RESTART else CLUSTER

    assert ordered(want, book()).action is want
    assert ordered(want, book(rung, cause=ORDER_RULE)).budget_left == 0
    assert ordered(want, book(rung, rung, cause=ORDER_RULE)).action is Action.ASK


def test_an_order_right_after_the_start_does_not_count_double() -> None:
    fresh = ledger(attempt(1, start=0))
    found = next_step(decision_input(verdict(UNKNOWN, ORDER_RULE), fresh, at=20, want=FAILOVER), policy())
    assert (found.charge, found.budget_left) == (1, 1)

    moved = ledger(attempt(1, start=0, end=25), attempt(2, CLUSTER, start=30, cause=ORDER_RULE))
    again = next_step(decision_input(verdict(UNKNOWN, ORDER_RULE), moved, at=60, want=FAILOVER), policy())
    assert (again.action, again.budget_left) == (FAILOVER, 0)


def test_an_order_takes_the_jobs_own_nodes_when_there_are_no_others() -> None:
    assert ordered(FAILOVER, book(), free_nodes=4).exclude == ("alpha1", "alpha2")
    tight = ordered(FAILOVER, book(), free_nodes=3)
    assert (tight.action, tight.exclude) == (FAILOVER, ())
    assert ordered(FAILOVER, book(), free_nodes=1).action is Action.ASK


def test_an_order_counts_and_names_the_nodes_that_it_rules_out() -> None:
    found = ordered(FAILOVER, book(), free_nodes=3, exclude=("alpha4",))
    assert (found.action, found.exclude) == (FAILOVER, ("alpha4",))
    assert "without alpha4" in found.why
    short = ordered(FAILOVER, book(), free_nodes=1, exclude=("alpha4",))
    assert short.action is Action.ASK
    assert "without alpha4" in short.why


def test_an_order_relocates_no_user_fault_but_may_restart_it() -> None:
    what = verdict(FaultClass.USER)

    assert decide(what, book(), want=FAILOVER).action is Action.REFUSE
    assert decide(what, book(), want=RESTART).action is RESTART


def test_an_order_to_another_cluster_that_the_job_cannot_go_to_is_a_question() -> None:
    found = ordered(Action.FAILOVER_ACROSS_CLUSTERS, book())

    assert found.action is Action.ASK
    assert "it has no template for one, or its checkpoint no way there" in found.why


@pytest.mark.parametrize("want", [Action.NOTHING, Action.ASK, Action.REFUSE])
def test_an_order_of_no_step_is_that(want: Action) -> None:
    assert ordered(want, book()).action is want


@pytest.mark.parametrize("want", [None, RESTART, FAILOVER])
def test_a_job_that_has_ended_is_left_alone(want: Action | None) -> None:
    ended = book().model_copy(update={"done_at": T0 + LATE})

    assert decide(verdict(HARDWARE), ended, want=want).action is Action.NOTHING


@pytest.mark.parametrize("fault", [HARDWARE, TRANSIENT, UNKNOWN])
def test_a_job_without_an_attempt_is_a_question(fault: FaultClass) -> None:
    found = decide(verdict(fault), ledger())

    assert found.action is Action.ASK
    assert found.why == "no attempt of train is known, so nothing can be restarted; look at the job itself"


# -- what the decision carries


def test_the_mode_is_the_policys_for_that_step() -> None:
    more = "modes: {failover_in_cluster: auto, restart_in_place: observe}"

    assert decide(verdict(HARDWARE), book(), more).mode == "auto"
    assert decide(verdict(TRANSIENT), book(), more).mode == "observe"
    assert decide(verdict(HARDWARE), book()).mode == "propose"
    assert ordered(FAILOVER, book(), "modes: {restart_in_place: auto}").mode == "propose"


def test_the_policys_hash_and_times_go_along() -> None:
    more = "limits: {checkpoint_grace: 10s, step_timeout: 3m, run_timeout: 1h}"
    found = decide(verdict(HARDWARE), book(), more)

    assert (found.policy_hash, found.checkpoint_grace, found.step_timeout, found.run_timeout) == (
        policy(more).digest,
        10,
        180,
        3600,
    )


def test_a_question_costs_nothing_and_keeps_the_nodes_to_avoid() -> None:
    found = decide(verdict(HARDWARE, node="alpha2"), book(CLUSTER, CLUSTER))

    assert (found.action, found.charge, found.exclude) == (Action.ASK, 0, ("alpha2",))


@pytest.mark.parametrize(
    ("what", "before", "why"),
    [
        (
            verdict(HARDWARE, "xid-79", "alpha2", "GPU fell off the bus"),
            (),
            "GPU fell off the bus (xid-79) on alpha2: run it again in alpha without alpha2; "
            "1 of 2 tries left for this cause",
        ),
        (
            verdict(HARDWARE, "xid:79", "alpha2", "XID 79 on alpha2 (GPU 0000:ab:00): off the bus"),
            (),
            "XID 79 on alpha2 (GPU 0000:ab:00): off the bus (xid:79): run it again in alpha without alpha2; "
            "1 of 2 tries left for this cause",
        ),
        (
            verdict(TRANSIENT, title="NCCL timeout"),
            (),
            "NCCL timeout (r1): restart on the same nodes in 30 s; 1 of 2 tries left for this cause",
        ),
        (
            verdict(HARDWARE),
            (CLUSTER, CLUSTER),
            "r1 again, and its tries are spent (2 of 2 in the cluster); a person must decide whether to try once "
            "more, to move the job or to end it",
        ),
        (
            verdict(UNKNOWN),
            (PLACE, CLUSTER),
            "r1 again, and its tries are spent (1 of 1 in place and 1 of 1 in the cluster); a person must decide "
            "whether to try once more, to move the job or to end it",
        ),
        (
            verdict(FaultClass.USER, "exit-1", title="exception in rank 0"),
            (),
            "exception in rank 0 (exit-1) is a fault of the job itself: it would fail the same way on any node, so "
            "it is not moved; its owner gets the cause",
        ),
        (
            verdict(FaultClass.INFORMATIONAL, "xid-63", title="row remapped"),
            (),
            "row remapped (xid-63) needs no action; it is recorded",
        ),
    ],
)
def test_the_reason_is_one_sentence(what: Verdict, before: tuple[Rung, ...], why: str) -> None:
    assert decide(what, book(*before)).why == why


def test_every_fault_that_keeps_coming_reaches_a_person_or_the_owner() -> None:
    """Whatever random faults strike, with no newer checkpoint the ladder ends: nothing loops for ever."""
    rng = random.Random(7)
    for _ in range(200):
        rules = [f"r{n}" for n in range(rng.randint(1, 3))]
        book_, rounds = ledger(attempt(1, start=0)), 0
        while rounds < 40:
            rounds += 1
            what = verdict(
                rng.choice([HARDWARE, TRANSIENT, UNKNOWN]), rng.choice(rules), rng.choice([None, "alpha1"])
            )
            now = rounds * rng.choice([60.0, LATE])
            found = next_step(decision_input(what, book_, at=now), policy())
            if found.action in {Action.ASK, Action.REFUSE}:
                break
            assert found.action in {RESTART, FAILOVER}
            rung = PLACE if found.action is RESTART else CLUSTER
            book_ = _followed(book_, rung, what, found, now)
        assert rounds <= 4 * len(rules) + 1


def _followed(book_: Ledger, rung: Rung, what: Verdict, found: Decision, now: float) -> Ledger:
    closed = book_.with_last(ended_at=T0 + now, verdict=what)
    nodes = tuple(n for n in ("alpha1", "alpha2", "alpha3", "alpha4") if n not in found.exclude)[:2]
    new: Attempt = attempt(closed.generation + 1, rung, start=now, cause=what.rule, nodes=nodes, charge=found.charge)
    return closed.with_attempt(new)
