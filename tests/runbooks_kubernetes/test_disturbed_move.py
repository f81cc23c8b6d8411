"""A job leaves real Slurm for real Kubernetes, and at each boundary of the move something fails: worker and server
are killed, the storages get full or go away, the target's apiserver stands still. One job trains on, from the one
newest checkpoint."""

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import yaml

from fleet.identity import TOKEN_PREFIX, job_workflow_id
from fleet.model import Phase
from fleet.orders import CHECKPOINT_ENV
from fleet.placement import Request
from fleet.placing import PlaceWish
from fleet.runbooks import Runbook
from tests.crash.around import CONTROLLER, own_storage
from tests.crash.boundary import Case, Fault
from tests.crash.conftest import nursery
from tests.crash.crew import Crew, crew
from tests.crash.nursery import Nursery
from tests.crash.play_transfer import JOB, order_move
from tests.crash.several import LONG, assert_says_what_is_safe, boundaries_met, left_over, mended
from tests.kubernetes import lab as k8s
from tests.kubernetes.accounts import kubeconfig_of
from tests.require import missing
from tests.runbooks_slurm.stage import cluster_rows
from tests.runbooks_slurm.training import complete_of
from tests.slurm import lab as slurm
from workers.fleets import ALL_AUTO

__all__ = ["nursery"]
DIES, KILLED = Fault.SERVER_KILLED, Fault.WORKER_KILLED
FAULTS = {
    "before the runbook": DIES,
    "after choose_cluster": DIES,
    "before check_target_cluster": Fault.TARGET_FROZEN,
    "after check_target_cluster": DIES,
    "before stop_job": DIES,
    "after stop_job": KILLED,
    "before prove_stopped": DIES,
    "after prove_stopped": DIES,
    "before survey_copy": Fault.SOURCE_GONE,
    "after survey_copy": DIES,
    "before copy_files": Fault.TARGET_FULL,
    "after copy_files": KILLED,
    "before prove_copy": DIES,
    "after prove_copy": DIES,
    "before publish_copy": Fault.TARGET_FULL,
    "after publish_copy": KILLED,
    "before drop_copy": DIES,
    "after drop_copy": DIES,
    "before try_submit": Fault.TARGET_FROZEN,
    "after try_submit": DIES,
    "before submit_job": KILLED,
    "after submit_job": Fault.TARGET_FROZEN,
    "before wait_placed": DIES,
    "after wait_placed": DIES,
    "before adopt_job": KILLED,
    "after adopt_job": KILLED,
    "before wait_step": Fault.TARGET_FROZEN,
    "after wait_step": DIES,
    "after the runbook": DIES,
}
"""In the order in which a move comes by."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, for the server's sockets."""
    with tempfile.TemporaryDirectory(prefix="move") as made:
        for storage in ("east", "west"):
            (Path(made) / storage).mkdir()
        yield Path(made)


async def test_a_move_to_kubernetes_with_a_fault_at_each_boundary_leaves_one_job_and_one_newest_checkpoint(
    folder: Path, temporal_binary_found: None, nursery: Nursery
) -> None:
    for name, why in (("kubernetes", k8s.why_not()), ("slurm", slurm.why_not())):
        if why is not None:
            missing(name, why)
    async with AsyncExitStack() as around:
        around.enter_context(own_storage(folder, Fault.TARGET_FULL))  # first, for nodes see no later mounts
        gamma = await around.enter_async_context(k8s.cluster("gamma", nodes=2))
        alpha = await around.enter_async_context(slurm.cluster("alpha", nodes=2))
        east, west = folder / "east" / JOB, folder / "west" / JOB
        write_fleet(folder, alpha, await kubeconfig_of(gamma, "repair"))
        apiserver = await k8s.call("pgrep", "-f", f"kube-apiserver .*--cert-dir={gamma.folder}/pki")
        (folder / CONTROLLER).write_text(apiserver)
        wish = wish_of(alpha, gamma, folder)
        case = Case(runbook=Runbook.TRANSFER, faults=tuple(FAULTS.items()))
        made = await around.enter_async_context(crew(folder, case, nursery))
        native_id = await order_move(made, alpha.backend, wish.spec("alpha", "slurm"), wish, to="gamma")
        counting = asyncio.create_task(never_on_both(native_id, alpha, west))
        asked = await mended(made, folder, FAULTS)
        counting.cancel()
        await made.until(lambda: left(alpha, native_id), "the end of what it left", LONG)
        assert await made.failed_tasks() == ()
        await trains_once(made, gamma, east, west)
        met = boundaries_met(folder)
        assert met == set(FAULTS), set(FAULTS) - met
        assert_says_what_is_safe(asked, FAULTS, "gamma")
        with contextlib.suppress(asyncio.CancelledError):
            await counting


