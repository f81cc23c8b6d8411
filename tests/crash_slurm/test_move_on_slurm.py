"""A job leaves one real Slurm cluster for another, and at many boundaries of the move something fails, once at each:
one job trains on, from the one newest checkpoint."""

import asyncio
import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from fleet.identity import TOKEN_PREFIX, job_workflow_id
from fleet.model import Phase
from fleet.orders import JobSpec
from fleet.runbooks import Runbook
from tests.crash.around import CONTROLLER, own_storage
from tests.crash.boundary import Case, Fault
from tests.crash.crew import crew
from tests.crash.nursery import Nursery
from tests.crash.play_transfer import JOB, MOVE, order_move
from tests.crash.several import LONG, assert_says_what_is_safe, boundaries_met, left_over, mended
from tests.crash_slurm.paced_train import HURRY
from tests.crash_slurm.play import EVERY, PACED
from tests.require import missing
from tests.runbooks_slurm.stage import cluster_rows
from tests.runbooks_slurm.training import complete_of, resumed
from tests.side_by_side import SideBySide, chosen
from tests.slurm.lab import TRAIN, Cluster, cluster, rank_pids, why_not
from workers.fleets import ALL_AUTO

CLUSTERS = ("alpha", "beta")
STORAGES = ("east", "west")
STEPS = 3000
"""Twenty minutes of training: it may not end before the move has."""
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
BOUNDARIES = tuple(f"{side} {step}" for step in MET for side in ("before", "after"))
WRITES = ("stop_job", "copy_files", "publish_copy", "submit_job", "adopt_job")
"""Where a worker's death is worst: something was done, and nobody knows it."""
AROUND = {
    "before survey_copy": Fault.SOURCE_GONE,
    "before copy_files": Fault.TARGET_FULL,
    "before prove_copy": Fault.SOURCE_GONE,
    "before publish_copy": Fault.TARGET_FULL,
    "before try_submit": Fault.TARGET_FROZEN,
    "after submit_job": Fault.TARGET_FROZEN,
    "before wait_step": Fault.TARGET_FROZEN,
}
"""Each ends once the move has asked a person about it, or has waited or gone on without."""
RUNS = {
    "server dies at each boundary": dict.fromkeys(BOUNDARIES, Fault.SERVER_KILLED),
    "worker dies around each write": {
        f"{side} {step}": Fault.WORKER_KILLED for step in WRITES for side in ("before", "after")
    },
    "storages and controller fail": AROUND,
    "worker dies at each boundary": dict.fromkeys(BOUNDARIES, Fault.WORKER_KILLED),
}


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, temporal_binary_found: None, nursery: Nursery) -> Iterator[SideBySide]:
    """One for each run; all selected runs of this module are under way."""
    if (why := why_not()) is not None:
        missing("slurm", why)

    @asynccontextmanager
    async def world(item: pytest.Function) -> AsyncIterator[dict[str, object]]:
        with tempfile.TemporaryDirectory(prefix="move") as made:  # short, for the server's sockets
            for storage in STORAGES:
                (Path(made) / storage).mkdir()
            yield {"folder": Path(made), "nursery": nursery}

    playing = SideBySide(chosen(request.session, lambda item: item.path == Path(__file__)), world, at_once=3)
    yield playing
    playing.close()


def run(name: str) -> ParameterSet:
    """Six minutes are for `make test-matrix`; a storage that gets full takes root."""
    faults = RUNS[name]
    fills = Fault.TARGET_FULL in faults.values() and os.geteuid() != 0
    long = faults == dict.fromkeys(BOUNDARIES, Fault.WORKER_KILLED)
    marks = [pytest.mark.skipif(fills, reason="only root mounts"), *([pytest.mark.matrix] if long else [])]
    return pytest.param(faults, id=name, marks=marks)


