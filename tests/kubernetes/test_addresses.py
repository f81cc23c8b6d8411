"""Host names of a job's own pods in its description, which would be wrong once it goes on as another object."""

import pytest

from activities.backends.kubernetes.kinds.base import CHILD, JobKind
from activities.backends.kubernetes.kinds.batch_job import BatchJob
from activities.backends.kubernetes.kinds.jobset import JobSet
from activities.backends.kubernetes.kinds.pytorch_job import PyTorchJob
from activities.backends.kubernetes.kinds.ray_job import RayJob
from activities.backends.kubernetes.kinds.train_job import TrainJob
from tests.kubernetes import making, test_jobset, test_pytorch_job, test_train_job
from tests.kubernetes.making import Raw

RAY_JOB = {"metadata": {"name": "llm"}, "spec": {"rayClusterSpec": {"headGroupSpec": {"template": {}}}}}


def train_job() -> Raw:
    return {**test_train_job.a_job(), CHILD: test_train_job.its_set()}


def advice(kind: JobKind, raw: Raw, address: str) -> tuple[str, ...]:
    """What is said of the job when its last template has that address."""
    described = JobSet() if CHILD in raw else kind
    spec = described.templates(raw.get(CHILD, raw))[-1].setdefault("spec", {})
    container = spec.setdefault("containers", [{"name": "rank"}])[0]
    container["env"] = [{"name": "MASTER_ADDR", "value": address}, {"name": "RANK", "valueFrom": {}}]
    return kind.advice(raw)


@pytest.mark.parametrize(
    ("kind", "raw", "host", "address"),
    [
        (JobSet(), test_jobset.a_jobset(), "set-lead-0-0", "set-lead-0-0.set"),
        (JobSet(), test_jobset.a_jobset(), "set-work-1-0", "tcp://set-work-1-0:29400"),
        (TrainJob(), train_job(), "llm-node-0-0", "llm-node-0-0.llm.training.svc"),
        (PyTorchJob(), test_pytorch_job.a_job(), "llm-master-0", "llm-master-0"),
        (BatchJob(), making.a_job(), "llm-0", "llm-0.ranks"),
    ],
)
def test_a_host_of_the_jobs_own_is_named_with_its_place(kind: JobKind, raw: Raw, host: str, address: str) -> None:
    (said,) = advice(kind, raw, address)
    assert said.startswith("MASTER_ADDR in env of container ")
    assert said.endswith(f" names the host {host}")


@pytest.mark.parametrize(
    ("kind", "raw", "address"),
    [
        (JobSet(), test_jobset.a_jobset(), "other-lead-0-0.other"),
        (JobSet(), test_jobset.a_jobset(), "/checkpoints/set-lead-0-0"),
        (JobSet(), test_jobset.a_jobset(), "my-set-lead-0-0.my-set"),
        (JobSet(), test_jobset.a_jobset(), "set"),
        (TrainJob(), test_train_job.a_job(), "llm-node-0-0.llm"),
        (PyTorchJob(), test_pytorch_job.a_job(), "llm-master-0-logs"),
        (BatchJob(), making.a_job(), "llm-0"),
        (RayJob(), RAY_JOB, "llm-abcde-head-svc"),
    ],
)
def test_what_is_no_host_of_the_jobs_own_is_not_named(kind: JobKind, raw: Raw, address: str) -> None:
    assert advice(kind, raw, address) == ()


def test_the_first_objects_name_is_found_in_a_later_one_and_in_arguments() -> None:
    raw = test_jobset.a_jobset("set-g1")
    raw["metadata"]["labels"]["gpu-runbooks.io/first"] = "set"
    container = JobSet().templates(raw)[0]["spec"]["containers"][0]
    container["args"] = ["--rdzv-endpoint=set-lead-0-0.set:29400", "--next=set-g1-lead-0-0.set-g1"]
    assert JobSet().advice(raw) == (
        "args of container rank names the host set-lead-0-0",
        "args of container rank names the host set-g1-lead-0-0",
    )
