"""What a root may hold without leading us anywhere else, and how much of it is read."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from activities import checkpoints
from activities.checkpoints import LOOKS, FolderContents, list_root, look
from fleet.checkpoints.model import Candidate, File
from fleet.checkpoints.names import MAX_PATH, shown, trouble
from fleet.checkpoints.tree import NotProvenError, Refused, Tree
from fleet.errors import InvalidInputError, NotFoundError, TemporaryError
from tests.checkpoints.conftest import Real


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "..",
        "a/../b",
        "./a",
        "a//b",
        "a/",
        "a\nb",
        "a\x1b[31mb",
        "a\\b",
        "caf\udce9",
        "x" * (MAX_PATH + 1),
    ],
)
def test_a_hostile_name_is_refused_wherever_it_comes_from(path: str) -> None:
    assert trouble(path)
    tree = Tree([File(path=path, size=1)], FolderContents(Path("/"), {}, lambda: None))
    assert tree.file(path) is None
    assert [r.path for r in tree.refused] == [path]


@pytest.mark.parametrize("path", ["a", ".metadata", "a/b c/d=1", "..a", "a..b/c", "é"])
def test_an_odd_name_is_no_hostile_one(path: str) -> None:
    assert trouble(path) == ""


def test_a_name_is_shown_in_one_printable_line() -> None:
    assert shown("a\nb\x1b\udce9") == "a\\nb\\x1b\\udce9"
    assert len(shown("x" * 10_000)) == 120


def test_a_line_break_in_a_shard_refuses_its_checkpoint_and_no_other(real: Real) -> None:
    root = real("dcp")
    (root / "step_30/__9_0\ncomplete.distcp").write_bytes(b"x")

    found = look(root)

    assert "step_30/__9_0\\ncomplete.distcp, which holds a line break" in found.candidates[0].reason
    assert found.newest_complete is not None
    assert found.newest_complete.entry.step == 20


@pytest.mark.parametrize("target", ["/etc/hostname", "../secret", "nowhere", "../.."])
def test_a_link_out_of_the_root_is_never_followed(target: str, real: Real) -> None:
    root = real("dcp")
    (root.parent / "secret").write_bytes(b"secret")
    shard = root / "step_30/__1_0.distcp"
    shard.unlink()
    shard.symlink_to(target if target.startswith("/") or target == "nowhere" else f"../{target}")

    found = look(root)

    assert not found.candidates[0].complete
    assert "is a link" in found.candidates[0].reason


def test_a_link_to_a_file_of_the_root_is_that_file(real: Real) -> None:
    root = real("lightning")
    (root / "last.ckpt").unlink()
    (root / "last.ckpt").symlink_to("epoch=3-step=30.ckpt")

    found = look(root)

    last = next(c for c in found.candidates if c.entry.name == "last.ckpt")
    assert last.complete
    assert last.entry.step == 30


def test_a_link_to_a_folder_is_only_another_name(real: Real) -> None:
    root = real("dcp")
    (root / "latest").symlink_to("step_30")

    assert [c.entry.name for c in look(root).candidates] == ["step_30", "step_20", "step_10"]


def test_a_link_that_takes_the_place_of_a_file_meanwhile_is_not_followed(real: Real) -> None:
    root = real("dcp")
    (root.parent / "secret").write_bytes(b"secret")
    tree, _ = list_root(root)
    (root / "step_30/.metadata").unlink()
    (root / "step_30/.metadata").symlink_to(root.parent / "secret")

    with pytest.raises(NotProvenError, match="cannot be read"):
        tree.small("step_30/.metadata")


def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(real: Real) -> None:
    root = real("dcp")
    tree, _ = list_root(root)
    (root / "step_30").rename(root.parent / "moved")
    (root / "step_30").symlink_to(root.parent / "moved")

    with pytest.raises(NotProvenError, match="cannot be read"):
        tree.small("step_30/.metadata")


def test_a_pipe_does_not_make_it_wait(real: Real) -> None:
    root = real("dcp")
    (root / "step_30/.metadata").unlink()
    os.mkfifo(root / "step_30/.metadata")

    found = look(root)

    assert "is no plain file" in found.candidates[0].reason


def test_a_file_that_becomes_a_pipe_meanwhile_does_not_make_it_wait(real: Real) -> None:
    root = real("dcp")
    tree, _ = list_root(root)
    (root / "step_30/.metadata").unlink()
    os.mkfifo(root / "step_30/.metadata")

    with pytest.raises(NotProvenError, match="cannot be read"):
        tree.small("step_30/.metadata")


def test_a_link_to_a_device_is_not_read(real: Real) -> None:
    root = real("dcp")
    (root / "step_30/.metadata").unlink()
    (root / "step_30/.metadata").symlink_to("/dev/zero")

    assert "is a link out of the root" in look(root).candidates[0].reason


def test_a_hundred_thousand_files_are_listed_and_judged(real: Real) -> None:
    root = real("torch_dist")
    many = root / "iter_0000030"
    for number in range(100_000):
        os.close(os.open(many / f"__{number}_7.distcp", os.O_CREAT | os.O_WRONLY))
    begun = time.process_time()

    found = look(root)

    assert time.process_time() - begun < 60
    assert found.newest_complete is not None
    assert found.newest_complete.entry.step == 30
    assert "100000 files of another save are left out" in " ".join(found.newest_complete.notes)


def test_more_than_the_limit_is_refused_with_what_to_do(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    root = real("dcp")
    monkeypatch.setattr(checkpoints, "MAX_ENTRIES", 11)  # three folders of three files are twelve

    with pytest.raises(InvalidInputError, match="holds more than 11 files and folders; give the folder of one job"):
        look(root)


def test_a_folder_too_deep_is_named_and_not_entered(tmp_path: Path) -> None:
    (tmp_path / "/".join("d" * 30)).mkdir(parents=True)

    tree, _ = list_root(tmp_path)

    assert [r.why for r in tree.refused] == ["lies more than 24 folders deep"]


def test_a_heartbeat_is_sent_and_a_cancel_ends_the_listing(tmp_path: Path, real: Real) -> None:
    root = real("dcp")
    for number in range(2500):
        (root / f"file{number}").touch()
    beats = []

    def alive() -> None:
        beats.append(time.monotonic())
        if len(beats) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list_root(root, alive)
    assert len(beats) == 2


@pytest.mark.parametrize("name", ["nothing", "file", "bad\0name"])
def test_what_is_no_folder_is_said_to_be_none(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(NotFoundError, match="folder"):
        look(tmp_path / name)


def test_an_unreadable_file_is_not_an_empty_one(real: Real) -> None:
    class Denied(FolderContents):
        def part(self, path: str, offset: int, length: int) -> bytes:
            raise PermissionError(13, "Permission denied")

    root = real("dcp")
    tree, _ = list_root(root)
    denied = Tree([f for n in tree.folders() for f in tree.files(n)], Denied(root, {}, lambda: None))

    with pytest.raises(NotProvenError, match="cannot be read: Permission denied"):
        denied.small("step_30/.metadata")


# --- the trainer deletes old saves meanwhile


@pytest.fixture
def retention(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, int], list[str]]:
    """Deletes a shard of the newest complete checkpoint between judgement and answer, so many times."""

    def begin(root: Path, times: int) -> list[str]:
        real, deleted = FolderContents.unchanged, list[str]()

        def unchanged(contents: FolderContents, candidate: Candidate) -> bool:
            if len(deleted) < times:
                next((root / candidate.entry.name).glob("*.distcp")).unlink()
                deleted.append(candidate.entry.name)
            return real(contents, candidate)

        monkeypatch.setattr(FolderContents, "unchanged", unchanged)
        return deleted

    return begin


def test_one_that_is_deleted_while_it_is_looked_at_is_disqualified(
    real: Real, retention: Callable[[Path, int], list[str]]
) -> None:
    root = real("dcp")
    deleted = retention(root, 1)

    found = look(root)

    assert deleted == ["step_30"]
    assert found.newest_complete is not None
    assert found.newest_complete.entry.step == 20
    assert "is missing" in found.candidates[0].reason


def test_a_root_that_changes_at_every_look_is_tried_again_later(
    real: Real, retention: Callable[[Path, int], list[str]]
) -> None:
    root = real("dcp")
    deleted = retention(root, LOOKS)

    with pytest.raises(TemporaryError, match="changes faster than it can be looked at"):
        look(root)
    assert len(deleted) == LOOKS


def test_one_whose_file_was_written_again_meanwhile_is_not_the_one_that_was_judged(real: Real) -> None:
    root = real("dcp")
    _, contents = list_root(root)
    newest = look(root).newest_complete
    assert newest is not None
    assert contents.unchanged(newest)

    os.utime(root / "step_30/__0_0.distcp", (1, 1))

    assert not contents.unchanged(newest)


def test_a_file_that_vanishes_between_listing_and_reading_disqualifies_its_checkpoint(real: Real) -> None:
    root = real("dcp")
    tree, _ = list_root(root)
    (root / "step_30/.metadata").unlink()

    with pytest.raises(NotProvenError, match="vanished meanwhile, as when the trainer deletes old saves"):
        tree.small("step_30/.metadata")


def test_a_refused_name_in_another_folder_does_not_matter(real: Real) -> None:
    root = real("dcp")
    tree, _ = list_root(root)
    other = Tree([], FolderContents(root, {}, lambda: None), refused=[Refused("step_3/x", "is no plain file")])

    other.refuse_strangers("step_30")
    with pytest.raises(NotProvenError, match="step_3/x, which is no plain file"):
        other.refuse_strangers("step_3")
    assert tree.refused == ()
