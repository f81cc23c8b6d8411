"""What a lab leaves on a machine, read from /proc and /sys: processes, PID namespaces, mounts, cgroups."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from fleet.model import Value


class Leftovers(Value):
    """What a removal ended, and what it should have ended and did not."""

    clusters: tuple[str, ...]
    ended: int = 0
    """Processes of the clusters before the removal."""
    processes: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    namespaces: int = 0
    """PID namespaces of nodes."""
    cgroups: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        return not (self.processes or self.mounts or self.namespaces or self.cgroups)


def processes() -> Iterable[tuple[int, list[str]]]:
    """Every process but us, with its command line; zombies have none and are left out."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
                if words[0]:
                    yield int(entry.name), words


def pid_namespaces() -> dict[int, str]:
    """Process that runs (not its zombie) -> its PID namespace."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                    found[int(entry.name)] = str((entry / "ns" / "pid").readlink())
    return found


def marked_namespaces(marks: tuple[str, ...]) -> set[str]:
    """PID namespaces whose processes have an argument that begins with one of the marks; never our own."""
    spaces = pid_namespaces()
    found = {spaces[pid] for pid, words in processes() if any(w.startswith(marks) for w in words) and pid in spaces}
    return found - {spaces.get(os.getpid(), "")}


def naming(folders: Iterable[str], programs: frozenset[str]) -> dict[int, str]:
    """Processes of these programs whose command lines name one of the folders, as `pid command line`."""
    wanted = tuple(folders)
    found = {}
    for pid, words in processes():
        names_us = any(
            f"{folder}/" in word or word.endswith(folder) or f"{folder}:" in word
            for word in words
            for folder in wanted
        )
        if names_us and Path(words[0]).name.partition(":")[0] in programs:
            found[pid] = f"{pid} {' '.join(words)[:160]}"
    return found


def mounts() -> list[str]:
    file = Path("/proc/self/mountinfo")
    return file.read_text().splitlines() if file.exists() else []


def cgroups(pattern: str) -> tuple[str, ...]:
    """Cgroups below any hierarchy of v1 or v2 that match a glob."""
    root = Path("/sys/fs/cgroup")
    return tuple(str(p) for top in (root, *root.glob("*/")) for p in top.glob(pattern) if p.is_dir())
