"""A folder of this machine as a store: read by the operating system's own calls, which follow no link."""

import asyncio
import contextlib
import errno
import hashlib
import os
import pwd
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from activities.copying.stores import SMALL, Count, no_count
from fleet.checkpoints.model import FOLDER
from fleet.checkpoints.names import shown
from fleet.copying.manifest import STRONGEST, Seen
from fleet.copying.places import Place
from fleet.copying.space import Space
from fleet.errors import FleetError, PermanentError, RefusedError, TemporaryError, UnreadableError

PIECE = 1 << 20
"""Bytes of one read; a cancelled hash ends at the next one."""
_NUMBERS = re.compile(r"(?P<uid>\d{1,10})(?::(?P<gid>\d{1,10}))?", re.ASCII)
_NO_LINKS = {errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS, errno.EROFS, errno.EACCES}


class FolderStore:
    """A folder; see `stores.Store`."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.root = Path(place.path)

    async def renames(self) -> bool:
        """See `Store`: always, for staging lies in the root itself."""
        return True

    async def kinds(self) -> tuple[str, ...]:
        """See `Store`: all, for each is made by reading."""
        return STRONGEST

    async def listed(self, *tops: str) -> dict[str, Seen]:
        """See `Store`. Raises RefusedError for a link or a special file: what it leads to may be anything."""
        return await asyncio.to_thread(self._listed, tops)

    def _listed(self, tops: Sequence[str]) -> dict[str, Seen]:
        found: dict[str, Seen] = {}
        with self._told(shown(tops[0] if tops else "")):
            for top in tops:
                try:
                    seen = os.lstat(self.root / top)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                if stat.S_ISDIR(seen.st_mode):
                    found.update(self._walk(top))
                else:
                    found[top] = _seen(top, seen)
        return found

    def _walk(self, top: str) -> Iterator[tuple[str, Seen]]:
        with os.scandir(self.root / top) as inside:
            for item in inside:
                path = f"{top}/{item.name}" if top else item.name
                if item.is_dir(follow_symlinks=False):
                    yield from self._walk(path)
                    continue
                with contextlib.suppress(FileNotFoundError):  # gone meanwhile: then it is not listed
                    yield path, _seen(path, item.stat(follow_symlinks=False))

    async def hashes(
        self, paths: Sequence[str], kinds: Sequence[str], *, read_back: bool = False, count: Count = no_count
    ) -> dict[str, dict[str, str]]:
        """See `Store`; `read_back` makes no difference here. A file that vanished is left out."""
        stop = threading.Event()
        loop = asyncio.get_running_loop()
        found: dict[str, dict[str, str]] = {}
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="hash") as pool:
            try:
                tasks = [loop.run_in_executor(pool, self._hash, path, kinds, stop, count) for path in paths]
                for path, made in zip(paths, await asyncio.gather(*tasks), strict=True):
                    if made is not None:
                        found[path] = made
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return found

    def _hash(self, path: str, kinds: Sequence[str], stop: threading.Event, count: Count) -> dict[str, str] | None:
        making = [hashlib.new(kind, usedforsecurity=False) for kind in kinds]
        buffer = bytearray(PIECE)
        view = memoryview(buffer)
        try:
            with self._told(shown(path)), os.fdopen(self._opened(path), "rb", buffering=0) as file:
                while not stop.is_set() and (size := file.readinto(buffer)):
                    for one in making:
                        one.update(view[:size])
                    count(size)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return {one.name: one.hexdigest() for one in making}

    def _opened(self, path: str) -> int:
        return os.open(self.root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)

    async def read(self, path: str, limit: int = SMALL) -> bytes | None:
        """See `Store`."""
        with self._told(shown(path)):
            try:
                with os.fdopen(self._opened(path), "rb") as file:
                    data = file.read(limit + 1)
            except (FileNotFoundError, NotADirectoryError):
                return None
        if len(data) > limit:
            raise UnreadableError(
                f"{self.place.at(path)} is larger than {limit} bytes, too large for what it should be"
            )
        return data or None

    async def write(self, path: str, data: bytes) -> None:
        """See `Store`: written beside it, flushed to the disk, renamed."""
        await asyncio.to_thread(self._write, path, data)

    def _write(self, path: str, data: bytes) -> None:
        self.check_own_folder()
        with self._told(shown(path)):
            at = self.root / path
            at.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=at.parent, prefix=".gpu-runbooks-", delete=False) as file:
                try:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                    os.fchmod(file.fileno(), 0o644)
                    Path(file.name).replace(at)
                except BaseException:
                    Path(file.name).unlink(missing_ok=True)
                    raise
            _sync_folder(at.parent)

    async def rename(self, old: str, new: str) -> None:
        """See `Store`. A folder that is there and holds something stops it in the kernel, a file by our look."""
        await asyncio.to_thread(self._rename, old, new)

    def _rename(self, old: str, new: str) -> None:
        with self._told(shown(new)):
            at = self.root / new
            at.parent.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(at):
                raise RefusedError(f"{self.place.at(new)} is there already; nothing was moved")
            (self.root / old).rename(at)
            _sync_folder(at.parent)

    async def remove(self, paths: Sequence[str]) -> None:
        """See `Store`."""
        with self._told(shown(paths[0] if paths else "")):
            for path in paths:
                (self.root / path).unlink(missing_ok=True)

    async def remove_folder(self, folder: str) -> None:
        """See `Store`."""
        self.check_own_folder()
        with self._told(shown(folder)), contextlib.suppress(FileNotFoundError):
            await asyncio.to_thread(shutil.rmtree, self.root / folder)

    async def space(self) -> Space:
        """See `Store`: of the file system that the folder is on, or would be. A quota shows only as a full target."""
        at = self.root
        while not at.exists() and at != at.parent:
            at = at.parent
        with self._told(str(at)):
            told = os.statvfs(at)
        return Space(free=told.f_bavail * told.f_frsize, source="statvfs (a quota is not seen)")

    # -- what only a folder has

    def check_own_folder(self) -> None:
        """Raises RefusedError when `.gpu-runbooks` is a link: we would write where it leads."""
        at = self.root / FOLDER
        if at.is_symlink() or (at.exists() and not at.is_dir()):
            raise RefusedError(f"{at} is no folder of its own; take it away, then the copy can go on")

    async def link(self, paths: Sequence[str], under: str) -> str:
        """Hard links to these files below `under`; why there are none, or nothing. Links that are there stay.

        Raises RefusedError for a file that vanished.
        """
        return await asyncio.to_thread(self._link, paths, under)

    def _link(self, paths: Sequence[str], under: str) -> str:
        self.check_own_folder()
        for path in paths:
            new = self.root / under / path
            try:
                new.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileExistsError):
                    os.link(self.root / path, new, follow_symlinks=False)
            except FileNotFoundError as error:
                raise RefusedError(f"{shown(path)} vanished from the source") from error
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise TemporaryError(f"{self.place.at(under)}: {error.strerror}") from error
                shutil.rmtree(self.root / under, ignore_errors=True)
                return f"no hard links there ({error.strerror})"
        return ""

    async def flush(self, paths: Sequence[str], count: Count = no_count) -> None:
        """Waits until these files are on the disk: a name that is published must outlive a power cut."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(max_workers=8, thread_name_prefix="flush") as pool:
            await asyncio.gather(*(loop.run_in_executor(pool, self._flush, path, count) for path in paths))

    def _flush(self, path: str, count: Count) -> None:
        fd = self._opened(path)
        try:
            os.fsync(fd)
            count(os.fstat(fd).st_size)
        finally:
            os.close(fd)

    async def give(self, folder: str, owner: str) -> None:
        """Makes a user of this machine the owner of all in a folder. Raises PermanentError where we may not."""
        await asyncio.to_thread(self._give, folder, owner)

    def _give(self, folder: str, owner: str) -> None:
        uid, gid = _ids(owner)
        for _, folders, files, fd in os.fwalk(self.root / folder, follow_symlinks=False):
            for name in (*folders, *files):
                os.chown(name, uid, gid, dir_fd=fd, follow_symlinks=False)

    def give_file(self, path: str, owner: str) -> None:
        """The same for one file or folder; the root itself is empty."""
        os.chown(self.root / path, *_ids(owner), follow_symlinks=False)

    def names(self) -> frozenset[str]:
        """What lies in the root itself."""
        return frozenset(at.name for at in self.root.iterdir())

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, FleetError):
            raise
        except OSError as error:
            raise _error(f"{self.place.at('')}: {what}", error) from error


