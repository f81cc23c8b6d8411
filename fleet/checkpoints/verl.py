"""verl's `global_step_N` folders: an actor, often a critic, each in FSDP's files or Megatron's.

Defined in verl-project/verl: verl/trainer/ppo/ray_trainer.py (`_save_checkpoint`; the tracker is not written when
saving asynchronously), verl/utils/checkpoint/fsdp_checkpoint_manager.py (`model_world_size_W_rank_R.pt` and its two
siblings, `fsdp_config.json`), megatron_checkpoint_manager.py (`dist_ckpt/`, in version 2 below `model/`, `optimizer/`
and `extra/`) and checkpoint_manager.py (`find_latest_ckpt_path`).
"""

import re
from collections.abc import Iterator

from fleet.checkpoints.dcp import METADATA, looks_like
from fleet.checkpoints.layout import Found, Known, Named, Proof, read_tracker
from fleet.checkpoints.megatron import CONFIG, TRACKER, prove_iteration
from fleet.checkpoints.model import File, Format, Small
from fleet.checkpoints.names import joined, shown
from fleet.checkpoints.torch_files import whole_zip
from fleet.checkpoints.tree import NotProvenError, Tree

_FOLDER = re.compile(r"global_step_(\d{1,18})")
_RANK = re.compile(r"(model|optim|extra_state)_world_size_(\d{1,7})_rank_(\d{1,7})\.pt")
_DIST = ("dist_ckpt", "model/dist_ckpt", "optimizer/dist_ckpt", "extra/dist_ckpt")
ROLES = ("actor", "critic")


class Verl:
    """`global_step_100` with Megatron's tracker beside it."""

    def find(self, tree: Tree, known: Known) -> Found:
        steps = {name: int(match[1]) for name in tree.folders() if (match := _FOLDER.fullmatch(name))}
        if not steps:
            return Found(())
        trouble = read_tracker(tree, TRACKER, list(steps.values()), known).trouble
        named = tuple(Named(Format.VERL, name, step) for name, step in steps.items())
        return Found(named, (trouble,) if trouble else (), claimed=frozenset(steps) | {TRACKER})

    def prove(self, tree: Tree, named: Named, known: Known) -> Proof:
        steps = [int(match[1]) for name in tree.folders() if (match := _FOLDER.fullmatch(name))]
        tracker = read_tracker(tree, TRACKER, steps, known)
        step = named.step or 0
        if not tracker.published(step):
            why = f"{TRACKER} says {tracker.says}" if tracker.says is not None else tracker.trouble
            raise NotProvenError(f"nothing tells that this save was finished: {why}")
        tree.refuse_strangers(named.name)
        roles = [role for role in ROLES if tree.has_folder(joined(named.name, role))]
        if "actor" not in roles:
            raise NotProvenError("it has no actor/")
        if (data := joined(named.name, "data.pt")) and tree.file(data):
            whole_zip(tree, data)
        says, left, markers = [], set[str](), set[str]()
        for role in roles:
            for part in _parts(tree, joined(named.name, role), known):
                says.append(f"{role} {part.says}")
                markers |= {f.path for f in part.markers}
                left |= _left_out(tree, part)
        files = [f for f in tree.below(named.name) if f.path not in left]
        return Proof(
            says=f"{TRACKER} covers it; " + ", ".join(says),
            data=tuple(f for f in files if f.path not in markers),
            markers=tuple(f for f in files if f.path in markers),
        )

    def trackers(self, named: Named) -> tuple[Small, ...]:
        return (Small(path=TRACKER, text=str(named.step)),)


def _parts(tree: Tree, role: str, known: Known) -> Iterator[Proof]:
    """Each piece of one role with a rule of its own. Raises NotProvenError where there is none."""
    found = False
    for place in _DIST:
        folder = joined(role, place)
        if tree.has_folder(folder):
            found = True
            yield prove_iteration(tree, folder, need_config=CONFIG in tree.names(folder))
    if any(_RANK.fullmatch(name) for name in tree.names(role)):
        found = True
        yield _ranks(tree, role, known)
    if not found:
        raise NotProvenError(f"{shown(role)} has neither FSDP's files nor Megatron's")


def _ranks(tree: Tree, role: str, known: Known) -> Proof:
    """FSDP: the world size is in each name, so the set is known; the kinds there must have all ranks."""
    ranks: dict[str, dict[int, set[int]]] = {}
    files: list[File] = []
    for file in tree.files(role):
        if match := _RANK.fullmatch(file.path.rpartition("/")[2]):
            ranks.setdefault(match[1], {}).setdefault(int(match[2]), set()).add(int(match[3]))
            files.append(file)
    worlds = {world for kind in ranks.values() for world in kind}
    if len(worlds) != 1:
        raise NotProvenError(f"{shown(role)} holds files of world sizes {sorted(worlds)}: two saves mixed")
    world = worlds.pop()
    if "optim" not in ranks or "model" not in ranks:
        raise NotProvenError(f"{shown(role)} has no {'optimizer' if 'model' in ranks else 'model'} files")
    for kind, by_world in ranks.items():
        if missing := set(range(world)) - by_world[world]:
            raise NotProvenError(
                f"{shown(role)} lacks {len(missing)} of {world} {kind} files, rank {min(missing)} first"
            )
        if extra := by_world[world] - set(range(world)):
            raise NotProvenError(f"{shown(role)} has a {kind} file of rank {min(extra)} in a world of {world}")
    for file in files:
        whole_zip(tree, file.path)
    return Proof(f"has all {world} ranks", tuple(files))


def _left_out(tree: Tree, part: Proof) -> set[str]:
    """Shards that a `.metadata` in the part does not name."""
    folders = {f.path.rpartition("/")[0] for f in part.markers if f.path.endswith(METADATA)}
    kept = {f.path for f in (*part.data, *part.markers)}
    return {
        f.path for folder in folders if looks_like(tree, folder) for f in tree.below(folder) if f.path not in kept
    }
