"""What a later submission of a job is as an object: its name, its marks, and what its containers are told."""

from typing import Any

import pytest
import yaml

from activities.backends.kubernetes import marks
from activities.backends.kubernetes.kinds.base import Release
from activities.backends.kubernetes.submit import manifest_for, object_name
from fleet.orders import CHECKPOINT_ENV, EPOCH_ENV, JobSpec

OWN = [
    {"name": EPOCH_ENV, "value": "7"},
    {"name": "ROOT", "valueFrom": {"x": 1}},
    {"name": "LAST", "value": "$(ROOT)"},
]
POD = {
    "spec": {
        "initContainers": [{"name": "first", "image": "i"}],
        "containers": [{"name": "rank", "image": "i", "env": OWN}, {"name": "side", "image": "i"}],
    }
}
SPECS: dict[str, tuple[str, Any]] = {
    "Job": ("batch/v1", {"parallelism": 2, "template": POD}),
    "JobSet": (
        "jobset.x-k8s.io/v1alpha2",
        {"replicatedJobs": [{"name": n, "template": {"spec": {"template": POD}}} for n in ("a", "b")]},
    ),
    "PyTorchJob": (
        "kubeflow.org/v1",
        {"pytorchReplicaSpecs": {role: {"template": POD} for role in ("Master", "Worker")}},
    ),
    "RayJob": (
        "ray.io/v1",
        {
            "rayClusterSpec": {
                "headGroupSpec": {"template": POD},
                "workerGroupSpecs": [{"groupName": "w", "replicas": 1, "template": POD}],
            }
        },
    ),
    "TrainJob": ("trainer.kubeflow.org/v1alpha1", {"runtimeRef": {"name": "torch"}, "trainer": {"env": OWN}}),
}


def spec(kind: str, epoch: int = 0, env: dict[str, str] | None = None, **metadata: Any) -> JobSpec:
    version, of_kind = SPECS[kind]
    # a copy without anchors, as a person writes it
    script = yaml.safe_dump({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": of_kind})
    return JobSpec(job="llm", name="llm", script=script, epoch=epoch, env=env or {})


def environments(made: Any, kind: Any) -> list[list[dict[str, Any]]]:
    """Of each container that runs a part of the job."""
    if made["kind"] == "TrainJob":
        return [made["spec"]["trainer"]["env"]]
    pods = [template["spec"] for template in kind.templates(made)]
    return [c["env"] for pod in pods for c in (*pod["initContainers"], *pod["containers"])]


def values(env: list[dict[str, Any]]) -> dict[str, Any]:
    assert len({one["name"] for one in env}) == len(env), "each once, or the last one would count"
    return {one["name"]: one.get("value") for one in env}


@pytest.mark.parametrize("name", SPECS)
def test_every_container_of_every_template_is_told_the_epoch_and_the_environment(name: str) -> None:
    kind, made = manifest_for(spec(name, 3, {"ROOT": "/ckpt/$(LAST)$HOME", "MORE": "1"}))
    told = [values(env) for env in environments(made, kind)]
    assert len(told) == {"Job": 3, "TrainJob": 1}.get(name, 6)
    for env in told:
        assert env[EPOCH_ENV] == "3"
        assert env["ROOT"] == "/ckpt/$$(LAST)$$HOME", "else the kubelet fills it in"
        assert env["MORE"] == "1"
    assert next(env["LAST"] for env in told if "LAST" in env) == "$(ROOT)"
    assert made["metadata"]["name"] == "llm-e3"
    assert made["metadata"]["annotations"][marks.EPOCH] == "3"


@pytest.mark.parametrize("name", SPECS)
def test_a_first_submission_names_no_epoch_and_lets_nobody_name_a_higher_one(name: str) -> None:
    kind, made = manifest_for(spec(name, annotations={marks.EPOCH: "9"}, labels={marks.EPOCH: "9"}))
    told = [values(env) for env in environments(made, kind)]
    assert {env.get(EPOCH_ENV) for env in told} <= {"0", None}
    assert made["metadata"]["name"] == "llm"
    assert marks.tokens_of(made["metadata"]["labels"], made["metadata"]["annotations"]).epoch == 0


@pytest.mark.parametrize("name", ["Job", "JobSet", "PyTorchJob", "RayJob", "TrainJob"])
def test_the_next_object_of_a_later_submission_keeps_its_epoch(name: str) -> None:
    kind, made = manifest_for(spec(name, 3))
    after = kind.successor(made, "llm-e3-g1", Release(generation=1, annotations={}))
    assert after["metadata"]["annotations"][marks.EPOCH] == "3"
    assert {values(env)[EPOCH_ENV] for env in environments(after, kind)} == {"3"}


def test_the_checkpoint_root_that_its_ranks_are_told_is_the_one_that_it_declares() -> None:
    declared = {f"{marks.TOKEN_PREFIX}checkpoint": "/east/llm"}
    for env, root in (({CHECKPOINT_ENV: "/west/llm"}, "/west/llm"), ({}, "/east/llm")):
        _, made = manifest_for(spec("Job", 1, env, annotations=declared))
        assert marks.tokens_of(made["metadata"]["labels"], made["metadata"]["annotations"]).checkpoint == root


def test_what_a_manifest_read_from_a_cluster_has_of_ours_is_not_the_new_objects() -> None:
    old = {marks.HELD: "true", marks.CANCELLED: "2026-11-30T12:00:00Z", marks.RESTARTS: "4", marks.FIRST_UID: "u"}
    _, made = manifest_for(spec("Job", 1, annotations={**old, "mine": "1"}, labels={marks.FIRST: "old", "team": "a"}))
    assert made["metadata"]["annotations"].keys() == {"mine", f"{marks.TOKEN_PREFIX}job", marks.KEY, marks.EPOCH}
    assert made["metadata"]["labels"].keys() == {"team", f"{marks.TOKEN_PREFIX}supervise"}


@pytest.mark.parametrize("longest", [24, 47, 56])
@pytest.mark.parametrize("key", ["llm", "Run.7", "k" * 60, "k" * 59 + "j"])
def test_each_submission_has_a_legal_name_of_its_own(key: str, longest: int) -> None:
    names = [object_name(key, longest, epoch) for epoch in (0, 1, 2, 10, 123_456)]
    assert len(set(names)) == len(names)
    assert all(len(name) <= longest for name in names)
    assert names == [object_name(key, longest, epoch) for epoch in (0, 1, 2, 10, 123_456)]
    assert object_name("k" * 60, longest, 1) != object_name("k" * 59 + "j", longest, 1)