async def trains_once(made: Crew, gamma: k8s.Cluster, east: Path, west: Path) -> None:
    """One object, one attempt of two ranks, from the newest checkpoint of the cluster that it left."""
    view = await made.until(lambda: made.view(job_workflow_id(JOB)), "the job's view")
    assert view.ledger is not None
    assert [(a.cluster, a.restarts) for a in view.ledger.attempts] == [("alpha", 0), ("gamma", 0)]
    [there] = (await gamma.get("jobs", "-A"))["items"]
    assert there["metadata"]["generation"] >= 1
    assert len(await asyncio.to_thread(k8s.rank_pids, west)) == 2
    newest = complete_of(east, "0.0")[-1]
    assert view.ledger.attempts[-1].progress.resumed_from == newest
    assert left_over(east) == left_over(west) == []


async def left(alpha: slurm.Cluster, native_id: str) -> bool:
    return (await alpha.backend.job(native_id)).phase is Phase.CANCELLED


async def never_on_both(native_id: str, alpha: slurm.Cluster, west: Path) -> None:
    """Looks at the ranks' processes all the time. Raises AssertionError when both clusters have some."""
    while True:
        here = await asyncio.to_thread(slurm.rank_pids, native_id, alpha.settings.conf)
        there = await asyncio.to_thread(k8s.rank_pids, west)
        assert not (here and there), f"ranks on both clusters at once: {here}, {there}"
        await asyncio.sleep(0.25)


def write_fleet(folder: Path, alpha: slurm.Cluster, kubeconfig: Path) -> None:
    """Each cluster with a site of its own."""
    rows = ["version: 1", "clusters:", *cluster_rows(alpha, site=True)]
    rows += ["  gamma:", "    kind: kubernetes", f"    kubeconfig: {kubeconfig}", "    site: at-gamma"]
    rows += ["sites:", f"  at-alpha: {{mount: {folder / 'east'}}}", f"  at-gamma: {{mount: {folder / 'west'}}}"]
    (folder / "fleet.yaml").write_text("\n".join(rows) + "\n" + ALL_AUTO)


def wish_of(alpha: slurm.Cluster, gamma: k8s.Cluster, folder: Path) -> PlaceWish:
    """A job with a template for each kind, that takes its checkpoint root from where it is told."""
    root, west = folder / "east" / JOB, str(folder / "west")
    words = ["supervise", "transfer", f"job={JOB}", "checkpoint-signal=USR1", "total-steps=100000"]
    words += ["generation-check=yes", f"checkpoint={root}"]
    script = (
        f"#!/bin/bash\n#SBATCH --ntasks-per-node=1 --gres=gpu:8 --output={JOB}.out\ntrap ':' USR1\n"
        f"srun --kill-on-bad-exit=1 {sys.executable} {slurm.TRAIN} --steps 100000 --step-time 0.1 "
        f'--checkpoint-every 20 --checkpoint-dir "${{{CHECKPOINT_ENV}:-{root}}}"\nexit $?\n'
    )
    pods = gamma.training_job(JOB)
    [rank] = pods["spec"]["template"]["spec"]["containers"]
    rank["args"] = [word for word in rank["args"] if word != "--no-generation-check"]
    rank["args"][rank["args"].index("--checkpoint-dir") + 1] = f"$({CHECKPOINT_ENV})"
    rank["volumeMounts"].append({"name": "west", "mountPath": west})
    pods["spec"]["template"]["spec"]["volumes"].append({"name": "west", "hostPath": {"path": west}})
    return PlaceWish(
        request=Request(job=JOB, nodes=2, gpus_per_node=8),
        name=JOB,
        templates={"slurm": script, "kubernetes": yaml.safe_dump(pods)},
        comment=" ".join(TOKEN_PREFIX + word for word in words),
        workdir=str(alpha.work),
    )
