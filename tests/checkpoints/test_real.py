"""Checkpoints that the real libraries wrote, whole and broken in every way that is known."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from random import Random

import pytest

from activities.checkpoints import list_root, look
from fleet.checkpoints.judge import judge
from fleet.checkpoints.layout import Known
from fleet.checkpoints.model import Format, Judgement
from tests.checkpoints import by_hand
from tests.checkpoints.answers import newest
from tests.checkpoints.conftest import Real
from tests.checkpoints.real import copy_of
from tests.checkpoints.variants import NEWEST, VARIANTS, Variant

FORMATS = {
    "dcp": Format.DCP,
    "torch_dist": Format.TORCH_DIST,
    "deepspeed_zero1": Format.DEEPSPEED,
    "deepspeed_zero3": Format.DEEPSPEED,
    "deepspeed_experts": Format.DEEPSPEED,
    "hf_trainer": Format.HF_TRAINER,
    "lightning": Format.LIGHTNING,
    "orbax": Format.ORBAX,
}


def words(found: Judgement, entry: str) -> str:
    """All that is said of an entry and of the root."""
    said = [*found.notes, found.question]
    for candidate in found.candidates:
        if candidate.entry.name == entry:
            said += [candidate.reason, *candidate.notes]
    return " | ".join(said)


@pytest.mark.parametrize("library", NEWEST)
def test_what_the_library_wrote_is_complete_to_the_newest_step(library: str, real: Real) -> None:
    found = look(real(library))

    assert found.format is FORMATS[library]
    assert found.question == ""
    assert [c.entry.step for c in found.candidates if c.complete][-3:] == [30, 20, 10]
    assert all(c.complete for c in found.candidates)
    assert found.steps_lost == 0


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_broken_one_is_refused_with_its_reason_and_the_next_older_is_taken(variant: Variant, real: Real) -> None:
    root = real(variant.library)
    variant.breaks(root)

    found = look(root)

    assert newest(found) == variant.newest
    assert variant.reason in words(found, variant.entry)
    if variant.newest == 20:
        refused = next(c for c in found.candidates if c.entry.step == 30)
        assert not refused.complete
        assert refused.reason
        assert found.steps_lost == 10


@pytest.mark.parametrize("library", NEWEST)
def test_a_moved_root_is_judged_as_before(library: str, real: Real, tmp_path: Path) -> None:
    root = real(library)
    before = look(root)
    elsewhere = shutil.move(root, tmp_path / "other place")

    after = look(Path(elsewhere))

    assert newest(after) == newest(before) == 30
    assert [(c.entry.name, c.complete) for c in after.candidates] == [
        (c.entry.name, c.complete) for c in before.candidates
    ]


def test_a_trainer_that_was_moved_is_said_not_to_find_its_best_checkpoint(real: Real) -> None:
    root = real("hf_trainer")
    state = root / "checkpoint-30/trainer_state.json"
    here = json.loads(state.read_text()) | {"best_model_checkpoint": str(root / "checkpoint-10")}
    state.write_text(json.dumps(here))

    assert "best checkpoint" not in words(look(root), "checkpoint-30")

    moved = root.rename(root.with_name("moved"))

    assert f"names its best checkpoint as {root}/checkpoint-10" in words(look(moved), "checkpoint-30")


@pytest.mark.parametrize("library", NEWEST)
def test_each_file_that_is_cut_or_lost_is_noticed_or_is_not_loaded(library: str, real: Real) -> None:
    """Whatever file of the newest entry is lost: it is refused, or the file is one that no load needs."""
    root = real(library)
    not_needed = {"training_args.bin", "config.json", "process_0", "_sharding", "commit_success.txt"}
    entry = next(c.entry for c in look(root).candidates if c.entry.name == NEWEST[library])

    for file in (*entry.data, *entry.markers):
        path = root / file.path
        content, when = path.read_bytes(), path.stat()
        path.unlink()
        refused = next((c for c in look(root).candidates if c.entry.name == entry.name), None)
        if refused is not None and refused.complete and library != "orbax":
            assert path.name in not_needed
        path.write_bytes(content)
        os.utime(path, ns=(when.st_atime_ns, when.st_mtime_ns))


def test_the_same_files_of_a_node_and_of_both_nodes_are_judged_apart(real: Real, tmp_path: Path) -> None:
    """PC-C02: half of the optimizer's shards lie on each node; only the union is complete."""
    both = real("deepspeed_zero1")
    node = tmp_path / "node0"
    shutil.copytree(both, node, ignore=shutil.ignore_patterns("zero_pp_rank_1*"))

    alone, union = look(node), look(both)

    assert alone.newest_complete is None
    assert "only 1 of 2 optimizer shards are here; missing: data rank 1" in alone.candidates[0].reason
    assert newest(union) == 30


def test_shards_of_an_older_larger_run_are_left_out_where_the_format_tells_them_apart(real: Real) -> None:
    """PC-C03: a run of two ranks wrote over a folder of four; ranks 2 and 3 are still the old ones."""
    root = real("torch_dist")
    folder = root / "iter_0000030"
    for rank in (2, 3):
        shutil.copy(folder / "__1_0.distcp", folder / f"__{rank}_0.distcp")
        os.utime(folder / f"__{rank}_0.distcp", (1, 1))

    best = look(root).newest_complete

    assert best is not None
    assert best.entry.step == 30
    assert not [f.path for f in best.entry.data if "__2_0" in f.path or "__3_0" in f.path]
    assert "2 files of another save are left out" in " ".join(best.notes)


