"""Node-local checkpoints of NVIDIA's resiliency extension: one file a rank, on the rank's own node.

Defined in NVIDIA/nvidia-resiliency-ext: src/nvidia_resiliency_ext/checkpointing/local/ckpt_managers/local_manager.py
(`<root>/<session>/<rank>/iter_0000010_0_local.pt`; `.dirty` until the rename). With replication a rank's folder holds
files of its partners, too. They die with their nodes: no source for another cluster.
"""

import re
from collections import defaultdict

from fleet.checkpoints.layout import Found, Known, Named, Proof, Untracked
from fleet.checkpoints.model import File, Format
from fleet.checkpoints.names import joined
from fleet.checkpoints.torch_files import whole_zip
from fleet.checkpoints.tree import NotProvenError, Tree

_FILE = re.compile(r"iter_(\d{7,18})_(\d{1,7})_local(\.dirty)?\.pt")
_DIGITS = re.compile(r"\d{1,7}")


class Nvrx(Untracked):
    """`iter_0000010_*_local.pt` over all ranks' folders; the session is part of the name."""

    def find(self, tree: Tree, known: Known) -> Found:
        named = {}
        for session in _sessions(tree):
            for rank in _ranks(tree, session):
                for file in tree.files(joined(session, rank)):
                    if match := _FILE.fullmatch(file.path.rpartition("/")[2]):
                        name = joined(session, f"*/iter_{match[1]}_*_local.pt")
                        named[name] = Named(Format.NVRX_LOCAL, name, int(match[1]))
        claimed = {n.split("/")[0] for n in named} - {"*"} if named else set()
        if any(n.startswith("*/") for n in named):
            claimed |= set(_ranks(tree, ""))
        return Found(tuple(named.values()), movable=not named, claimed=frozenset(claimed))

    def prove(self, tree: Tree, named: Named, known: Known) -> Proof:
        session = named.name.removesuffix(f"*/{named.name.rpartition('/')[2]}").rstrip("/")
        iteration = named.name.rpartition("/")[2].split("_")[1]
        whole: dict[int, list[File]] = defaultdict(list)
        dirty = set()
        for rank in _ranks(tree, session):
            for file in tree.files(joined(session, rank)):
                match = _FILE.fullmatch(file.path.rpartition("/")[2])
                if match and match[1] == iteration:
                    (dirty.add(int(match[2])) if match[3] else whole[int(match[2])].append(file))
        if known.world is None:
            raise NotProvenError(f"{len(whole)} ranks are here, and nothing tells the job's number of ranks: give it")
        missing = sorted(set(range(known.world)) - set(whole))
        if missing:
            why = f"; rank {min(dirty)} was not finished" if dirty else ""
            raise NotProvenError(f"{len(missing)} of {known.world} ranks are not here, rank {missing[0]} first{why}")
        if extra := sorted(set(whole) - set(range(known.world))):
            raise NotProvenError(
                f"it has a file of rank {extra[0]}, the job has {known.world} ranks: two saves mixed"
            )
        for files in whole.values():
            for file in files:
                tree.refuse_strangers(file.path)
                whole_zip(tree, file.path)
        return Proof(
            says=f"all {known.world} ranks are here and whole",
            data=tuple(f for rank in sorted(whole) for f in whole[rank]),
            notes=("it is node-local: it helps a restart on these nodes, and is no source for another cluster",),
        )


def _ranks(tree: Tree, session: str) -> list[str]:
    return [name for name in tree.folders(session) if _DIGITS.fullmatch(name)]


def _sessions(tree: Tree) -> list[str]:
    """The root itself (the session's name may be empty), and every folder with ranks' folders in it."""
    return ["", *(name for name in tree.folders() if _ranks(tree, name))]
