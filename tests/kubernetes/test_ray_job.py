"""What a RayJob says, which pods are its own, what it lets us change, and which ones are refused."""

from dataclasses import replace
from typing import Any

import pytest

from activities.backends.kubernetes import marks
from activities.backends.kubernetes.attempts import node_affinity
from activities.backends.kubernetes.jobview import JobObject, Owners, job_record
from activities.backends.kubernetes.kinds.base import Release, merged
from activities.backends.kubernetes.kinds.batch_job import BatchJob
from activities.backends.kubernetes.kinds.observed import OBSERVED
from activities.backends.kubernetes.kinds.ray_job import RayJob
from activities.backends.kubernetes.records import PodRecord
from activities.backends.kubernetes.submit import manifest_for
from fleet.errors import InvalidInputError
from fleet.model import NativeJob, Phase
from fleet.orders import RESTART_ENV, JobSpec
from tests.kubernetes.making import RESOURCE, Raw, a_pod, nodes

KIND = RayJob()


def a_template(gpus: int) -> Raw:
    return {"spec": {"containers": [{"name": "ray", "image": "i", "resources": {"limits": {RESOURCE: str(gpus)}}}]}}


def a_job(status: Raw | None = None, notes: Raw | None = None, **spec: Any) -> Raw:
    cluster = {
        "headGroupSpec": {"rayStartParams": {"a": "b"}, "template": a_template(0)},
        "workerGroupSpecs": [
            {"groupName": "one", "replicas": 2, "template": a_template(8)},
            {"groupName": "two", "minReplicas": 1, "numOfHosts": 2, "template": a_template(8)},
        ],
    }
    base = {"shutdownAfterJobFinishes": True, "submissionMode": "HTTPMode", "jobId": "j", "rayClusterSpec": cluster}
    meta = {"name": "llm", "namespace": "training", "uid": "uid-llm", "annotations": notes or {}}
    return {"metadata": meta, "spec": {**base, **spec}, "status": status or {}}


def pod(index: int, cluster: str = "llm-x7k2p", **about: Any) -> PodRecord:
    made = a_pod(index=index, **about)
    return made.model_copy(
        update={"labels": {"ray.io/cluster": cluster}, "owner_kind": "RayCluster", "rank": made.name}
    )


def seen(raw: Raw, *pods: PodRecord) -> NativeJob:
    return job_record("gamma", [JobObject(KIND, raw)], pods, nodes()).job


def test_its_pods_are_those_of_the_raycluster_that_it_made() -> None:
    assert KIND.object_of(pod(0)) == "llm"
    assert KIND.object_of(pod(0, "my-llm-g1-x7k2p")) == "my-llm-g1"
    assert KIND.object_of(pod(0, "llm")) == ""
    running = a_job({"jobDeploymentStatus": "Running", "rayClusterName": "llm-x7k2p"})
    assert KIND.is_of(pod(0), running)
    assert not KIND.is_of(pod(0, "llm-zzzzz"), running)
    assert KIND.is_of(pod(0), a_job({"jobDeploymentStatus": "Suspended", "rayClusterName": ""}))


def test_head_and_workers_are_counted() -> None:
    assert KIND.state(a_job()).wanted == 1 + 2 + 2


def test_suspended_is_said_while_its_ranks_still_run() -> None:
    stopped = a_job({"jobDeploymentStatus": "Suspended", "rayClusterName": ""}, suspend=True)
    assert seen(stopped, pod(0, deleted=True)).phase is Phase.STOPPING
    assert seen(stopped).phase is Phase.PENDING


