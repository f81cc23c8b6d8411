"""What a JobSet lets us change, and which ones are refused."""

import copy
from typing import Any

import pytest

from activities.backends.kubernetes import marks
from activities.backends.kubernetes.jobs import successor_name
from activities.backends.kubernetes.jobview import JobObject, Owners, job_record, outermost
from activities.backends.kubernetes.kinds.base import Release, gates_of
from activities.backends.kubernetes.kinds.batch_job import BatchJob
from activities.backends.kubernetes.kinds.jobset import JobSet
from activities.backends.kubernetes.records import PodRecord, pod_record
from activities.backends.kubernetes.submit import manifest_for
from fleet.model import Phase
from fleet.orders import RESTART_ENV, JobSpec
from tests.kubernetes.making import RESOURCE, Raw, a_job, ended, nodes

KIND = JobSet()


def a_jobset(name: str = "set", *, notes: Raw | None = None, job: Raw | None = None, **spec: Any) -> Raw:
    """A JobSet of two parts that may be supervised; `job` changes the second part's Job, `spec` its own spec."""
    parts = []
    for part, replicas in (("lead", 1), ("work", 2)):
        inner = copy.deepcopy(a_job()["spec"])
        inner.pop("selector")
        inner["template"]["metadata"] = {"labels": {"app": part}}
        inner |= {} if part == "lead" else job or {}
        parts.append({"name": part, "replicas": replicas, "template": {"spec": inner}})
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "namespace": "training",
            "uid": f"uid-{name}",
            "resourceVersion": "7",
            "creationTimestamp": "2026-11-30T12:00:00Z",
            "annotations": notes or {},
            "labels": {"gpu-runbooks.io/supervise": "true"},
        },
        "spec": {"network": {"enableDNSHostnames": True}, "replicatedJobs": parts, **spec},
        "status": {"restarts": 0},
    }


def a_pod(index: int = 0, jobset: str = "set", **about: Any) -> PodRecord:
    """A running pod of the part `work`, on `n<index>`."""
    labels = {
        "jobset.sigs.k8s.io/jobset-name": jobset,
        "jobset.sigs.k8s.io/jobset-uid": about.get("uid", f"uid-{jobset}"),
        "jobset.sigs.k8s.io/replicatedjob-name": about.get("part", "work"),
        "jobset.sigs.k8s.io/job-index": "0",
    }
    owner = {"kind": "Job", "name": f"{jobset}-work-0", "uid": "uid-inner", "controller": True}
    notes = {
        "batch.kubernetes.io/job-completion-index": str(index),
        marks.GENERATION: str(about.get("generation", 0)),
    }
    meta = {"name": f"{jobset}-work-0-{index}-x", "namespace": "training", "uid": f"pod-{index}", "labels": labels}
    if about.get("deleted"):
        meta["deletionTimestamp"] = "2026-11-30T12:30:00Z"
    state = about.get("state", {"running": {"startedAt": "2026-11-30T12:00:03Z"}})
    raw = {
        "metadata": {**meta, "annotations": notes, "ownerReferences": [owner]},
        "spec": {"nodeName": f"n{index}", "containers": [{"name": "rank"}]},
        "status": {
            "phase": about.get("phase", "Running"),
            "containerStatuses": [{"name": "rank", "state": state}],
        },
    }
    return pod_record(raw, RESOURCE)


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({"job": {"backoffLimit": 6}}, "set spec.replicatedJobs[1].template.spec.backoffLimit: 0 (is 6)"),
        (
            {"job": {"podReplacementPolicy": None}},
            "spec.replicatedJobs[1].template.spec.podReplacementPolicy: Failed",
        ),
        ({"job": {"completions": 5}}, "spec.replicatedJobs[1].template.spec.completions and"),
        ({"failurePolicy": {"maxRestarts": 3}}, "set spec.failurePolicy.maxRestarts: 0 (is 3)"),
        (
            {"failurePolicy": {"rules": [{"action": "RestartJobSet"}]}},
            "spec.failurePolicy.rules[0].action: FailJobSet",
        ),
        ({"volumeClaimPolicies": [{}]}, "take spec.volumeClaimPolicies away"),
        ({"managedBy": "kueue.x-k8s.io/multikueue"}, "its pods run in another cluster"),
    ],
)
def test_a_jobset_whose_controller_could_run_it_again_is_refused_with_the_field(changes: Any, fix: str) -> None:
    assert fix in (KIND.refusal(a_jobset(**changes)) or "")


def test_one_that_does_nothing_by_itself_is_not_refused_and_what_is_not_set_is_told() -> None:
    assert KIND.refusal(a_jobset(failurePolicy={"maxRestarts": 0})) is None
    left_out = a_jobset()
    del left_out["spec"]["replicatedJobs"][0]["template"]["spec"]["backoffLimit"]
    assert "spec.replicatedJobs[0].template.spec.backoffLimit: 0 (is not set)" in (KIND.refusal(left_out) or "")
    waits = a_jobset()
    waits["spec"]["replicatedJobs"][1]["dependsOn"] = [{"name": "lead", "status": "Complete"}]
    assert "take spec.replicatedJobs[1].dependsOn away" in (KIND.refusal(waits) or "")


