"""PyTorch's distributed checkpoint, and torchtitan's folders of it.

Defined in pytorch/pytorch: torch/distributed/checkpoint/filesystem.py (`.metadata` is written under a temporary name,
synced and renamed, last of all; `_StorageInfo` is file, offset and length) and metadata.py (`Metadata.storage_data`).
torchtitan: pytorch/torchtitan, docs/checkpoint.md and torchtitan/components/checkpoint.py (`step-N`; a folder counts
with `.metadata` in it, or `model.safetensors.index.json` for an export).
"""

import re
from collections.abc import Iterable

from fleet.checkpoints.layout import Found, Known, Named, Proof, Untracked
from fleet.checkpoints.model import File, Format
from fleet.checkpoints.names import joined, shown, told
from fleet.checkpoints.pickles import Name, PickleError, Record, read_pickle, values_of
from fleet.checkpoints.tree import NotProvenError, Tree

METADATA = ".metadata"
METADATA_LIMIT = 128 * 1024**2
"""Bytes of a `.metadata` that are read, about 100 a piece: so much takes 45 s and 3 GB of memory."""
_SHARD = re.compile(r"__\d+_\d+\.distcp")
_STEP = re.compile(r"(\d{1,18})(?!.*\d)")
_TITAN = re.compile(r"step-(\d{1,18})")

_MODULES = frozenset(
    {
        "torch.distributed.checkpoint.metadata",
        "torch.distributed.checkpoint.filesystem",
        "torch.distributed.checkpoint.planner",
        "torch.distributed._shard.metadata",
        "torch.distributed._shard.sharded_tensor.metadata",
        "megatron.core.dist_checkpointing.strategies.torch",
    }
)
"""Modules whose classes describe pieces and plans."""
_NAMES = frozenset(
    {
        "torch.Size",
        "torch.device",
        "torch.layout",
        "torch.memory_format",
        "torch.serialization._get_layout",
        "collections.OrderedDict",
        "collections.defaultdict",
        "pathlib.PosixPath",
        "pathlib.PurePosixPath",
        "pathlib._local.PosixPath",
        "builtins.dict",
        "builtins.set",
        "builtins.slice",
    }
)
_CLASS = re.compile(r"_{0,2}[A-Z][A-Za-z0-9_]*")
_DTYPE = re.compile(r"torch\.(?:b?float|u?int|complex|bool|q?u?int|bits)[a-z0-9_]*")


def metadata_name(name: Name) -> bool:
    """What `.metadata` may name: classes that describe pieces, and plain values."""
    if name.module in _MODULES:
        return _CLASS.fullmatch(name.name) is not None
    return str(name) in _NAMES or _DTYPE.fullmatch(str(name)) is not None


def needed(tree: Tree, folder: str) -> dict[str, int]:
    """Each file that `.metadata` names, by path in the root, with the bytes it needs at least.

    Raises NotProvenError where there is no `.metadata`, where it cannot be read, or names a file outside the folder.
    """
    path = joined(folder, METADATA)
    if tree.file(path) is None:
        raise NotProvenError("there is no .metadata, which is written last: the save was not finished")
    try:
        value = read_pickle(tree.small(path, METADATA_LIMIT), metadata_name)
    except PickleError as error:
        raise NotProvenError(f".metadata is not trusted: {error}") from None
    storage = value.get("storage_data") if isinstance(value, Record) else None
    ends: dict[str, int] = {}
    for _, info in values_of(storage):
        if not isinstance(info, Record):
            raise NotProvenError(".metadata says nothing readable about where its pieces lie")
        name, offset, length = (info.get(key) for key in ("relative_path", "offset", "length"))
        place = told(folder, name)
        if place is None:
            raise NotProvenError(f".metadata names {shown(name)!r}, which lies outside of the checkpoint")
        if type(offset) is not int or type(length) is not int or offset < 0 or length < 0:
            raise NotProvenError(".metadata says nothing readable about where its pieces lie")
        ends[place] = max(ends.get(place, 0), offset + length)
    if not ends:
        raise NotProvenError(".metadata names no file: nothing proves that this is the whole checkpoint")
    return ends


def check_ends(tree: Tree, ends: dict[str, int]) -> None:
    """Every file is there and long enough. Raises NotProvenError that names the first that is not."""
    for path, end in sorted(ends.items()):
        file = tree.file(path)
        if file is None:
            raise NotProvenError(f"{shown(path)} is missing; .metadata names it")
        if file.size < end:
            raise NotProvenError(f"{shown(path)} was cut: it has {file.size} bytes, .metadata needs {end}")


def prove_dcp(tree: Tree, folder: str, markers: Iterable[str] = (METADATA,)) -> Proof:
    """The rule of every format with DCP files inside. Shards that `.metadata` does not name are left out."""
    tree.refuse_strangers(folder)
    ends = needed(tree, folder)
    check_ends(tree, ends)
    marks = {joined(folder, name) for name in markers}
    data, marked, others = [], [], []
    for file in tree.below(folder):
        if file.path in marks:
            marked.append(file)
        elif file.path not in ends and _SHARD.fullmatch(file.path.rpartition("/")[2]):
            others.append(file)
        elif not file.path.endswith(".metadata.tmp"):
            data.append(file)
    return Proof(
        says=f".metadata is there and all {len(ends)} of its files are long enough",
        data=tuple(data),
        markers=tuple(marked),
        notes=(left_out(others),) if others else (),
    )


def left_out(others: list[File]) -> str:
    """The note on shards of another save."""
    names = ", ".join(shown(f.path.rpartition("/")[2]) for f in others[:3]) + (", …" if len(others) > 3 else "")
    return f"{len(others)} files of another save are left out: {names}"


def looks_like(tree: Tree, folder: str) -> bool:
    """There is something of DCP in this folder."""
    return any(name == METADATA or _SHARD.fullmatch(name) for name in tree.names(folder))


class Dcp(Untracked):
    """Folders under any name, or the root itself."""

    def find(self, tree: Tree, known: Known) -> Found:
        if looks_like(tree, ""):
            digits = _STEP.search(tree.root.rpartition("/")[2])
            return Found((Named(Format.DCP, ".", int(digits[1]) if digits else None),), claimed=frozenset({METADATA}))
        named = []
        for name in tree.folders():
            if looks_like(tree, name) and not _TITAN.fullmatch(name):
                digits = _STEP.search(name)
                named.append(Named(Format.DCP, name, int(digits[1]) if digits else None))
        return Found(tuple(named), claimed=frozenset(n.name for n in named))

    def prove(self, tree: Tree, named: Named, known: Known) -> Proof:
        return prove_dcp(tree, "" if named.name == "." else named.name)


class Torchtitan(Untracked):
    """`step-N`."""

    def find(self, tree: Tree, known: Known) -> Found:
        steps = {name: match for name in tree.folders() if (match := _TITAN.fullmatch(name))}
        named = tuple(Named(Format.TORCHTITAN, name, int(match[1])) for name, match in steps.items())
        return Found(named, claimed=frozenset(steps))

    def prove(self, tree: Tree, named: Named, known: Known) -> Proof:
        if "model.safetensors.index.json" in tree.names(named.name) and not looks_like(tree, named.name):
            raise NotProvenError("it is an export of the weights: it has no optimizer, so no run resumes from it")
        return prove_dcp(tree, named.name)