@pytest.mark.parametrize(
    ("status", "phase"),
    [
        ({"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}, Phase.SUCCEEDED),
        ({"jobDeploymentStatus": "Complete", "jobStatus": "STOPPED"}, Phase.CANCELLED),
        ({"jobDeploymentStatus": "Failed", "reason": "AppFailed", "message": "boom"}, Phase.FAILED),
        ({"jobDeploymentStatus": "Failed", "reason": "DeadlineExceeded"}, Phase.TIMED_OUT),
        ({"jobDeploymentStatus": "ValidationFailed"}, Phase.FAILED),
        ({"jobDeploymentStatus": "Running", "jobStatus": "FAILED"}, None),
    ],
)
def test_its_end_is_what_its_deployment_says_and_not_what_the_dashboard_says(
    status: Raw, phase: Phase | None
) -> None:
    assert KIND.state(a_job(status)).ended is phase


@pytest.mark.parametrize(
    ("spec", "fix"),
    [
        ({"backoffLimit": 2}, "set spec.backoffLimit: 0 (is 2)"),
        ({"shutdownAfterJobFinishes": False}, "set spec.shutdownAfterJobFinishes: true"),
        ({"clusterSelector": {"ray.io/cluster": "shared"}}, "spec.rayClusterSpec"),
        ({"submissionMode": "InteractiveMode"}, "set spec.submissionMode: HTTPMode"),
        ({"managedBy": "kueue.x-k8s.io/multikueue"}, "hands off"),
    ],
)
def test_a_job_that_cannot_be_stopped_or_starts_itself_is_refused_with_the_field(spec: Raw, fix: str) -> None:
    assert KIND.refusal(a_job()) is None
    assert fix in (KIND.refusal(a_job(**spec)) or "")


def test_ranks_that_come_and_go_are_refused() -> None:
    raw = a_job()
    raw["spec"]["rayClusterSpec"]["enableInTreeAutoscaling"] = True
    assert "enableInTreeAutoscaling" in (KIND.refusal(raw) or "")


def test_a_release_places_head_and_workers_and_keeps_the_rest_of_the_groups() -> None:
    away = node_affinity(None, (), ("n1",))
    raw = a_job(suspend=True)
    after = merged(raw, KIND.release(raw, Release(generation=2, annotations={}, affinities=(away, away, away))))
    assert after["spec"]["suspend"] is False
    assert len(KIND.templates(after)) == 3
    for template in KIND.templates(after):
        assert template["metadata"]["annotations"] == {marks.GENERATION: "2"}
        assert template["spec"]["affinity"] == {"nodeAffinity": away}
    groups = after["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert [(g["groupName"], g.get("replicas")) for g in groups] == [("one", 2), ("two", None)]
    assert after["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParams"] == {"a": "b"}


def test_a_successor_is_suspended_numbered_and_gets_a_ray_job_id_of_its_own() -> None:
    old = a_job({"jobDeploymentStatus": "Failed"})
    made = KIND.successor(old, "llm-g1", Release(generation=1, annotations={}))
    assert (made["spec"]["suspend"], "jobId" in made["spec"]) == (True, False)
    assert JobObject(KIND, made).generation == 1
    assert old["spec"]["jobId"] == "j"
    assert "metadata" not in old["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]


def test_the_submitters_pod_is_the_ray_jobs_and_no_rank_of_it() -> None:
    ray = JobObject(KIND, a_job())
    owner = {"kind": "RayJob", "name": "llm", "controller": True}
    submitter = JobObject(
        BatchJob(), {"metadata": {"name": "llm", "namespace": "training", "ownerReferences": [owner]}}
    )
    owners, its_pod = Owners([ray, submitter]), a_pod("llm")
    assert owners.of(its_pod) is ray
    assert KIND.object_of(its_pod) == ""
    record = replace(job_record("gamma", [ray], [pod(1)], nodes()), helpers=(its_pod,))
    assert record.attempt(0) == [pod(1)], "it gets no signal, and nobody waits for its end"
    assert record.speakers(0) == [pod(1), its_pod], "what it prints is the job's output"
    assert record.speakers(1) == []


MANIFEST = """
apiVersion: ray.io/v1
kind: RayJob
metadata: {name: anything, namespace: training}
spec:
  rayClusterSpec:
    headGroupSpec: {template: {spec: {containers: [{name: ray, image: i}]}}}
    workerGroupSpecs: [{groupName: w, replicas: 1, template: {spec: {containers: [{name: ray, image: i}]}}}]
"""


def test_a_submit_fills_in_what_supervision_needs() -> None:
    kind, made = manifest_for(JobSpec(job="x" * 60, name="llm", script=MANIFEST, comment=""))
    assert kind.refusal(made) is None
    assert len(made["metadata"]["name"]) <= 47
    for template in KIND.templates(made):
        assert [e["name"] for e in template["spec"]["containers"][0]["env"]] == [RESTART_ENV]


@pytest.mark.parametrize("kind", OBSERVED, ids=lambda kind: kind.word)
def test_an_observed_kind_has_its_name_and_its_pods_and_is_never_adopted(kind: Any) -> None:
    raw = {"metadata": {"name": "other", "namespace": "training", "uid": "u"}}
    its = a_pod().model_copy(update={"labels": {kind.label: "other"}, "owner_kind": kind.api_kind})
    job = job_record("gamma", [JobObject(kind, raw)], [its], nodes()).job
    assert (job.native_id, job.phase, job.nodes) == (f"{kind.word}/training/other", Phase.RUNNING, ("n0",))
    assert not job.requeueable
    assert f"a {kind.api_kind} is only observed" in job.refusal
    assert Owners([JobObject(kind, raw)]).of(its) is not None
    with pytest.raises(InvalidInputError, match="only observed"):
        kind.fill_in(raw)
