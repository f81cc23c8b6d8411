"""Processes below one: found by their parents, whatever session or group they moved to, and ended.

A process whose parent died stays below its nearest ancestor that adopts (`adopt_orphans`), so it is still found.
"""

import contextlib
import ctypes
import os
import signal
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_PROC = Path("/proc")
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent dies (a child subreaper)."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """For a child between fork and exec: the kernel kills it when its parent, of that pid, dies."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before
        os._exit(128 + signal.SIGKILL)


def descendants(root: int) -> dict[int, int]:
    """pid -> start time (clock ticks after boot) of each process below `root` that is no zombie."""
    children: dict[int, list[int]] = {}
    started: dict[int, int] = {}
    for entry in os.scandir(_PROC):
        if entry.name.isdigit() and (seen := _stat(int(entry.name))) is not None:
            state, parent, start = seen
            children.setdefault(parent, []).append(int(entry.name))
            if state not in "ZX":
                started[int(entry.name)] = start
    found: dict[int, int] = {}
    waiting = [root]
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            waiting.append(pid)
            if pid in started:
                found[pid] = started[pid]
    return found


def signal_all(processes: dict[int, int], number: int) -> set[int]:
    """Sends a signal to each that is still the same process. Returns those that this user may not signal."""
    refused: set[int] = set()
    for pid, start in processes.items():
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            seen = _stat(pid)
            if seen is not None and seen[2] == start:  # the pid may be another's by now
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            refused.add(pid)
        finally:
            os.close(descriptor)
    return refused


def reap() -> dict[int, int]:
    """Collects every child that has ended: pid -> wait status."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended


def _stat(pid: int) -> tuple[str, int, int] | None:
    """State, parent and start time; None for a process that is gone."""
    try:
        words = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return words[0].decode(), int(words[1]), int(words[19])


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
