"""Folders with a `COMPLETE` marker that lists every shard's hash, as the training program of our lab writes them.

Defined in this repository: deploy/lab/training/train.py (`step_00000010.g0.1/rank_0.json`, then `COMPLETE`).
A newer generation goes before a higher step: an older writer that came late is never taken for the newest.
"""

import hashlib
import re

from fleet.checkpoints.layout import Found, Known, Named, Proof, Untracked
from fleet.checkpoints.model import Format
from fleet.checkpoints.names import joined, shown, told
from fleet.checkpoints.tree import NotProvenError, Tree

MARKER = "COMPLETE"
SHARD = 16 * 1024**2
"""Bytes of a shard whose hash is compared at once; a larger one is read as a stream."""
_FOLDER = re.compile(r"step_(\d{8})(?:\.g(\d{1,9})\.(\d{1,9}))?")
_HASH = re.compile(r"[0-9a-f]{64}")


class Marked(Untracked):
    """`step_00000010`, or `step_00000010.g0.1` with the generation of its writer."""

    def find(self, tree: Tree, known: Known) -> Found:
        named = []
        for name in tree.folders():
            match = _FOLDER.fullmatch(name)
            if match and any(n == MARKER or n.startswith("rank_") for n in tree.names(name)):
                start = (int(match[2] or -1), int(match[3] or -1))
                named.append(Named(Format.MARKED, name, int(match[1]), start))
        return Found(tuple(named), claimed=frozenset(n.name for n in named))

    def prove(self, tree: Tree, named: Named, known: Known) -> Proof:
        tree.refuse_strangers(named.name)
        path = joined(named.name, MARKER)
        if tree.file(path) is None:
            raise NotProvenError(f"there is no {MARKER}, which is written last: the save was not finished")
        marker = tree.json(path)
        if marker.get("step") != named.step:
            raise NotProvenError(f"{MARKER} is of step {shown(marker.get('step'), 20)}")
        shards = marker.get("shards")
        if not isinstance(shards, dict) or not shards or marker.get("world") != len(shards):
            raise NotProvenError(f"{MARKER} does not list the shards of its {shown(marker.get('world'), 20)} ranks")
        data = []
        for name, digest in shards.items():
            shard = told(named.name, name)
            if shard is None or not isinstance(digest, str) or not _HASH.fullmatch(digest):
                raise NotProvenError(f"{MARKER} lists {shown(name)!r}, which is no shard")
            file = tree.file(shard)
            if file is None:
                raise NotProvenError(f"{shown(shard)} is missing; {MARKER} lists it")
            if _hash(tree, shard, file.size) != digest:
                raise NotProvenError(f"{shown(shard)} is not the file that was saved")
            data.append(file)
        marks = tuple(f for f in tree.files(named.name) if f.path == path)
        return Proof(f"{MARKER} is there and all {len(data)} shards have its hashes", tuple(data), marks)


def _hash(tree: Tree, path: str, size: int) -> str:
    return hashlib.sha256(tree.small(path, SHARD)).hexdigest() if size <= SHARD else tree.sha256(path)
