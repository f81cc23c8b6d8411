"""Orbax: a folder a step, with item folders of Tensorstore in it.

Defined in google/orbax: checkpoint/orbax/checkpoint/_src/path/atomicity.py and atomicity_types.py
(`commit_success.txt`; `.orbax-checkpoint-tmp` until the rename), path/step.py (step and prefix names) and
metadata/checkpoint.py (`_CHECKPOINT_METADATA`, written again with `commit_timestamp_nsecs` at the end). Arrays lie in
one database an item (`ocdbt.py`), or, in older ones, in a folder each, whose chunks nothing counts.
"""

import re

from fleet.checkpoints.layout import Found, Known, Named, Proof, Untracked
from fleet.checkpoints.model import Format, Small
from fleet.checkpoints.names import joined, shown
from fleet.checkpoints.ocdbt import MANIFEST, needed
from fleet.checkpoints.tree import NotProvenError, Tree

METADATA, COMMIT = "_CHECKPOINT_METADATA", "commit_success.txt"
TEMPORARY = ".orbax-checkpoint-tmp"
_STEP = re.compile(r"(?:[A-Za-z0-9.-]+_)?(\d{1,18})")


class Orbax(Untracked):
    """`100`, or `prefix_100`."""

    def find(self, tree: Tree, known: Known) -> Found:
        named = []
        for name in tree.folders():
            final, temporary, _ = name.partition(TEMPORARY)
            match = _STEP.fullmatch(final)
            if match and (temporary or METADATA in tree.names(name) or COMMIT in tree.names(name)):
                named.append(Named(Format.ORBAX, name, int(match[1])))
        return Found(tuple(named), claimed=frozenset(n.name for n in named))

    def prove(self, tree: Tree, named: Named, known: Known) -> Proof:
        if TEMPORARY in named.name:
            raise NotProvenError(f"its name has {TEMPORARY}: the save was not finished, and Orbax deletes it")
        folder = named.name
        tree.refuse_strangers(folder)
        inner = [name for name in tree.folders(folder) if TEMPORARY in name]
        if inner:
            raise NotProvenError(f"its item {shown(inner[0])} was not finished")
        committed = tree.json(joined(folder, METADATA)).get("commit_timestamp_nsecs")
        if type(committed) is not int or committed <= 0:
            raise NotProvenError(f"{METADATA} has no commit time: the save was not finished")
        items = [name for name in tree.folders(folder) if not name.startswith(".")]
        if not items:
            raise NotProvenError("it has no item: nothing was saved, or its files were deleted")
        for name in items:
            _check_item(tree, joined(folder, name))
        files = tree.below(folder)
        markers = {joined(folder, METADATA)} | {f.path for f in files if f.path.endswith(f"/{COMMIT}")}
        own = joined(folder, COMMIT)
        return Proof(
            says=f"it has its final name, a commit time, and {len(items)} whole items",
            data=tuple(f for f in files if f.path not in markers),
            markers=tuple(f for f in files if f.path in markers),
            made=() if own in markers else (Small(path=own, text=f"Checkpoint commit was successful to {folder}"),),
        )


def _check_item(tree: Tree, item: str) -> None:
    """A JSON item has one file; an item of arrays has its metadata, and its database where it uses one."""
    names = tree.names(item)
    if not tree.below(item):
        raise NotProvenError(f"its item {shown(item)} is empty")
    for file in tree.below(item):
        if file.size == 0 and not file.path.endswith(f"/{COMMIT}"):
            raise NotProvenError(f"{shown(file.path)} is empty")
    if "_METADATA" in names and tree.json(f"{item}/_METADATA").get("use_ocdbt") is True and MANIFEST not in names:
        raise NotProvenError(f"{shown(item)}/{MANIFEST} is missing")
    if MANIFEST in names:
        needed(tree, item)
