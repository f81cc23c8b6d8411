"""The demo's stage on the embedded fleet."""

from pathlib import Path

from activities.backends.sim import SimBackend, SimSettings
from activities.backends.sim.faults import Faults
from fleet.orders import JobSpec
from workers.demo_stage import JOB, TOTAL_STEPS, comment
from workers.fleets import write_sim_fleet


class SimStage:
    """Two simulated clusters in the demo's folder, made anew."""

    cluster = "alpha"
    watch = "the embedded fleet, simulated"

    def __init__(self, folder: Path) -> None:
        self.fleet = write_sim_fleet(folder, fresh=True)
        self.faults = Faults(folder / "world.sqlite", self.cluster)
        self.backend = SimBackend(self.cluster, SimSettings(path=folder / "world.sqlite"))
        self.native_id = ""

    async def submit(self) -> None:
        """As a researcher would: nothing of ours but the words in the comment."""
        self.native_id = self.faults.person_submit(
            JobSpec(
                job=JOB,
                name="train",
                comment=comment(),
                script=(
                    f"#!/bin/sh\n#SIM nodes=2 gpus=8 steps={TOTAL_STEPS} step_time=0.2 checkpoint_every=10 "
                    "save_time=0.2 load_time=1\n"
                ),
            )
        )

    async def steps(self) -> int:
        """Last step of the first attempt."""
        return (await self.backend.progress(self.native_id, 0)).step or 0

    async def break_gpu(self, node: str) -> tuple[str, str]:
        """XID 79: the ranks of the whole job hang."""
        return self.faults.gpu_lost(node), ""

    async def close(self, *, keep: bool) -> tuple[str, ...]:
        """Closes the file; there is nothing else to take away."""
        self.faults.close()
        await self.backend.close()
        return ()
