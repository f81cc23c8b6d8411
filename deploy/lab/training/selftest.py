#!/usr/bin/env python3
"""Prove the training program on a real Slurm cluster of the lab: about a minute, as root.

Usage: ``selftest.py [--root DIR] [--port BASEPORT]``. Starts a cluster of its own, prints one line per proof
with its figures, removes the cluster and exits with 0, or with 1 at the first proof that fails.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
LAB = HERE.parent / "slurm_lab.sh"
CLUSTER = "selftest"
EVERY, STEP_TIME = 20, 0.1  # steps between two checkpoints, seconds
LATE_WRITER = """#!/bin/bash
python3 "$TRAIN" --checkpoint-dir "$CHECKPOINTS" --steps "$STEPS" --step-time "$STEP_TIME" \\
  --checkpoint-every "$CHECKPOINT_EVERY"
echo "exit code $?"
"""


def until(condition: Callable[[], object], what: str, seconds: float = 60) -> float:
    """Poll a condition; return the seconds it took."""
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > seconds:
            raise SystemExit(f"FAILED: {what}: not seen in {seconds:.0f} s")
        time.sleep(0.05)
    return time.monotonic() - begin


def expect(truth: object, what: str) -> None:
    """End the self-test unless something is so."""
    if not truth:
        raise SystemExit(f"FAILED: {what}")


def run(*argv: str | Path) -> str:
    """Run a command and return what it printed."""
    return subprocess.run([str(arg) for arg in argv], check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


@dataclass
class Job:
    """A submitted training job."""

    name: str
    folder: Path
    number: str = ""

    def submit(self, *options: str, script: Path | None = None) -> None:
        """Hand it to Slurm; without a script of its own it is the example job."""
        settings = {"TRAIN": HERE / "train.py", "CHECKPOINTS": self.folder / self.name, "STEPS": 100000}
        settings |= {"STEP_TIME": STEP_TIME, "CHECKPOINT_EVERY": EVERY}
        os.environ.update({name: str(value) for name, value in settings.items()})
        output = self.folder / f"{self.name}.out"
        self.number = run("sbatch", "--parsable", *options, "-o", output, script or HERE / "job.sbatch")

    def text(self) -> str:
        """Return what all its starts have printed."""
        path = self.folder / f"{self.name}.out"
        return path.read_text() if path.exists() else ""

    def steps(self, restart: int) -> dict[int, str]:
        """Return step and loss of one start."""
        lines = re.findall(rf"^step (\d+)/\d+ loss (\S+) t=\S+ gen=0\.{restart} rank=0$", self.text(), re.M)
        return {int(step): loss for step, loss in lines}

    def last(self, restart: int) -> int:
        """Return the last step of one start, 0 when there is none."""
        return max(self.steps(restart), default=0)

    def resumed(self, restart: int) -> int:
        """Return the step that a start has resumed from, -1 when it has not."""
        found = re.search(rf"^resumed from step (\d+) gen=0\.{restart}$", self.text(), re.M)
        return int(found[1]) if found else -1

    def saved(self) -> list[int]:
        """Return the steps of all complete checkpoints."""
        return sorted(int(path.parent.name[5:13]) for path in (self.folder / self.name).glob("step_*/COMPLETE"))

    def state(self) -> str:
        """Return Slurm's word for its state."""
        return run("squeue", "-h", "-j", self.number, "-t", "all", "-o", "%T")

    def nodes(self) -> list[str]:
        """Return the nodes it has now."""
        return run("scontrol", "show", "hostnames", run("squeue", "-h", "-j", self.number, "-o", "%N")).split()

    def start_now(self) -> None:
        """Skip the wait that Slurm puts before a requeued job.

        A node refuses a credential made in the second in which it ended the job, and Slurm then fails the job: so
        not in the second of its end.
        """
        time.sleep(1.1)
        run("scontrol", "update", f"jobid={self.number}", "StartTime=now")


def checkpoint_on_request(job: Job) -> None:
    """A signal to the whole job saves on both ranks and ends nothing."""
    until(lambda: job.last(0) >= 3, "first steps")
    run("scancel", "-s", "USR1", "--full", job.number)
    wait = until(job.saved, "a checkpoint on request")
    step = job.saved()[0]
    folder = job.folder / job.name / f"step_{step:08d}.g0.0"
    names = sorted(path.name for path in folder.iterdir())
    expect(
        step % EVERY and names == ["COMPLETE", "rank_0.json", "rank_1.json"], f"a checkpoint of two ranks: {names}"
    )
    until(lambda: job.last(0) > step + 2, "steps after the checkpoint")
    print(f"checkpoint on USR1 --full: step {step}, both ranks, {wait:.2f} s, the job runs on")