@pytest.mark.parametrize("faults", [run(name) for name in RUNS])
async def test_a_disturbed_move_leaves_one_job_and_one_newest_checkpoint(
    faults: dict[str, Fault], folder: Path, nursery: Nursery
) -> None:
    kinds = set(faults.values())
    east, west = folder / "east" / JOB, folder / "west" / JOB
    async with AsyncExitStack() as around:
        around.enter_context(own_storage(folder, Fault.TARGET_FULL if Fault.TARGET_FULL in kinds else None))
        alpha, beta = [await around.enter_async_context(cluster(name, nodes=2)) for name in CLUSTERS]
        write_fleet(folder, (alpha, beta))
        shutil.copy(beta.root / beta.name / "run" / "slurmctld.pid", folder / CONTROLLER)
        made = await around.enter_async_context(
            crew(folder, Case(runbook=Runbook.TRANSFER, faults=tuple(faults.items())), nursery)
        )
        native_id = await order_move(made, alpha.backend, spec(alpha, east))
        counting = asyncio.create_task(never_on_both(alpha, beta))
        asked = await mended(made, folder, faults)
        await made.until(lambda: made.is_over(MOVE), "the end of the move", LONG)
        counting.cancel()
        (west / HURRY).touch()
        await made.until(lambda: made.is_over(job_workflow_id(JOB)), "the end of the job", LONG)
        assert await made.failed_tasks() == ()
        view = await made.until(lambda: made.view(job_workflow_id(JOB)), "the job's view")
        met = boundaries_met(folder)
        assert met == set(faults), set(faults) - met
        assert made.started["server"] > (len(faults) / 2 if Fault.SERVER_KILLED in kinds else 0), "one serves two"
        assert made.started["worker"] >= (len(faults) / 2 if Fault.WORKER_KILLED in kinds else 1)
        assert view.ledger is not None
        assert [(a.cluster, a.restarts) for a in view.ledger.attempts] == [("alpha", 0), ("beta", 0)]
        assert (await alpha.backend.job(native_id)).phase is Phase.CANCELLED
        [there] = await beta.backend.jobs(max_age=0)
        assert there.phase is Phase.SUCCEEDED
        submits = re.findall(r"_slurm_rpc_submit_batch_job: JobId=", log_of(beta))
        assert len(submits) == 1, "one submit, however often it was asked for"
        newest = complete_of(east, "0.0")[-1]
        assert resumed(tuple((alpha.work / f"{JOB}.out").read_text().splitlines()), "1.0") == newest
        assert left_over(east) == left_over(west) == []
        assert_says_what_is_safe(asked, faults, "beta")
        with contextlib.suppress(asyncio.CancelledError):
            await counting


async def never_on_both(alpha: Cluster, beta: Cluster) -> None:
    """Looks at the ranks' processes all the time. Raises AssertionError when both clusters have some."""
    while True:
        pids = [await asyncio.to_thread(rank_pids, None, lab.settings.conf) for lab in (alpha, beta)]
        assert not all(pids), f"ranks on both clusters at once: {pids}"
        await asyncio.sleep(0.25)


def log_of(lab: Cluster) -> str:
    """What slurmctld said."""
    return (lab.root / lab.name / "log" / "slurmctld.log").read_text()


def write_fleet(folder: Path, labs: tuple[Cluster, ...]) -> None:
    """Each cluster with a site of its own."""
    rows = ["version: 1", "clusters:", *(row for lab in labs for row in cluster_rows(lab, site=True))]
    rows += ["sites:", *(f"  at-{c}: {{mount: {folder / s}}}" for c, s in zip(CLUSTERS, STORAGES, strict=True))]
    (folder / "fleet.yaml").write_text("\n".join(rows) + "\n" + ALL_AUTO)


def spec(alpha: Cluster, root: Path) -> JobSpec:
    """A job that may move: its script says all its options, and takes its checkpoint root from where it is told."""
    words = ["supervise", "transfer", f"job={JOB}", "checkpoint-signal=USR1", f"total-steps={STEPS}"]
    words += ["generation-check=yes", f"checkpoint={root}"]
    train = f"{sys.executable} {PACED} {TRAIN} --steps {STEPS} --step-time 0.4 --checkpoint-every {EVERY}"
    told = f'--checkpoint-dir "${{GPU_RUNBOOKS_CHECKPOINT:-{root}}}"'
    lines = ["#!/bin/bash", "#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:8", f"#SBATCH --output={JOB}.out"]
    lines += ["#SBATCH --open-mode=append", "trap ':' USR1"]
    lines += [f"srun --kill-on-bad-exit=1 {train} {told}", "exit $?"]
    comment = " ".join(TOKEN_PREFIX + word for word in words)
    return JobSpec(job=JOB, name=JOB, script="\n".join(lines) + "\n", workdir=str(alpha.work), comment=comment)
