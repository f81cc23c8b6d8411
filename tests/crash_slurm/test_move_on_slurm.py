"""A job leaves one real Slurm cluster for another, and at each boundary of the move the Temporal server dies, once
at each: one job trains on, from the one newest checkpoint."""

import asyncio
import contextlib
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.identity import TOKEN_PREFIX, job_workflow_id
from fleet.model import Phase
from fleet.orders import JobSpec
from fleet.runbooks import Runbook
from tests.crash.boundary import Case, Fault
from tests.crash.crew import crew
from tests.crash.nursery import Nursery
from tests.crash.play_transfer import order_move
from tests.crash.worker_main import MARKER
from tests.crash_slurm.paced_train import HURRY
from tests.crash_slurm.play import EVERY, PACED
from tests.require import missing
from tests.runbooks_slurm.stage import cluster_rows
from tests.runbooks_slurm.training import complete_of, resumed
from tests.slurm.lab import TRAIN, Cluster, cluster, rank_pids, why_not
from workers.fleets import ALL_AUTO

JOB = "train"
MOVE = f"{job_workflow_id(JOB)}/transfer/2"
STEPS = 400
LONG = 600.0
"""Seconds for a move with some forty deaths in it; half a minute is usual."""
MET = (
    "the runbook",
    "choose_cluster",
    "check_target_cluster",
    "stop_job",
    "prove_stopped",
    "survey_copy",
    "copy_files",
    "prove_copy",
    "publish_copy",
    "drop_copy",
    "try_submit",
    "submit_job",
    "adopt_job",
    "wait_step",
)
BOUNDARIES = {f"{side} {step}" for side in ("before", "after") for step in MET}
"""Those that must have been met, whatever else there was."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, for the server's sockets."""
    with tempfile.TemporaryDirectory(prefix="move") as made:
        yield Path(made)


async def test_a_move_whose_server_dies_at_each_boundary_leaves_one_job_and_one_newest_checkpoint(
    folder: Path, temporal_binary_found: None, nursery: Nursery
) -> None:
    if (why := why_not()) is not None:
        missing("slurm", why)
    async with cluster("alpha", nodes=2) as alpha, cluster("beta", nodes=2) as beta:
        write_fleet(folder, (alpha, beta))
        async with crew(
            folder, Case(fault=Fault.SERVER_KILLED, runbook=Runbook.TRANSFER, everywhere=True), nursery
        ) as made:
            native_id = await order_move(made, alpha.backend, spec(alpha))
            counting = asyncio.create_task(never_on_both(alpha, beta))
            await made.until(lambda: made.is_over(MOVE), "the end of the move", LONG)
            counting.cancel()
            (beta.work / "ckpt" / JOB / HURRY).touch()
            await made.until(lambda: made.is_over(job_workflow_id(JOB)), "the end of the job", LONG)
            assert await made.failed_tasks() == ()
            view = await made.until(lambda: made.view(job_workflow_id(JOB)), "the job's view")
        met = boundaries_met(folder)
        assert met >= BOUNDARIES, BOUNDARIES - met
        assert made.started["server"] > len(BOUNDARIES) / 2, "two deaths may be so near that one start serves both"
        assert view.ledger is not None
        assert [(a.cluster, a.restarts) for a in view.ledger.attempts] == [("alpha", 0), ("beta", 0)]
        assert (await alpha.backend.job(native_id)).phase is Phase.CANCELLED
        [there] = await beta.backend.jobs(max_age=0)
        assert there.phase is Phase.SUCCEEDED
        submits = re.findall(r"_slurm_rpc_submit_batch_job: JobId=", log_of(beta))
        assert len(submits) == 1, "one submit, however often it was asked for"
        newest = complete_of(alpha.work / "ckpt" / JOB, "0.0")[-1]
        assert resumed(tuple((alpha.work / "train.out").read_text().splitlines()), "1.0") == newest
        assert left_over(alpha.work / "ckpt" / JOB) == left_over(beta.work / "ckpt" / JOB) == []
        with contextlib.suppress(asyncio.CancelledError):
            await counting


def boundaries_met(folder: Path) -> set[str]:
    """Where the server died."""
    return {path.name.removeprefix(f"{MARKER} ") for path in folder.glob(f"{MARKER} *")}


def left_over(root: Path) -> list[str]:
    """Links and staging of ours."""
    return [path.name for path in root.glob(".gpu-runbooks/*") if path.name != "receipts"]


async def never_on_both(alpha: Cluster, beta: Cluster) -> None:
    """Looks at the ranks' processes all the time. Raises AssertionError when both clusters have some."""
    while True:
        pids = [await asyncio.to_thread(rank_pids, "1", lab.settings.conf) for lab in (alpha, beta)]
        assert not all(pids), f"ranks on both clusters at once: {pids}"
        await asyncio.sleep(0.25)


def log_of(lab: Cluster) -> str:
    """What slurmctld said."""
    return (lab.root / lab.name / "log" / "slurmctld.log").read_text()


def write_fleet(folder: Path, labs: tuple[Cluster, ...]) -> None:
    """Each cluster with a site of its own."""
    rows = ["version: 1", "clusters:", *(row for lab in labs for row in cluster_rows(lab, site=True))]
    rows += ["sites:", *(f"  at-{lab.name}: {{mount: {lab.work}}}" for lab in labs)]
    (folder / "fleet.yaml").write_text("\n".join(rows) + "\n" + ALL_AUTO)


def spec(alpha: Cluster) -> JobSpec:
    """A job that may move: its script says all its options, and takes its checkpoint root from where it is told."""
    root = alpha.work / "ckpt" / JOB
    words = ["supervise", "transfer", f"job={JOB}", "checkpoint-signal=USR1", f"total-steps={STEPS}"]
    words += ["generation-check=yes", f"checkpoint={root}"]
    train = f"{sys.executable} {PACED} {TRAIN} --steps {STEPS} --step-time 0.4 --checkpoint-every {EVERY}"
    told = f'--checkpoint-dir "${{GPU_RUNBOOKS_CHECKPOINT:-{root}}}"'
    lines = ["#!/bin/bash", "#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:8", f"#SBATCH --output={JOB}.out"]
    lines += ["#SBATCH --open-mode=append", "trap ':' USR1"]
    lines += [f"srun --kill-on-bad-exit=1 {train} {told}", "exit $?"]
    comment = " ".join(TOKEN_PREFIX + word for word in words)
    return JobSpec(job=JOB, name=JOB, script="\n".join(lines) + "\n", workdir=str(alpha.work), comment=comment)
