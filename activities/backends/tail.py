"""The end of a log file that a job names. The worker may read more than the job may; so not every file is read."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

TAIL = 1 << 20
"""Bytes that are read from the end; 16,000 lines of a training step."""


def read_tail(path: str, allowed: Callable[[os.stat_result], bool], size: int = TAIL) -> str:
    """The last bytes of the file, from the start of a line on; empty when it is missing, no plain file or not
    `allowed` (asked about the file that was opened, so no exchange of a link in between helps)."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or not allowed(status):
            return ""
        begin = max(0, status.st_size - size)
        data = os.pread(handle, size, begin)
    finally:
        os.close(handle)
    if begin:
        data = data.partition(b"\n")[2]
    return data.decode(errors="replace")


def read_tail_below(path: str, roots: tuple[str, ...]) -> str:
    """The same of a file that lies below one of the folders once links are followed; empty for any other."""
    real = os.path.realpath(path)
    if not any(os.path.commonpath((real, os.path.realpath(root))) == os.path.realpath(root) for root in roots):
        return ""
    try:
        seen = Path(real).lstat()
    except OSError:
        return ""
    return read_tail(real, lambda status: (status.st_dev, status.st_ino) == (seen.st_dev, seen.st_ino))
