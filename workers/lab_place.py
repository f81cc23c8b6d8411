"""What the labs have in common: one root folder, a script beside us that does the work, and what a removal leaves.

The script is called with argument lists and never imported.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, TypeVar

from fleet.errors import InvalidInputError, PermanentError, RefusedError
from workers.lab_traces import Leftovers, marked_namespaces, mounts, naming, pid_namespaces

DEPLOY = Path(__file__).resolve().parents[1] / "deploy" / "lab"

NO_SUCH_NAME = 64
"""How the scripts end when they know no such cluster or node (EX_USAGE of sysexits.h)."""

Said = TypeVar("Said")


def default_root(purpose: str = "lab") -> Path:
    """Short, for a munge socket's path may have 107 characters, and one for each user."""
    return Path(f"/tmp/gpu-runbooks-{purpose}-{os.getuid()}")  # noqa: S108 - the script checks whose it is


class Lab:
    """The clusters under one root folder. Every method blocks."""

    script: ClassVar[Path]
    limit: ClassVar[float]
    """Seconds for one call of the script."""
    node_mark: ClassVar[str]
    """First word of the argument by which a node's first process is known."""
    daemons: ClassVar[frozenset[str]]
    """Programs that the script starts."""
    own_folders: ClassVar[tuple[str, ...]]
    """Folders beside the clusters that go with the last one."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def command(self, *words: str) -> tuple[str, ...]:
        """Argument list of one verb, as `fleet.yaml` holds it too."""
        return (str(self.script), "--root", str(self.root), *words)

    def call(self, *words: str) -> str:
        """One verb's output. Raises InvalidInputError for a cluster or node that is not there, PermanentError when it
        fails otherwise, both with the script's own words."""
        done = subprocess.run(
            self.command(*words),
            capture_output=True,
            text=True,
            timeout=self.limit,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip()).replace(f"{self.script.stem}: ", "")
            if done.returncode == NO_SUCH_NAME:
                raise InvalidInputError(said)
            raise PermanentError(said or f"{words[0]} ended with {done.returncode}")
        return done.stdout

    def known(self) -> dict[str, str]:
        """name -> running or stopped."""
        return dict(line.split() for line in self.call("list").splitlines()) if self.root.is_dir() else {}

    # -- up

    def _to_start(self, clusters: Sequence[str]) -> list[str]:
        """Those that do not run. Raises RefusedError for somebody else's root: its name can be foreseen."""
        self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
        if self.root.lstat().st_uid != os.geteuid():
            raise RefusedError(f"{self.root} belongs to somebody else; give another folder with --root")
        running = {name for name, state in self.known().items() if state == "running"}
        return [name for name in clusters if name not in running]

    def _start_all(self, starts: Mapping[str, Callable[[], object]]) -> tuple[str, ...]:
        """All at once. Raises PermanentError with the script's words; then none that this call started is left."""
        with ThreadPoolExecutor(max_workers=max(len(starts), 1)) as pool:
            calls = {name: pool.submit(start) for name, start in starts.items()}
        failed = {name: call.exception() for name, call in calls.items() if call.exception() is not None}
        if failed:
            for name in starts:
                with contextlib.suppress(PermanentError):  # the first error is the one to tell
                    self.call("rm", name)
            name, error = next(iter(failed.items()))
            raise PermanentError(f"{name} did not start: {error}") from error
        return tuple(starts)

    def _script_is_ready(self, packages: str) -> None:
        """Raises PermanentError with what is missing, and names our script that installs it."""
        try:
            self.call("check")
        except PermanentError as error:
            raise PermanentError(
                f"{error}\n`{DEPLOY / packages}` does that too, and lets no package start a service"
            ) from error

    # -- looking

    def _states(self, parse: Callable[[str, str, str], Said]) -> tuple[Said, ...]:
        """`parse(name, state, text)` of every cluster, all asked at once: a frozen one delays only its own line."""
        known = self.known()
        with ThreadPoolExecutor(max_workers=max(len(known), 1)) as pool:
            said = dict(zip(known, pool.map(lambda name: self.call("status", name), known), strict=True))
        return tuple(parse(name, known[name], text) for name, text in said.items())

    # -- down

    def down(self, clusters: Sequence[str] | None = None) -> Leftovers:
        """Removes the clusters (all without names) and looks whether anything of them is left.

        Raises RefusedError for a name that is not here, before anything is removed.
        """
        known = self.known()
        names = tuple(clusters or known)
        unknown = [name for name in names if name not in known]
        if unknown:
            here = ", ".join(known) or "none"
            raise RefusedError(f"no cluster {', '.join(unknown)} under {self.root}; there are: {here}")
        before = marked_namespaces(tuple(f"{self.node_mark}:{self.root / name}:" for name in names))
        pids = {pid for pid, inode in pid_namespaces().items() if inode in before} | set(self._daemons_of(names))
        for name in names:
            self.call("rm", name)
        self._tidy()
        return Leftovers(
            clusters=names,
            ended=len(pids),
            processes=tuple(self._daemons_of(names).values()),
            mounts=tuple(line for line in mounts() if any(self.mounted(name) in line for name in names)),
            namespaces=len(before & set(pid_namespaces().values())),
            cgroups=tuple(path for name in names for path in self.cgroups(name)),
        )

    def mounted(self, cluster: str) -> str:
        """What a mount of the cluster has in its line of mountinfo."""
        return f" {self.root / cluster}"

    def cgroups(self, cluster: str) -> tuple[str, ...]:
        """The cluster's cgroups that exist; a lab that makes none has none."""
        return ()

    def _tidy(self) -> None:
        """The root goes with its last cluster, and our folders in it; files that are not the lab's keep it."""
        if self.root.is_dir() and not self.known():
            for folder in self.own_folders:
                shutil.rmtree(self.root / folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                self.root.rmdir()

    def _daemons_of(self, clusters: Iterable[str]) -> dict[int, str]:
        """Processes of the clusters by their command lines: daemons, node shells, the watcher of reboots."""
        return naming((f"{self.root / name}" for name in clusters), self.daemons)
