"""A move to another cluster: when the ladder takes that rung, who may say so, and what is submitted there."""

import pytest

from fleet.decision import Action, Decision
from fleet.faults.evidence import FaultClass, Verdict
from fleet.ladder import CLUSTER_IS_GONE, next_step, unusable
from fleet.ledger import Ledger, Rung
from fleet.model import JobTokens, NativeJob, Phase
from fleet.placement import Request
from fleet.placing import ClusterWords, PlaceWish
from fleet.policy import Policy
from fleet.policy_file import parse_policy
from fleet.transfer import Moves, moved_wish, moves_of, other_clusters, wish_of_native
from tests.fleet.make import attempt, decision_input, ledger, verdict

FLEET = """\
version: 1
clusters:
  alpha: {kind: sim, path: x, site: east}
  beta: {kind: sim, path: x, site: west}
  gamma: {kind: sim, path: x}
  delta: {kind: kubernetes, in_cluster: true, site: west}
sites: {east: {mount: /east}, west: {mount: /west}}
modes: {failover_across_clusters: auto, failover_in_cluster: auto}
"""
CAN = Moves(checkpoint="/east/train")
ACROSS = Action.FAILOVER_ACROSS_CLUSTERS


def fleet(more: str = "") -> Policy:
    return parse_policy(FLEET + more, "fleet.yaml")


def book(*rungs: Rung) -> Ledger:
    made = [attempt(1, start=0, end=3600)]
    made += [attempt(n, rung, start=3600, end=7200, cause="r1") for n, rung in enumerate(rungs, 2)]
    return ledger(*made)


def decide(what: Verdict, kept: Ledger, *, moves: Moves | None = CAN, more: str = "", **rest: object) -> Decision:
    return next_step(decision_input(what, kept, at=100_000, moves=moves, **rest), fleet(more))  # type: ignore[arg-type]


SICK = verdict(FaultClass.HARDWARE, node="alpha1")


def test_a_cluster_that_cannot_hold_the_job_is_left() -> None:
    found = decide(SICK, book(), free_nodes=1, opted_in=True)

    assert (found.action, found.mode) == (ACROSS, "auto")
    assert "needs 2 nodes and alpha has 1" in found.why


def test_one_that_can_hold_it_is_not_left() -> None:
    assert decide(SICK, book(), free_nodes=2, opted_in=True).action is Action.FAILOVER_IN_CLUSTER


def test_when_the_tries_in_the_cluster_are_spent_it_goes_elsewhere_once() -> None:
    spent = (Rung.IN_CLUSTER, Rung.IN_CLUSTER)

    assert decide(SICK, book(*spent), free_nodes=9, opted_in=True).action is ACROSS
    assert decide(SICK, book(*spent, Rung.ACROSS_CLUSTERS), free_nodes=9, opted_in=True).action is Action.ASK


def test_a_job_that_did_not_opt_in_is_asked_about_whatever_the_mode_says() -> None:
    assert decide(SICK, book(), free_nodes=1).mode == "approve"
    assert decide(SICK, book(), free_nodes=1, more="limits: {across_tries: 0}").action is Action.ASK


@pytest.mark.parametrize(
    "moves",
    [
        None,
        Moves(checkpoint=None),
        Moves(checkpoint="/elsewhere/train"),
        Moves(checkpoint="/east/train", own={"beta": "/east/train"}, clusters=("beta",)),
        Moves(checkpoint="/east/train", clusters=("gamma",)),
        Moves(checkpoint="/east/train", kinds=("slurm",)),
    ],
    ids=[
        "nobody asked",
        "no checkpoint",
        "not on the site",
        "its own root not on the site",
        "a cluster without storage",
        "no template",
    ],
)
def test_without_another_cluster_a_person_is_asked(moves: Moves | None) -> None:
    assert decide(SICK, book(), moves=moves, free_nodes=1, opted_in=True).action is Action.ASK


def test_a_lost_cluster_leaves_no_other_rung() -> None:
    lost = verdict(FaultClass.HARDWARE, rule=CLUSTER_IS_GONE)

    assert decide(lost, book(), opted_in=True).action is ACROSS
    assert decide(lost, book(), moves=None).action is Action.ASK


