"""Copies by the real rclone: what is published, in which order, what is refused, and what a resumed copy moves."""

import asyncio
import errno
import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest

import activities.copying.work
from activities.copying.folder import FolderStore
from activities.copying.rclone import Rclone
from activities.copying.state import Ground, Rules
from fleet.checkpoints.model import Format, Small
from fleet.checkpoints.receipts import Receipt, receipt_path
from fleet.copying.manifest import Parts
from fleet.copying.places import Place
from fleet.errors import PermanentError, RefusedError, TemporaryError
from tests.copying.conftest import Bucket
from tests.copying.making import (
    ENTRY,
    MARKERS,
    PARTS,
    TRACKER,
    Steps,
    checkpoint,
    flip,
    inodes,
    is_there,
    order_of,
    tree,
    write,
)

SHARD = f"{ENTRY}/__3_0.distcp"


def sha256sum(folder: Path, *paths: str) -> bytes:
    """What the program of that name prints."""
    argv = ["sha256sum", *paths]
    return subprocess.run(argv, cwd=folder, check=True, capture_output=True).stdout


async def test_a_copy_is_published_whole_with_tracker_and_receipt_and_nothing_else(
    source: Path, target: Path
) -> None:
    files = checkpoint(source)
    steps = Steps(order_of(source, target))
    copied = await steps.all()
    assert tree(target) == {**files, TRACKER: b"100\n"}
    assert tree(source) == {**files, TRACKER: b"100"}
    assert (copied.copied, copied.kept) == (sum(map(len, files.values())), 0)
    assert copied.proofs == {"read": len(files)}
    receipt = Receipt.model_validate_json((target / receipt_path(ENTRY)).read_bytes())
    assert {f.path for f in receipt.files} == set(files)
    assert (receipt.step, receipt.format, receipt.source) == (100, Format.TORCH_DIST, "alpha")
    await steps.drop()
    assert {p.name for p in (target / ".gpu-runbooks").iterdir()} == {"receipts"}
    assert not any((source / ".gpu-runbooks").iterdir())


async def test_nothing_has_its_final_name_before_it_was_read_back(source: Path, target: Path) -> None:
    checkpoint(source)
    steps = Steps(order_of(source, target))
    await steps.copy()
    assert tree(target) == {}
    with pytest.raises(RefusedError, match="prove the copy first"):
        await steps.publish()
    assert tree(target) == {}


async def test_every_step_may_be_asked_again_and_changes_nothing(source: Path, target: Path) -> None:
    files = checkpoint(source)
    steps = Steps(order_of(source, target))
    await steps.all()
    before = inodes(target)
    again = await steps.all()
    assert (again.copied, again.kept) == (0, sum(map(len, files.values())))
    await steps.drop()
    await steps.publish()
    assert (await steps.prove()).ok
    assert inodes(target) == before


async def test_markers_come_after_all_data(source: Path, bucket: Bucket) -> None:
    """On a store without renames the data lies under the final name, and no marker says that it is finished."""
    files = checkpoint(source)
    steps = Steps(order_of(source, bucket.root), bucket.rclone)
    await steps.copy()
    assert set(tree(bucket.folder)) == set(files) - set(MARKERS)
    assert (await steps.prove()).ok
    await steps.publish()
    assert tree(bucket.folder) == {**files, TRACKER: b"100\n"}


async def test_without_markers_an_object_store_gets_it_through_staging(source: Path, bucket: Bucket) -> None:
    files = checkpoint(source)
    steps = Steps(order_of(source, bucket.root, PARTS.model_copy(update={"markers": ()})), bucket.rclone)
    await steps.copy()
    assert tree(bucket.folder) == {}
    assert (await steps.prove()).ok
    await steps.publish()
    assert tree(bucket.folder) == {**files, TRACKER: b"100\n"}


async def test_from_s3_and_to_sftp_and_back(source: Path, target: Path, ssh: Bucket) -> None:
    files = checkpoint(source)
    there = Steps(order_of(source, ssh.root), ssh.rclone)
    assert (await there.survey()).fits is True
    await there.all()
    assert tree(ssh.folder) == {**files, TRACKER: b"100\n"}
    await Steps(order_of(ssh.root, target), ssh.rclone).all()
    assert tree(target) == {**files, TRACKER: b"100\n"}


