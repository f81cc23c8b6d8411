"""Reads checkpoint roots: lists one within limits, follows no link out of it, and lets `fleet.checkpoints` judge.

Nothing is written, and nothing is read but names, sizes and the small parts that the judgement asks for. A file is
opened folder by folder without following links, so that a link that is put in the way meanwhile leads nowhere.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fleet.checkpoints.judge import judge
from fleet.checkpoints.layout import Known
from fleet.checkpoints.model import Candidate, File, Judgement
from fleet.checkpoints.names import shown, trouble
from fleet.checkpoints.tree import Refused, Tree
from fleet.errors import InvalidInputError, NotFoundError, TemporaryError

MAX_ENTRIES = 500_000
"""Files and folders of one root. A larger one is refused: it would take minutes, and gigabytes of memory."""
MAX_DEPTH = 24
"""Folders in folders; the deepest format has 5."""
LOOKS = 3
"""How often a root is looked at when the trainer changes it meanwhile."""
_CHUNK = 4 * 1024**2
_TICK = 1000
"""Entries between two calls of `alive`."""

Alive = Callable[[], None]
"""Called every now and then: sends a heartbeat, and raises where the work was cancelled."""


def look(root: Path, known: Known | None = None, alive: Alive = lambda: None) -> Judgement:
    """Judges a root as it is now; what it calls complete was still there, with the same sizes, at the end.

    Raises NotFoundError where there is no such folder, InvalidInputError for more than MAX_ENTRIES entries or one
    that cannot be listed, TemporaryError where the newest complete one changed at each of LOOKS looks.
    """
    return look_closely(root, known, alive)[0]


def look_closely(
    root: Path, known: Known | None = None, alive: Alive = lambda: None
) -> tuple[Judgement, tuple[str, ...]]:
    """The same, and every file of the root. Raises as `look`."""
    for _ in range(LOOKS):
        tree, contents = list_root(root, alive)
        found = judge(tree, known)
        newest = found.newest_complete
        if newest is None or contents.unchanged(newest):
            return found, tuple(file.path for file in tree.below(""))
    raise TemporaryError(f"{root} changes faster than it can be looked at; the trainer deletes old saves there", 30)


class FolderContents:
    """Reads files of one root on a file system."""

    def __init__(self, root: Path, links: dict[str, str], alive: Alive) -> None:
        """`links` names the place in the root of each file that is a link."""
        self._root = root
        self._links = links
        self._alive = alive

    def part(self, path: str, offset: int, length: int) -> bytes:
        self._alive()
        with self._opened(path) as handle:
            wanted, parts = length, []
            while wanted > 0 and (part := os.pread(handle, min(wanted, _CHUNK), offset)):
                parts.append(part)
                offset += len(part)
                wanted -= len(part)
            return b"".join(parts)

    def sha256(self, path: str) -> str:
        digest, offset = hashlib.sha256(), 0
        with self._opened(path) as handle:
            while part := os.pread(handle, _CHUNK, offset):
                self._alive()
                digest.update(part)
                offset += len(part)
        return digest.hexdigest()

    def unchanged(self, candidate: Candidate) -> bool:
        """Every file of the candidate is still there with the size and time of the listing."""
        for file in (*candidate.entry.data, *candidate.entry.markers):
            try:
                with self._opened(file.path) as handle:
                    now = os.fstat(handle)
            except OSError:
                return False
            if (now.st_size, now.st_mtime) != (file.size, file.modified):
                return False
        return True

    @contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        """A plain file of the root; raises OSError, for a link in the way too."""
        *folders, name = self._links.get(path, path).split("/")
        here = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for folder in folders:
                inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
                os.close(here)
                here = inner
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
        finally:
            os.close(here)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(errno.EINVAL, "it is no plain file any more")
            yield handle
        finally:
            os.close(handle)


def list_root(root: Path, alive: Alive = lambda: None) -> tuple[Tree, FolderContents]:
    """Every plain file below a root, and links to plain files in it; the rest is refused and named.

    Raises NotFoundError and InvalidInputError as `look` does. A folder that vanishes meanwhile is listed as empty.
    """
    try:
        real = root.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise NotFoundError(f"there is no folder {shown(root)} here ({getattr(error, 'strerror', error)})") from None
    if not real.is_dir():
        raise NotFoundError(f"{shown(root)} is no folder; give the folder that holds the checkpoints")
    walk = _Walk(real, alive)
    walk.run()
    contents = FolderContents(real, walk.links, alive)
    return Tree(walk.files, contents, folders=walk.folders, refused=walk.refused, root=str(real)), contents


class _Walk:
    """One listing under way."""

    def __init__(self, root: Path, alive: Alive) -> None:
        self.root = root
        self.alive = alive
        self.files: list[File] = []
        self.folders: list[str] = []
        self.refused: list[Refused] = []
        self.links: dict[str, str] = {}
        self._count = 0

    def run(self) -> None:
        waiting = [""]
        while waiting:
            here = waiting.pop()
            if here.count("/") >= MAX_DEPTH:
                self.refused.append(Refused(here, f"lies more than {MAX_DEPTH} folders deep"))
                continue
            try:
                with os.scandir(self.root / here) as entries:
                    for entry in entries:
                        self._one(here, entry, waiting)
            except FileNotFoundError:
                if not here:
                    raise NotFoundError(f"{shown(self.root)} vanished while it was listed") from None
            except OSError as error:
                if not here:
                    raise InvalidInputError(f"{shown(self.root)} cannot be listed: {error.strerror}") from None
                self.refused.append(Refused(here, f"cannot be listed ({error.strerror})"))

    def _one(self, folder: str, entry: os.DirEntry[str], waiting: list[str]) -> None:
        self._count += 1
        if self._count > MAX_ENTRIES:
            raise InvalidInputError(
                f"{shown(self.root)} holds more than {MAX_ENTRIES} files and folders; give the folder of one job"
            )
        if self._count % _TICK == 0:
            self.alive()
        path = f"{folder}/{entry.name}" if folder else entry.name
        if why := trouble(path):
            self.refused.append(Refused(path, why))
        elif entry.is_symlink():
            self._link(path)
        elif entry.is_dir(follow_symlinks=False):
            self.folders.append(path)
            waiting.append(path)
        elif entry.is_file(follow_symlinks=False):
            try:
                now = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                return
            self.files.append(File(path=path, size=now.st_size, modified=now.st_mtime))
        else:
            self.refused.append(Refused(path, "is no plain file"))

    def _link(self, path: str) -> None:
        """A link to a plain file of the root counts as that file. A link to a folder of it is only another name."""
        try:
            real = (self.root / path).resolve(strict=True)
            now = real.stat()
        except (OSError, RuntimeError):
            self.refused.append(Refused(path, "is a link to nothing"))
            return
        if not real.is_relative_to(self.root):
            self.refused.append(Refused(path, "is a link out of the root"))
        elif stat.S_ISREG(now.st_mode):
            self.links[path] = real.relative_to(self.root).as_posix()
            self.files.append(File(path=path, size=now.st_size, modified=now.st_mtime))
        elif not stat.S_ISDIR(now.st_mode):
            self.refused.append(Refused(path, "is a link to what is no plain file"))
