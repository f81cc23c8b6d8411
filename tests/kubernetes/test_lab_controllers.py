"""JobSet and Kueue in the lab: the real controllers, beside a real apiserver, with real containers."""

import asyncio
import shutil
from collections.abc import AsyncIterator

import pytest

from fleet.policy_file import parse_policy
from tests.kubernetes import kinds
from tests.kubernetes.conftest import Opener
from tests.kubernetes.lab import Cluster, cluster
from tests.slurm.waiting import until
from workers.doctor_job import look_at_job
from workers.lab_traces import naming

pytestmark = pytest.mark.kubernetes
CONTROLLERS = ("jobset", "kueue")
JOB = "train"
OF_SET, OF_JOB = f"jobset.sigs.k8s.io/jobset-name={JOB}", f"batch.kubernetes.io/job-name={JOB}"


@pytest.fixture
async def queued(gamma: Cluster) -> AsyncIterator[Cluster]:
    """The cluster with a queue of all its GPUs."""
    await gamma.apply(*kinds.queue())
    yield gamma
    for kind in ("localqueue", "clusterqueue", "resourceflavor"):
        await gamma.kubectl("delete", kind, "--all", "--wait=false")


async def admitted(cluster: Cluster, kind: str) -> str:
    """Name of the Workload that Kueue made for the job and let in."""

    async def found() -> list[str]:
        return [
            w["metadata"]["name"]
            for w in (await cluster.get("workloads.kueue.x-k8s.io"))["items"]
            if w["metadata"]["ownerReferences"][0]["kind"] == kind
            and any(
                (c["type"], c["status"]) == ("Admitted", "True") for c in w.get("status", {}).get("conditions", [])
            )
        ]

    return (await until(found, lambda names: len(names) == 1))[0]


async def test_the_controllers_are_processes_of_the_cluster_and_its_status_shows_them(gamma: Cluster) -> None:
    first = (await gamma.lab("status")).splitlines()[0]
    running = naming((str(gamma.folder),), frozenset(CONTROLLERS))
    assert {f"{name}={pid}" for pid, line in running.items() for name in CONTROLLERS if f"/{name} " in line} == {
        word for word in first.split() if word.startswith(CONTROLLERS)
    }
    crds = {c["metadata"]["name"] for c in (await gamma.get("crds"))["items"]}
    assert {"jobsets.jobset.x-k8s.io", "workloads.kueue.x-k8s.io"} <= crds


async def test_a_jobset_trains_stops_when_suspended_goes_on_and_is_deleted(gamma: Cluster) -> None:
    await gamma.apply(kinds.jobset(gamma, JOB))
    await kinds.runs(gamma, JOB)
    for suspend in ("true", "false"):
        await gamma.kubectl("patch", "jobset", JOB, "--type=merge", "-p", f'{{"spec":{{"suspend":{suspend}}}}}')
        await (kinds.is_gone(gamma, JOB, OF_SET) if suspend == "true" else kinds.runs(gamma, JOB))
    await gamma.kubectl("delete", "jobset", JOB, "--cascade=foreground")
    await kinds.is_gone(gamma, JOB, OF_SET)
    await asyncio.to_thread(shutil.rmtree, gamma.checkpoints(JOB))


async def test_the_doctor_warns_of_a_jobset_that_names_its_own_hosts(gamma: Cluster) -> None:
    waiting = kinds.jobset(gamma, JOB)
    waiting["spec"]["suspend"] = True
    template = waiting["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    told = f"{JOB}-ranks-0-0"
    template["spec"]["containers"][0]["env"].append({"name": "MASTER_ADDR", "value": f"{told}.{JOB}"})
    await gamma.apply(waiting)
    fleet = f"version: 1\nclusters:\n  {gamma.name}: {{kind: kubernetes, kubeconfig: {gamma.kubeconfig}}}\n"
    checks = await look_at_job(JOB, parse_policy(fleet, "fleet.yaml"), gamma.root, None)
    await gamma.kubectl("delete", "jobset", JOB, "--cascade=foreground")
    (seen,) = [check for check in checks if check.name == "next object"]
    assert (seen.grade, seen.text.partition(":")[0]) == (
        "warn",
        f"MASTER_ADDR in env of container rank names the host {told}",
    )
    assert f"goes on as {JOB}-gN" in seen.text


@pytest.mark.parametrize("kind", ["Job", "JobSet"])
async def test_a_job_in_a_queue_is_let_in_and_stops_and_goes_on_by_its_workload(queued: Cluster, kind: str) -> None:
    job = queued.training_job(JOB) if kind == "Job" else kinds.jobset(queued, JOB)
    job["metadata"]["labels"] = kinds.QUEUED
    await queued.apply(job)
    workload = await admitted(queued, kind)
    await kinds.runs(queued, JOB)
    for active in ("false", "true"):
        await queued.kubectl("patch", "workload", workload, "--type=merge", "-p", f'{{"spec":{{"active":{active}}}}}')
        pods = OF_JOB if kind == "Job" else OF_SET
        await (kinds.is_gone(queued, JOB, pods) if active == "false" else kinds.runs(queued, JOB))
    assert await admitted(queued, kind) == workload
    await queued.kubectl("delete", kind, JOB, "--cascade=foreground")
    await kinds.is_gone(queued, JOB, OF_JOB if kind == "Job" else OF_SET)
    await asyncio.to_thread(shutil.rmtree, queued.checkpoints(JOB))


async def test_while_a_controller_is_dead_its_kind_is_refused_and_what_runs_goes_on(gamma: Cluster) -> None:
    await gamma.apply(kinds.jobset(gamma, JOB))
    await kinds.runs(gamma, JOB)
    await gamma.lab("controller-kill", "jobset")
    assert "jobset= " in f"{(await gamma.lab('status')).splitlines()[0]} "
    with pytest.raises(AssertionError, match="connection refused"):
        await gamma.apply(kinds.jobset(gamma, "other"))
    assert await gamma.ranks_alive(JOB) == 2
    await gamma.lab("controller-start", "jobset")
    await gamma.kubectl("patch", "jobset", JOB, "--type=merge", "-p", '{"spec":{"suspend":true}}')
    await kinds.is_gone(gamma, JOB, OF_SET)
    await gamma.kubectl("delete", "jobset", JOB, "--cascade=foreground")
    await asyncio.to_thread(shutil.rmtree, gamma.checkpoints(JOB))


async def test_a_controller_can_be_added_and_comes_back_with_the_saved_state(k8s_lab: Opener) -> None:
    async with cluster("kept", nodes=0) as kept:
        with pytest.raises(AssertionError, match="no controller 'volcano'; there are: jobset kueue"):
            await kept.lab("controller-start", "volcano")
        await kept.lab("controller-start", "jobset")
        await kept.lab("stop")
        assert not naming((str(kept.folder),), frozenset(CONTROLLERS))
        await kept.lab("start", "-n", "0", "-k")
        assert len(naming((str(kept.folder),), frozenset(CONTROLLERS))) == 1
        waiting = kinds.jobset(kept, JOB)
        waiting["spec"]["suspend"] = True
        await kept.apply(waiting)
