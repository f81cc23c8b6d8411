"""The kernel's log, record by record: from files and pipes of its shape, and from the real device."""

import os
from pathlib import Path

import pytest

from agents.kmsg import KernelTail

ONE = b"4,100,5000000,-;NVRM: Xid (PCI:0000:a1:00): 79, pid=1, GPU has fallen off the bus.\n"
TWO = b"6,101,6000000,-;eth0: link up\n SUBSYSTEM=net\n DEVICE=+net:eth0\n"


def log(path: Path, *parts: bytes) -> Path:
    path.write_bytes(b"".join(parts))
    return path


def test_records_are_read_without_their_dictionary(tmp_path: Path) -> None:
    tail = KernelTail(log(tmp_path / "kmsg", ONE, TWO))

    first, second = tail.read()

    assert (first.sequence, first.seconds, first.line + b"\n") == (100, 5.0, ONE)
    assert second.line == TWO.split(b"\n")[0]
    assert tail.read() == []
    tail.close()


def test_what_was_read_before_is_not_read_again(tmp_path: Path) -> None:
    tail = KernelTail(log(tmp_path / "kmsg", ONE, TWO), after=100)

    assert [record.sequence for record in tail.read()] == [101]
    tail.close()


def test_a_gap_in_the_numbers_is_counted(tmp_path: Path) -> None:
    tail = KernelTail(log(tmp_path / "kmsg", ONE, TWO.replace(b"101", b"131")), after=95)

    assert [record.sequence for record in tail.read()] == [100, 131]
    assert tail.lost == 4 + 30
    tail.close()


def test_a_record_that_comes_in_pieces_is_one(tmp_path: Path) -> None:
    pipe = tmp_path / "kmsg"
    os.mkfifo(pipe)
    tail = KernelTail(pipe)
    writer = os.open(pipe, os.O_WRONLY)

    os.write(writer, ONE[:30])
    assert tail.read() == []
    os.write(writer, ONE[30:])
    assert [record.line + b"\n" for record in tail.read()] == [ONE]
    os.close(writer)
    assert tail.read() == []
    tail.close()


def test_a_program_that_writes_like_the_driver_is_not_believed(tmp_path: Path) -> None:
    tail = KernelTail(log(tmp_path / "kmsg", ONE.replace(b"4,100", b"12,100"), TWO))

    assert [record.sequence for record in tail.read()] == [101]
    assert tail.by_programs == 1
    tail.close()


def test_junk_is_counted_and_does_not_end_it(tmp_path: Path) -> None:
    tail = KernelTail(log(tmp_path / "kmsg", b"\xff\xfe\x00junk\n", b"9" * 100_000 + b"\n", ONE))

    assert [record.sequence for record in tail.read()] == [100]
    assert tail.unreadable >= 1
    tail.close()


def test_an_overwritten_record_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device says EPIPE once, then gives the oldest record that is left."""
    tail = KernelTail(log(tmp_path / "kmsg", TWO), after=99)
    real, refused = os.read, [BrokenPipeError(32, "Broken pipe")]

    def read(descriptor: int, size: int) -> bytes:
        if refused:
            raise refused.pop()
        return real(descriptor, size)

    monkeypatch.setattr(os, "read", read)

    assert [record.sequence for record in tail.read()] == [101]
    assert tail.lost == 1
    tail.close()


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="/dev/kmsg cannot be read here")
def test_the_real_device_gives_rising_numbers_and_the_kernels_clock() -> None:
    try:
        tail = KernelTail(Path("/dev/kmsg"))
        records = tail.read()
    except OSError as error:
        pytest.skip(f"/dev/kmsg cannot be read here: {error}")

    numbers = [record.sequence for record in records]
    assert numbers == sorted(set(numbers))
    assert tail.unreadable == 0
    assert all(record.seconds >= 0 for record in records)
    tail.close()
