"""Reads that answer from a list, for tests of what is concluded from a reading."""

from collections.abc import Mapping

from activities.backends.slurm.normalise import JobRecord, NodeRecord
from activities.backends.slurm.reads import Reservation
from fleet.model import NativeJob, Phase


def record(phase: Phase = Phase.RUNNING, **fields: object) -> JobRecord:
    """A job of two nodes."""
    values: dict[str, object] = {"cluster": "alpha", "native_id": "7", "name": "t", "nodes": ("a1", "a2")} | fields
    return JobRecord(job=NativeJob(phase=phase, **values), job_id="7", base=None)  # type: ignore[arg-type]


def a_node(
    name: str, base: str = "IDLE", *flags: str, boot: int = 1000, start: int = 0, reason: str = ""
) -> NodeRecord:
    return NodeRecord(
        name=name,
        base=base,
        flags=frozenset(flags),
        boot_time=boot,
        slurmd_start=start,
        gpus=8,
        gpus_expected=8,
        reason=reason,
    )


class Readings:
    """A `SlurmReads` whose answers a test sets."""

    def __init__(self, jobs: tuple[JobRecord, ...] = (), nodes: tuple[NodeRecord, ...] = ()) -> None:
        self.jobs = jobs
        self.nodes = nodes
        self.reservations: tuple[Reservation, ...] = ()
        self.error: Exception | None = None
        self.job_reads = 0

    async def ping(self) -> None:
        return None

    async def config(self) -> Mapping[str, str]:
        return {"ClusterName": "alpha"}

    async def list_jobs(self) -> tuple[JobRecord, ...]:
        self.job_reads += 1
        if self.error is not None:
            raise self.error
        return self.jobs

    async def list_nodes(self) -> tuple[NodeRecord, ...]:
        if self.error is not None:
            raise self.error
        return self.nodes

    async def list_reservations(self) -> tuple[Reservation, ...]:
        return self.reservations

    async def close(self) -> None:
        return None
