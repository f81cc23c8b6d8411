"""Checkpoints that are real files: what judges and copies checkpoints works on them, and a job resumes from them."""

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from activities.backends.sim import SimBackend, SimSettings
from activities.backends.sim.disk import Folder
from activities.backends.sim.faults import Faults
from activities.checkpoints import look
from fleet.checkpoints.model import Format
from fleet.model import Phase
from fleet.orders import CHECKPOINT_ENV, JobSpec, StartOrder
from tests.checkpoints.answers import newest
from tests.sim.conftest import spec

CHECK = "gpu-runbooks.io/supervise gpu-runbooks.io/generation-check=yes"


@pytest.fixture
async def beta(path: Path) -> AsyncIterator[SimBackend]:
    backend = SimBackend("beta", SimSettings(path=path))
    yield backend
    await backend.close()


@pytest.fixture
def there(path: Path) -> Iterator[Faults]:
    world = Faults(path, "beta")
    yield world
    world.close()


def saving_in(root: Path, words: str = CHECK, **more: object) -> JobSpec:
    return spec(comment=f"{words} gpu-runbooks.io/checkpoint={root}", **more)


async def saved(alpha: SimBackend, faults: Faults, root: Path, words: str = CHECK) -> tuple[str, int]:
    """A job that has saved seven times; its id and the step of the last one."""
    job = await alpha.submit(saving_in(root, words))
    faults.jump(1 + 7 * 10.2 + 1)
    step = (await alpha.progress(job.native_id, 0)).saved
    assert step == 140
    return job.native_id, step


async def test_its_checkpoints_are_proven_complete_and_old_ones_go_as_trainers_delete_them(
    alpha: SimBackend, faults: Faults, tmp_path: Path
) -> None:
    _, step = await saved(alpha, faults, tmp_path / "ckpt")
    found = look(tmp_path / "ckpt")
    assert newest(found) == step
    assert [c.entry.name for c in found.candidates if c.complete] == [
        f"step_{s:08d}.g0.0" for s in range(step, step - 100, -20)
    ]
    assert {c.entry.format for c in found.candidates} == {Format.MARKED}


async def test_a_copy_is_found_by_a_later_submission_on_another_cluster(
    alpha: SimBackend, faults: Faults, beta: SimBackend, there: Faults, tmp_path: Path
) -> None:
    old, step = await saved(alpha, faults, tmp_path / "ckpt")
    await alpha.cancel(old)
    faults.jump(10)
    (tmp_path / "site").mkdir()
    shutil.copytree(tmp_path / f"ckpt/step_{step:08d}.g0.0", tmp_path / f"site/ckpt/step_{step:08d}.g0.0")
    moved = saving_in(tmp_path / "ckpt").model_copy(
        update={"epoch": 1, "env": {CHECKPOINT_ENV: str(tmp_path / "site/ckpt")}}
    )
    job = await beta.submit(moved)
    there.jump(1 + 10.2 + 1)
    seen = await beta.progress(job.native_id, 0)
    assert (seen.resumed_from, seen.first_step, seen.saved) == (step, step + 1, step + 20)
    assert newest(look(tmp_path / "site/ckpt")) == step + 20
    assert (tmp_path / f"site/ckpt/step_{step + 20:08d}.g1.0/COMPLETE").is_file()
    assert newest(look(tmp_path / "ckpt")) == step, "nobody writes at the source any more"


async def test_an_empty_folder_means_step_0_whatever_was_saved_elsewhere(
    alpha: SimBackend, faults: Faults, tmp_path: Path
) -> None:
    native_id, _ = await saved(alpha, faults, tmp_path / "ckpt")
    await alpha.stop(native_id, 0)
    faults.jump(5)
    shutil.rmtree(tmp_path / "ckpt")
    await alpha.start_attempt(StartOrder(native_id=native_id, restarts=1))
    assert (await alpha.progress(native_id, 1)).resumed_from is None
    assert any(line.startswith("starting at step 0 gen=0.1") for line in await alpha.log_tail(native_id))


async def test_a_damaged_checkpoint_is_passed_over(alpha: SimBackend, faults: Faults, tmp_path: Path) -> None:
    native_id, step = await saved(alpha, faults, tmp_path / "ckpt")
    await alpha.stop(native_id, 0)
    faults.jump(5)
    with (tmp_path / f"ckpt/step_{step:08d}.g0.0/rank_1.json").open("r+b") as shard:
        shard.truncate(5)
    (tmp_path / f"ckpt/step_{step - 20:08d}.g0.0/COMPLETE").unlink()
    await alpha.start_attempt(StartOrder(native_id=native_id, restarts=1))
    assert (await alpha.progress(native_id, 1)).resumed_from == step - 40


async def test_a_folder_that_cannot_be_made_is_only_told(alpha: SimBackend, faults: Faults, tmp_path: Path) -> None:
    native_id, step = await saved(alpha, faults, tmp_path / "missing/ckpt")
    await alpha.stop(native_id, 0)
    faults.jump(5)
    await alpha.start_attempt(StartOrder(native_id=native_id, restarts=1))
    assert (await alpha.progress(native_id, 1)).resumed_from == step
    assert not (tmp_path / "missing").exists()


async def test_a_save_that_the_store_refuses_is_no_save_and_training_goes_on(
    alpha: SimBackend, faults: Faults, tmp_path: Path
) -> None:
    (tmp_path / "ckpt").write_text("a file stands there")
    job = await alpha.submit(saving_in(tmp_path / "ckpt"))
    faults.jump(1 + 10.2 + 2)
    seen = await alpha.progress(job.native_id, 0)
    assert (seen.saved, (await alpha.job(job.native_id)).phase) == (None, Phase.RUNNING)
    assert (seen.step or 0) > 20
    assert any(line.startswith("could not save step 20 ") for line in await alpha.log_tail(job.native_id))
    assert faults.checkpoints(job.native_id) == ()


def test_a_checked_writer_reads_and_deletes_nothing_of_a_later_one(tmp_path: Path) -> None:
    for step, own in ((60, (0, 0)), (40, (0, 1)), (20, (1, 0))):
        Folder(tmp_path, own, checked=True).save(step, 2)
    assert Folder(tmp_path, (0, 1), checked=True).newest() == 40
    assert Folder(tmp_path, (1, 0), checked=True).newest() == 20
    assert Folder(tmp_path, (0, 1), checked=False).newest() == 60
    Folder(tmp_path, (0, 1), checked=True).keep(1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_00000020.g1.0", "step_00000040.g0.1"]
