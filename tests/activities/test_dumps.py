"""Dumps in a job's folder: the newest of each rank, only the job's own plain files, and never without a limit."""

import json
import os
import stat
from pathlib import Path

import pytest

from activities.backends.dumps import MAX_LEFT, SAME_HANG, read_dumps, read_dumps_below
from activities.backends.port import DumpReader
from activities.backends.sim import ClusterShape, SimBackend, SimSettings, create_world
from tests.faults.sources.dumps import dump, record, torch_pickle
from tests.sim.conftest import spec

ANY = lambda status: True  # noqa: E731 - whose file it is does not matter here
STUCK = torch_pickle(dump([record(1), record(2, "started")]))


def put(folder: Path, name: str, raw: bytes = STUCK, ago: float = 0.0) -> Path:
    file = folder / name
    file.write_bytes(raw)
    at = 1_760_000_000.0 - ago
    os.utime(file, (at, at))
    return file


def test_each_rank_is_read_once_from_its_newest_file_in_either_form(tmp_path: Path) -> None:
    put(tmp_path, "nccl_trace_rank_0", b"\x80\x02N.", ago=60)
    put(tmp_path, "again_0.json", json.dumps(dump([record(7, "started")])).encode())
    put(tmp_path, "nccl_trace_rank_1")
    put(tmp_path, "README")
    found = read_dumps(str(tmp_path), ANY)
    assert {rank: [r.collective_seq for r in d.open_records()] for rank, d in found.dumps.items()} == {0: [7], 1: [2]}
    assert found.left == {}


def test_a_newer_file_that_cannot_be_read_hides_no_older_one(tmp_path: Path) -> None:
    put(tmp_path, "nccl_trace_rank_0", ago=60)
    put(tmp_path, "zz_0", b"core")
    found = read_dumps(str(tmp_path), ANY)
    assert set(found.dumps) == {0}
    assert set(found.left) == {"zz_0"}


def test_what_is_older_than_the_attempt_or_of_an_earlier_hang_is_left(tmp_path: Path) -> None:
    put(tmp_path, "r_0")
    put(tmp_path, "r_1", ago=100)
    put(tmp_path, "r_2", ago=SAME_HANG + 1)
    assert set(read_dumps(str(tmp_path), ANY).dumps) == {0, 1}
    found = read_dumps(str(tmp_path), ANY, since=1_760_000_000.0 - 50)
    assert set(found.dumps) == {0}
    assert "older than the attempt" in found.left["r_1"]


def test_only_plain_files_that_are_allowed_are_read(tmp_path: Path) -> None:
    secret = put(tmp_path.parent, "secret_4")
    (tmp_path / "r_1").symlink_to(secret)
    os.mkfifo(tmp_path / "r_2")
    (tmp_path / "r_3").mkdir()
    put(tmp_path, "r_5").chmod(0o600)
    put(tmp_path, "r_6").chmod(0o644)
    found = read_dumps(str(tmp_path), lambda status: stat.S_IMODE(status.st_mode) == 0o644)
    assert set(found.dumps) == {6}
    assert set(found.left) == {"r_1", "r_2", "r_3", "r_5"}
    assert "not the job's own" in found.left["r_5"]


def test_hostile_names_are_cleaned_counted_and_no_rank_is_beyond_all_counts(tmp_path: Path) -> None:
    for number in range(MAX_LEFT + 5):
        put(tmp_path, f"\x1b[2J{number}", b"junk")
    put(tmp_path, "r_999999999")
    found = read_dumps(str(tmp_path), ANY)
    assert found.dumps == {}
    assert not any("\x1b" in name for name in found.left)
    assert found.left["..."] == "and 5 more"


def test_reading_ends_when_its_time_is_over(tmp_path: Path) -> None:
    put(tmp_path, "r_0")
    found = read_dumps(str(tmp_path), ANY, limit=-1)
    assert (found.dumps, list(found.left)) == ({}, ["r_0"])


@pytest.mark.parametrize("name", ["nowhere", "file_0", "nul\x00"])
def test_a_folder_that_cannot_be_opened_says_why(tmp_path: Path, name: str) -> None:
    put(tmp_path, "file_0")
    found = read_dumps(f"{tmp_path}/{name}", ANY)
    assert found.dumps == {}
    assert all("cannot be opened" in why for why in found.left.values())
    assert found.left


def test_a_folder_counts_only_below_a_root_once_links_are_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    put(outside, "r_0")
    (root / "link").symlink_to(outside)
    assert read_dumps_below(str(root / "link"), (str(root),)).dumps == {}
    assert set(read_dumps_below(str(root / "link"), (str(root), str(outside))).dumps) == {0}


async def test_the_simulated_cluster_reads_the_folder_that_a_job_names(tmp_path: Path) -> None:
    world = create_world(tmp_path / "world.db", {"alpha": ClusterShape()})
    folder = tmp_path / "dumps"
    folder.mkdir()
    put(folder, "nccl_trace_rank_3")
    backend = SimBackend("alpha", SimSettings(path=world))
    try:
        assert isinstance(backend, DumpReader)
        named = await backend.submit(spec("named", comment=f"gpu-runbooks.io/dumps={folder}"))
        silent = await backend.submit(spec("silent"))
        assert set((await backend.dumps(named.native_id, 0.0)).dumps) == {3}
        assert (await backend.dumps(silent.native_id, 0.0)).dumps == {}
    finally:
        await backend.close()
