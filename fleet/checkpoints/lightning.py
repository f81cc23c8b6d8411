"""Lightning's `.ckpt` files and sharded `.ckpt` folders.

Defined in Lightning-AI/pytorch-lightning: src/lightning/pytorch/callbacks/model_checkpoint.py (`last.ckpt`,
`last-vN.ckpt`, `epoch=1-step=10.ckpt`), trainer/connectors/checkpoint_connector.py (`hpc_ckpt_N.ckpt`, and
`dump_checkpoint` with `global_step`) and src/lightning/fabric/utilities/cloud_io.py (`_atomic_save`). A folder is
FSDP's (strategies/fsdp.py): DCP files and `meta.pt`.
"""

import re
from dataclasses import replace

from fleet.checkpoints.dcp import prove_dcp
from fleet.checkpoints.layout import Found, Known, Named, Proof, Untracked
from fleet.checkpoints.model import Format
from fleet.checkpoints.pickles import Pairs
from fleet.checkpoints.torch_files import torch_value, whole_zip
from fleet.checkpoints.tree import NotProvenError, Tree

_STEP = re.compile(r"step=(\d{1,18})")
_SUFFIX = ".ckpt"


class Lightning(Untracked):
    """`*.ckpt`."""

    def find(self, tree: Tree, known: Known) -> Found:
        names = [n for n in tree.names() if n.endswith(_SUFFIX)]
        names += [n for n in tree.folders() if n.endswith(_SUFFIX) and not _is_nemo(tree, n)]
        named = tuple(Named(Format.LIGHTNING, name, _step(tree, name)) for name in names)
        return Found(named, claimed=frozenset(names))

    def prove(self, tree: Tree, named: Named, known: Known) -> Proof:
        tree.refuse_strangers(named.name)
        if tree.file(named.name) is None:
            meta = f"{named.name}/meta.pt"
            whole_zip(tree, meta)
            return replace(prove_dcp(tree, named.name), step=_inside(tree, meta))
        file = tree.file(named.name)
        step = _inside(tree, named.name)
        told = _STEP.search(named.name)
        if told and step is not None and int(told[1]) != step:
            raise NotProvenError(f"it is of step {step}")
        return Proof("the file is whole, to the directory at its end", (file,) if file else (), step=step)


def _is_nemo(tree: Tree, name: str) -> bool:
    return tree.has_folder(f"{name}/weights")


def _step(tree: Tree, name: str) -> int | None:
    """From the name, else from inside; None where neither tells."""
    if match := _STEP.search(name):
        return int(match[1])
    path = name if tree.file(name) else f"{name}/meta.pt"
    try:
        return _inside(tree, path)
    except NotProvenError:
        return None


def _inside(tree: Tree, path: str) -> int | None:
    """`global_step` of the dumped state."""
    value = torch_value(tree, path)
    if not isinstance(value, Pairs):
        raise NotProvenError("it holds no state of a Lightning trainer")
    step = value.get("global_step")
    if type(step) is not int or step < 0:
        raise NotProvenError("it tells no step of a Lightning trainer")
    return step
