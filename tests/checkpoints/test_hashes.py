"""What has hashes: markers of our lab's program and receipts of ours. And what has no layout at all."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from activities.checkpoints import look
from fleet.checkpoints.layout import Known
from fleet.checkpoints.model import Format
from fleet.checkpoints.receipts import Receipt, ReceiptFile, receipt_path
from tests.checkpoints.answers import entry, newest
from tests.checkpoints.conftest import Real

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