async def test_made_markers_and_trackers_like_a_file_are_written(source: Path, target: Path) -> None:
    files = checkpoint(source)
    made = Small(path=f"{ENTRY}/commit_success.txt", text="done")
    like = Small(path="latest_train_state.pt", like=f"{ENTRY}/common.pt")
    parts = PARTS.model_copy(update={"made": (made,), "trackers": (like,)})
    await Steps(order_of(source, target, parts)).all()
    expected = {**files, made.path: b"done", like.path: files[f"{ENTRY}/common.pt"]}
    assert tree(target) == expected


async def test_one_file_is_a_checkpoint_too(source: Path, target: Path) -> None:
    write(source, {"epoch=3.ckpt": b"x" * 5000})
    await Steps(order_of(source, target, Parts(name="epoch=3.ckpt", format=Format.LIGHTNING))).all()
    assert tree(target) == {"epoch=3.ckpt": b"x" * 5000}


# -- resumed


async def test_a_resumed_copy_moves_only_what_is_not_right_in_staging(source: Path, target: Path) -> None:
    files = checkpoint(source)
    steps = Steps(order_of(source, target))
    await steps.copy()
    kept = {
        path: path.stat().st_ino for path in steps.staged(ENTRY).glob("*.distcp") if path.name != Path(SHARD).name
    }
    flip(steps.staged(SHARD))
    steps.staged(f"{ENTRY}/common.pt").unlink()
    (steps.staged(ENTRY) / "__5_0.distcp.0123abcd.partial").write_bytes(b"half")
    again = await steps.copy()
    assert again.copied == len(files[SHARD]) + len(files[f"{ENTRY}/common.pt"])
    assert {path: path.stat().st_ino for path in kept} == kept
    assert (await steps.prove()).ok
    await steps.publish()
    assert tree(target) == {**files, TRACKER: b"100\n"}


async def test_what_a_replication_brought_a_failover_need_not_bring(source: Path, target: Path) -> None:
    checkpoint(source)
    replication = Steps(order_of(source, target))
    await replication.all()
    await replication.drop()
    failover = Steps(order_of(source, target))
    assert (await failover.survey()).published
    assert (await failover.all()).copied == 0


async def test_when_all_is_staged_the_source_is_not_needed_any_more(source: Path, target: Path) -> None:
    files = checkpoint(source)
    steps = Steps(order_of(source, target))
    await steps.copy()
    shutil.rmtree(source)
    await steps.all()
    assert tree(target) == {**files, TRACKER: b"100\n"}


async def test_an_operation_asked_for_something_else_is_refused(source: Path, target: Path) -> None:
    checkpoint(source)
    order = order_of(source, target)
    await Steps(order).copy()
    other = order.model_copy(update={"parts": PARTS.model_copy(update={"step": 7})})
    with pytest.raises(RefusedError, match="in another way before"):
        await Steps(other).copy()


# -- damage


async def test_a_byte_that_flips_at_the_source_is_found_and_disqualifies_it(source: Path, target: Path) -> None:
    checkpoint(source)
    steps = Steps(order_of(source, target))
    await steps.copy()
    steps.staged(SHARD).unlink()
    flip(source / SHARD)
    with pytest.raises(RefusedError, match=r"__3_0\.distcp reads otherwise at the source .* take the next one"):
        await steps.copy()
    assert tree(target) == {}


async def test_a_byte_that_flips_in_staging_is_found_taken_out_and_brought_again(source: Path, target: Path) -> None:
    files = checkpoint(source)
    steps = Steps(order_of(source, target))
    await steps.copy()
    flip(steps.staged(SHARD))
    proof = await steps.prove()
    assert not proof.ok
    assert "__3_0.distcp differs" in proof.text
    assert (await steps.all()).copied == len(files[SHARD])
    assert tree(target) == {**files, TRACKER: b"100\n"}


async def test_a_byte_that_flips_in_a_bucket_is_found_by_reading_back(source: Path, bucket: Bucket) -> None:
    files = checkpoint(source)
    steps = Steps(order_of(source, bucket.root), bucket.rclone)
    await steps.copy()
    flip(bucket.folder / SHARD)
    proof = await steps.prove()
    assert not proof.ok
    assert "__3_0.distcp differs" in proof.text
    assert (await steps.all()).copied == len(files[SHARD])
    assert tree(bucket.folder) == {**files, TRACKER: b"100\n"}