def test_a_release_changes_what_a_suspended_one_may_and_nothing_else() -> None:
    raw = a_jobset(suspend=True)
    patch = KIND.release(raw, Release(generation=3, annotations={marks.RESTARTS: "3"}, gated=True))
    assert patch["spec"]["suspend"] is False
    assert patch["metadata"]["annotations"] == {marks.RESTARTS: "3"}
    for before, after in zip(raw["spec"]["replicatedJobs"], patch["spec"]["replicatedJobs"], strict=True):
        template = after["template"]["spec"]["template"]
        assert template["metadata"].pop("annotations") == {marks.GENERATION: "3"}
        assert template["spec"].pop("schedulingGates") == [{"name": marks.GATE}]
        assert after == before
    queued = KIND.release(raw, Release(generation=1, annotations={}, suspended=True))
    assert "suspend" not in queued["spec"]
    assert not gates_of(queued["spec"]["replicatedJobs"][0]["template"]["spec"]["template"])


def test_our_gate_is_set_once_and_taken_away_and_the_owners_stays() -> None:
    raw = a_jobset(suspend=True)
    for part in raw["spec"]["replicatedJobs"]:
        part["template"]["spec"]["template"]["spec"]["schedulingGates"] = [{"name": "example.com/theirs"}]
    for gated, ours in ((True, [marks.GATE]), (True, [marks.GATE]), (False, [])):
        order = Release(generation=1, annotations={}, gated=gated)
        raw["spec"]["replicatedJobs"] = KIND.release(raw, order)["spec"]["replicatedJobs"]
        assert gates_of(KIND.templates(raw)[1]) == ["example.com/theirs", *ours]


def test_a_successor_has_its_own_host_names_and_no_gate() -> None:
    old = a_jobset(network={"subdomain": "set"})
    order = Release(generation=2, annotations={marks.RESTARTS: "2"}, gated=True)
    old["spec"]["replicatedJobs"] = KIND.release(old, order)["spec"]["replicatedJobs"]
    made = KIND.successor(old, "set-g2", order)
    assert made["metadata"]["labels"][marks.FIRST] == "set"
    assert made["spec"]["suspend"] is True
    assert made["spec"]["network"] == {}
    for template in KIND.templates(made):
        assert template["metadata"]["annotations"] == {marks.GENERATION: "2"}
        assert gates_of(template) == []


def test_a_successors_name_leaves_room_for_the_names_of_its_pods() -> None:
    raw = a_jobset("a" * 40)
    raw["spec"]["replicatedJobs"][1] |= {"name": "workers-of-the-left-side", "replicas": 100}
    longest = KIND.longest_name(raw)
    name = successor_name("a" * 40, 1, longest)
    assert len(f"{name}-workers-of-the-left-side-99-1-abcde") <= 63
    assert name.endswith("-g1")
    assert KIND.longest_name(a_jobset()) == 63 - len("-work-1-1-abcde")


def test_its_pods_and_its_jobs_are_its_own_matter() -> None:
    inner = a_job("set-work-0")
    inner["metadata"]["ownerReferences"] = [{"kind": "JobSet", "name": "set", "controller": True}]
    objects = [JobObject(KIND, a_jobset()), JobObject(BatchJob(), inner), JobObject(BatchJob(), a_job("other"))]
    assert [one.native_id for one in outermost(objects)] == ["jobset/training/set", "job/training/other"]
    owner = Owners(objects).of(a_pod())
    assert owner is not None
    assert owner.native_id == "jobset/training/set"


def seen(raw: Raw, *pods: PodRecord) -> Any:
    return job_record("gamma", [JobObject(KIND, raw)], pods, nodes()).job


def test_it_runs_when_every_pod_of_every_part_has_started() -> None:
    every = [a_pod(i, part=part) for part in ("lead", "work") for i in (0, 1)]
    raw = a_jobset()
    raw["spec"]["replicatedJobs"][1]["replicas"] = 1
    assert seen(raw, *every[:3]).phase is Phase.PENDING
    job = seen(raw, *every)
    assert (job.phase, job.nodes_wanted, job.gpus_per_node, job.nodes) == (Phase.RUNNING, 4, 8, ("n0", "n1"))
    assert seen(raw, *(a_pod(i, uid="uid-of-an-older-one") for i in (0, 1))).phase is Phase.PENDING


def test_its_number_grows_with_a_suspend_only_where_we_saw_it_run() -> None:
    assert seen(a_jobset(suspend=True)).restarts == 0
    assert seen(a_jobset(suspend=True, notes={marks.RAN: "0", marks.HELD: "true"})).restarts == 1
    assert seen(a_jobset(notes={marks.RAN: "0"})).restarts == 0


def test_a_failed_pod_is_its_end_before_it_says_so_and_one_that_was_stopped_is_not() -> None:
    failed = a_pod(0, phase="Failed", state=ended(1))
    assert seen(a_jobset(), failed, a_pod(1)).phase is Phase.STOPPING
    stopped = seen(a_jobset(suspend=True, notes={marks.RAN: "0"}), failed)
    assert (stopped.phase, stopped.held) == (Phase.PENDING, True)
    over = a_jobset()
    over["status"]["conditions"] = [{"type": "Failed", "status": "True", "reason": "FailedJobs", "message": "work"}]
    assert (seen(over, failed).phase, seen(over, failed).reason) == (Phase.FAILED, "FailedJobs work Error")


MANIFEST = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: anything}
spec:
  replicatedJobs:
    - name: work
      template: {spec: {parallelism: 2, template: {spec: {containers: [{name: rank, image: i}]}}}}
"""


def test_a_submit_fills_in_what_supervision_needs() -> None:
    kind, made = manifest_for(JobSpec(job="l" * 55, name="llm", script=MANIFEST, comment=""))
    assert kind.refusal(made) is None
    assert len(made["metadata"]["name"]) <= kind.longest_name(made) < 55
    template = kind.templates(made)[0]
    assert [e["name"] for e in template["spec"]["containers"][0]["env"]] == [RESTART_ENV]
    assert template["metadata"]["annotations"] == {marks.GENERATION: "0"}
