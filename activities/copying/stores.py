"""What is asked of a place: list, hash, read and write small files, rename, room. One for folders of this machine,
one for whatever rclone speaks.

Paths are relative to the place. A listing follows no link; writing goes nowhere but below `.gpu-runbooks` and to the
names that a copy publishes.
"""

import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from activities.copying.rclone import Rclone
from fleet.copying.manifest import STRONGEST, Seen
from fleet.copying.places import Place
from fleet.copying.space import Space
from fleet.errors import NotFoundError, RefusedError, UnreadableError

AT_ONCE = 8
"""Files in flight; also hashes and listings."""
SMALL = 1 << 20
"""Largest file that is read whole: a tracker, a manifest of ours is larger and has its own limit."""
MANIFEST_LIMIT = 200 << 20
READ_LIMIT = 14 * 86400.0
"""Seconds for reading a whole checkpoint back: the step's own limit ends it earlier."""

Count = Callable[[int], None]
"""Told the bytes that were read just now."""


def no_count(_size: int) -> None:
    """Nobody wants to know."""


class Store(Protocol):
    """One place."""

    place: Place

    async def renames(self) -> bool:
        """Whether a folder can be renamed as a whole."""

    async def kinds(self) -> tuple[str, ...]:
        """Hashes that it tells: kept by the store, or by reading the file where it is a folder of this machine."""

    async def listed(self, *tops: str) -> dict[str, Seen]:
        """The files below each of `tops` (folders or files), by their paths; what is not there is left out."""

    async def hashes(
        self, paths: Sequence[str], kinds: Sequence[str], *, read_back: bool = False, count: Count = no_count
    ) -> dict[str, dict[str, str]]:
        """Hashes of these files; one that the store cannot tell is left out. `read_back`: by reading every byte."""

    async def read(self, path: str, limit: int = SMALL) -> bytes | None:
        """A small file; None when it is not there, or empty. Raises UnreadableError for a larger one."""

    async def write(self, path: str, data: bytes) -> None:
        """A small file, whole or not at all."""

    async def rename(self, old: str, new: str) -> None:
        """A file or folder. Raises RefusedError when `new` is there."""

    async def remove(self, paths: Sequence[str]) -> None:
        """Files of ours; what is not there is no error."""

    async def remove_folder(self, folder: str) -> None:
        """A folder of ours with all in it; what is not there is no error."""

    async def space(self) -> Space:
        """Its room."""


def open_store(place: Place, rclone: Rclone) -> Store:
    """The store of a place."""
    from activities.copying.folder import FolderStore

    return FolderStore(place) if not place.remote else RemoteStore(place, rclone)