async def test_a_published_copy_that_is_damaged_is_told_and_not_touched(source: Path, target: Path) -> None:
    files = checkpoint(source)
    steps = Steps(order_of(source, target))
    await steps.all()
    flip(target / SHARD)
    assert not (await steps.prove()).ok
    assert set(tree(target)) == {*files, TRACKER}


# -- what the source does


async def test_links_keep_a_source_that_the_trainers_retention_deletes(source: Path, target: Path) -> None:
    files = checkpoint(source)
    steps = Steps(order_of(source, target))
    await steps.copy()
    steps.staged(SHARD).unlink()
    shutil.rmtree(source / ENTRY)
    copied = await steps.copy()
    assert (copied.copied, copied.pinned) == (len(files[SHARD]), "")
    await steps.all()
    assert tree(target) == {**files, TRACKER: b"100\n"}


async def test_without_links_a_file_that_vanishes_disqualifies_the_candidate(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(source)
    steps = Steps(order_of(source, target))

    def no_links(*_args: object, **_more: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "link", no_links)
    assert "no hard links there" in (await steps.copy()).pinned
    steps.staged(SHARD).unlink()
    (source / SHARD).unlink()
    with pytest.raises(RefusedError, match="vanished from the source; this candidate is out"):
        await steps.copy()


async def test_a_file_written_anew_after_the_copy_began_disqualifies_the_candidate(
    source: Path, target: Path
) -> None:
    checkpoint(source)
    steps = Steps(order_of(source, target))
    await steps.copy()
    steps.staged(SHARD).unlink()
    (source / SHARD).write_bytes(b"of another step")
    with pytest.raises(RefusedError, match="was written at the source after the copy began"):
        await steps.copy()


async def test_one_that_has_not_the_size_it_was_judged_with_is_refused(source: Path, target: Path) -> None:
    files = checkpoint(source)
    parts = PARTS.model_copy(update={"size": sum(map(len, files.values())) + 1})
    with pytest.raises(RefusedError, match="judge it again"):
        await Steps(order_of(source, target, parts)).copy()


@pytest.mark.parametrize("what", ["link", "newline"])
async def test_links_and_names_that_lead_elsewhere_are_never_copied(source: Path, target: Path, what: str) -> None:
    checkpoint(source)
    if what == "link":
        (source / ENTRY / "extra.pt").symlink_to("/etc/hostname")
    else:
        (source / ENTRY / "a\n/etc/x").parent.mkdir(parents=True)
        (source / ENTRY / "a\n/etc/x").write_text("x")
    with pytest.raises(RefusedError, match=r"link or a special file|line break"):
        await Steps(order_of(source, target)).copy()


# -- what is at the target (PC-C03, PC-C06)


async def test_a_folder_of_another_run_is_never_merged_into(source: Path, target: Path) -> None:
    """PC-C03: eight old shards there, four new ones here."""
    checkpoint(source, shards=4)
    old = checkpoint(target, shards=8)
    with pytest.raises(RefusedError, match="is there already and is another one"):
        await Steps(order_of(source, target)).copy()
    (problem,) = (await Steps(order_of(source, target)).survey()).problems
    assert "is there already and is another one" in problem
    assert tree(target) == {**old, TRACKER: b"100"}


async def test_the_jobs_own_checkpoint_of_that_step_is_taken_for_it_once_its_bytes_were_compared(
    source: Path, target: Path
) -> None:
    """A job that comes back before it has saved again."""
    checkpoint(source, shards=4)
    shutil.copytree(source / ENTRY, target / ENTRY)
    steps = Steps(order_of(source, target))
    survey = await steps.survey()
    assert (survey.problems, survey.to_copy) == ((), 0)
    assert (await steps.copy()).copied == 0


async def test_files_beyond_the_manifest_make_an_equal_looking_folder_another_one(source: Path, target: Path) -> None:
    checkpoint(source, shards=4)
    shutil.copytree(source / ENTRY, target / ENTRY)
    (target / ENTRY / "__7_0.distcp").write_bytes(b"left over")
    with pytest.raises(RefusedError, match="does not belong there"):
        await Steps(order_of(source, target)).copy()


async def test_an_equal_folder_that_others_brought_is_proven_and_gets_its_receipt(source: Path, target: Path) -> None:
    checkpoint(source)
    shutil.copytree(source / ENTRY, target / ENTRY)
    assert (await Steps(order_of(source, target)).all()).copied == 0
    assert (target / receipt_path(ENTRY)).exists()


async def test_a_folder_that_appears_while_we_copy_stops_the_copy(source: Path, target: Path) -> None:
    checkpoint(source)
    steps = Steps(order_of(source, target))
    await steps.copy()
    write(target, {f"{ENTRY}/other": b"x"})
    with pytest.raises(RefusedError, match="appeared under the name"):
        await steps.copy()
    assert "other does not belong there" in (await steps.prove()).text
    with pytest.raises(RefusedError, match="prove the copy first"):
        await steps.publish()
    assert tree(target) == {f"{ENTRY}/other": b"x"}


async def test_a_store_without_hashes_is_read_back_and_never_taken_by_size(source: Path, tmp_path: Path) -> None:
    """PC-C06: rclone itself would say "0 differences" of two files of one size there."""
    checkpoint(source)
    inner = tmp_path / "inner"
    inner.mkdir()
    env = {
        **os.environ,
        "RCLONE_CONFIG": os.devnull,
        "RCLONE_CONFIG_SEC_TYPE": "crypt",
        "RCLONE_CONFIG_SEC_REMOTE": str(inner),
        "RCLONE_CONFIG_SEC_FILENAME_ENCRYPTION": "off",
        "RCLONE_CONFIG_SEC_DIRECTORY_NAME_ENCRYPTION": "false",
        "RCLONE_CONFIG_SEC_PASSWORD": (await Rclone().ask(["obscure", "a password"])).strip(),
    }
    steps = Steps(order_of(source, "sec:root"), Rclone(env))
    copied = await steps.copy()
    assert copied.proofs == {"read": copied.files}
    one, other = (
        inner / f"root/.gpu-runbooks/copy-{steps.order.op}/staged/{ENTRY}/__{n}_0.distcp.bin" for n in (1, 2)
    )
    one.write_bytes(other.read_bytes())
    again = await steps.copy()
    assert again.copied == (source / ENTRY / "__1_0.distcp").stat().st_size
    assert (await steps.prove()).ok


# -- room, rights, owners, datasets


async def test_no_room_is_told_before_the_first_byte(source: Path, target: Path) -> None:
    checkpoint(source)
    steps = Steps(order_of(source, target), rules=Rules(headroom=99.9999999))
    with pytest.raises(RefusedError, match=r"no room at the target: .* short"):
        await steps.copy()
    assert not is_there(target)
    assert (await steps.survey()).fits is False


async def test_a_target_that_tells_no_room_is_said_to_be_unknown(source: Path, bucket: Bucket) -> None:
    checkpoint(source)
    survey = await Steps(order_of(source, bucket.root), bucket.rclone).survey()
    assert (survey.fits, survey.problems) == (None, ())
    assert "unknown" in survey.room


async def test_wrong_credentials_are_told_without_them(source: Path, bucket: Bucket) -> None:
    checkpoint(source)
    env = {**bucket.env, "RCLONE_CONFIG_LAB_SECRET_ACCESS_KEY": "not-the-secret-of-it"}
    with pytest.raises(PermanentError, match="correct the remote") as caught:
        await Steps(order_of(source, bucket.root), Rclone(env)).copy()
    assert "not-the-secret-of-it" not in str(caught.value)


def test_an_order_cannot_carry_credentials(source: Path) -> None:
    bad = ":s3,access_key_id=AKIAEXAMPLE,secret_access_key=verysecret:bucket/x"
    with pytest.raises(ValueError, match="no place of a copy") as caught:
        order_of(source, "/x").model_validate({**order_of(source, "/x").model_dump(), "target": bad})
    assert "verysecret" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
async def test_the_files_belong_to_the_jobs_user(source: Path, target: Path) -> None:
    checkpoint(source)
    await Steps(order_of(source, target, owner="nobody")).all()
    owners = {path.stat().st_uid for path in (target, target / TRACKER, target / ENTRY, *(target / ENTRY).iterdir())}
    assert owners == {pwd.getpwnam("nobody").pw_uid}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
@pytest.mark.parametrize(("owner", "ids"), [("4321:5432", (4321, 5432)), ("4321", (4321, os.getegid()))])
async def test_a_pods_user_owns_what_is_copied_by_number(
    source: Path, target: Path, owner: str, ids: tuple[int, int]
) -> None:
    checkpoint(source)
    await Steps(order_of(source, target, owner=owner)).all()
    seen = [path.stat() for path in (target, target / TRACKER, target / ENTRY, *(target / ENTRY).iterdir())]
    assert {(told.st_uid, told.st_gid) for told in seen} == {ids}


async def test_an_owner_that_nobody_knows_is_a_problem_of_the_survey(source: Path, target: Path) -> None:
    checkpoint(source)
    (problem,) = (await Steps(order_of(source, target, owner="no-such-user")).survey()).problems
    assert "knows no user" in problem


async def test_our_folder_as_a_link_is_not_written_through(source: Path, target: Path, tmp_path: Path) -> None:
    checkpoint(source)
    write(target, {"notes": b"x"})
    (tmp_path / "elsewhere").mkdir()
    (target / ".gpu-runbooks").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RefusedError, match="no folder of its own"):
        await Steps(order_of(source, target)).copy()
    assert not any((tmp_path / "elsewhere").iterdir())


