"""The demo's stage on a real Slurm lab of this machine: two private clusters with Slurm's own requeue delay."""

import asyncio
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from activities.backends.training_log import parse_progress
from fleet.errors import PermanentError
from workers.demo_stage import JOB, TOTAL_STEPS, comment
from workers.fleets import ALL_AUTO
from workers.lab_fleet import write_fleet
from workers.lab_place import DEPLOY, default_root
from workers.lab_slurm import DEFAULT_REQUEUE, SlurmLab

CLUSTERS = ("alpha", "beta")
NODES = 4
GPU = 5
"""Index of the GPU that breaks."""
LINE = "NVRM: Xid (PCI:0000:ab:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
"""As the kernel writes it (NVIDIA's XID catalogue, 79)."""
UNREAL = (
    f"the device file of GPU {GPU} is really gone, and the node's check will count; but this lab's training runs on "
    "the CPU, so its ranks go on where real ones would hang, and the kernel's line is ours"
)
STEP_TIME = "0.3"


def lab_root(folder: Path) -> Path:
    """One lab for each state folder, so that two demos never take each other's away; the name must stay short."""
    return default_root(f"demo-{hashlib.sha256(str(folder).encode()).hexdigest()[:6]}")


class SlurmStage:
    """A lab of its own, removed with the demo."""

    cluster = CLUSTERS[0]

    def __init__(self, lab: SlurmLab, fleet: Path) -> None:
        self.lab = lab
        self.fleet = fleet
        self.native_id = ""
        self.watch = f"real Slurm; look with SLURM_CONF={lab.conf(self.cluster)} squeue"

    @classmethod
    async def open(cls, folder: Path) -> "SlurmStage":
        """Starts the clusters. Raises PermanentError, with the command that installs what is missing."""
        lab = SlurmLab(lab_root(folder))
        await asyncio.to_thread(lab.check)
        stage = cls(lab, folder / "fleet.yaml")
        try:
            await asyncio.to_thread(lab.down)  # of a demo that was killed
            await asyncio.to_thread(lab.up, CLUSTERS, nodes=NODES, requeue_delay=DEFAULT_REQUEUE)
            write_fleet(stage.fleet, lab, CLUSTERS, ALL_AUTO)
        except BaseException:
            await asyncio.to_thread(lab.down)
            raise
        return stage

    async def submit(self) -> None:
        """A plain `sbatch` as this machine's user; nothing of ours in it but the words in the comment."""
        checkpoints = self.lab.jobs_folder / JOB
        sbatch = shutil.which("sbatch") or "/usr/bin/sbatch"
        argv = [sbatch, "--parsable", f"--comment={comment(f'checkpoint={checkpoints}')}"]
        argv += [f"--output={self._output}", str(DEPLOY / "training" / "job.sbatch")]
        settings = {
            "TRAIN": str(DEPLOY / "training" / "train.py"),
            "CHECKPOINTS": str(checkpoints),
            "STEPS": str(TOTAL_STEPS),
            "STEP_TIME": STEP_TIME,
            "CHECKPOINT_EVERY": "10",
            "SLURM_CONF": str(self.lab.conf(self.cluster)),
        }
        done = await asyncio.to_thread(
            subprocess.run,
            argv,
            env={key: value for key, value in os.environ.items() if not key.startswith("SLURM_")} | settings,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != 0 or not re.fullmatch(r"\d+", done.stdout.strip()):
            raise PermanentError(f"sbatch refused the demo's job: {done.stderr.strip() or done.stdout.strip()}")
        self.native_id = done.stdout.strip()

    @property
    def _output(self) -> Path:
        return self.lab.jobs_folder / f"{JOB}.out"

    async def steps(self) -> int:
        """Last step in the job's output."""
        try:
            text = await asyncio.to_thread(self._output.read_text)
        except FileNotFoundError:
            return 0
        return parse_progress(text, 0).step or 0

    async def break_gpu(self, node: str) -> tuple[str, str]:
        """The GPU's device file is gone until the node boots again."""
        await asyncio.to_thread(self.lab.call, "gpu-lose", self.cluster, node, str(GPU))
        return LINE, UNREAL

    async def close(self, *, keep: bool) -> tuple[str, ...]:
        """Removes the lab and says what is left of it."""
        if keep:
            return (f"left running: the Slurm lab; end it with `runbook lab slurm down --root {self.lab.root}`",)
        left = await asyncio.to_thread(self.lab.down)
        self.fleet.unlink(missing_ok=True)
        if left.clean:
            return (f"Slurm lab removed: {', '.join(left.clusters)}; no process, mount or namespace is left",)
        return ("Slurm lab NOT wholly removed:", *left.processes, *left.mounts, f"{left.namespaces} PID namespaces")
