"""What a batch Job lets us change, and which ones are refused."""

import copy
from typing import Any

import pytest

from activities.backends.kubernetes import marks
from activities.backends.kubernetes.attempts import node_affinity
from activities.backends.kubernetes.jobs import successor_name
from activities.backends.kubernetes.kinds.base import LONGEST_NAME, Release
from activities.backends.kubernetes.kinds.batch_job import BatchJob
from activities.backends.kubernetes.submit import manifest_for, object_name
from fleet.errors import InvalidInputError
from fleet.orders import RESTART_ENV, JobSpec
from tests.kubernetes.making import a_job

KIND = BatchJob()
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({"backoffLimit": 6}, "set spec.backoffLimit: 0 (is 6)"),
        ({"podReplacementPolicy": "TerminatingOrFailed"}, "set spec.podReplacementPolicy: Failed"),
        ({"completionMode": "NonIndexed"}, "set spec.completionMode: Indexed"),
        ({"completions": 4}, "set spec.completions and spec.parallelism to the same number"),
        ({"managedBy": "kueue.x-k8s.io/multikueue"}, "hands off"),
    ],
)
def test_a_job_whose_controller_could_start_a_copy_is_refused_with_the_field(changes: Any, fix: str) -> None:
    assert fix in (KIND.refusal(a_job(**changes)) or "")


def test_a_restarting_kubelet_and_an_owner_are_refused_and_the_rest_is_not() -> None:
    assert KIND.refusal(a_job()) is None
    again, owned = a_job(), a_job()
    again["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    owned["metadata"]["ownerReferences"] = [{"kind": "JobSet", "name": "set", "controller": True}]
    assert "restartPolicy: Never" in (KIND.refusal(again) or "")
    assert "the JobSet set" in (KIND.refusal(owned) or "")


def test_a_successor_is_a_new_suspended_object_without_the_old_ones_identity() -> None:
    old = a_job(notes={"gpu-runbooks.io/job": "llm", "kubectl.kubernetes.io/last-applied-configuration": "{}"})
    before = copy.deepcopy(old)
    order = Release(generation=2, annotations={marks.RESTARTS: "2", marks.REQUIRED: None})

    made = KIND.successor(old, "llm-g2", order)

    assert old == before
    assert made["metadata"]["name"] == "llm-g2"
    assert made["metadata"]["labels"][marks.FIRST] == "llm"
    assert made["metadata"]["annotations"] == {"gpu-runbooks.io/job": "llm", marks.RESTARTS: "2"}
    assert made["spec"]["suspend"] is True
    assert "selector" not in made["spec"]
    template = made["spec"]["template"]["metadata"]
    assert template == {"labels": {"app": "llm"}, "annotations": {marks.GENERATION: "2"}}
    assert "uid" not in made["metadata"]


def test_a_successor_of_a_successor_keeps_the_first_ones_name() -> None:
    order = Release(generation=1, annotations={})
    second = KIND.successor(a_job(), "llm-g1", order)
    second["metadata"] |= {"uid": "u2"}
    third = KIND.successor(second, "llm-g2", order)
    assert third["metadata"]["labels"][marks.FIRST] == "llm"


@pytest.mark.parametrize("length", [5, LONGEST_NAME, 63])
def test_a_successors_name_is_legal_and_its_own(length: int) -> None:
    names = {successor_name("a" * length, n, LONGEST_NAME) for n in (1, 2, 10)} | {
        successor_name("a" * (length - 1) + "b", 1, LONGEST_NAME)
    }
    assert len(names) == 4
    assert all(len(name) <= LONGEST_NAME for name in names)


def test_nodes_that_are_avoided_or_required_narrow_the_owners_own_terms() -> None:
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    own = {REQUIRED: {"nodeSelectorTerms": [zone]}, "preferred": [1]}
    made = node_affinity(own, ("n1", "n2"), ("bad",))
    assert made is not None
    assert made["preferred"] == [1]
    terms: Any = made[REQUIRED]
    assert [[f["operator"] + f["values"][0] for f in t["matchFields"]] for t in terms["nodeSelectorTerms"]] == [
        ["Inn1", "NotInbad"],
        ["Inn2", "NotInbad"],
    ]
    assert all(t["matchExpressions"] == zone["matchExpressions"] for t in terms["nodeSelectorTerms"])
    assert own == {REQUIRED: {"nodeSelectorTerms": [zone]}, "preferred": [1]}
    assert node_affinity(own, (), ()) == own
    assert node_affinity(None, (), ()) is None


def test_a_release_takes_our_affinity_away_again_and_leaves_the_owners_other_rules() -> None:
    raw = a_job()
    ours = node_affinity(None, ("n1",), ())
    raw["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": ours, "podAffinity": {"x": 1}}
    patch = KIND.release(raw, Release(generation=1, annotations={}))
    affinity = patch["spec"]["template"]["spec"]["affinity"]
    assert affinity["nodeAffinity"] is None
    assert affinity["podAffinity"] == {"x": 1}
    assert patch["spec"]["suspend"] is False


# -- submit


def spec(script: str, job: str = "llm") -> JobSpec:
    return JobSpec(job=job, name="llm", script=script, comment="gpu-runbooks.io/total-steps=5 words of mine")


MANIFEST = """
apiVersion: batch/v1
kind: Job
metadata: {name: anything, namespace: training}
spec:
  parallelism: 2
  template: {spec: {containers: [{name: rank, image: i}]}}
"""


def test_a_submit_fills_in_what_supervision_needs() -> None:
    kind, made = manifest_for(spec(MANIFEST))
    assert kind.refusal(made) is None
    assert made["metadata"]["name"] == "llm"
    assert made["metadata"]["annotations"] == {
        "gpu-runbooks.io/total-steps": "5",
        "gpu-runbooks.io/job": "llm",
        marks.KEY: "llm",
    }
    env = made["spec"]["template"]["spec"]["containers"][0]["env"]
    assert [e["name"] for e in env] == [RESTART_ENV]
    assert made["spec"]["template"]["metadata"]["annotations"] == {marks.GENERATION: "0"}


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("no manifest", "one object"),
        ("a: [", "no YAML"),
        ("apiVersion: v1\nkind: Pod\n", "a v1 Pod is not known"),
        ("apiVersion: batch/v1\nkind: Job\n", "metadata and spec"),
        (MANIFEST.replace("parallelism: 2", "parallelism: 2\n  backoffLimit: 6"), "backoffLimit: 0"),
    ],
)
def test_a_submit_that_could_never_be_supervised_is_refused_before_it_exists(script: str, why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        manifest_for(spec(script))


def test_different_keys_have_different_legal_names() -> None:
    keys = ["llm", "LLM", "l.l.m", "llm-", "7b", "a" * 100, "a" * 99, "x_y", "x-y"]
    names = [object_name(key) for key in keys]
    assert len(set(names)) == len(keys)
    assert all(len(n) <= LONGEST_NAME and n[0].isalpha() and n == n.lower() for n in names)
