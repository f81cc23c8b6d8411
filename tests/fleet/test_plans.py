"""Plans in words: what a dry run prints is what the runbook would do."""

from fleet.decision import Action, Decision
from fleet.ledger import Attempt, Rung
from fleet.model import JobTokens, NativeJob, NodeFacts, NodeState, Phase
from fleet.plans import MOVES, decided_steps, heal_steps, observed_ledger, recovery_steps

AUTO = {
    "evacuate": "auto",
    "check": "auto",
    "isolate": "auto",
    "fence": "approve",
    "reboot": "auto",
    "return": "observe",
}


def attempt(generation: int = 1, nodes: tuple[str, ...] = ("a1", "a2")) -> Attempt:
    return Attempt(generation=generation, cluster="alpha", native_id="7", restarts=0, rung=Rung.FIRST, nodes=nodes)


def native(phase: Phase = Phase.RUNNING, signal: str | None = "USR1") -> NativeJob:
    return NativeJob(
        cluster="alpha",
        native_id="7",
        name="t",
        phase=phase,
        nodes=("a1", "a2"),
        started_at=10.0,
        tokens=JobTokens(checkpoint_signal=signal),
    )


def facts(**changes: object) -> NodeFacts:
    return NodeFacts(cluster="alpha", node="a1", state=NodeState.UP).model_copy(update=changes)


def test_a_failover_names_signal_old_nodes_and_exclusions() -> None:
    steps = recovery_steps(in_place=False, exclude=("a1",), signal="USR1", old=attempt(2), generation=3)
    assert steps == (
        "ask for a checkpoint with USR1",
        "stop attempt 2 with grace and keep the job held",
        "prove that its ranks are gone from a1, a2",
        "start attempt 3 without a1, first in line",
        "wait for a new training step",
    )


def test_without_a_declared_signal_nothing_is_signalled() -> None:
    steps = recovery_steps(in_place=True, exclude=(), signal=None, old=attempt(), generation=2)
    assert steps[0] == "no checkpoint signal is declared: skip it"
    assert steps[3] == "start attempt 2 on the same nodes, first in line"


def test_a_decision_that_moves_nothing_has_no_steps() -> None:
    ledger = observed_ledger("t", native())
    for action in set(Action) - MOVES:
        assert decided_steps(Decision(action=action, why="w"), native(), ledger) == ()
    move = Decision(action=Action.FAILOVER_IN_CLUSTER, why="w", exclude=("a2",))
    assert "without a2" in decided_steps(move, native(), ledger)[3]
    waiting = observed_ledger("t", native(Phase.PENDING))
    assert waiting.last is None
    assert decided_steps(move, native(Phase.PENDING), waiting) == ()


def test_adopting_a_running_job_begins_with_one_attempt_on_its_nodes() -> None:
    ledger = observed_ledger("t", native())
    assert [(a.generation, a.nodes, a.running_at) for a in ledger.attempts] == [(1, ("a1", "a2"), 10.0)]


def test_a_healthy_repair_says_when_each_step_happens() -> None:
    steps = heal_steps(facts(), {"train": True, "77": False}, rung="reboot", modes=AUTO, limit=1)
    assert [(s.step, s.when) for s in steps] == [
        ("lease", "at once"),
        ("isolate", "at once"),
        ("evacuate", "at once"),
        ("reboot", "at once"),
        ("check", "at once"),
        ("return", "never"),
    ]
    assert "train: moved by the job's own runbook" in steps[2].text
    assert "77: not ours" in steps[2].text


def test_a_step_without_a_mode_waits_for_an_approval() -> None:
    steps = heal_steps(facts(), {}, rung="reboot", modes={}, limit=1)
    assert {s.step: s.mode for s in steps if s.mode} == dict.fromkeys(
        ("isolate", "reboot", "check", "return"), "propose"
    )
    assert {s.when for s in steps if s.mode} == {"after an approval"}


def test_a_full_limit_makes_the_repair_wait_but_its_own_lease_does_not_count() -> None:
    assert heal_steps(facts(), {}, rung="reboot", modes=AUTO, out=("a5",), limit=1)[0].when == "waits for room"
    assert heal_steps(facts(), {}, rung="reboot", modes=AUTO, out=("a1",), limit=1)[0].when == "at once"
    assert heal_steps(facts(), {}, rung="reboot", modes=AUTO, limit=0)[0].when == "waits for room"


def test_a_node_that_does_not_answer_is_fenced_by_power_first() -> None:
    silent = facts(responding=False, state=NodeState.DOWN)
    fence = [s for s in heal_steps(silent, {}, rung="reboot", modes=AUTO, limit=1) if s.step == "fence"]
    assert [(s.when, s.text) for s in fence] == [("after an approval", "power off a1; read it back as off")]


def test_a_foreign_drain_stays_its_owners() -> None:
    drained = facts(drained=True, reason="bad fan")
    steps = {s.step: s for s in heal_steps(drained, {}, rung="reboot", modes=AUTO, limit=1)}
    assert (steps["isolate"].when, "bad fan" in steps["isolate"].text) == ("asks a person first", True)
    assert steps["return"].when == "never"


def test_a_node_that_carries_our_mark_is_not_drained_again() -> None:
    ours = facts().model_copy(update={"op": "opaaaaa", "drained": True})
    steps = {s.step: s for s in heal_steps(ours, {}, rung="reboot", modes={}, limit=1)}
    assert steps["isolate"].when == "at once"
    assert "our mark gpu-runbooks:opaaaaa, which is taken over" in steps["isolate"].text


def test_what_a_person_must_repair_is_not_rebooted_unasked() -> None:
    steps = {s.step: s for s in heal_steps(facts(), {}, rung="person", modes=AUTO, limit=1)}
    assert steps["reboot"].when == "asks a person first"
    assert "reboot" not in [s.step for s in heal_steps(facts(), {}, rung="none", modes=AUTO, limit=1)]
