"""What a TrainJob says together with the JobSet that it makes, what it lets us change, and which ones are refused."""

from typing import Any

import pytest

from activities.backends.kubernetes import marks
from activities.backends.kubernetes.jobview import JobObject, Owners, job_record, outermost, with_children
from activities.backends.kubernetes.kinds.base import Release, merged
from activities.backends.kubernetes.kinds.jobset import JobSet
from activities.backends.kubernetes.kinds.train_job import KUEUE, MANAGER, TrainJob
from activities.backends.kubernetes.records import PodRecord
from activities.backends.kubernetes.submit import manifest_for
from fleet.model import Phase
from fleet.orders import RESTART_ENV, JobSpec
from tests.kubernetes.making import RESOURCE, Raw, a_pod, nodes

KIND = TrainJob()
OTHERS = {"manager": KUEUE, "trainingRuntimeSpec": {"template": {"spec": {}}}, "time": "2026-11-30T12:00:00Z"}


def a_job(**spec: Any) -> Raw:
    base = {"runtimeRef": {"name": "torch", "kind": "TrainingRuntime"}, "runtimePatches": [OTHERS]}
    return {
        "metadata": {"name": "llm", "namespace": "training", "uid": "uid-llm"},
        "spec": {**base, **spec},
        "status": {"jobsStatus": [{"name": "node"}]},
    }


def its_set(**changes: Any) -> Raw:
    pod = {"restartPolicy": "Never", "containers": [{"name": "node", "resources": {"limits": {RESOURCE: "8"}}}]}
    spec = {
        "completionMode": "Indexed",
        "completions": 2,
        "parallelism": 2,
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "template": {"spec": pod},
    }
    owner = {"kind": "TrainJob", "name": "llm", "uid": "uid-llm", "controller": True}
    return {
        "metadata": {"name": "llm", "namespace": "training", "uid": "uid-set", "ownerReferences": [owner]},
        "spec": {"replicatedJobs": [{"name": "node", "template": {"spec": {**spec, **changes}}}]},
    }


def both(job: Raw, child: Raw) -> tuple[JobObject, JobObject]:
    one, other = with_children([JobObject(KIND, job), JobObject(JobSet(), child)])
    return one, other


def pod(index: int, uid: str = "uid-set", **about: Any) -> PodRecord:
    labels = {"jobset.sigs.k8s.io/jobset-name": "llm", "jobset.sigs.k8s.io/jobset-uid": uid}
    return a_pod(index=index, **about).model_copy(update={"labels": labels, "rank": f"node/0/{index}"})


def test_its_jobset_says_how_many_pods_it_has_and_is_no_job_of_its_own() -> None:
    one, child = both(a_job(), its_set())
    assert outermost([one, child]) == [one]
    assert Owners([one, child]).of(pod(0)) is one
    job = job_record("gamma", [one], [pod(0), pod(1), pod(2, "uid-old")], nodes()).job
    assert (job.phase, job.nodes, job.nodes_wanted, job.gpus_per_node) == (Phase.RUNNING, ("n0", "n1"), 2, 8)
    assert job.refusal == ""


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        (
            {"backoffLimit": 6},
            "in its TrainingRuntime torch: set spec.replicatedJobs[0].template.spec.backoffLimit: 0",
        ),
        ({"podReplacementPolicy": None}, "podReplacementPolicy: Failed"),
    ],
)
def test_a_runtime_with_which_pods_are_started_again_is_refused_with_its_field(changes: Any, fix: str) -> None:
    one, _ = both(a_job(), its_set(**changes))
    assert fix in (KIND.refusal(one.raw) or "")


def test_without_its_jobset_nothing_is_known() -> None:
    assert "its JobSet is not seen" in (KIND.refusal(a_job()) or "")
    assert "hands off" in (KIND.refusal(a_job(managedBy="kueue.x-k8s.io/multikueue")) or "")


def test_the_next_attempt_is_prepared_by_an_entry_of_ours_beside_those_of_others() -> None:
    order = Release(generation=2, annotations={marks.RESTARTS: "2"}, gated=True)
    stopped = a_job(suspend=True)
    patch = KIND.prepare(stopped, order)
    assert patch is not None
    after = merged(stopped, patch)
    others, ours = after["spec"]["runtimePatches"]
    assert (others, ours["manager"]) == (OTHERS, MANAGER)
    part = ours["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]
    assert part["name"] == "node"
    assert part["template"]["spec"]["template"] == {
        "metadata": {"annotations": {marks.GENERATION: "2"}},
        "spec": {"schedulingGates": [{"name": marks.GATE}]},
    }
    assert "suspend" not in patch["spec"], "its webhook refuses both in one request"
    ours["time"] = "2026-11-30T13:00:00Z"
    assert KIND.prepare(after, order) is None
    assert KIND.release(after, order)["spec"] == {"suspend": False}
    one, _ = both(after, its_set())
    assert one.generation == 2
    again = KIND.prepare(after, Release(generation=3, annotations={}))
    assert again is not None
    assert [p["manager"] for p in again["spec"]["runtimePatches"]] == [KUEUE, MANAGER]


def test_a_job_in_a_queue_is_left_to_kueue_to_start() -> None:
    assert "spec" not in KIND.release(a_job(suspend=True), Release(generation=1, annotations={}, suspended=True))


def test_a_successor_leaves_behind_what_kueue_wrote() -> None:
    made = KIND.successor(a_job(), "llm-g1", Release(generation=1, annotations={}))
    assert [p["manager"] for p in made["spec"]["runtimePatches"]] == [MANAGER]
    assert made["spec"]["suspend"] is True
    one, _ = both(made, its_set())
    assert one.generation == 1


def test_an_end_is_told_apart() -> None:
    def ended(kind: str, reason: str) -> Phase | None:
        raw = a_job()
        raw["status"]["conditions"] = [{"type": kind, "status": "True", "reason": reason}]
        return KIND.state(raw).ended

    assert ended("Complete", "AllJobsCompleted") is Phase.SUCCEEDED
    assert ended("Failed", "FailedJobs") is Phase.FAILED
    assert ended("Failed", "DeadlineExceeded") is Phase.TIMED_OUT
    assert ended("Suspended", "Suspended") is None


MANIFEST = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: anything, namespace: training}
spec: {runtimeRef: {name: torch}, trainer: {numNodes: 2}}
"""


def test_a_submit_gives_its_trainer_the_number_of_the_attempt() -> None:
    script = JobSpec(job="x" * 60, name="llm", script=MANIFEST, comment="")
    kind, made = manifest_for(script)
    assert kind is KIND or isinstance(kind, TrainJob)
    assert [e["name"] for e in made["spec"]["trainer"]["env"]] == [RESTART_ENV]
    assert len(made["metadata"]["name"]) <= 63 - len("-node-0-1-abcde")
