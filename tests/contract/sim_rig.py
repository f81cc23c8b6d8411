"""The simulated fleet as a rig: one cluster of six nodes in a fresh world whose time runs 25 times as fast."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from activities.backends.sim import ClusterShape, SimBackend, SimSettings, create_world
from activities.backends.sim.faults import Faults
from fleet.orders import JobSpec
from tests.contract.rig import Rig, RigKind

TIME_SCALE = 25.0


class SimRig:
    """The faults are calls on the world's file; the truth is read from its tables."""

    name = "sim"
    time_scale = TIME_SCALE
    batch_scheduler = True
    script_start = "#!"
    gpu_model = "H100"

    def __init__(self, path: Path) -> None:
        self.backend = SimBackend("alpha", SimSettings(path=path, time_scale=TIME_SCALE))
        self.faults = Faults(path, "alpha")

    def now(self) -> float:
        return self.faults.now()

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
        ends = f" fail_at={fail_at} exit_code={exit_code}" if fail_at is not None else ""
        check = " gpu-runbooks.io/generation-check=yes" if generation_check else ""
        return JobSpec(
            job=f"key-{name}",
            name=name,
            script=f"#!/bin/sh\n#SIM nodes={nodes} gpus=8 steps={steps} step_time=0.5\n"
            f"#SIM checkpoint_every={checkpoint_every} save_time=0.2 load_time=1{ends}\n",
            comment=f"my run gpu-runbooks.io/supervise gpu-runbooks.io/checkpoint-signal=USR1"
            f" gpu-runbooks.io/total-steps={steps}{check} {tokens}".strip(),
        )

    async def person_submit(self, spec: JobSpec) -> str:
        return self.faults.person_submit(spec)

    async def ranks_alive(self, native_id: str) -> int:
        return self.faults.ranks_alive(native_id)

    async def newest_complete_checkpoint(self, job: str) -> int | None:
        found = [c for native_id in self.faults.native_ids(job) for c in self.faults.checkpoints(native_id)]
        return max(found)[1] if found else None

    async def crash_node(self, node: str) -> None:
        self.faults.crash_node(node)

    async def freeze_node(self, node: str) -> None:
        self.faults.freeze_node(node)

    async def thaw_node(self, node: str) -> None:
        self.faults.thaw_node(node)

    async def kill_daemon(self, node: str) -> None:
        self.faults.kill_daemon(node)

    async def start_daemon(self, node: str) -> None:
        self.faults.start_daemon(node)

    async def person_drain(self, node: str, reason: str) -> None:
        self.faults.person_drain(node, reason)

    async def person_hold(self, native_id: str) -> None:
        self.faults.person_hold(native_id)

    async def person_requeue(self, native_id: str) -> None:
        self.faults.person_requeue(native_id)

    async def person_cancel(self, native_id: str) -> None:
        self.faults.person_cancel(native_id)

    async def fail_check(self, node: str, text: str) -> None:
        self.faults.fail_check(node, text)

    async def freeze_controller(self) -> None:
        self.faults.controller_freeze()

    async def thaw_controller(self) -> None:
        self.faults.controller_thaw()


@asynccontextmanager
async def open_rig(folder: Path) -> AsyncIterator[Rig]:
    path = create_world(folder / "world.db", {"alpha": ClusterShape()}, time_scale=TIME_SCALE)
    rig = SimRig(path)
    try:
        yield rig
    finally:
        await rig.backend.close()
        rig.faults.close()


KINDS = (RigKind(name="sim", why_not=lambda: None, open=open_rig, at_once=2),)
