"""What a contract test may use beside the port: a cluster of its own, faults, and the truth about its ranks.

A backend's rig module holds `KINDS: tuple[RigKind, ...]`; `conftest.py` runs every body on each kind that can start.
Every test gets a fresh rig. Seconds are the cluster's own unless a name says "real".
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from activities.backends.port import ClusterBackend
from fleet.errors import TemporaryError
from fleet.orders import JobSpec

T = TypeVar("T")
SLACK = 10.0
"""Real seconds added to every deadline, for a loaded machine."""


class Rig(Protocol):
    """One fresh cluster of at least 6 nodes with 8 GPUs each, all idle, and the scheduler's default requeue delay."""

    name: str
    time_scale: float
    """Cluster seconds per real second; 1.0 for real ones."""
    batch_scheduler: bool
    """It starts a job on all of its nodes or on none, in the order of a queue, and puts one whose node it gave up
    back into that queue by itself, after a delay of its own. False: pods are scheduled one by one, and a lost node's
    job stays as it is until a runbook stops it."""
    script_start: str
    """How a job's stored script begins."""
    gpu_model: str
    """What the cluster calls its GPUs; empty where it does not say."""

    @property
    def backend(self) -> ClusterBackend: ...

    def now(self) -> float:
        """The cluster's clock, the one of `NativeJob.started_at` and `NodeFacts.booted_at`."""

    def training_spec(
        self,
        name: str,
        *,
        nodes: int = 2,
        steps: int = 100_000,
        checkpoint_every: int = 20,
        fail_at: int | None = None,
        exit_code: int = 3,
        generation_check: bool = False,
        tokens: str = "",
    ) -> JobSpec:
        """A training job with 8 GPUs a node and one rank a node, not yet submitted; `spec.job` is its key.

        It declares `supervise`, `checkpoint-signal=USR1` and `total-steps` in its comment, `tokens` are added.
        It saves at USR1 and every `checkpoint_every` steps (some real seconds apart at most), resumes from the
        newest complete checkpoint, logs the lines of a real training, and ends non-zero at SIGTERM.
        `fail_at` makes it print a Python traceback at that step and end with `exit_code`.
        """

    async def person_submit(self, spec: JobSpec) -> str:
        """A user's plain submit, without a key of ours; returns the native id."""

    async def ranks_alive(self, native_id: str) -> int:
        """The truth, not the scheduler's opinion: ranks of any attempt of the job that live now (frozen ones too)."""

    async def newest_complete_checkpoint(self, job: str) -> int | None:
        """Step of the newest complete checkpoint of the job with the key `job`, read from its storage."""

    async def crash_node(self, node: str) -> None:
        """Power loss: every process of the node is gone; it stays off."""

    async def freeze_node(self, node: str) -> None:
        """The node hangs: nothing on it moves, nothing dies."""

    async def thaw_node(self, node: str) -> None: ...

    async def kill_daemon(self, node: str) -> None:
        """The scheduler's daemon on the node dies; the ranks go on."""

    async def start_daemon(self, node: str) -> None: ...

    async def person_drain(self, node: str, reason: str) -> None: ...

    async def person_hold(self, native_id: str) -> None:
        """The owner's own hold of a pending job."""

    async def person_requeue(self, native_id: str) -> None: ...

    async def person_cancel(self, native_id: str) -> None: ...

    async def fail_check(self, node: str, text: str) -> None:
        """From now on a check on the node fails with `text` in its detail."""

    async def freeze_controller(self) -> None: ...

    async def thaw_controller(self) -> None: ...


@dataclass(frozen=True)
class RigKind:
    """A kind of rig. `why_not` answers None when it can start here, else one sentence with what is missing."""

    name: str
    why_not: Callable[[], str | None]
    open: Callable[[Path], AbstractAsyncContextManager[Rig]]
    """Takes an empty folder (it may be deep: too deep for Unix sockets). Leaves no process behind."""
    marks: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    """Names of the tests that run on it; empty for all."""
    at_once: int = 1
    """Tests of this kind that are played side by side."""


async def eventually(
    rig: Rig, read: Callable[[], Awaitable[T]], wanted: Callable[[T], bool], seconds: float, what: str = ""
) -> T:
    """Polls until `wanted`, at most `seconds` of the cluster's time and some slack; returns what was read.

    A TemporaryError while reading counts as "not yet". Fails with the last thing seen.
    """
    seen: object = "nothing was read"
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds / rig.time_scale + SLACK
    while True:
        try:
            value = await read()
        except TemporaryError as error:
            seen = error
        else:
            if wanted(value):
                return value
            seen = value
        if loop.time() > end:
            raise AssertionError(f"not {what or 'as wanted'} after {seconds} s of the cluster; last seen: {seen!r}")
        await asyncio.sleep(0.1 if rig.time_scale <= 1 else 0.02)
