"""What waits to be sent: bounded, safe over a kill, and honest about boots."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.spool import FILE, Spool
from fleet.faults.evidence import EARLIER_BOOT, Evidence, Kind, Source


def piece(code: str) -> Evidence:
    return Evidence(
        source=Source.KERNEL, kind=Kind.XID, cluster="alpha", node="a1", code=code, seen_at=1.0, raw_hash=code
    )


def codes(spool: Spool, most: int = 100) -> list[str | None]:
    return [found.code for _, found in spool.oldest(most)]


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    found = Spool(tmp_path, "boot-1", most=3)
    yield found
    found.close()


def test_pieces_come_out_in_order_until_they_are_done(spool: Spool) -> None:
    spool.add([piece("1"), piece("2")])
    (number, first), _ = spool.oldest(2)

    assert first == piece("1")
    spool.done([number])
    assert codes(spool) == ["2"]


def test_the_oldest_goes_when_too_much_waits_and_is_counted(spool: Spool, tmp_path: Path) -> None:
    assert spool.add(map(piece, "123")) == 0
    assert spool.add(map(piece, "45")) == 2

    assert codes(spool) == ["3", "4", "5"]
    spool.close()
    again = Spool(tmp_path, "boot-1", most=3)
    assert (again.dropped, again.waiting) == (2, 3)
    again.close()


def test_pieces_and_memory_survive_the_process_together(spool: Spool, tmp_path: Path) -> None:
    spool.add([piece("79")], {"kernel": {"last": 7}})

    again = Spool(tmp_path, "boot-1")  # the first one was never closed, as after a kill
    assert (codes(again), again.remembered("kernel")) == (["79"], {"last": 7})
    again.close()


def test_a_piece_of_an_earlier_boot_says_so(spool: Spool, tmp_path: Path) -> None:
    spool.add([piece("79")])
    spool.close()

    rebooted = Spool(tmp_path, "boot-2")
    rebooted.add([piece("31")])
    assert [found.boot for _, found in rebooted.oldest(9)] == [EARLIER_BOOT, None]
    rebooted.close()


def test_a_broken_file_is_kept_aside_and_a_new_one_begun(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database at all, but long enough to be looked at as one" * 100)

    spool = Spool(tmp_path, "boot-1")
    spool.add([piece("79")])

    assert codes(spool) == ["79"]
    assert (tmp_path / f"{FILE}.broken").exists()
    spool.close()


def test_without_a_folder_it_works_from_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")

    spool = Spool(tmp_path / "file" / "state", "boot-1")
    spool.add([piece("79")], {"kernel": {"last": 7}})

    assert (codes(spool), spool.remembered("kernel")) == (["79"], {"last": 7})
    assert "lost when the agent ends" in caplog.text
    spool.close()


def test_a_disk_that_fills_up_costs_nothing_that_was_seen(spool: Spool, caplog: pytest.LogCaptureFixture) -> None:
    spool.add([piece("1")])
    spool._db.execute("PRAGMA max_page_count=1")  # no page more than there is: SQLite then says that the disk is full

    spool.add([piece("2").model_copy(update={"detail": "x" * 2000}) for _ in range(2)])
    spool.add([], {"kernel": "x" * 9000})

    assert "waits in memory" in caplog.text
    assert codes(spool) == ["1", "2", "2"]
    assert spool.remembered("kernel") == "x" * 9000


def test_a_piece_that_this_release_cannot_read_is_dropped_and_said(
    spool: Spool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool.add([piece("1"), piece("2")])
    with sqlite3.connect(tmp_path / FILE) as other:
        other.execute("UPDATE waiting SET piece = '{}' WHERE id = 1")
    other.close()

    assert codes(spool) == ["2"]
    assert "cannot be read by this release" in caplog.text
    assert spool.waiting == 1
