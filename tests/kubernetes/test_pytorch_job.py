"""What a PyTorchJob says, what it lets us change, and which ones are refused."""

from typing import Any

import pytest

from activities.backends.kubernetes import marks
from activities.backends.kubernetes.attempts import node_affinity
from activities.backends.kubernetes.jobview import JobObject, job_record
from activities.backends.kubernetes.kinds.base import Release, merged
from activities.backends.kubernetes.kinds.pytorch_job import PyTorchJob
from activities.backends.kubernetes.records import PodRecord
from activities.backends.kubernetes.submit import manifest_for
from fleet.model import NativeJob, Phase
from fleet.orders import RESTART_ENV, JobSpec
from tests.kubernetes.making import RESOURCE, Raw, a_pod, ended, nodes

KIND = PyTorchJob()


def a_role(replicas: int = 1) -> Raw:
    rank = {"name": "pytorch", "image": "i", "resources": {"limits": {RESOURCE: "8"}}}
    return {"replicas": replicas, "restartPolicy": "Never", "template": {"spec": {"containers": [rank]}}}


def a_job(notes: Raw | None = None, *conditions: Raw, **policy: Any) -> Raw:
    return {
        "metadata": {"name": "llm", "namespace": "training", "uid": "uid-llm", "annotations": notes or {}},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "None", **policy},
            "pytorchReplicaSpecs": {"Worker": a_role(), "Master": a_role()},
        },
        "status": {"startTime": "2026-11-30T12:00:01Z", "conditions": list(conditions)},
    }


def true(kind: str, message: str = "") -> Raw:
    return {"type": kind, "status": "True", "reason": f"PyTorchJob{kind}", "message": message}


def pod(index: int, **about: Any) -> PodRecord:
    return a_pod(index=index, **about).model_copy(update={"owner_kind": "PyTorchJob", "rank": f"worker/{index}"})


def seen(raw: Raw, *pods: PodRecord, lost: tuple[str, ...] = ()) -> NativeJob:
    return job_record("gamma", [JobObject(KIND, raw)], pods, nodes(*lost)).job


def test_it_runs_when_master_and_worker_have_started() -> None:
    assert seen(a_job(), pod(0)).phase is Phase.PENDING
    job = seen(a_job(), pod(0), pod(1))
    assert (job.phase, job.native_id, job.nodes_wanted) == (Phase.RUNNING, "pytorchjob/training/llm", 2)


def test_failed_says_nothing_of_the_ranks_that_live_on() -> None:
    """PC-K08: the worker was evicted, the job failed in the same moment, and every rank still runs."""
    evicted = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    job = seen(a_job({}, true("Failed")), pod(0), pod(1, deleted=True, conditions=[evicted]))
    assert (job.phase, job.nodes) == (Phase.FAILED, ("n0", "n1"))
    assert job.reason == "EvictionByEvictionAPI (PyTorchJob)"


def test_a_master_that_ends_with_0_because_it_was_evicted_is_no_success() -> None:
    evicted = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    over = pod(0, phase="Succeeded", state={"terminated": {"exitCode": 0}}, conditions=[evicted])
    assert seen(a_job({}, true("Succeeded")), over, pod(1)).phase is Phase.FAILED
    done = pod(0, phase="Succeeded", state={"terminated": {"exitCode": 0}})
    assert seen(a_job({}, true("Succeeded")), done, pod(1)).phase is Phase.SUCCEEDED


def test_suspended_is_stopped_only_when_the_kubelets_have_spoken() -> None:
    """It says Suspended at once, with all counts at 0, while the ranks run on for their grace."""
    stopped = a_job({}, true("Suspended"), suspend=True)
    assert seen(stopped, pod(0, deleted=True)).phase is Phase.STOPPING
    over = seen(stopped, pod(0, deleted=True, phase="Failed", state=ended(143)))
    assert (over.phase, over.restarts) == (Phase.PENDING, 1)
    never = a_job(suspend=True)
    never["status"] = {}
    assert seen(never).restarts == 0


