"""Formats whose libraries are not at hand: layouts made by hand, whole and broken."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from activities.checkpoints import look
from fleet.checkpoints.layout import Known
from fleet.checkpoints.model import Candidate, Format, Judgement
from fleet.checkpoints.receipts import Receipt, ReceiptFile, receipt_path
from tests.checkpoints import by_hand
from tests.checkpoints.conftest import Real

TRACKER = "latest_checkpointed_iteration.txt"


def newest(found: Judgement) -> int | None:
    return found.newest_complete.entry.step if found.newest_complete else None


def entry(found: Judgement, name: str) -> Candidate:
    return next(c for c in found.candidates if c.entry.name == name)


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


# --- our lab's program


def marked(root: Path, step: int, start: str = "0.0", world: int = 2) -> Path:
    folder = root / f"step_{step:08d}.g{start}"
    folder.mkdir()
    shards = {}
    for rank in range(world):
        content = json.dumps({"step": step, "rank": rank}).encode()
        (folder / f"rank_{rank}.json").write_bytes(content)
        shards[f"rank_{rank}.json"] = hashlib.sha256(content).hexdigest()
    (folder / "COMPLETE").write_text(json.dumps({"step": step, "world": world, "shards": shards}))
    return folder


def test_a_newer_generation_goes_before_a_higher_step(tmp_path: Path) -> None:
    marked(tmp_path, 90, "0.0")
    marked(tmp_path, 30, "1.0")

    found = look(tmp_path)

    assert found.format is Format.MARKED
    assert newest(found) == 30


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (lambda f: (f / "COMPLETE").unlink(), "no COMPLETE, which is written last"),
        (lambda f: (f / "rank_1.json").unlink(), "rank_1.json is missing"),
        (lambda f: (f / "rank_1.json").write_text('{"step": 20, "rank": 9}'), "is not the file that was saved"),
        (lambda f: (f / "COMPLETE").write_text("{"), "is no JSON"),
        (lambda f: (f / "COMPLETE").write_text("[" * 100_000), "is no JSON"),
        (lambda f: (f / "COMPLETE").write_text('{"step": 10, "world": 0, "shards": {}}'), "of step 10"),
        (
            lambda f: (f / "COMPLETE").write_text('{"step": 20, "world": 1, "shards": {"../x": "' + "0" * 64 + '"}}'),
            "'../x', which is no shard",
        ),
    ],
)
def test_a_broken_marked_one_is_refused(broken: Any, why: str, tmp_path: Path) -> None:
    marked(tmp_path, 10)
    broken(marked(tmp_path, 20))

    found = look(tmp_path)

    assert newest(found) == 10
    assert why in found.candidates[0].reason


# --- receipts


def with_receipt(root: Path, name: str, step: int, marker: str = "") -> Path:
    files = tuple(
        ReceiptFile(
            path=p.relative_to(root).as_posix(),
            size=p.stat().st_size,
            sha256=hashlib.sha256(p.read_bytes()).hexdigest(),
            marker=p.name == marker,
        )
        for p in sorted((root / name).rglob("*"))
        if p.is_file()
    )
    receipt = Receipt(entry=name, format=Format.RECEIPT, step=step, files=files, source="south:/ckpt", at=1.0e9)
    path = root / receipt_path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(receipt.model_dump_json())
    return path


def own_layout(root: Path) -> Path:
    for step in (10, 20):
        folder = root / f"save{step}"
        folder.mkdir(parents=True)
        for rank in range(2):
            (folder / f"part{rank}").write_bytes(bytes([step, rank]) * 50)
        with_receipt(root, f"save{step}", step)
    return root


def test_files_of_any_layout_are_complete_when_our_receipt_has_their_hashes(tmp_path: Path) -> None:
    found = look(own_layout(tmp_path))

    assert found.format is Format.RECEIPT
    assert newest(found) == 20
    assert found.question == ""


def test_a_flipped_byte_breaks_the_receipts_word(tmp_path: Path) -> None:
    root = own_layout(tmp_path)
    (root / "save20/part1").write_bytes(bytes([20, 1]) * 49 + b"\x14\x00")

    found = look(root)

    assert newest(found) == 10
    assert "save20/part1 is not the file that the receipt lists" in found.candidates[0].reason


def test_an_old_receipt_that_does_not_fit_is_void_and_the_format_decides(real: Real) -> None:
    """PC-C03: the folder was written again since."""
    root = real("torch_dist")
    with_receipt(root, "iter_0000030", 30)
    (root / "iter_0000030/common.pt").write_bytes((root / "iter_0000020/common.pt").read_bytes() + b"\0")
    shutil.copy(root / "iter_0000020/common.pt", root / "iter_0000030/common.pt")

    assert "its receipt of 2001-09-09 01:46 UTC agrees" in " ".join(entry(look(root), "iter_0000030").notes)

    deep = look(root, Known(hashes=True))

    best = deep.newest_complete
    assert best is not None
    assert best.entry.step == 30
    assert "its receipt is void: iter_0000030/common.pt is not the file" in " ".join(best.notes)


def test_a_receipt_proves_what_the_format_cannot(real: Real) -> None:
    root = real("deepspeed_universal")
    with_receipt(root, "global_step30_universal", 30)

    converted = entry(look(root), "global_step30_universal")

    assert converted.complete
    assert "have the hashes of its receipt" in converted.reason
    assert [(t.path, t.text) for t in converted.entry.trackers] == [("latest_universal", "global_step30_universal")]


def test_a_receipt_keeps_markers_apart_for_the_next_copy(tmp_path: Path) -> None:
    root = own_layout(tmp_path)
    with_receipt(root, "save20", 20, marker="part1")

    best = look(root).newest_complete

    assert best is not None
    assert [f.path for f in best.entry.data] == ["save20/part0"]
    assert [f.path for f in best.entry.markers] == ["save20/part1"]


def test_a_receipt_of_another_step_proves_nothing(real: Real) -> None:
    root = real("deepspeed_universal")
    with_receipt(root, "global_step30_universal", 20)

    assert "its receipt is of step 20" in entry(look(root), "global_step30_universal").reason


def test_a_receipt_of_another_entry_or_of_no_sense_proves_nothing(tmp_path: Path) -> None:
    root = own_layout(tmp_path)
    receipts = root / ".gpu-runbooks/receipts"
    shutil.copy(receipts / "save20.json", receipts / "save30.json")
    (receipts / "save40.json").write_text("{}")
    (receipts / "save50.json").write_text("[" * 100_000)

    assert [c.entry.name for c in look(root).candidates] == ["save20", "save10"]


# --- unknown and mixed


def test_a_layout_that_is_not_known_is_a_question_and_nothing_is_complete(tmp_path: Path) -> None:
    (tmp_path / "model_final.bin").write_bytes(b"x")

    found = look(tmp_path)

    assert found.format is None
    assert found.newest_complete is None
    assert "no layout that is known here; it holds model_final.bin" in found.question


def test_an_empty_folder_is_a_question(tmp_path: Path) -> None:
    assert "it holds nothing" in look(tmp_path).question


def test_two_layouts_in_one_folder_are_a_question(real: Real) -> None:
    root = real("torch_dist")
    shutil.copytree(real("hf_trainer") / "checkpoint-30", root / "checkpoint-30")

    found = look(root)

    assert found.newest_complete is None
    assert "two layouts in one folder (hf_trainer and torch_dist)" in found.question