def resume_after_requeue(job: Job, undisturbed: Job) -> None:
    """Hold and release: the second start goes on from the checkpoint with the same losses."""
    run("scontrol", "requeuehold", job.number)
    until(lambda: job.state() == "PENDING", "PENDING after requeuehold")
    saved = job.saved()[-1]
    run("scontrol", "release", job.number)
    job.start_now()
    wait = until(lambda: job.last(1), "a step after the release")
    until(lambda: undisturbed.last(0) >= saved + 10 and job.last(1) >= saved + 10, "ten more steps")
    whole, both = undisturbed.steps(0), job.steps(0) | job.steps(1)
    expect(job.resumed(1) == saved, "resumed from the newest checkpoint")
    expect(all(both[step] == whole[step] for step in both.keys() & whole.keys()), "the same losses as undisturbed")
    print(f"requeuehold and release: resumed from step {saved}, first step after {wait:.1f} s, losses as undisturbed")


def lose_a_node(job: Job, lab: Callable[..., str]) -> None:
    """Power loss: Slurm requeues, and only the steps since the last checkpoint are lost."""
    before, restart = job.nodes(), 2
    lab("node-crash", CLUSTER, before[-1])
    until(lambda: job.state() == "PENDING", "requeue by Slurm")
    job.start_now()
    wait = until(lambda: job.last(restart), "a step on other nodes")
    lost = job.last(1) - job.resumed(restart)
    expect(0 <= lost <= EVERY, f"at most {EVERY} steps lost, not {lost}")
    expect(before[-1] not in job.nodes(), "the crashed node is not used")
    moved = f"{','.join(before)} to {','.join(job.nodes())}"
    print(f"node-crash: {moved}, {lost} steps lost, first step {wait:.1f} s after the requeue")


def late_writer(job: Job, lab: Callable[..., str]) -> None:
    """Split brain: slurmd is killed, the rank goes on, a second start begins elsewhere, the first one refuses.

    Without srun, which would hear of the lost node and end the rank: so does whoever uses torchrun in a batch script.
    """
    script = job.folder / "late-writer.sbatch"
    script.write_text(LATE_WRITER)
    job.submit("--gres=gpu:8", "--open-mode=append", script=script)
    until(lambda: job.last(0) >= 3, "first steps")
    [node] = job.nodes()
    lab("slurmd-kill", CLUSTER, node)
    until(lambda: job.state() == "PENDING", "requeue by Slurm")
    expect("refusing" not in job.text(), "nobody refuses before there is a newer generation")
    job.start_now()
    refusal = "refusing to write: generation (0,0) is older than (0,1)"
    until(lambda: job.last(1), "a step of the second start")
    wait = until(lambda: refusal in job.text(), "the refusal of the first start")
    ahead = job.last(0) - job.resumed(1)
    expect(job.nodes() != [node], "the second start runs elsewhere")
    until(lambda: "exit code 75" in job.text(), "exit code 75")
    until(lambda: max(job.saved()) in job.steps(1), "a checkpoint of the second start")
    print(f"slurmd -9: the old rank got {ahead} steps past the resumed one, refused {wait:.1f} s later, exit code 75")


def main() -> int:
    """Run all proofs on one cluster."""
    parser = argparse.ArgumentParser(description="Prove the training program on a real lab cluster.")
    parser.add_argument("--root", type=Path, default=Path("/tmp/slurm-lab"), help="parent folder of the cluster")  # noqa: S108
    parser.add_argument("--port", type=int, default=19000, help="first of seven ports")
    options = parser.parse_args()

    def lab(*argv: str) -> str:
        return run(LAB, "--root", options.root, *argv)

    lab("start", CLUSTER, "-p", str(options.port), "-o", "SlurmdTimeout=6")
    try:
        folder = options.root / CLUSTER / "training"
        folder.mkdir()
        os.environ["SLURM_CONF"] = str(options.root / CLUSTER / "etc/slurm.conf")
        job, undisturbed = Job("two-nodes", folder), Job("undisturbed", folder)
        job.submit("-N2")
        undisturbed.submit("-N1", "-w", f"{CLUSTER}6")
        checkpoint_on_request(job)
        resume_after_requeue(job, undisturbed)
        lose_a_node(job, lab)
        late_writer(Job("late-writer", folder), lab)
    finally:
        lab("rm", CLUSTER)
    return 0


if __name__ == "__main__":
    sys.exit(main())
