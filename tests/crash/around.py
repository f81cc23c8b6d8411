"""Faults of what surrounds a move: its storages `east` and `west`, and the controller of the cluster `beta`."""

import contextlib
import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from activities.backends.sim.faults import Faults
from tests.crash.boundary import Fault

BALLAST = ".ballast"
"""Takes all the room of a full storage."""
CONTROLLER = "controller.pid"
"""File with the pid of beta's controller, where it is a process of its own: beta is a real cluster."""
ROOM = "16m"
"""Of the target of a move that is to get full: many times its checkpoints."""


def befall(folder: Path, fault: Fault) -> None:
    """It happens, all at once."""
    match fault:
        case Fault.TARGET_FULL:
            _fill(folder / "west")
        case Fault.SOURCE_GONE:
            (folder / "east").rename(folder / "east.gone")
        case _:
            _controller(folder, frozen=True)


def mend(folder: Path, fault: Fault) -> None:
    """It is over."""
    match fault:
        case Fault.TARGET_FULL:
            (folder / "west" / BALLAST).unlink()
        case Fault.SOURCE_GONE:
            (folder / "east.gone").rename(folder / "east")
        case _:
            _controller(folder, frozen=False)


@contextlib.contextmanager
def own_storage(folder: Path, fault: Fault | None) -> Iterator[None]:
    """A target that is to get full is a file system of its own; that takes root."""
    if fault is not Fault.TARGET_FULL:
        yield
        return
    west = folder / "west"
    subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", west], check=True)
    try:
        yield
    finally:
        subprocess.run(["/bin/umount", "--lazy", west], check=True)


def _fill(storage: Path) -> None:
    """To its last byte: whole pages first, and then what is left."""
    with (storage / BALLAST).open("wb", buffering=0) as ballast:
        size = os.statvfs(storage).f_bavail * os.statvfs(storage).f_bsize
        try:
            os.posix_fallocate(ballast.fileno(), 0, size)
            while True:
                ballast.seek(0, os.SEEK_END)
                ballast.write(bytes(4096))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def _controller(folder: Path, *, frozen: bool) -> None:
    if (folder / CONTROLLER).exists():
        os.kill(int((folder / CONTROLLER).read_text()), signal.SIGSTOP if frozen else signal.SIGCONT)
        return
    beta = Faults(folder / "world.sqlite", "beta")
    try:
        (beta.controller_freeze if frozen else beta.controller_thaw)()
    finally:
        beta.close()
