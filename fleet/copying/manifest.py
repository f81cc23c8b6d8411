"""What a copy consists of: its parts, the manifest made of them, and the verdict on what is seen at the target."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from fleet.checkpoints.model import Entry, Format, Small
from fleet.checkpoints.names import shown
from fleet.copying.places import trouble
from fleet.errors import InvalidInputError, RefusedError
from fleet.model import Value

STRONGEST = ("sha256", "sha1", "md5")
"""Hashes that we compare, the strongest first."""
_LENGTHS = {32: "md5", 40: "sha1", 64: "sha256"}
_SUM_LINE = re.compile(r"(?P<hash>[0-9a-fA-F]{32,64}) [ *](?P<path>.+)")
FEW = 1000
"""Paths that an order may name; more are told by the folder, for a payload in a history ends at 2 MB."""


class Role(StrEnum):
    """When a file is written."""

    DATA = "data"
    MARKER = "marker"


class Parts(Value):
    """What of a root is copied, and in which order it becomes visible at the target."""

    name: str
    """Its folder, or its one file, relative to the root."""
    format: Format = Format.RECEIPT
    step: int | None = None
    data: tuple[str, ...] = ()
    """The files that are loaded. Empty: every file under `name` that is no marker."""
    markers: tuple[str, ...] = ()
    """Files whose presence says that the save was finished: written after all data."""
    made: tuple[Small, ...] = ()
    """Markers that are made at the target: written after `markers`."""
    trackers: tuple[Small, ...] = ()
    """Files of the root that name the newest one: written when all else is published."""
    sums: str | None = None
    """For a dataset: its manifest, a file of lines `HASH  PATH` as md5sum, sha1sum and sha256sum write them, paths
    relative to its folder. Only what it lists is copied."""
    size: int | None = Field(default=None, ge=0)
    """Bytes when it was judged; another size now disqualifies it."""

    @model_validator(mode="after")
    def _legal(self) -> Self:
        small = (*self.made, *self.trackers)
        paths = (
            self.name,
            *self.data,
            *self.markers,
            *(s.path for s in small),
            *(s.like or self.name for s in small),
        )
        for path in (*paths, self.sums or self.name):
            if why := trouble(path):
                raise ValueError(f"{shown(path)} {why}")
        if len(self.data) > FEW:
            raise ValueError(f"more than {FEW} paths; leave `data` empty and keep what is not copied elsewhere")
        return self


def parts_of(entry: Entry, listed: Iterable[str]) -> Parts:
    """An entry as an order of a copy names it. `listed`: all files of its root.

    Raises RefusedError when its files can be told neither by its folder nor by a short list.
    """
    data, markers = {f.path for f in entry.data}, tuple(f.path for f in entry.markers)
    under = {path for path in listed if _under(path, entry.name)}
    whole = under <= data | set(markers) and data <= under
    if not whole and len(data) > FEW:
        extra = shown(min(under - data - set(markers), default=""))
        raise RefusedError(
            f"{shown(entry.name)} holds files that do not belong to it, such as {extra}, and too many others to "
            "name; move those away, then it can be copied"
        )
    return Parts(
        name=entry.name,
        format=entry.format,
        step=entry.step,
        data=() if whole else tuple(sorted(data)),
        markers=markers,
        made=entry.made,
        trackers=entry.trackers,
        size=entry.size,
    )


class ManifestFile(Value):
    """One file as the source showed it."""

    path: str
    size: int = Field(ge=0)
    modified: float
    """Seconds since the epoch by the source's clock; another one means that it was written since."""
    role: Role = Role.DATA
    hashes: Mapping[str, str] = {}
    """Kind (`sha256`, `md5`) to hexadecimal digits; empty where the source tells none without being read."""