class RemoteStore:
    """Anything that rclone speaks."""

    def __init__(self, place: Place, rclone: Rclone) -> None:
        self.place = place
        self._rclone = rclone
        self._told: dict[str, Any] | None = None

    async def _features(self) -> dict[str, Any]:
        if self._told is None:
            self._told = _object(await self._rclone.ask(["backend", "features", f"{self.place.remote}:"]))
        return self._told

    async def renames(self) -> bool:
        """See `Store`."""
        features = (await self._features()).get("Features", {})
        return bool(features.get("DirMove")) and not features.get("BucketBased")

    async def kinds(self) -> tuple[str, ...]:
        """See `Store`."""
        told = (await self._features()).get("Hashes") or ()
        return tuple(kind for kind in STRONGEST if kind in told)

    async def listed(self, *tops: str) -> dict[str, Seen]:
        """See `Store`."""
        found: dict[str, Seen] = {}
        for top in tops:
            found.update(await self._below(top))
        return found

    async def _below(self, top: str) -> dict[str, Seen]:
        # The server's own time is in the listing; what rclone keeps beside an object costs a request for each.
        words = ["lsjson", self.place.at(top), "-R", "--files-only", "--no-mimetype", "--use-server-modtime"]
        if kind := await self._listed_kind():
            words += ["--hash", "--hash-type", kind]
        try:
            rows = _rows(await self._rclone.ask(words))
        except NotFoundError:
            return {}
        single = len(rows) == 1 and rows[0]["Path"] == top.rpartition("/")[2] and await self._is_file(top)
        return {
            (top if single else f"{top}/{row['Path']}" if top else row["Path"]): Seen(
                size=max(int(row["Size"]), 0),
                modified=_epoch(row.get("ModTime", "")),
                hashes={kind: told for kind, told in row.get("Hashes", {}).items() if told},
            )
            for row in rows
        }

    async def _listed_kind(self) -> str:
        """The hash that a listing tells without reading the file; empty when there is none."""
        slow = (await self._features()).get("Features", {}).get("SlowHash")
        return "" if slow else next(iter(await self.kinds()), "")

    async def _is_file(self, path: str) -> bool:
        try:
            told = _object(await self._rclone.ask(["lsjson", self.place.at(path), "--stat", "--no-mimetype"]))
        except NotFoundError:
            return False
        return not told.get("IsDir", True)

    async def hashes(
        self, paths: Sequence[str], kinds: Sequence[str], *, read_back: bool = False, count: Count = no_count
    ) -> dict[str, dict[str, str]]:
        """See `Store`. Each kind is a pass of its own; the store's own kinds cost a listing only."""
        own = await self.kinds()
        found: dict[str, dict[str, str]] = {path: {} for path in paths}
        for kind in kinds if paths else ():
            if not read_back and kind not in own:
                continue
            words = ["hashsum", kind, self.place.at(""), "--no-traverse"]
            words += ["--transfers", str(AT_ONCE), "--checkers", str(AT_ONCE), *(["--download"] if read_back else [])]
            out = await self._rclone.ask(words, limit=READ_LIMIT, paths=paths)
            for line in out.splitlines():
                digits, _, path = line.partition("  ")
                if path in found and digits.strip() and all(c in "0123456789abcdef" for c in digits):
                    found[path][kind] = digits
        return found

    async def read(self, path: str, limit: int = SMALL) -> bytes | None:
        """See `Store`."""
        try:
            data = await self._rclone.ask_bytes(["cat", self.place.at(path), "--count", str(limit + 1)])
        except NotFoundError:
            return None
        if len(data) > limit:
            raise UnreadableError(
                f"{self.place.at(path)} is larger than {limit} bytes: too large for what it should be"
            )
        return data or None

    async def write(self, path: str, data: bytes) -> None:
        """See `Store`. By `copyto`: under another name first where the store cannot put a file at once."""
        with tempfile.TemporaryDirectory(prefix="gpu-runbooks-") as folder:
            here = Path(folder) / "file"
            here.write_bytes(data)
            await self._rclone.ask(["copyto", str(here), self.place.at(path), "--ignore-times"])

    async def rename(self, old: str, new: str) -> None:
        """See `Store`. rclone would merge into a folder that is there, so that is looked for first."""
        if await self.listed(new):
            raise RefusedError(f"{self.place.at(new)} is there already; nothing was moved")
        await self._rclone.ask(["moveto", self.place.at(old), self.place.at(new)])

    async def remove(self, paths: Sequence[str]) -> None:
        """See `Store`."""
        if paths:
            await self._rclone.ask(["delete", self.place.at(""), "--no-traverse"], paths=paths)

    async def remove_folder(self, folder: str) -> None:
        """See `Store`."""
        try:
            await self._rclone.ask(["purge", self.place.at(folder)])
        except NotFoundError:
            return

    async def space(self) -> Space:
        """See `Store`: `rclone about`, which many stores do not answer."""
        if not (await self._features()).get("Features", {}).get("About"):
            return Space(source=f"{self.place.remote}: tells neither free space nor quota")
        told = _object(await self._rclone.ask(["about", "--json", f"{self.place.remote}:"]))
        free = told.get("free")
        if not isinstance(free, int):
            return Space(source=f"{self.place.remote}: does not tell its free space")
        return Space(free=max(free, 0), source=f"`rclone about {self.place.remote}:`")


def _rows(text: str) -> list[dict[str, Any]]:
    rows = _loaded(text)
    if not isinstance(rows, list):
        raise UnreadableError("rclone's listing is no list; this rclone is not understood")
    return rows


def _object(text: str) -> dict[str, Any]:
    told = _loaded(text)
    if not isinstance(told, dict):
        raise UnreadableError("rclone's answer is no object; this rclone is not understood")
    return told


def _loaded(text: str) -> object:
    try:
        return json.loads(text or "[]")
    except ValueError as error:
        raise UnreadableError(f"rclone's answer is not readable: {error}") from error


def _epoch(text: str) -> float:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0


def common_kinds(one: Iterable[str], other: Iterable[str]) -> tuple[str, ...]:
    """Hashes that both tell, the strongest first."""
    both = set(one) & set(other)
    return tuple(kind for kind in STRONGEST if kind in both)