async def test_a_dataset_is_copied_by_its_manifest(source: Path, target: Path) -> None:
    files = {"data/a.bin": b"a" * 100, "data/b/c.bin": b"c" * 200}
    write(source, {**files, "data/other": b"not listed"})
    write(source, {"data/SHA256SUMS": sha256sum(source / "data", "a.bin", "b/c.bin")})
    parts = Parts(name="data", sums="data/SHA256SUMS")
    await Steps(order_of(source, target, parts)).all()
    assert tree(target) == files
    flip(source / "data/a.bin", 5)
    with pytest.raises(RefusedError, match="is not what its manifest says"):
        await Steps(order_of(source, target.with_name("second"), parts)).copy()


async def test_another_try_that_took_over_fences_the_one_before(source: Path, target: Path) -> None:
    checkpoint(source)
    order = order_of(source, target)
    old, new = (Ground(order, Rules(), Rclone()) for _ in range(2))
    await old.take()
    await old.check_owner()
    await new.take()
    with pytest.raises(TemporaryError, match="another try"):
        await old.check_owner()


async def test_a_cancelled_hash_ends_at_the_next_piece(source: Path) -> None:
    write(source, {"big": bytes(64 << 20)})
    read: list[int] = []
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def count(size: int) -> None:
        read.append(size)
        loop.call_soon_threadsafe(begun.set)

    task = asyncio.create_task(FolderStore(Place(path=str(source))).hashes(["big"], ("md5",), count=count))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sum(read) < 64 << 20


async def test_only_a_store_whose_listing_tells_the_right_hash_spares_rclone_its_own(
    source: Path, target: Path, bucket: Bucket, ssh: Bucket
) -> None:
    checkpoint(source)
    found = {}
    for root, rclone in ((bucket.root, bucket.rclone), (ssh.root, ssh.rclone), (str(target), Rclone())):
        ground = Ground(order_of(source, root), Rules(), rclone)
        await ground.take()
        found[root] = await ground.listed_hash()
        await Ground(order_of(source, root), Rules(), rclone).take()
        other = Ground(order_of(source, root), Rules(), rclone)
        assert await other.listed_hash() == "", "a hash of bytes that are not known proves nothing"
    assert found == {bucket.root: "md5", ssh.root: "", str(target): ""}


async def test_files_that_are_too_large_for_one_piece_go_beside_the_others(
    source: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = checkpoint(source)
    sizes = sorted(map(len, files.values()))
    assert sizes[0] < sizes[-1]
    monkeypatch.setattr(activities.copying.work, "ONE_PIECE", sizes[0])
    steps = Steps(order_of(source, bucket.root), bucket.rclone)
    await steps.all()
    assert tree(bucket.folder) == {**files, TRACKER: b"100\n"}
