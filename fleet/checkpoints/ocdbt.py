"""Which bytes of which files a Tensorstore OCDBT database needs: its manifest and tree, without any value.

Defined in google/tensorstore, tensorstore/kvstore/ocdbt/index.rst ("Storage format"): columns of varints behind a
header of magic, length, version and compression; a node's file table names files relative to the database.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from fleet.checkpoints.names import shown, told
from fleet.checkpoints.tree import NotProvenError, Tree

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MANIFEST = "manifest.ocdbt"
DECODED = 64 * 1024**2
"""Bytes of a node after unpacking; Tensorstore's own limit is 8 MiB by default."""
MAX_NODES = 200_000
_MANIFEST_MAGIC, _NODE_MAGIC = bytes.fromhex("0cdb3a2a"), bytes.fromhex("0cdb20de")
_HEADER = 12
_SINGLE = 0


@dataclass(frozen=True)
class _Piece:
    """Bytes of one file. `base` goes before the names that a node in it uses."""

    base: str
    path: str
    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


def needed(tree: Tree, database: str) -> dict[str, int]:
    """Each data file by its path in the root, with the bytes that it needs at least.

    Raises NotProvenError for a manifest or node that was cut, cannot be read, or names a file outside the database.
    """
    ends: dict[str, int] = {}
    waiting = _roots(_Columns(_body(tree, f"{database}/{MANIFEST}", None, _MANIFEST_MAGIC), database))
    seen: set[tuple[str, int]] = set()
    while waiting:
        piece = waiting.pop()
        place = _place(tree, database, piece, ends)
        if (place, piece.offset) in seen:
            continue
        seen.add((place, piece.offset))
        if len(seen) > MAX_NODES:
            raise NotProvenError(f"{shown(database)} has more than {MAX_NODES} nodes, too many to be read")
        inner, values = _node(_Columns(_body(tree, place, piece, _NODE_MAGIC), database), piece.base)
        waiting += inner
        for value in values:
            _place(tree, database, value, ends)
    return ends


def _place(tree: Tree, database: str, piece: _Piece, ends: dict[str, int]) -> str:
    """The piece's file, which is there and long enough."""
    place = told(database, piece.path)
    if place is None:
        raise NotProvenError(f"{shown(database)} names {shown(piece.path)!r}, which lies outside of it")
    file = tree.file(place)
    if file is None:
        raise NotProvenError(f"{shown(place)} is missing; its database names it")
    if file.size < piece.end:
        raise NotProvenError(f"{shown(place)} was cut: it has {file.size} bytes, its database needs {piece.end}")
    ends[place] = max(ends.get(place, 0), piece.end)
    return place


def _body(tree: Tree, path: str, piece: _Piece | None, magic: bytes) -> bytes:
    """What lies between header and checksum, unpacked."""
    if piece is None:
        raw = tree.small(path, DECODED)
    elif piece.length > DECODED:
        raise NotProvenError(f"{shown(path)} has a node of {piece.length} bytes, too large to be read")
    else:
        raw = tree.part(path, piece.offset, piece.length)
    if raw[:4] != magic or int.from_bytes(raw[4:_HEADER], "little") != len(raw) or len(raw) < _HEADER + 6:
        raise NotProvenError(f"{shown(path)} was cut, or is not what its database says")
    version, packed, rest = raw[_HEADER], raw[_HEADER + 1], raw[_HEADER + 2 : -4]
    if version != 0 or packed > 1:
        raise NotProvenError(f"{shown(path)} is of a version that is not known here")
    if not packed:
        return rest
    try:
        unpacked = zstd.ZstdDecompressor().decompress(rest, max_length=DECODED + 1)
    except zstd.ZstdError as error:
        raise NotProvenError(f"{shown(path)} is damaged: {shown(error, 60)}") from None
    if len(unpacked) > DECODED:
        raise NotProvenError(f"{shown(path)} unpacks to more than {DECODED} bytes")
    return unpacked


def _roots(columns: "_Columns") -> list[_Piece]:
    """The newest version's tree; none for an empty database."""
    columns.skip(16)  # uuid
    if columns.number() != _SINGLE:
        raise NotProvenError(f"{shown(columns.database)} has numbered manifests, which are not known here")
    columns.numbers(2)  # largest inline value, largest node
    columns.skip(1)  # arity of the version tree
    if columns.number() == 1:
        columns.skip(4)  # level
    files = columns.files("")
    count = columns.number()
    columns.numbers(count)  # generations
    columns.skip(count)  # heights
    ids, offsets, lengths = (columns.numbers(count) for _ in range(3))
    if count == 0:
        return []
    newest = count - 1
    if lengths[newest] == 0 or not files:
        return []
    return [columns.piece(files, ids[newest], offsets[newest], lengths[newest])]


def _node(columns: "_Columns", base: str) -> tuple[list[_Piece], Iterator[_Piece]]:
    """Nodes below this one, and values beside it."""
    height = columns.skip(1)[0]
    files = columns.files(base)
    count = columns.number()
    columns.numbers(count - 1)  # common prefixes of keys
    suffixes = columns.numbers(count)
    if height:
        columns.numbers(count)  # common prefixes of subtrees
        columns.skip(sum(suffixes))
        ids, offsets, lengths = (columns.numbers(count) for _ in range(3))
        return [columns.piece(files, *one) for one in zip(ids, offsets, lengths, strict=True)], iter(())
    columns.skip(sum(suffixes))
    sizes, kinds = columns.numbers(count), columns.numbers(count)
    beside = [size for size, kind in zip(sizes, kinds, strict=True) if kind == 1]
    ids, offsets = columns.numbers(len(beside)), columns.numbers(len(beside))
    return [], (columns.piece(files, *one) for one in zip(ids, offsets, beside, strict=True))


class _Columns:
    """Reads a body from its start. Raises NotProvenError where it ends too early."""

    def __init__(self, data: bytes, database: str) -> None:
        self._data = data
        self._at = 0
        self.database = database

    def skip(self, count: int) -> bytes:
        """So many bytes."""
        if count < 0 or self._at + count > len(self._data):
            raise NotProvenError(f"the database {shown(self.database)} is damaged: a node ends too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self) -> int:
        """A varint of at most 64 bits."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.skip(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise NotProvenError(f"the database {shown(self.database)} is damaged: a number has no end")

    def numbers(self, count: int) -> list[int]:
        return [self.number() for _ in range(count)]

    def files(self, base: str) -> list[tuple[str, str]]:
        """(base, whole path) of each file, both with the base of the node before them."""
        count = self.number()
        prefixes = [0, *self.numbers(count - 1)]
        suffixes, bases = self.numbers(count), self.numbers(count)
        found, last = [], b""
        for prefix, suffix, length in zip(prefixes, suffixes, bases, strict=False):
            last = last[:prefix] + self.skip(suffix)
            name = last.decode("utf-8", "surrogateescape")
            found.append((base + last[:length].decode("utf-8", "surrogateescape"), base + name))
        return found

    def piece(self, files: list[tuple[str, str]], number: int, offset: int, length: int) -> _Piece:
        if number >= len(files):
            raise NotProvenError(f"the database {shown(self.database)} is damaged: it names a file that it has not")
        base, path = files[number]
        return _Piece(base, path, offset, length)
