"""Formats whose libraries are not at hand: layouts made by hand, whole and broken."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from activities.checkpoints import look
from fleet.checkpoints.layout import Known
from fleet.checkpoints.model import Format
from tests.checkpoints import by_hand
from tests.checkpoints.answers import entry, newest
from tests.checkpoints.conftest import Real

TRACKER = "latest_checkpointed_iteration.txt"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])


# --- Megatron-Bridge


def test_bridge_is_told_by_its_own_files_and_both_trackers_come_along(real: Real) -> None:
    found = look(by_hand.bridge(real("torch_dist")))

    assert found.format is Format.MEGATRON_BRIDGE
    assert newest(found) == 30
    assert found.notes == ()
    best = found.newest_complete
    assert best is not None
    assert [(t.path, t.text, t.like) for t in best.entry.trackers] == [
        (TRACKER, "30", None),
        ("latest_train_state.pt", None, "iter_0000030/train_state.pt"),
    ]


def test_bridges_trackers_that_do_not_agree_are_named(real: Real) -> None:
    root = by_hand.bridge(real("torch_dist"))
    by_hand.train_state(root / "latest_train_state.pt", 20)

    found = look(root)

    assert newest(found) == 30
    assert f"latest_train_state.pt says 20, {TRACKER} says 30: they do not agree" in found.notes


def test_bridge_without_its_train_state_was_not_finished(real: Real) -> None:
    root = by_hand.bridge(real("torch_dist"))
    (root / "iter_0000030/train_state.pt").unlink()

    found = look(root)

    assert newest(found) == 20
    assert "train_state.pt is missing" in entry(found, "iter_0000030").reason


def test_a_train_state_of_another_step_is_two_saves_mixed(real: Real) -> None:
    root = by_hand.bridge(real("torch_dist"))
    by_hand.train_state(root / "iter_0000030/train_state.pt", 20)

    assert "train_state.pt is of step 20" in entry(look(root), "iter_0000030").reason


# --- Megatron: legacy and DCP


@pytest.mark.parametrize(("tensor", "pipeline", "expert"), [(1, 1, 1), (2, 1, 1), (2, 2, 1), (2, 1, 4)])
def test_legacy_is_complete_with_every_model_parallel_rank(
    tensor: int, pipeline: int, expert: int, tmp_path: Path
) -> None:
    found = look(by_hand.legacy(tmp_path, (10, 20), tensor, pipeline, expert))

    assert found.format is Format.MEGATRON_LEGACY
    assert newest(found) == 20
    assert f"all {tensor * pipeline * expert} model-parallel ranks" in found.candidates[0].reason


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (lambda f: shutil.rmtree(f / "mp_rank_01_001"), "1 of 4 ranks are missing: mp_rank_01_001"),
        (lambda f: shutil.copytree(f / "mp_rank_01_001", f / "mp_rank_02_000"), "two saves mixed"),
        (lambda f: cut(f / "mp_rank_01_001/model_optim_rng.pt"), "was cut"),
        (lambda f: cut(f / "mp_rank_01_001/distrib_optim.pt"), "was cut"),
        (
            lambda f: (f / "mp_rank_01_001/distrib_optim.pt").unlink(),
            "distrib_optim.pt is missing for mp_rank_01_001",
        ),
        (lambda f: (f / "mp_rank_00_000/model_optim_rng.pt").write_bytes(b""), "is empty"),
    ],
)
def test_a_broken_legacy_one_is_refused(broken: Any, why: str, tmp_path: Path) -> None:
    root = by_hand.legacy(tmp_path, (10, 20), 2, 2)
    broken(root / "iter_0000020")

    found = look(root)

    assert newest(found) == 10
    assert why in entry(found, "iter_0000020").reason


@pytest.mark.parametrize("text", ["10", None, "", "garbage", "4160813071"])
def test_legacy_has_no_marker_so_a_tracker_that_does_not_cover_it_leaves_it_unproven(
    text: str | None, tmp_path: Path
) -> None:
    root = by_hand.legacy(tmp_path, (10, 20), 1, 1)
    (root / TRACKER).unlink() if text is None else (root / TRACKER).write_text(text)

    found = look(root)

    assert newest(found) == (10 if text == "10" else None)
    assert not entry(found, "iter_0000020").complete


def test_legacy_that_does_not_tell_its_parallelism_is_never_called_complete(tmp_path: Path) -> None:
    root = by_hand.legacy(tmp_path, (10,), 1, 1)
    by_hand.torch_file(root / "iter_0000010/mp_rank_00/model_optim_rng.pt", {"iteration": 10})

    found = look(root)

    assert newest(found) is None
    assert "does not tell its parallelism" in found.candidates[0].reason


def test_a_release_is_step_0_of_its_root(tmp_path: Path) -> None:
    root = by_hand.legacy(tmp_path, (10,), 1, 1)
    (root / "iter_0000010").rename(root / "release")
    by_hand.torch_file(root / "release/mp_rank_00/model_optim_rng.pt", legacy_state(0))
    (root / TRACKER).write_text("release\n")

    found = look(root)

    best = found.newest_complete
    assert best is not None
    assert (best.entry.name, best.entry.step) == ("release", 0)
    assert [t.text for t in best.entry.trackers] == ["release"]


def legacy_state(step: int) -> dict[str, Any]:
    from argparse import Namespace

    args = Namespace(tensor_model_parallel_size=1, pipeline_model_parallel_size=1, expert_model_parallel_size=1)
    return {"args": args, "iteration": step}


def test_megatrons_dcp_formats_need_no_metadata_json(real: Real, tmp_path: Path) -> None:
    dcp, root = real("dcp"), tmp_path / "megatron"
    for step in (10, 20, 30):
        shutil.copytree(dcp / f"step_{step}", root / f"iter_{step:07d}")
    (root / TRACKER).write_text("30")

    found = look(root)

    assert found.format is Format.MEGATRON_DCP
    assert newest(found) == 30
    cut(root / "iter_0000030/__0_0.distcp")
    assert newest(look(root)) == 20


# --- torchtitan


def test_torchtitan_is_dcp_in_its_own_folders(real: Real) -> None:
    root = real("dcp")
    for step in (10, 20, 30):
        (root / f"step_{step}").rename(root / f"step-{step}")

    found = look(root)

    assert found.format is Format.TORCHTITAN
    assert newest(found) == 30
    (root / "step-30/.metadata").unlink()
    assert newest(look(root)) == 20


def test_an_export_of_torchtitan_has_no_optimizer_to_resume_with(real: Real) -> None:
    root = real("dcp")
    (root / "step_10").rename(root / "step-10")
    shutil.rmtree(root / "step_20")
    shutil.rmtree(root / "step_30")
    (root / "step-20").mkdir()
    (root / "step-20/model.safetensors.index.json").write_text('{"weight_map": {}}')

    found = look(root)

    assert newest(found) == 10
    assert "an export of the weights" in entry(found, "step-20").reason


def test_a_folder_that_torchtitan_made_and_never_filled_is_not_finished(real: Real) -> None:
    root = real("dcp")
    (root / "step_10").rename(root / "step-10")
    shutil.rmtree(root / "step_20")
    shutil.rmtree(root / "step_30")
    (root / "step-20").mkdir()

    found = look(root)

    assert newest(found) == 10
    assert "no .metadata" in entry(found, "step-20").reason


def test_a_single_checkpoint_folder_is_judged_as_itself(real: Real) -> None:
    found = look(real("dcp") / "step_30")

    assert found.newest_complete is not None
    assert (found.newest_complete.entry.name, found.newest_complete.entry.step) == (".", 30)


# --- NeMo 2


def test_nemo_is_complete_without_the_marker_and_with_whole_weights(real: Real, tmp_path: Path) -> None:
    root = by_hand.nemo(real("torch_dist"), tmp_path / "nemo")

    found = look(root)

    assert found.format is Format.NEMO
    assert newest(found) == 30
    assert {f.path.split("/")[1] for f in found.candidates[0].entry.data} == {"weights", "context"}


def test_nemos_marker_beside_a_whole_folder_means_unfinished(real: Real, tmp_path: Path) -> None:
    root = by_hand.nemo(real("torch_dist"), tmp_path / "nemo")
    by_hand.unfinished(max(root.iterdir()))

    found = look(root)

    assert newest(found) == 20
    assert "-unfinished is there: the save was not finished" in found.candidates[0].reason


@pytest.mark.parametrize("lost", ["weights/metadata.json", "weights/.metadata", "weights/__0_0.distcp"])
def test_a_partial_nemo_folder_that_was_copied_without_its_marker_does_not_look_whole(
    lost: str, real: Real, tmp_path: Path
) -> None:
    root = by_hand.nemo(real("torch_dist"), tmp_path / "nemo")
    (max(root.iterdir()) / lost).unlink()

    found = look(root)

    assert newest(found) == 20
    assert not found.candidates[0].complete


def test_nemo_without_its_context_is_refused(real: Real, tmp_path: Path) -> None:
    root = by_hand.nemo(real("torch_dist"), tmp_path / "nemo")
    shutil.rmtree(max(root.iterdir()) / "context")

    assert "has no context/" in look(root).candidates[0].reason


def test_nemo_takes_the_newest_last_by_its_time_so_a_copy_must_keep_the_order(real: Real, tmp_path: Path) -> None:
    root = by_hand.nemo(real("torch_dist"), tmp_path / "nemo")
    newest_folder = max(root.iterdir())
    newest_folder.rename(newest_folder.with_name(newest_folder.name + "-last"))

    best = look(root).newest_complete

    assert best is not None
    assert best.entry.step == 30
    assert "NeMo takes the newest -last by its time of change" in " ".join(best.notes)


# --- Orbax with names of its own


def test_orbax_folders_may_have_a_prefix(real: Real) -> None:
    """google/orbax, checkpoint/orbax/checkpoint/_src/path/step.py, `_StandardNameFormat`."""
    root = real("orbax")
    for step in (10, 20, 30):
        (root / str(step)).rename(root / f"model_{step:06d}")

    found = look(root)

    assert found.format is Format.ORBAX
    assert found.candidates[0].entry.name == "model_000030"
    assert found.candidates[0].complete


def test_orbax_arrays_outside_a_database_are_judged_by_the_commit(real: Real) -> None:
    root = real("orbax")
    state = root / "30/state"
    for part in ("manifest.ocdbt", "d", "ocdbt.process_0"):
        shutil.rmtree(state / part) if (state / part).is_dir() else (state / part).unlink()
    (state / "weight").mkdir()
    (state / "weight/.zarray").write_text("{}")
    (state / "_METADATA").write_text(json.dumps({"use_ocdbt": False}))

    assert newest(look(root)) == 30

    (state / "weight/.zarray").write_text("")
    found = look(root)
    assert newest(found) == 20
    assert "30/state/weight/.zarray is empty" in entry(found, "30").reason


# --- verl


def test_verl_with_fsdp_is_complete_with_every_rank_of_every_role(tmp_path: Path) -> None:
    found = look(by_hand.verl_fsdp(tmp_path, (10, 20), 4, ("actor", "critic")))

    assert found.format is Format.VERL
    assert newest(found) == 20
    assert "actor has all 4 ranks, critic has all 4 ranks" in found.candidates[0].reason


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (lambda f: (f / "actor/optim_world_size_4_rank_3.pt").unlink(), "lacks 1 of 4 optim files, rank 3 first"),
        (lambda f: cut(f / "actor/model_world_size_4_rank_2.pt"), "was cut"),
        (
            lambda f: by_hand.torch_file(f / "actor/model_world_size_2_rank_0.pt"),
            "world sizes [2, 4]: two saves mixed",
        ),
        (lambda f: by_hand.torch_file(f / "actor/model_world_size_4_rank_7.pt"), "of rank 7 in a world of 4"),
        (lambda f: shutil.rmtree(f / "actor"), "has no actor/"),
        (lambda f: [p.unlink() for p in f.glob("actor/*.pt")], "has neither FSDP's files nor Megatron's"),
        (lambda f: cut(f / "data.pt"), "was cut"),
    ],
)
def test_a_broken_verl_one_is_refused(broken: Any, why: str, tmp_path: Path) -> None:
    root = by_hand.verl_fsdp(tmp_path, (10, 20), 4)
    broken(root / "global_step_20")

    found = look(root)

    assert newest(found) == 10
    assert why in entry(found, "global_step_20").reason


def test_a_tracker_that_verl_never_wrote_is_no_step_0(tmp_path: Path) -> None:
    """verl #7952: an asynchronous save wrote no tracker, and the run began again at step 0 without a word."""
    root = by_hand.verl_fsdp(tmp_path, (10, 20), 2)
    (root / TRACKER).unlink()

    found = look(root)

    assert newest(found) is None
    assert "is missing: the trainer would start at step 0" in found.candidates[0].reason