class Manifest(Value):
    """All files of one copy, fixed at its first try: later tries are held against it."""

    parts: Parts
    files: tuple[ManifestFile, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(file.size for file in self.files)

    @property
    def digest(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of what it says."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    def of(self, role: Role) -> tuple[ManifestFile, ...]:
        """The files of one wave."""
        return tuple(file for file in self.files if file.role is role)


class Seen(Value):
    """A file as a store lists it."""

    size: int
    modified: float = 0.0
    hashes: Mapping[str, str] = {}
    """Those that the listing itself tells."""


def make_manifest(parts: Parts, listed: Mapping[str, Seen], sums: Mapping[str, str] | None = None) -> Manifest:
    """The manifest of what is at the source now, without hashes except those of `sums` (path to hexadecimal digits).

    Raises RefusedError, with the reason that disqualifies the source, when a named file is not there, when there is
    nothing to copy, or when it is not of the size that was judged.
    """
    markers = set(parts.markers)
    if sums is not None:
        data = set(sums) - markers
    else:
        data = set(parts.data) or {path for path in listed if _under(path, parts.name)} - markers
    gone = sorted((data | markers) - set(listed))
    if gone:
        raise RefusedError(f"{shown(gone[0])} is not at the source (any more)" + _more(gone))
    if not data:
        raise RefusedError(f"there is no file of {shown(parts.name)} at the source")
    for path in sorted(data):
        if why := trouble(path):
            raise RefusedError(f"the name {shown(path)} {why}")
    files = tuple(
        ManifestFile(
            path=path,
            size=listed[path].size,
            modified=listed[path].modified,
            role=Role.MARKER if path in markers else Role.DATA,
            hashes={_LENGTHS[len(sums[path])]: sums[path]} if sums and path in sums else {},
        )
        for path in (*sorted(data), *parts.markers)
    )
    manifest = Manifest(parts=parts, files=files)
    if parts.size is not None and manifest.size != parts.size:
        raise RefusedError(
            f"{shown(parts.name)} holds {manifest.size} bytes and held {parts.size} when it was judged: it was "
            "written since; judge it again"
        )
    return manifest


def changed_since(manifest: Manifest, listed: Mapping[str, Seen]) -> str:
    """Why a source is no longer what the manifest says; empty when nothing shows that it changed."""
    for file in manifest.files:
        now = listed.get(file.path)
        if now is None:
            return f"{shown(file.path)} vanished from the source"
        if (now.size, now.modified) != (file.size, file.modified):
            return f"{shown(file.path)} was written at the source after the copy began"
    return ""


def parse_sums(text: str, folder: str) -> dict[str, str]:
    """Path in the root to hash, of a file as sha256sum writes it; its paths are relative to `folder`.

    Raises InvalidInputError that names the line.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _SUM_LINE.fullmatch(line)
        if match is None or len(match["hash"]) not in _LENGTHS:
            raise InvalidInputError(
                f"line {number} of the manifest is not `HASH  PATH` with an MD5, SHA-1 or SHA-256, as "
                "sha256sum writes it"
            )
        path = match["path"].removeprefix("./")
        path = f"{folder}/{path}" if folder else path
        if why := trouble(path):
            raise InvalidInputError(f"line {number} of the manifest: {shown(path)} {why}")
        if found.setdefault(path, match["hash"].lower()) != match["hash"].lower():
            raise InvalidInputError(f"line {number} of the manifest: {shown(path)} is listed with two hashes")
    if not found:
        raise InvalidInputError("the manifest lists no file")
    return found


class Difference(Value):
    """What stands between what is at a target and what the manifest says; nothing when it is the same."""

    missing: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    """Another size or another hash."""
    unproven: tuple[str, ...] = ()
    """The right size, and no hash that both sides know: never taken for equal."""
    extra: tuple[str, ...] = ()
    """Not in the manifest."""

    @property
    def again(self) -> tuple[str, ...]:
        """What must be copied (again)."""
        return (*self.missing, *self.wrong)

    @property
    def same(self) -> bool:
        return not (self.again or self.unproven or self.extra)

    def text(self) -> str:
        """One line for people."""
        kinds = (
            ("missing", self.missing),
            ("differs", self.wrong),
            ("could not be compared", self.unproven),
            ("does not belong there", self.extra),
        )
        return "; ".join(f"{shown(paths[0])} {word}{_more(paths)}" for word, paths in kinds if paths)


def right_size(files: Iterable[ManifestFile], seen: Mapping[str, Seen]) -> tuple[ManifestFile, ...]:
    """Those that are there with their size: only they are worth a hash."""
    return tuple(f for f in files if f.path in seen and seen[f.path].size == f.size)


def difference(
    files: Iterable[ManifestFile], seen: Mapping[str, Seen], hashes: Mapping[str, Mapping[str, str]]
) -> Difference:
    """Holds what is seen at a target, and the hashes found there, against the manifest's files.

    Equal is only what has the size and at least one kind of hash in common, and every common kind equal.
    """
    wanted = {file.path: file for file in files}
    missing, wrong, unproven = [], [], []
    for path, file in wanted.items():
        if path not in seen:
            missing.append(path)
            continue
        verdict = same_hash(file.hashes, hashes.get(path, {}))
        if seen[path].size != file.size or verdict is False:
            wrong.append(path)
        elif verdict is None:
            unproven.append(path)
    extra = tuple(sorted(set(seen) - set(wanted)))
    return Difference(missing=tuple(missing), wrong=tuple(wrong), unproven=tuple(unproven), extra=extra)


def same_hash(one: Mapping[str, str], other: Mapping[str, str]) -> bool | None:
    """Whether two sets of hashes agree; None when they have no kind in common. An empty hash is none."""
    common = [kind for kind in STRONGEST if one.get(kind) and other.get(kind)]
    if not common:
        return None
    return all(one[kind].lower() == other[kind].lower() for kind in common)


def units(files: Iterable[ManifestFile], made: Iterable[Small], name: str) -> tuple[str, ...]:
    """What is renamed to publish: the entry's folder where all its files lie in it, else each file, markers last."""
    paths = [file.path for file in files] + [small.path for small in made]
    if all(_under(path, name) for path in paths):
        return (name,)
    return tuple(paths)


def _under(path: str, name: str) -> bool:
    return path == name or path.startswith(name + "/")


def _more(paths: tuple[str, ...] | list[str]) -> str:
    return f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
