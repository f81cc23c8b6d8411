"""Flight Recorder dumps in a folder that a job names, one file a rank (`nccl_trace_rank_12`). The worker may read
more than the job may, and the job chooses folder, names and contents: so every read has a limit, and not every file
is read."""

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from activities.backends.port import Dumps
from fleet.errors import InvalidInputError
from fleet.faults.hangs.meetings import essential
from fleet.faults.sources.flight_recorder import MAX_BYTES, MAX_RANKS, Dump, rank_of, read_dump
from fleet.faults.texts import clean

MAX_NAMES = 100_000
"""Names of a folder that are looked at."""
MAX_LEFT = 50
"""Files that are told as not read; the rest is counted."""
SAME_HANG = 900.0
"""Seconds by which a dump may be older than the newest: ranks write theirs when the first one tells the others."""
LIMIT = 120.0
"""Seconds that reading one folder may take: 16 MiB of a rank take 2 s."""

Allowed = Callable[[os.stat_result], bool]


class _Left(dict[str, str]):
    """name -> why it was not read."""

    more = 0

    def tell(self, name: str, why: str) -> None:
        if len(self) < MAX_LEFT:
            self[clean(name)[:200]] = why
        else:
            self.more += 1

    def told(self) -> dict[str, str]:
        return {**self, **({"...": f"and {self.more} more"} if self.more else {})}


def read_dumps(folder: str, allowed: Allowed, since: float = 0.0, limit: float = LIMIT) -> Dumps:
    """The newest dump of each rank that was written at `since` or later, as `hangs.diagnose` needs it.

    Files are asked about `allowed` when they are open, so no exchange of a link in between helps. A folder that
    cannot be opened has none; `left` says why.
    """
    left = _Left()
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        left.tell(folder, f"the folder cannot be opened: {getattr(error, 'strerror', None) or error}")
        return Dumps(left=left.told())
    try:
        return _read(handle, allowed, since, time.monotonic() + limit, left)
    finally:
        os.close(handle)


def read_dumps_below(folder: str, roots: tuple[str, ...], since: float = 0.0) -> Dumps:
    """The same of a folder that lies below one of the roots once links are followed; none of any other."""
    real = os.path.realpath(folder)
    if not any(Path(real).is_relative_to(os.path.realpath(root)) for root in roots):
        return Dumps(left={clean(folder)[:200]: "it lies below no folder that this worker may read"})
    return read_dumps(real, lambda status: stat.S_ISREG(status.st_mode), since)


def _read(handle: int, allowed: Allowed, since: float, until: float, left: _Left) -> Dumps:
    dumps: dict[int, Dump] = {}
    newest = 0.0
    for written, name, rank in _files(handle, left):
        if rank in dumps:
            continue
        if written < since:
            left.tell(name, "it is older than the attempt")
        elif newest - written > SAME_HANG:
            left.tell(name, f"it is {newest - written:.0f} s older than the newest: of an earlier hang")
        elif time.monotonic() > until:
            left.tell(name, "the time for reading dumps was over")
        else:
            try:
                dumps[rank] = essential(read_dump(_content(handle, name, allowed), rank=rank))
                newest = newest or written
            except (InvalidInputError, OSError) as error:
                left.tell(name, getattr(error, "strerror", None) or str(error))
    return Dumps(dumps=dumps, left=left.told())


def _files(handle: int, left: _Left) -> list[tuple[float, str, int]]:
    """(when it was written, name, rank) of each whose name ends in a rank, the newest first."""
    found = []
    with os.scandir(handle) as entries:
        for number, entry in enumerate(entries):
            if number >= MAX_NAMES:
                left.tell("...", f"more than {MAX_NAMES} names in the folder")
                break
            rank = rank_of(entry.name)
            if rank is None or rank >= MAX_RANKS:
                continue
            try:
                found.append((entry.stat(follow_symlinks=False).st_mtime, entry.name, rank))
            except OSError:
                continue  # it went meanwhile
    return sorted(found, reverse=True)


def _content(folder: int, name: str, allowed: Allowed) -> bytes:
    """The whole file. Raises InvalidInputError for one that is not read, OSError for one that cannot be."""
    handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise InvalidInputError("it is no plain file")
        if not allowed(status):
            raise InvalidInputError("it is not the job's own")
        if status.st_size > MAX_BYTES:
            raise InvalidInputError(f"it is longer than {MAX_BYTES} bytes")
        return file.read(MAX_BYTES + 1)