@pytest.mark.parametrize("fault", [FaultClass.TRANSIENT, FaultClass.UNKNOWN, FaultClass.USER])
def test_what_is_not_proven_to_be_the_clusters_fault_is_not_moved_across_by_itself(fault: FaultClass) -> None:
    for free in (0, 1, 9):
        assert decide(verdict(fault), book(Rung.IN_PLACE), free_nodes=free, opted_in=True).action is not ACROSS


def test_a_person_may_order_it_within_the_budget() -> None:
    order = verdict(FaultClass.UNKNOWN, rule="order")

    assert decide(order, book(), want=ACROSS, free_nodes=9).action is ACROSS
    assert decide(order, book(), want=ACROSS, moves=None).action is Action.ASK
    assert decide(order, book(), want=ACROSS, more="limits: {across_tries: 0}").action is Action.ASK


def test_a_bad_node_of_the_cluster_that_was_left_rules_out_nobody_in_the_new_one() -> None:
    kept = ledger(
        attempt(1, start=0, end=10, verdict=SICK),
        attempt(2, Rung.ACROSS_CLUSTERS, start=20).model_copy(update={"cluster": "beta"}),
    )

    assert unusable(kept, verdict(FaultClass.HARDWARE)) == ()
    assert unusable(ledger(*kept.attempts[:1]), verdict(FaultClass.HARDWARE)) == ("alpha1",)


def test_clusters_that_come_into_question_have_a_template_and_a_way_for_the_checkpoint() -> None:
    assert other_clusters(fleet(), "alpha", CAN) == ("beta",)
    assert other_clusters(fleet(), "alpha", Moves(checkpoint="/east/t", kinds=("sim", "kubernetes"))) == (
        "beta",
        "delta",
    )
    assert other_clusters(fleet(), "alpha", Moves(checkpoint="/east/t", clusters=("alpha",))) == ()
    assert other_clusters(fleet(), "alpha", Moves(checkpoint="/east/../west/t")) == ()


def test_what_is_submitted_names_its_new_root_its_epoch_and_no_other_cluster() -> None:
    wish = PlaceWish(
        request=Request(job="train", nodes=2, gpus_per_node=8),
        name="train",
        templates={"sim": "#!/bin/sh\n"},
        clusters={"alpha": ClusterWords(options=("a",)), "beta": ClusterWords(options=("b",))},
        comment="gpu-runbooks.io/supervise gpu-runbooks.io/checkpoint=/east/train mine",
        env={"MINE": "1"},
    )

    spec = moved_wish(wish, "beta", 3, "/west/train").spec("beta", "sim")

    assert (spec.epoch, spec.env) == (3, {"MINE": "1", "GPU_RUNBOOKS_CHECKPOINT": "/west/train"})
    assert spec.comment == "gpu-runbooks.io/supervise mine gpu-runbooks.io/checkpoint=/west/train"
    assert spec.options == ("--nodes=2", "b")
    assert moved_wish(wish, "beta", 3, "/w").stays_away("alpha", "sim")


def test_a_job_made_for_one_cluster_keeps_what_it_declared() -> None:
    tokens = JobTokens(
        supervise=True,
        transfer=True,
        checkpoint="/east/t",
        checkpoint_signal="USR1",
        total_steps=9,
        generation_check=True,
    )
    native = NativeJob(
        cluster="alpha",
        native_id="7",
        name="mine.train",
        user="ada",
        phase=Phase.RUNNING,
        nodes_wanted=2,
        tokens=tokens,
    )
    native = native.model_copy(update={"gpus_per_node": 8})

    wish = wish_of_native("train", native, "slurm", "#!/bin/sh\n")

    assert (wish.name, wish.user, wish.request.nodes) == ("mine", "ada", 2)
    spec = wish.spec("beta", "slurm")
    assert spec.options == ("--gres=gpu:8", "--nodes=2")
    assert {w.removeprefix("gpu-runbooks.io/") for w in spec.comment.split()} == {
        "supervise",
        "transfer",
        "checkpoint=/east/t",
        "checkpoint-signal=USR1",
        "total-steps=9",
        "generation-check=yes",
    }
    assert moves_of(None, native) == Moves(checkpoint="/east/t")
