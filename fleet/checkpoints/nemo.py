"""NeMo 2: a folder with `weights/` and `context/`, and a marker beside it while it is being written.

Defined in NVIDIA/NeMo: nemo/lightning/pytorch/callbacks/model_checkpoint.py (`-unfinished`, `-last`, `-end`,
`step=N`), nemo/lightning/ckpt_utils.py (`WEIGHTS_PATH`, `CONTEXT_PATH`) and nemo/lightning/io/pl.py (the weights are
Megatron-Core's torch_dist). A copy of the folder alone loses the marker, so its absence proves nothing.
"""

import re
from dataclasses import replace

from fleet.checkpoints.layout import Found, Known, Named, Proof, Untracked
from fleet.checkpoints.megatron import prove_iteration
from fleet.checkpoints.model import Format
from fleet.checkpoints.tree import NotProvenError, Tree

UNFINISHED = "-unfinished"
_STEP = re.compile(r"step=(\d{1,18})")


class Nemo(Untracked):
    """`model--val_loss=1.2-step=99-consumed_samples=800.0-last`, for example."""

    def find(self, tree: Tree, known: Known) -> Found:
        marked = {n.removesuffix(UNFINISHED) for n in tree.names() if n.endswith(UNFINISHED)}
        named = []
        for name in tree.folders():
            if tree.has_folder(f"{name}/weights") or _plain(name) in marked:
                match = _STEP.search(name)
                named.append(Named(Format.NEMO, name, int(match[1]) if match else None))
        return Found(tuple(named), claimed=frozenset(n.name for n in named) | {m + UNFINISHED for m in marked})

    def prove(self, tree: Tree, named: Named, known: Known) -> Proof:
        marker = _plain(named.name) + UNFINISHED
        if tree.file(marker) is not None:
            raise NotProvenError(
                f"{marker} is there: the save was not finished, and NeMo deletes it at its next start"
            )
        tree.refuse_strangers(named.name)
        if not tree.has_folder(f"{named.name}/context"):
            raise NotProvenError("it has no context/: NeMo cannot rebuild the run from it")
        proof = prove_iteration(tree, f"{named.name}/weights", need_config=True)
        kept = {f.path for f in (*proof.data, *proof.markers)}
        rest = tuple(
            f
            for f in tree.below(named.name)
            if f.path not in kept and not f.path.startswith(f"{named.name}/weights/")
        )
        notes = proof.notes
        if named.name.endswith("-last"):
            notes += ("NeMo takes the newest -last by its time of change: a copy must keep the order",)
        return replace(
            proof, says=f"no {UNFINISHED} beside it, and {proof.says}", data=proof.data + rest, notes=notes
        )


def _plain(name: str) -> str:
    """As `format_checkpoint_unfinished_marker_path` makes it."""
    return name.removesuffix(".ckpt").removesuffix("-EMA")
