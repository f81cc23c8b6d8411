"""The kernel's log as /dev/kmsg gives it, record by record, each once over restarts of the reader.

A record is `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS[,...];MESSAGE`, then lines that begin with a blank (its dictionary).
The device gives one record a read and says EPIPE when the next one was overwritten before it was read; a file or a
named pipe of the same shape is read by lines. Source: Documentation/ABI/testing/dev-kmsg of the Linux kernel.
"""

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

RECORD = 16384
"""Bytes of one read. The device refuses a buffer that is too small for the record (EINVAL); 8 KiB are its most."""
AT_ONCE = 2000
"""Reads before others get their turn: a flood must not hold up the rest of the agent."""
_HEAD = re.compile(rb"^(\d{1,5}),(\d{1,19}),(\d{1,19}),[^;]{0,200};")


@dataclass(frozen=True)
class Record:
    """One record of the kernel itself."""

    sequence: int
    seconds: float
    """By the kernel's clock, since the boot."""
    line: bytes
    """Header and message, without the dictionary."""


class KernelTail:
    """Reads what is new. Raises OSError when the log cannot be opened or read."""

    def __init__(self, path: Path, after: int | None = None) -> None:
        """`after`: sequence number of the last record that was read in this boot."""
        mode = path.stat().st_mode
        self.plain_file = stat.S_ISREG(mode)
        # A pipe without a writer would be at its end for ever: our own writing end keeps it open.
        flags = (os.O_RDWR if stat.S_ISFIFO(mode) else os.O_RDONLY) | os.O_NONBLOCK | os.O_CLOEXEC
        self.descriptor = os.open(path, flags)
        self.last = after
        self.lost = 0
        """Records that were overwritten before they were read."""
        self.unreadable = 0
        self.by_programs = 0
        """Records that programs wrote through the device: never evidence, anybody may write `NVRM: Xid` there."""
        self._records = stat.S_ISCHR(mode)
        self._rest = b""

    def close(self) -> None:
        """Ends it."""
        os.close(self.descriptor)

    def read(self) -> list[Record]:
        """The kernel's own records since the last call; empty when there is nothing new."""
        found: list[Record] = []
        for _ in range(AT_ONCE):
            try:
                piece = os.read(self.descriptor, RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:  # overwritten; the next read gives the oldest that is left
                continue
            if not piece:
                break
            if self._records:
                lines = piece.split(b"\n", 1)[:1]
            else:
                *lines, self._rest = (self._rest + piece).split(b"\n")
                self._rest = self._rest[-RECORD:]
            for line in lines:
                record = self._record(line)
                if record is not None:
                    found.append(record)
        return found

    def _record(self, line: bytes) -> Record | None:
        if not line or line.startswith(b" "):
            return None
        head = _HEAD.match(line)
        if head is None:
            self.unreadable += 1
            return None
        priority, sequence, microseconds = (int(number) for number in head.groups())
        if self.last is not None:
            if sequence <= self.last:
                return None
            self.lost += sequence - self.last - 1
        self.last = sequence
        if priority >> 3:
            self.by_programs += 1
            return None
        return Record(sequence, microseconds / 1e6, line)