def test_verl_with_megatron_is_judged_by_megatrons_rule(real: Real, tmp_path: Path) -> None:
    torch_dist, root = real("torch_dist"), tmp_path / "verl"
    for step in (10, 20):
        for part in ("model", "optimizer", "extra"):
            place = root / f"global_step_{step}/actor/{part}/dist_ckpt"
            shutil.copytree(torch_dist / f"iter_{step:07d}", place)
    (root / TRACKER).write_text("20")

    assert newest(look(root)) == 20

    (root / "global_step_20/actor/optimizer/dist_ckpt/.metadata").unlink()
    assert newest(look(root)) == 10


# --- NVRx


def test_local_files_are_complete_when_every_rank_is_here_and_never_movable(tmp_path: Path) -> None:
    found = look(by_hand.nvrx(tmp_path, (10, 20), range(4)), Known(world=4))

    assert found.format is Format.NVRX_LOCAL
    assert newest(found) == 20
    assert not found.movable
    assert [c.entry.name for c in found.candidates] == ["*/iter_0000020_*_local.pt", "*/iter_0000010_*_local.pt"]


def test_local_files_of_a_session_and_of_a_partner_count(tmp_path: Path) -> None:
    """With replication rank 1's folder holds the file of rank 0, whose node is gone."""
    root = by_hand.nvrx(tmp_path / "session", (20,), range(1, 2)).parent
    by_hand.torch_file(root / "session/1/iter_0000020_0_local.pt", {})

    found = look(root, Known(world=2))

    assert newest(found) == 20
    assert found.candidates[0].entry.name == "session/*/iter_0000020_*_local.pt"


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (Known(world=8), "4 of 8 ranks are not here, rank 4 first"),
        (Known(), "nothing tells the job's number of ranks"),
        (Known(world=2), "it has a file of rank 2"),
    ],
)
def test_local_files_of_a_part_of_the_ranks_prove_nothing(known: Known, why: str, tmp_path: Path) -> None:
    found = look(by_hand.nvrx(tmp_path, (20,), range(4)), known)

    assert newest(found) is None
    assert why in found.candidates[0].reason


def test_a_local_file_that_was_not_renamed_yet_is_dirty(tmp_path: Path) -> None:
    root = by_hand.nvrx(tmp_path, (10, 20), range(2))
    (root / "1/iter_0000020_1_local.pt").rename(root / "1/iter_0000020_1_local.dirty.pt")

    found = look(root, Known(world=2))

    assert newest(found) == 10
    assert "rank 1 first; rank 1 was not finished" in found.candidates[0].reason
