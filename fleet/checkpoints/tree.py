"""A checkpoint root as it was listed, and bounded looks into its small files.

A format that cannot prove a checkpoint raises `NotProvenError`; its text is the reason that a person reads.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fleet.checkpoints.model import File
from fleet.checkpoints.names import shown, trouble

SMALL = 4 * 1024**2
"""Bytes of a tracker, an index or a JSON state that are read; larger ones are none."""


class NotProvenError(Exception):
    """This checkpoint is not complete on positive proof; the text says why, in one line."""


class Contents(Protocol):
    """Reads files of one root. Raises OSError; FileNotFoundError where a file vanished since it was listed."""

    def part(self, path: str, offset: int, length: int) -> bytes:
        """At most `length` bytes from `offset`; fewer at the end of the file."""
        ...

    def sha256(self, path: str) -> str:
        """Hash of the whole file, in hexadecimal digits."""
        ...


@dataclass(frozen=True)
class Refused:
    """A thing of the listing that is never followed, read or copied."""

    path: str
    """As it is, hostile characters included; show it through `names.shown`."""
    why: str


class Tree:
    """The listing, by folder. All paths have passed `names.trouble`; the others are in `refused`."""

    def __init__(
        self,
        files: Iterable[File],
        contents: Contents,
        *,
        folders: Iterable[str] = (),
        refused: Iterable[Refused] = (),
        root: str = "",
    ) -> None:
        """`folders` adds empty ones; every folder of a file is known by the file.

        `root` is the root's absolute path where the job sees it, for files that hold such paths; empty if unknown.
        """
        self.root = root
        self._contents = contents
        self._refused = list(refused)
        self._files: dict[str, File] = {}
        self._folders: dict[str, tuple[set[str], list[File]]] = {"": (set(), [])}
        for folder in folders:
            if why := trouble(folder):
                self._refused.append(Refused(folder, why))
            else:
                self._folder(folder)
        for file in files:
            if why := trouble(file.path):
                self._refused.append(Refused(file.path, why))
                continue
            self._files[file.path] = file
            self._folder(file.path.rpartition("/")[0])[1].append(file)

    def _folder(self, path: str) -> tuple[set[str], list[File]]:
        known = self._folders.get(path)
        if known is None:
            known = self._folders[path] = (set(), [])
            parent, _, name = path.rpartition("/")
            self._folder(parent)[0].add(name)
        return known

    # -- what is there

    @property
    def refused(self) -> tuple[Refused, ...]:
        return tuple(self._refused)

    def file(self, path: str) -> File | None:
        return self._files.get(path)

    def has_folder(self, path: str) -> bool:
        return path in self._folders

    def folders(self, path: str = "") -> list[str]:
        """Names of the folders in one folder, sorted."""
        return sorted(self._folders[path][0]) if path in self._folders else []

    def files(self, path: str = "") -> list[File]:
        """The files in one folder, without those of folders in it, sorted by path."""
        return sorted(self._folders[path][1], key=lambda f: f.path) if path in self._folders else []

    def names(self, path: str = "") -> set[str]:
        """Names of the files in one folder."""
        return {f.path.rpartition("/")[2] for f in self._folders[path][1]} if path in self._folders else set()

    def below(self, path: str) -> list[File]:
        """Every file in a folder and in its folders, sorted by path."""
        found: list[File] = []
        waiting = [path]
        while waiting:
            here = waiting.pop()
            if here in self._folders:
                found += self._folders[here][1]
                waiting += [f"{here}/{name}" if here else name for name in self._folders[here][0]]
        return sorted(found, key=lambda f: f.path)

    def refuse_strangers(self, path: str) -> None:
        """Raises NotProvenError when something in the folder (or the file itself) was refused at the listing."""
        for one in self._refused:
            if one.path == path or one.path.startswith(f"{path}/"):
                raise NotProvenError(f"it holds {shown(one.path)}, which {one.why}")

    # -- looks into files

    def part(self, path: str, offset: int, length: int) -> bytes:
        """Raises NotProvenError where the file vanished meanwhile or cannot be read."""
        try:
            return self._contents.part(path, offset, length)
        except FileNotFoundError:
            raise NotProvenError(f"{shown(path)} vanished meanwhile, as when the trainer deletes old saves") from None
        except OSError as error:
            raise NotProvenError(f"{shown(path)} cannot be read: {error.strerror or error}") from error

    def small(self, path: str, limit: int = SMALL) -> bytes:
        """A whole file. Raises NotProvenError where it is missing, vanished, unreadable or larger than `limit`."""
        file = self.file(path)
        if file is None:
            raise NotProvenError(f"{shown(path)} is missing")
        if file.size > limit:
            raise NotProvenError(f"{shown(path)} has {file.size} bytes, more than the {limit} that are read of it")
        content = self.part(path, 0, limit + 1)
        if len(content) != file.size:
            raise NotProvenError(f"{shown(path)} changed while it was looked at")
        return content

    def text(self, path: str) -> str:
        """The same as text; what is no UTF-8 shows as replacement characters, and is no tracker's content."""
        return self.small(path).decode("utf-8", errors="replace")

    def json(self, path: str) -> Mapping[str, Any]:
        """The same as a JSON object. Raises NotProvenError for anything else, deep nesting included."""
        try:
            value = json.loads(self.small(path))
        except (ValueError, RecursionError):
            raise NotProvenError(f"{shown(path)} is no JSON") from None
        if not isinstance(value, dict):
            raise NotProvenError(f"{shown(path)} is no JSON object")
        return value

    def sha256(self, path: str) -> str:
        """Raises NotProvenError as `part` does."""
        try:
            return self._contents.sha256(path)
        except FileNotFoundError:
            raise NotProvenError(f"{shown(path)} vanished meanwhile, as when the trainer deletes old saves") from None
        except OSError as error:
            raise NotProvenError(f"{shown(path)} cannot be read: {error.strerror or error}") from error
