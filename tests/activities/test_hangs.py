"""The step that says why a job hangs, on the simulated cluster and real files."""

from pathlib import Path
from typing import Any, cast

from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities import api
from activities.backends.factory import make_backend
from activities.backends.sim import ClusterShape, SimBackend, SimSettings, create_world
from activities.backends.sim.faults import Faults
from activities.hangs import HangActivities
from activities.runtime import Runtime
from activities.store import AsyncHistoryStore
from fleet.faults.evidence import Evidence, Kind
from fleet.model import NativeJob
from tests.faults.sources.dumps import dump, record, torch_pickle
from tests.sim.conftest import spec

POLICY = "version: 1\nclusters:\n  alpha: {kind: sim, path: world.db}\n"


async def told(
    tmp_path: Path, ranks: tuple[int, ...], *, since: float = 0.0
) -> tuple[NativeJob, tuple[Evidence, ...]]:
    """A running job of two nodes; those of its four ranks have left dumps and wait in number 9."""
    world = create_world(tmp_path / "world.db", {"alpha": ClusterShape()})
    (tmp_path / "fleet.yaml").write_text(POLICY)
    (tmp_path / "dumps").mkdir()
    for rank in ranks:
        (tmp_path / "dumps" / f"nccl_trace_rank_{rank}").write_bytes(torch_pickle(dump([record(9, "started")])))
    backend, faults = SimBackend("alpha", SimSettings(path=world)), Faults(world, "alpha")
    runtime = Runtime(
        policy_file=tmp_path / "fleet.yaml",
        client=cast("Client", None),
        make_backend=make_backend,
        store=cast("AsyncHistoryStore", None),
        unsigned_ok=False,
    )
    try:
        job = await backend.submit(spec("train-7", comment=f"gpu-runbooks.io/dumps={tmp_path}/dumps"))
        faults.jump(15)
        job = await backend.job(job.native_id)
        step: Any = HangActivities(runtime).diagnose_hang
        asked = api.Hang(cluster="alpha", native_id=job.native_id, job="train-7", nodes=job.nodes, since=since)
        answer: api.EvidenceIn = await ActivityEnvironment().run(step, asked)
        return job, answer.evidence
    finally:
        faults.close()
        await backend.close()
        await runtime.backend("alpha").close()


async def test_the_rank_that_left_no_dump_is_named_with_its_node(tmp_path: Path) -> None:
    job, (found,) = await told(tmp_path, (0, 1, 2))
    assert (found.kind, found.code, found.rank, found.node) == (Kind.HANG, "no_dump", 3, job.nodes[1])
    assert "ranks 0-2 wait in all_reduce 9" in found.detail


async def test_dumps_of_an_earlier_attempt_say_nothing(tmp_path: Path) -> None:
    _, found = await told(tmp_path, (0, 1, 2), since=4e9)
    assert found == ()


async def test_a_job_without_dumps_gives_no_evidence(tmp_path: Path) -> None:
    _, found = await told(tmp_path, ())
    assert found == ()