def test_shards_beyond_the_declared_world_are_two_saves_mixed_where_the_format_counts_files(real: Real) -> None:
    """PC-C03 for a format that loads whatever ranks are there."""
    root = real("deepspeed_zero1")
    folder = root / "global_step30"
    shutil.copy(
        folder / "zero_pp_rank_1_mp_rank_00_optim_states.pt", folder / "zero_pp_rank_2_mp_rank_00_optim_states.pt"
    )

    found = look(root)

    assert newest(found) == 20
    assert "beyond the 2 of this save, two saves mixed: data rank 2" in words(found, "global_step30")


def test_an_absurd_step_is_no_progress(real: Real) -> None:
    """PC-C08: a folder beyond the job's total is refused, whatever is in it."""
    root = real("torch_dist")
    shutil.copytree(root / "iter_0000030", root / "iter_4160813071")
    (root / "latest_checkpointed_iteration.txt").write_text("4160813071")

    found = look(root, Known(total_steps=1000))

    assert newest(found) == 30
    assert "step 4160813071 is beyond the job's 1000" in words(found, "iter_4160813071")
    assert "absurd" in words(found, "")


def test_megatrons_own_hashes_are_compared_when_asked(real: Real) -> None:
    """NVIDIA/Megatron-LM, megatron/core/dist_checkpointing/validation.py, `save_integrity_manifest`."""
    root = real("torch_dist")
    folder = root / "iter_0000030"
    hashes = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}
    (folder / "integrity.json").write_text(json.dumps({"algorithm": "sha256", "files": hashes}))
    assert newest(look(root, Known(hashes=True))) == 30

    shard = folder / "__0_0.distcp"
    content = shard.read_bytes()
    shard.write_bytes(bytes([content[0] ^ 1]) + content[1:])

    assert newest(look(root)) == 30
    deep = look(root, Known(hashes=True))
    assert newest(deep) == 20
    assert "__0_0.distcp has not the hash that integrity.json gives" in words(deep, "iter_0000030")


def test_what_a_copy_needs_is_told_apart(real: Real) -> None:
    found = look(real("torch_dist")).newest_complete
    assert found is not None
    assert {f.path.rpartition("/")[2] for f in found.entry.markers} == {".metadata", "metadata.json"}
    assert {f.path.rpartition("/")[2] for f in found.entry.data} == {"__0_0.distcp", "__1_0.distcp", "common.pt"}
    assert [(t.path, t.text) for t in found.entry.trackers] == [("latest_checkpointed_iteration.txt", "30")]

    tag = look(real("deepspeed_zero1")).newest_complete
    assert tag is not None
    assert [(t.path, t.text) for t in tag.entry.trackers] == [("latest", "global_step30")]


def test_a_marker_that_only_the_destination_needs_is_made_there(real: Real) -> None:
    """An Orbax checkpoint of an older release has no commit_success.txt, and a bucket would lose it (orbax #394)."""
    root = real("orbax")
    (root / "30/commit_success.txt").unlink()

    found = look(root).newest_complete

    assert found is not None
    assert found.entry.step == 30
    assert [m.path for m in found.entry.made] == ["30/commit_success.txt"]


def test_a_converted_checkpoint_is_not_taken_for_more_than_its_original(real: Real) -> None:
    found = look(real("deepspeed_universal"))

    converted = next(c for c in found.candidates if c.entry.format is Format.DEEPSPEED_UNIVERSAL)
    assert not converted.complete
    assert "nothing in it tells that the converter came to its end" in converted.reason
    assert found.newest_complete is not None
    assert found.newest_complete.entry.name == "global_step30"


def test_a_judgement_needs_nothing_but_the_listing_and_its_reader(real: Real) -> None:
    root = real("dcp")
    tree, _ = list_root(root)
    (root / "step_30/__0_0.distcp").unlink()  # the listing is what is judged

    assert newest(judge(tree)) == 30
    assert newest(look(root)) == 20


def test_bytes_that_were_changed_at_random_are_an_answer_and_never_a_crash(unpacked: Path, tmp_path: Path) -> None:
    """Cut, flipped or grown: each candidate is complete or has a reason."""
    random = Random(7)
    roots = [copy_of(unpacked, library, tmp_path) for library in NEWEST]
    roots.append(by_hand.bridge(copy_of(unpacked, "torch_dist", tmp_path / "bridge")))
    roots.append(by_hand.legacy(tmp_path / "legacy", (10, 20), 2, 1))
    for _ in range(400):
        root = random.choice(roots)
        file = random.choice(sorted(p for p in root.rglob("*") if p.is_file()))
        content = file.read_bytes()
        changed = bytearray(content[: random.randrange(len(content) + 1)] if random.random() < 0.3 else content)
        for _ in range(random.randrange(5) if changed else 0):
            changed[random.randrange(len(changed))] = random.randrange(256)
        file.write_bytes(changed + random.randbytes(random.choice((0, 0, 9))))

        found = look(root, Known(hashes=True))

        assert found.candidates
        assert all(c.reason.isprintable() and c.reason for c in found.candidates)
        file.write_bytes(content)
    assert all(newest(look(root)) == (20 if root.name == "legacy" else 30) for root in roots)
