"""What a training has done, read from its own lines and files."""

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.slurm.lab import TRAIN

STEP = re.compile(r"step (\d+)/\d+ loss (\S+) .*gen=(\d+\.\d+) ")


def undisturbed(folder: Path, steps: int, ranks: int = 2) -> dict[int, str]:
    """Loss of each step of a run that nobody disturbs and no scheduler knows."""
    words = ["--steps", str(steps), "--step-time", "0", "--checkpoint-every", "100000"]
    argv = [sys.executable, str(TRAIN), *words, "--checkpoint-dir", str(folder)]
    running = [
        subprocess.Popen(argv, env={"RANK": str(rank), "WORLD_SIZE": str(ranks)}, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    said = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0] * ranks
    return {step: loss for step, loss, _ in steps_of(said[0].splitlines())}


def steps_of(lines: Iterable[str]) -> list[tuple[int, str, str]]:
    """Step, loss and generation of each step line, in order."""
    found = (STEP.match(line) for line in lines)
    return [(int(m[1]), m[2], m[3]) for m in found if m]


def saved(lines: Iterable[str], generation: str) -> list[int]:
    """Steps that a generation saved."""
    found = (re.match(rf"saved step (\d+) gen={re.escape(generation)}$", line) for line in lines)
    return [int(m[1]) for m in found if m]


def resumed(lines: Iterable[str], generation: str) -> int | None:
    """The step that a generation began from."""
    found = (re.match(rf"resumed from step (\d+) gen={re.escape(generation)}$", line) for line in lines)
    return next((int(m[1]) for m in found if m), None)


def newest_checkpoint(folder: Path) -> tuple[str, int]:
    """Generation and step of the checkpoint that the next start would take; AssertionError unless it is whole."""
    complete = []
    for marker in folder.glob("step_*/COMPLETE"):
        about = json.loads(marker.read_text())
        complete.append(((*map(int, about["generation"].split(".")), about["step"]), marker.parent, about))
    assert complete, f"no complete checkpoint in {folder}"
    _, newest, about = max(complete, key=lambda found: found[0])
    for name in about["shards"]:
        shard = json.loads((newest / name).read_text())
        assert (shard["generation"], shard["step"]) == (about["generation"], about["step"])
    return about["generation"], about["step"]


def complete_of(folder: Path, generation: str) -> list[int]:
    """Steps of the complete checkpoints that a generation wrote."""
    return sorted(int(m.parent.name[5:13]) for m in folder.glob(f"step_*.g{generation}/COMPLETE"))
