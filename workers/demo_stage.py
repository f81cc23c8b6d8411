"""What the demo needs of a backend, and the story it tells on each."""

from pathlib import Path
from typing import Protocol

from fleet.identity import TOKEN_PREFIX

JOB = "demo-train"
TOTAL_STEPS = 60
STEPS_FIRST = 12
"""Steps before the fault, so that a periodic checkpoint (every ten) exists."""


def comment(*words: str) -> str:
    """The words with which a researcher opts in; nothing else of ours is in the job."""
    declared = ("supervise", f"job={JOB}", "checkpoint-signal=USR1", f"total-steps={TOTAL_STEPS}")
    return " ".join(TOKEN_PREFIX + word for word in (*declared, "generation-check=yes", *words))


class Stage(Protocol):
    """One backend, made anew for the demo."""

    cluster: str
    fleet: Path
    watch: str
    """What it is, and how a person may look at the backend itself meanwhile."""

    async def submit(self) -> None:
        """Puts the training job into the cluster as a researcher would."""

    async def steps(self) -> int:
        """Last step in the first attempt's own output."""

    async def break_gpu(self, node: str) -> tuple[str, str]:
        """Breaks a GPU; returns the kernel's line about it, and what is not real here (or nothing)."""

    async def close(self, *, keep: bool) -> tuple[str, ...]:
        """Takes everything away again, or says how to; returns lines for a person."""
