"""A PyTorchJob on the real training operator (`make test-kinds`), also where its conditions mislead (trouble cases
PC-K06 and PC-K08)."""

import pytest

from fleet.model import Phase
from tests.runbooks_kubernetes.kinds import PYTORCH_JOB
from tests.runbooks_kubernetes.stage import Stage
from tests.runbooks_kubernetes.test_kinds import evict, is_evicted, outlives_everything
from tests.runbooks_kubernetes.test_lost_gpu import looking

pytestmark = pytest.mark.kinds
CONTROLLERS = ("training-operator",)


async def test_it_outlives_a_lost_gpu_a_lost_node_an_eviction_and_a_runbook_that_is_cancelled(shared: Stage) -> None:
    await outlives_everything(shared, PYTORCH_JOB, is_evicted)


async def test_a_job_that_its_controller_restarts_by_exit_codes_is_refused_with_the_field(shared: Stage) -> None:
    """PC-K06: with code 1 it is said to restart or to fail by turns, and no pod is made."""
    made = PYTORCH_JOB.objects(shared.lab, "train")
    for role in made[-1]["spec"]["pytorchReplicaSpecs"].values():
        role["restartPolicy"] = "ExitCode"
    made[-1]["metadata"]["labels"] = {"gpu-runbooks.io/supervise": "true"}
    made[-1]["metadata"]["annotations"] = {"gpu-runbooks.io/job": "train"}
    await shared.lab.apply(*made)

    async def is_seen() -> bool:
        return any(job.phase is Phase.RUNNING for job in await shared.backend.jobs(0))

    await shared.until(is_seen, "it runs")
    fix = "set spec.pytorchReplicaSpecs.Master.restartPolicy: Never (is ExitCode)"
    asked = await shared.cli("doctor", "train")
    assert fix in asked.out
    ended = await shared.client.get_workflow_handle("job/train").describe()
    assert fix in str((await shared.view(ended.id)).story)
    (job,) = await shared.backend.jobs(0)
    assert not job.adopted


async def test_an_exception_is_told_to_its_owner_and_no_rank_stays_on_its_gpus(shared: Stage) -> None:
    """PC-K06, of a job that nobody restarts: its first rank to raise ends it, and the rest goes with it."""
    native_id = await shared.apply("train", "--checkpoint-every", "0", kind=PYTORCH_JOB)
    result = await shared.result("job/train")
    assert "user fault, not restarted" in result
    job = await shared.backend.job(native_id)
    assert (job.phase, job.restarts) == (Phase.FAILED, 0)

    async def are_gone() -> bool:
        return not shared.attempts_alive("train")

    await shared.until(are_gone, "its ranks are gone")


async def test_a_failed_job_whose_ranks_live_on_is_stopped_before_its_next_attempt(shared: Stage) -> None:
    """PC-K08: a rank is evicted, the job is Failed in the same moment, and nothing of it has ended."""
    native_id = await shared.apply("train", kind=PYTORCH_JOB, cleanPodPolicy="None")
    async with looking(shared, "train") as seen:
        await shared.trains("train", 1)
        await shared.held_and_saved(native_id)
        before = await shared.backend.job(native_id)
        await evict(shared, before.nodes[1])

        async def failed() -> bool:
            return (await shared.backend.job(native_id)).phase is Phase.FAILED

        await shared.until(failed, "it is Failed", every=0.05)
        assert shared.attempts_alive("train"), "it is called Failed while ranks run"
        assert before.nodes[0] not in (await shared.backend.capacity()).free_nodes
        await shared.trains("train", 2)
    after = await shared.backend.job(native_id)
    assert (after.phase, after.restarts, after.fingerprint) == (Phase.RUNNING, 1, before.fingerprint)
    assert {frozenset({0}), frozenset({1})} <= seen
    names = {one["metadata"]["name"] for one in (await shared.lab.get("pytorchjobs"))["items"]}
    assert names == {"train", "train-g1"}