def _ids(owner: str) -> tuple[int, int]:
    """User and group of an owner; group -1 (left as it is) where only a number of a user is given."""
    if why := cannot_give(owner):
        raise PermanentError(why)
    if number := _NUMBERS.fullmatch(owner):
        return int(number["uid"]), int(number["gid"] or -1)
    entry = pwd.getpwnam(owner)
    return entry.pw_uid, entry.pw_gid


def cannot_give(owner: str) -> str:
    """Why files here cannot be given to a user (a name, or `UID[:GID]`); empty when they can."""
    if number := _NUMBERS.fullmatch(owner):
        uid, group = int(number["uid"]), number["gid"]
        foreign_group = group is not None and int(group) not in {os.getegid(), *os.getgroups()}
    else:
        try:
            uid, foreign_group = pwd.getpwnam(owner).pw_uid, False
        except KeyError:
            return f"this machine knows no user {shown(owner)}; the files cannot be given to them"
    if os.geteuid() != 0 and (os.geteuid() != uid or foreign_group):
        return (
            f"the worker is neither root nor {shown(owner)}; run it as one of them, else the job cannot use the files"
        )
    return ""


def _seen(path: str, told: os.stat_result) -> Seen:
    if not stat.S_ISREG(told.st_mode):
        raise RefusedError(f"{shown(path)} is a link or a special file; it is not copied, for it may lead anywhere")
    return Seen(size=told.st_size, modified=told.st_mtime)


def _error(what: str, error: OSError) -> FleetError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return RefusedError(f"the target is full, what is there stays to go on from: {what}: {error.strerror}")
    if error.errno in {errno.EACCES, errno.EPERM, errno.ELOOP, errno.EROFS}:
        return PermanentError(f"{what}: {error.strerror}; correct the rights of the worker's user there")
    return TemporaryError(f"{what}: {error.strerror}", delay=5)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
