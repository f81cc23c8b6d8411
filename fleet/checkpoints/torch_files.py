"""Files of `torch.save` (zip archives) and safetensors: whole or not, and the values in them, without loading any.

torch.save: a zip whose members are stored and never compressed (pytorch/pytorch, torch/serialization.py and
caffe2/serialize/inline_container.cc); its directory is at the end, so a file that was cut has none.
safetensors: eight bytes of header length, a JSON header with every tensor's offsets, then the data
(huggingface/safetensors, README "Format").
"""

import io
import json
import zipfile
from typing import Any

from fleet.checkpoints.names import shown
from fleet.checkpoints.pickles import Name, Pairs, Persistent, PickleError, Record, read_pickle
from fleet.checkpoints.tree import NotProvenError, Tree

DIRECTORY = 64 * 1024**2
"""Bytes of a zip directory that are read: about 800,000 tensors."""
PICKLE = 64 * 1024**2
"""Bytes of the pickle in a torch file that are read; it holds no tensor data."""
HEADER = 100_000_000
"""The largest safetensors header that its own library takes, in bytes."""

PACKAGES = frozenset(
    {"builtins", "__builtin__", "_codecs", "argparse", "collections", "copyreg", "copy_reg", "datetime", "enum"}
    | {"pathlib", "types", "numpy", "torch", "accelerate", "deepspeed", "lightning", "lightning_fabric", "megatron"}
    | {"nemo", "nvidia_resiliency_ext", "omegaconf", "pytorch_lightning", "transformers", "verl"}
)
"""Packages whose classes checkpoints hold. Nothing of them is imported here; another name makes a person look."""
CALLS = frozenset({"eval", "exec", "compile", "open", "getattr", "setattr", "__import__", "breakpoint", "input"})
"""Builtins that no checkpoint names."""


def checkpoint_name(name: Name) -> bool:
    """What a torch file may name."""
    return name.module.partition(".")[0] in PACKAGES and "." not in name.name and name.name not in CALLS


class _File(io.RawIOBase):
    """A file of the tree for `zipfile`, which reads from it what it needs."""

    def __init__(self, tree: Tree, path: str, size: int) -> None:
        self._tree, self._path, self._size, self._at = tree, path, size, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if at < 0:
            raise OSError("before the start of the file")
        self._at = at
        return at

    def read(self, size: int = -1) -> bytes:
        length = max(0, self._size - self._at) if size < 0 else size
        if length > DIRECTORY:
            raise NotProvenError(f"{shown(self._path)} has a zip directory of {length} bytes, too large to be read")
        content = self._tree.part(self._path, self._at, length)
        self._at += len(content)
        return content


def whole_zip(tree: Tree, path: str) -> zipfile.ZipFile:
    """The archive, with every member inside the file and stored as it is. Raises NotProvenError."""
    file = tree.file(path)
    if file is None:
        raise NotProvenError(f"{shown(path)} is missing")
    if file.size == 0:
        raise NotProvenError(f"{shown(path)} is empty")
    try:
        archive = zipfile.ZipFile(_File(tree, path, file.size))
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, UnicodeError, OverflowError) as error:
        why = shown(error, 60)
        raise NotProvenError(f"{shown(path)} was cut or is no file of torch.save: no zip directory ({why})") from None
    for member in archive.infolist():
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
            raise NotProvenError(f"{shown(path)} holds compressed members, which torch.save never writes")
        if member.header_offset < 0 or member.header_offset + member.compress_size > archive.start_dir:
            raise NotProvenError(f"{shown(path)} has a member that lies outside of it")
    return archive


def torch_value(tree: Tree, path: str) -> Any:
    """The pickled value of a whole torch file, tensors as records. Raises NotProvenError."""
    return _value(whole_zip(tree, path), path)


def torch_number(tree: Tree, path: str, key: str) -> int | None:
    """A whole number of the pickled dictionary, also where it is a tensor of one int64; None for anything else.

    Raises NotProvenError as `torch_value` does.
    """
    archive = whole_zip(tree, path)
    value = _value(archive, path)
    found = value.get(key) if isinstance(value, Pairs | Record) else None
    if type(found) is int:
        return found
    storage = found.args[0] if isinstance(found, Record) and found.args else None
    if not isinstance(storage, Persistent) or not isinstance(storage.key, tuple) or len(storage.key) < 3:
        return None
    where = f"/data/{storage.key[2]}"
    members = [m for m in archive.infolist() if m.filename.endswith(where)]
    if str(storage.key[1]) != "torch.LongStorage" or len(members) != 1 or members[0].file_size != 8:
        return None
    return int.from_bytes(_member(archive, members[0], path), "little", signed=True)


def _value(archive: zipfile.ZipFile, path: str) -> Any:
    found = [m for m in archive.infolist() if m.filename.rpartition("/")[2] == "data.pkl"]
    if len(found) != 1:
        raise NotProvenError(f"{shown(path)} is no file of torch.save: it has {len(found)} data.pkl")
    if found[0].file_size > PICKLE:
        raise NotProvenError(f"{shown(path)} has a pickle of {found[0].file_size} bytes, too large to be read")
    try:
        return read_pickle(_member(archive, found[0], path), checkpoint_name)
    except PickleError as error:
        raise NotProvenError(f"the pickle in {shown(path)} is not trusted: {error}") from None


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: str) -> bytes:
    """A stored member, its CRC compared."""
    try:
        return archive.read(member)
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, RuntimeError, EOFError) as error:
        raise NotProvenError(f"{shown(path)} is damaged: {shown(error, 60)}") from None


def check_safetensors(tree: Tree, path: str) -> None:
    """The file ends where its header says. Raises NotProvenError."""
    file = tree.file(path)
    if file is None:
        raise NotProvenError(f"{shown(path)} is missing")
    length = int.from_bytes(tree.part(path, 0, 8), "little")
    if file.size < 8 or length > min(HEADER, file.size - 8):
        raise NotProvenError(f"{shown(path)} was cut or is no safetensors file")
    try:
        header = json.loads(tree.part(path, 8, length))
        ends = [int(v["data_offsets"][1]) for k, v in header.items() if k != "__metadata__"]
    except (ValueError, RecursionError, KeyError, IndexError, TypeError, AttributeError):
        raise NotProvenError(f"{shown(path)} has no readable header") from None
    needed = 8 + length + max(ends, default=0)
    if file.size != needed:
        raise NotProvenError(f"{shown(path)} has {file.size} bytes, its header says {needed}")
