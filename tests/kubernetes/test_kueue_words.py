"""What is read from a Workload of Kueue, and written to one."""

import copy
from typing import Any

import pytest

from activities.backends.kubernetes import kueue, marks
from activities.backends.kubernetes.attempts import started_already
from activities.backends.kubernetes.jobs import successor
from activities.backends.kubernetes.jobview import JobObject, JobRecord, job_record
from activities.backends.kubernetes.kinds.base import Release, gates_of
from activities.backends.kubernetes.kinds.batch_job import BatchJob
from fleet.errors import RefusedError, TemporaryError
from fleet.model import NativeJob, Phase
from fleet.orders import StartOrder
from tests.kubernetes.making import Raw, a_job, a_pod, ended, nodes


def a_workload(*, active: bool = True, quota: bool = True, **about: Any) -> Raw:
    template = {"metadata": {"labels": {"app": "llm"}}, "spec": {"containers": []}}
    condition = {"type": "QuotaReserved", "status": str(quota), "reason": "Pending", "message": "no quota in gpu"}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "metadata": {
            "name": "job-llm-1",
            "namespace": "training",
            "labels": {"kueue.x-k8s.io/job-uid": "uid-llm"},
            "annotations": about.get("notes", {}),
            "creationTimestamp": "2026-11-30T12:00:00Z",
        },
        "spec": {"active": active, "queueName": "gpus", "podSets": [{"name": "main", "template": template}]},
        "status": {"conditions": [condition]},
    }


def seen(job: Raw, workload: Raw | None, *pods: Any) -> NativeJob:
    job["metadata"]["labels"][kueue.QUEUE] = "gpus"
    return job_record("gamma", [JobObject(BatchJob(), job, workload)], pods, nodes()).job


def test_a_job_that_waits_in_its_queue_is_not_held_by_its_suspend() -> None:
    job = seen(a_job(suspend=True), a_workload(quota=False))
    assert (job.phase, job.held, job.reason) == (Phase.PENDING, False, "in queue gpus: Pending no quota in gpu")


def test_a_job_is_stopped_by_its_workload_and_only_when_kueue_has_suspended_it() -> None:
    notes = {marks.HELD: "true", marks.RAN: "0"}
    over = a_pod(phase="Failed", state=ended(143))
    waits = seen(a_job(suspend=True, notes=notes), a_workload(active=False, quota=False), over)
    assert (waits.phase, waits.held, waits.restarts) == (Phase.PENDING, True, 1)
    not_yet = seen(a_job(notes=notes), a_workload(active=False), over)
    assert not_yet.phase is Phase.STOPPING


def test_a_preemption_is_no_end_of_an_attempt() -> None:
    job = seen(a_job(suspend=True, notes={marks.HELD: "true", marks.RAN: "0"}), a_workload(quota=False))
    assert (job.phase, job.held, job.restarts) == (Phase.PENDING, False, 0)


def test_a_start_that_kueue_carries_out_between_two_reads_was_carried_out() -> None:
    notes = {marks.HELD: "true", marks.RAN: "0", marks.RESTARTS: "1"}
    order = StartOrder(native_id="job/training/llm", restarts=1)

    def between(generation: str, *, active: bool) -> JobRecord:
        job = a_job(suspend=True, notes=notes)
        job["metadata"]["labels"][kueue.QUEUE] = "gpus"
        job["spec"]["template"]["metadata"]["annotations"][marks.GENERATION] = generation
        pod = a_pod(generation=int(generation))
        return job_record("gamma", [JobObject(BatchJob(), job, a_workload(active=active))], [pod], nodes())

    assert started_already(between("1", active=True), order)
    for old in (between("0", active=True), between("0", active=False), between("1", active=False)):
        with pytest.raises(RefusedError):
            started_already(old, order)


def test_the_number_survives_a_crash_between_the_two_writes_of_a_stop() -> None:
    stopped = a_workload(active=False, notes={marks.RESTARTS: "4"})
    assert seen(a_job(suspend=True), stopped).restarts == 4


def test_a_job_in_a_queue_that_nobody_shows_us_is_refused_with_the_reason() -> None:
    ready = (a_pod(index=0), a_pod(index=1))
    assert "let us list workloads" in seen(a_job(), None, *ready).refusal
    assert seen(a_job(), a_workload(), *ready).refusal == ""


def test_the_copies_of_the_templates_are_changed_only_without_quota_and_once() -> None:
    stopped = a_workload(active=False, quota=False)
    patch = kueue.next_attempt(stopped, 2, gated=True)
    assert patch is not None
    template = patch["spec"]["podSets"][0]["template"]
    assert template["metadata"] == {"labels": {"app": "llm"}, "annotations": {marks.GENERATION: "2"}}
    assert gates_of(template) == [marks.GATE]
    done = {**stopped, "spec": {**stopped["spec"], **patch["spec"]}}
    assert kueue.next_attempt(done, 2, gated=True) is None
    with pytest.raises(TemporaryError, match="still counts its pods"):
        kueue.next_attempt(a_workload(active=False), 2, gated=False)
    assert kueue.next_attempt(a_workload(), 2, gated=False) is None


def test_a_successor_has_nothing_of_an_admission_and_enters_its_queue_later() -> None:
    old = a_job(notes={})
    old["metadata"]["labels"][kueue.QUEUE] = "gpus"
    template = old["spec"]["template"]
    template["metadata"]["labels"] |= {"kueue.x-k8s.io/podset": "main", "kueue.x-k8s.io/cluster-queue-name": "a"}
    template["spec"]["nodeSelector"] = {"flavor": "a"}
    order = Release(generation=1, annotations={})
    before = copy.deepcopy(old)
    for workload in (a_workload(), None):
        made = successor(JobObject(BatchJob(), old, workload), "llm-g1", order)
        assert kueue.QUEUE not in made["metadata"]["labels"]
        assert made["metadata"]["annotations"][marks.QUEUE] == "gpus"
        assert made["spec"]["template"]["metadata"]["labels"] == {"app": "llm"}
        assert ("nodeSelector" in made["spec"]["template"]["spec"]) is (workload is None)
    assert old == before


def test_a_workload_is_written_where_it_was_read_and_the_newest_counts() -> None:
    assert kueue.path_of(a_workload()) == "/apis/kueue.x-k8s.io/v1beta2/namespaces/training/workloads/job-llm-1"
    older = a_workload()
    older["metadata"] |= {"creationTimestamp": "2026-11-30T11:00:00Z", "name": "older"}
    assert kueue.by_owner([a_workload(), older])["uid-llm"]["metadata"]["name"] == "job-llm-1"