def test_a_deadline_is_told_apart_from_a_failure() -> None:
    late = true("Failed", "Job llm has failed because it was active longer than specified deadline")
    assert KIND.state(a_job({}, late)).ended is Phase.TIMED_OUT


@pytest.mark.parametrize(
    ("policy", "spec", "fix"),
    [
        ({"cleanPodPolicy": "All"}, {}, "cleanPodPolicy: Running (is All)"),
        ({"backoffLimit": 0}, {}, "take spec.runPolicy.backoffLimit away"),
        ({"managedBy": "kueue.x-k8s.io/multikueue"}, {}, "hands off"),
        ({}, {"elasticPolicy": {"maxReplicas": 4}}, "take spec.elasticPolicy away"),
    ],
)
def test_a_job_whose_controller_acts_by_itself_is_refused_with_the_field(policy: Raw, spec: Raw, fix: str) -> None:
    raw = a_job(**policy)
    raw["spec"] |= spec
    assert fix in (KIND.refusal(raw) or "")


@pytest.mark.parametrize("policy", ["OnFailure", "ExitCode", "Always", None])
def test_only_ranks_that_nobody_restarts_are_taken(policy: str | None) -> None:
    """PC-K06: with ExitCode and code 1 it is called Restarting for ever, and no pod is made."""
    raw = a_job()
    assert KIND.refusal(raw) is None
    raw["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = policy
    if policy is None:
        del raw["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"]
    wanted = f"set spec.pytorchReplicaSpecs.Worker.restartPolicy: Never (is {policy or 'OnFailure'})"
    assert wanted in (KIND.refusal(raw) or "")


def test_a_release_places_both_roles_and_numbers_them() -> None:
    away = node_affinity(None, (), ("n1",))
    patch = KIND.release(a_job(suspend=True), Release(generation=2, annotations={}, affinities=(away, away)))
    after = merged(a_job(suspend=True), patch)
    assert after["spec"]["runPolicy"] == {"cleanPodPolicy": "None", "suspend": False}
    for template in KIND.templates(after):
        assert template["metadata"]["annotations"] == {marks.GENERATION: "2"}
        assert template["spec"]["affinity"] == {"nodeAffinity": away}
        assert template["spec"]["containers"][0]["name"] == "pytorch"
    back = KIND.release(after, Release(generation=3, annotations={}, affinities=(None, None)))
    assert all("affinity" not in t["spec"] for t in KIND.templates(merged(after, back)))


def test_a_job_in_a_queue_is_changed_and_left_suspended() -> None:
    patch = KIND.release(a_job(suspend=True), Release(generation=2, annotations={}, suspended=True))
    assert "runPolicy" not in patch["spec"]


def test_a_successor_is_suspended_and_numbered() -> None:
    made = KIND.successor(a_job({"a": "b"}, true("Failed")), "llm-g1", Release(generation=1, annotations={}))
    assert made["spec"]["runPolicy"]["suspend"] is True
    assert made["metadata"]["labels"][marks.FIRST] == "llm"
    assert JobObject(KIND, made).generation == 1
    assert "status" not in made


MANIFEST = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: anything, namespace: training}
spec:
  pytorchReplicaSpecs:
    Master: {template: {spec: {containers: [{name: pytorch, image: i}]}}}
    Worker: {replicas: 3, template: {spec: {containers: [{name: pytorch, image: i}]}}}
"""


def test_a_submit_fills_in_what_supervision_needs() -> None:
    kind, made = manifest_for(JobSpec(job="x" * 60, name="llm", script=MANIFEST, comment=""))
    assert kind.refusal(made) is None
    assert len(made["metadata"]["name"]) <= 51
    assert KIND.state(made).wanted == 4
    for template in KIND.templates(made):
        assert [e["name"] for e in template["spec"]["containers"][0]["env"]] == [RESTART_ENV]
        assert template["metadata"]["annotations"] == {marks.GENERATION: "0"}
