"""Hugging Face Trainer's `checkpoint-N` folders, with DeepSpeed or FSDP inside where they were used.

Defined in huggingface/transformers: src/transformers/trainer.py (`_save_checkpoint`, `_save_rng_state`; it resumes
from the highest N by name alone, `trainer_utils.get_last_checkpoint`), trainer_callback.py (`TrainerState`) and
utils/__init__.py (weights' and index names). The trainer state is written last but one; nothing is atomic, so every
file is looked at.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet.checkpoints.dcp import looks_like, prove_dcp
from fleet.checkpoints.deepspeed import prove_tag
from fleet.checkpoints.layout import Found, Known, Named, Proof, Untracked
from fleet.checkpoints.model import File, Format
from fleet.checkpoints.names import shown, told, trouble
from fleet.checkpoints.torch_files import check_safetensors, whole_zip
from fleet.checkpoints.tree import NotProvenError, Tree

STATE = "trainer_state.json"
_FOLDER = re.compile(r"checkpoint-(\d{1,18})")
_RNG = re.compile(r"rng_state(?:_(\d{1,6}))?\.pth")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json", "adapter_model.safetensors.index.json")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin")
_ZIPS = (".pt", ".pth", ".bin")
_NO_ZIPS = frozenset({"training_args.bin"})
"""Not loaded by a resume."""


@dataclass(frozen=True)
class _Inside:
    """Where the sharded state lies."""

    fsdp: tuple[str, ...]
    deepspeed: str | None


class HuggingFace(Untracked):
    """`checkpoint-N`."""

    def find(self, tree: Tree, known: Known) -> Found:
        steps = {name: int(match[1]) for name in tree.folders() if (match := _FOLDER.fullmatch(name))}
        return Found(tuple(Named(Format.HF_TRAINER, n, s) for n, s in steps.items()), claimed=frozenset(steps))

    def prove(self, tree: Tree, named: Named, known: Known) -> Proof:
        folder = named.name
        tree.refuse_strangers(folder)
        state = _state(tree, folder, named.step)
        inside = _inside(tree, folder)
        notes: list[str] = []
        for part in inside.fsdp:
            notes += prove_dcp(tree, part).notes
        if inside.deepspeed:
            notes += prove_tag(tree, inside.deepspeed, None).notes
        if not inside.fsdp:
            _check_weights(tree, folder)
        _check_state(tree, folder, inside)
        world = _check_ranks(tree, folder, known)
        for file in tree.files(folder):
            _check_whole(tree, file)
        if note := _moved(tree, state):
            notes.append(note)
        return Proof(
            says=f"{STATE} is of this step, and weights, optimizer and {world} of {world} random states are whole",
            data=tuple(f for f in tree.below(folder) if f.path != f"{folder}/{STATE}"),
            markers=tuple(f for f in tree.files(folder) if f.path == f"{folder}/{STATE}"),
            notes=tuple(notes),
        )


def _state(tree: Tree, folder: str, step: int | None) -> Mapping[str, Any]:
    state = tree.json(f"{folder}/{STATE}")
    inside = state.get("global_step")
    if inside != step:
        raise NotProvenError(f"{STATE} is of step {shown(inside, 20)}")
    return state


def _inside(tree: Tree, folder: str) -> _Inside:
    fsdp = tuple(f"{folder}/{name}" for name in tree.folders(folder) if looks_like(tree, f"{folder}/{name}"))
    if "latest" not in tree.names(folder):
        return _Inside(fsdp, None)
    tag = told(folder, tree.text(f"{folder}/latest").strip())
    if tag is None or not tree.has_folder(tag):
        raise NotProvenError(f"{folder}/latest names no folder of it")
    return _Inside(fsdp, tag)


def _check_weights(tree: Tree, folder: str) -> None:
    names = tree.names(folder)
    index = next((name for name in _INDEXES if name in names), None)
    if index is None:
        if not any(name in names for name in _WEIGHTS):
            raise NotProvenError("it has no weights")
        return
    shards = tree.json(f"{folder}/{index}").get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise NotProvenError(f"{index} names no shard")
    for name in sorted({str(s) for s in shards.values()}):
        if trouble(name):
            raise NotProvenError(f"{index} names {shown(name)!r}, which lies outside of the checkpoint")
        if name not in names:
            raise NotProvenError(f"{shown(name)} is missing; {index} names it")


def _check_state(tree: Tree, folder: str, inside: _Inside) -> None:
    """The optimizer is in one file, or in the sharded state."""
    names = tree.names(folder)
    sharded = inside.deepspeed or any("optimizer" in part for part in inside.fsdp)
    if not sharded and not {"optimizer.pt", "optimizer.bin"} & names:
        raise NotProvenError("there is no optimizer.pt: a resume would start with an empty optimizer")
    if not inside.deepspeed and "scheduler.pt" not in names:
        raise NotProvenError("there is no scheduler.pt: a resume would start its learning rate anew")


def _check_ranks(tree: Tree, folder: str, known: Known) -> int:
    """One random state, or one a rank from 0 on; as many as the job has ranks, where that is known."""
    ranks = [m[1] for n in tree.names(folder) if (m := _RNG.fullmatch(n))]
    if not ranks:
        raise NotProvenError("there is no rng_state: it is written after weights and optimizer")
    numbers = sorted(int(r) for r in ranks if r is not None)
    if numbers and None in ranks:
        raise NotProvenError("it has both rng_state.pth and files of ranks: two saves mixed")
    if numbers != list(range(len(numbers))):
        missing = min(set(range(numbers[-1] + 1)) - set(numbers))
        raise NotProvenError(f"rng_state_{missing}.pth is missing, and one of rank {numbers[-1]} is here")
    if known.world is not None and len(ranks) != known.world:
        raise NotProvenError(f"it has {len(ranks)} random states, the job has {known.world} ranks")
    return len(ranks)


def _check_whole(tree: Tree, file: File) -> None:
    name = file.path.rpartition("/")[2]
    if name.endswith(".safetensors"):
        check_safetensors(tree, file.path)
    elif name.endswith(_ZIPS) and name not in _NO_ZIPS:
        whole_zip(tree, file.path)


def _moved(tree: Tree, state: Mapping[str, Any]) -> str:
    """The trainer keeps an absolute path of its best checkpoint, which breaks where the folder is moved or copied."""
    best = state.get("best_model_checkpoint")
    if not isinstance(best, str) or not best.startswith("/"):
        return ""
    if tree.root and best.startswith(f"{tree.root}/") and tree.has_folder(best.removeprefix(f"{tree.root}/")):
        return ""
    return f"{STATE} names its best checkpoint as {shown(best)}, which is not in this folder: it was moved or deleted"
