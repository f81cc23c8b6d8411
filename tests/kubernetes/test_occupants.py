"""Who is waited for on a node, and as what: pods in, occupants out."""

import time
from typing import Any

import pytest

from activities.backends.kubernetes.evacuate import LATE, Seen, budgets, hold_of, occupants_of
from activities.backends.kubernetes.jobview import job_record
from activities.backends.kubernetes.records import MIRROR, PodRecord
from fleet.evacuation import Hold, force_step
from fleet.model import NodeFacts, NodeState
from tests.kubernetes.making import a_job, a_pod, an_object, ended, nodes

NODE = NodeFacts(cluster="gamma", node="n0", state=NodeState.DRAINING)


def pod(**changes: Any) -> PodRecord:
    """A pod of a ReplicaSet without GPUs, on n0."""
    base: dict[str, Any] = {"owner_kind": "ReplicaSet", "owner_name": "web", "gpus": 0, "labels": {}}
    return a_pod().model_copy(update=base | changes)


def seen(*pods: PodRecord) -> Seen:
    return Seen(NODE, pods, {})


@pytest.mark.parametrize(
    ("changes", "hold"),
    [
        ({}, Hold.MOVABLE),
        ({"owner_kind": "StatefulSet"}, Hold.MOVABLE),
        ({"gpus": 8}, Hold.WORK),
        ({"owner_kind": "StatefulSet", "labels": {"leaderworkerset.sigs.k8s.io/name": "llm"}}, Hold.WORK),
        ({"owner_kind": "Job"}, Hold.WORK),
        ({"owner_kind": "RayCluster"}, Hold.WORK),
        ({"owner_kind": "DaemonSet", "gpus": 1}, Hold.WORK),
        ({"owner_kind": "", "owner_uid": ""}, Hold.UNMANAGED),
        ({"owner_kind": "", "owner_uid": "", "gpus": 8}, Hold.UNMANAGED),
        ({"owner_kind": "", "owner_uid": "", "gpus": 8, "name": "gpu-runbooks-check-opaaaaa-n0"}, Hold.MOVABLE),
        ({"deleted": True, "deleted_at": 1000.0 - LATE}, Hold.LEAVING),
        ({"deleted": True, "deleted_at": 999.0 - LATE}, Hold.STUCK),
        ({"deleted": True, "deleted_at": 0.0, "finalizers": ("example.com/hold",)}, Hold.STUCK),
        ({"deleted": True, "running": False, "phase": "Failed", "finalizers": ("example.com/hold",)}, Hold.KEPT),
        ({"deleted": True, "deleted_at": 999.0, "running": False, "phase": "Failed"}, Hold.LEAVING),
    ],
)
def test_what_keeps_a_pod_on_the_node(changes: dict[str, Any], hold: Hold) -> None:
    assert hold_of(pod(**changes), 1000.0) is hold


@pytest.mark.parametrize(
    "changes",
    [
        {"owner_kind": "DaemonSet"},
        {"mirror": True, "gpus": 8},
        {"phase": "Succeeded", "running": False},
    ],
)
def test_what_belongs_to_the_node_or_has_ended_is_not_waited_for(changes: dict[str, Any]) -> None:
    assert occupants_of(seen(pod(**changes)), {}) == ()


def test_a_static_pods_mirror_is_known_by_its_annotation() -> None:
    assert MIRROR == "kubernetes.io/config.mirror"
    assert not a_pod().mirror


def test_a_job_that_asked_for_a_runbook_and_cannot_have_one_is_like_any_other() -> None:
    mine, theirs = a_pod("llm"), a_pod("loose").model_copy(update={"node": "n0"})
    records = {
        mine.uid: job_record("gamma", [an_object(a_job("llm"))], [mine], nodes()).job,
        theirs.uid: job_record("gamma", [an_object(a_job("loose", backoffLimit=6))], [theirs], nodes()).job,
    }
    assert records[theirs.uid].refusal
    (left,) = occupants_of(Seen(NODE, (mine, theirs), records), {})
    assert (left.holder, left.hold) == (records[theirs.uid].native_id, Hold.WORK)


def test_a_refused_eviction_names_the_budget_until_the_pod_goes_all_the_same() -> None:
    stays = pod()
    (there,) = occupants_of(seen(stays), {stays.uid: "budget web-stays allows none"})
    assert (there.hold, there.why) == (Hold.PROTECTED, "budget web-stays allows none")
    goes = stays.model_copy(update={"deleted": True, "deleted_at": time.time() + 5})
    (leaving,) = occupants_of(seen(goes), {stays.uid: "budget web-stays allows none"})
    assert leaving.hold is Hold.LEAVING


def test_only_a_disruption_budget_is_read_as_one() -> None:
    cause = {"reason": "DisruptionBudget", "message": "The disruption budget web needs 1 healthy pods and has 1"}
    assert budgets({"details": {"causes": [cause]}}) == cause["message"]
    assert budgets({"details": {"retryAfterSeconds": 1}}) == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"owner_kind": "", "owner_uid": ""}, "delete pod/training/llm-0-abcde (no controller)"),
        ({"deleted": True, "running": False, "phase": "Failed", "finalizers": ("x/y",)}, "its finalizer is left"),
        ({"deleted": True}, "power off n0 under"),
        ({"deleted": True, "deleted_at": 4e9}, ""),
    ],
)
def test_an_approval_says_of_each_what_it_does(changes: dict[str, Any], words: str) -> None:
    (there,) = occupants_of(seen(pod(**changes)), {})
    step = force_step(there, "n0")
    assert words in step
    assert bool(step) == bool(words)


def test_the_end_of_a_container_is_what_makes_a_kept_pod() -> None:
    kept = a_pod(state=ended(0), phase="Succeeded", deleted=True).model_copy(update={"finalizers": ("x/y",)})
    assert hold_of(kept, 0.0) is Hold.KEPT
