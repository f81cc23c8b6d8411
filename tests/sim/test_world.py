"""One file, several programs, one clock."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from activities.backends.sim import ClusterShape, SimBackend, SimSettings, create_world
from activities.backends.sim.faults import Faults
from activities.backends.sim.world import set_time_scale
from fleet.errors import InvalidInputError, NotFoundError, PermanentError, RefusedError
from fleet.model import Phase
from tests.sim.conftest import spec

WRITER = """
import asyncio, sys
from pathlib import Path
from activities.backends.sim import SimBackend, SimSettings
from tests.sim.conftest import spec

async def main():
    backend = SimBackend("alpha", SimSettings(path=Path(sys.argv[1])))
    for i in range(10):
        await backend.submit(spec(f"job{i}", nodes=1))
        await backend.isolate(f"alpha{i % 6 + 1}", "op" + sys.argv[2] * 5, "race")
    await backend.close()

asyncio.run(main())
"""


def test_several_processes_on_one_file_make_each_thing_once(path: Path, faults: Faults) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), letter]) for letter in "abcd"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0, 0]
    submits = [e.detail for e in faults.effects("submit")]
    assert sorted(submits) == sorted(f"job{i}" for i in range(10))
    isolated = [e.target for e in faults.effects("isolate")]
    assert sorted(isolated) == [f"alpha{i}" for i in range(1, 7)]


async def test_a_second_program_sees_the_same_world(path: Path, alpha: SimBackend, faults: Faults) -> None:
    job = await alpha.submit(spec())
    faults.jump(20)
    other = SimBackend("alpha", SimSettings(path=path))
    assert (await other.job(job.native_id)).phase is Phase.RUNNING
    assert (await other.progress(job.native_id, 0)).saved == 20
    await other.close()


async def test_clusters_of_one_world_do_not_see_each_other(path: Path, alpha: SimBackend) -> None:
    job = await alpha.submit(spec())
    beta = SimBackend("beta", SimSettings(path=path))
    assert (await beta.job(job.native_id)).phase is Phase.ABSENT
    with pytest.raises(NotFoundError):
        await beta.isolate("alpha1", "opaaaaa", "x")
    assert await beta.jobs() == ()
    await beta.close()


async def test_a_frozen_controller_does_not_touch_the_other_cluster(path: Path, faults: Faults) -> None:
    faults.controller_freeze()
    beta = SimBackend("beta", SimSettings(path=path))
    began = time.monotonic()
    job = await beta.submit(spec())
    assert (await beta.job(job.native_id)).phase is Phase.RUNNING
    assert time.monotonic() - began < 2
    await beta.close()


def test_at_rate_one_the_clock_is_the_wall_clock(faults: Faults) -> None:
    assert faults.now() == pytest.approx(time.time(), abs=0.5)


def test_the_rate_of_a_world_can_change_without_a_jump(path: Path, faults: Faults) -> None:
    before = faults.now()
    set_time_scale(path, 100_000.0)
    assert faults.now() >= before
    time.sleep(0.01)
    assert faults.now() - before > 900


async def test_a_rate_other_than_the_worlds_is_refused_at_the_probe(path: Path) -> None:
    backend = SimBackend("alpha", SimSettings(path=path, time_scale=20.0))
    with pytest.raises(InvalidInputError, match="time_scale"):
        await backend.probe()
    await backend.close()


async def test_an_unknown_cluster_and_a_missing_file_are_named(path: Path, tmp_path: Path) -> None:
    gamma = SimBackend("gamma", SimSettings(path=path))
    with pytest.raises(NotFoundError, match="alpha, beta"):
        await gamma.probe()
    await gamma.close()
    nowhere = SimBackend("alpha", SimSettings(path=tmp_path / "none.db"))
    with pytest.raises(PermanentError, match="create_world"):
        await nowhere.probe()


def test_a_world_is_not_overwritten(path: Path) -> None:
    with pytest.raises(RefusedError):
        create_world(path, {"alpha": ClusterShape()})


async def test_a_thousand_nodes_are_read_quickly(tmp_path: Path) -> None:
    path = create_world(tmp_path / "big.db", {"alpha": ClusterShape(nodes=1000)})
    big, faults = SimBackend("alpha", SimSettings(path=path)), Faults(path, "alpha")
    ids = [(await big.submit(spec(f"job{i}", nodes=4))).native_id for i in range(200)]
    faults.jump(60)
    began = time.monotonic()
    assert len((await big.capacity()).free_nodes) == 200
    assert len(await big.nodes(max_age=0)) == 1000
    assert sum(j.phase is Phase.RUNNING for j in await big.jobs(max_age=0)) == 200
    for native_id in ids:
        assert (await big.progress(native_id, 0)).step
    assert time.monotonic() - began < 5, "about 0.3 s on two idle cores"
    await big.close()
    faults.close()


async def test_switches_and_models_are_told_where_the_world_has_them(tmp_path: Path) -> None:
    shape = ClusterShape(nodes=5, switch_nodes=2, gpu_model="H200", gpus=4)
    path = create_world(tmp_path / "switches.db", {"alpha": shape})
    backend = SimBackend("alpha", SimSettings(path=path))
    try:
        groups = (await backend.room()).groups
    finally:
        await backend.close()

    assert [(g.domain, g.gpu_model, g.gpus, g.free, g.total) for g in groups] == [
        ("switch1", "H200", 4, 2, 2),
        ("switch2", "H200", 4, 2, 2),
        ("switch3", "H200", 4, 1, 1),
    ]


async def test_a_job_beyond_the_quota_waits_until_others_leave(tmp_path: Path) -> None:
    path = create_world(tmp_path / "quota.db", {"alpha": ClusterShape(nodes=6, quota_gpus=24)})
    backend, faults = SimBackend("alpha", SimSettings(path=path)), Faults(path, "alpha")
    try:
        assert [q.gpus_left for q in (await backend.room()).quotas] == [24]
        first = await backend.submit(spec("first", nodes=2))
        second = await backend.submit(spec("second", nodes=2))
        assert [q.gpus_left for q in (await backend.room()).quotas] == [8]
        assert (await backend.room()).waiting == (2,)
        assert (await backend.job(second.native_id)).phase is Phase.PENDING
        faults.person_cancel(first.native_id)
        faults.jump(10)
        assert (await backend.job(second.native_id)).phase is Phase.RUNNING
    finally:
        await backend.close()
        faults.close()
