"""Megatron's iteration folders: torch_dist, legacy torch, torch_dcp, fsdp_dtensor, and Megatron-Bridge's additions.

Defined in NVIDIA/Megatron-LM: megatron/training/checkpointing.py (`get_checkpoint_name`, `read_metadata`,
`get_distributed_optimizer_checkpoint_name`) and megatron/core/dist_checkpointing/core.py (`metadata.json`); in
NVIDIA-NeMo/Megatron-Bridge: src/megatron/bridge/training/utils/checkpoint_utils.py (`run_config.yaml`,
`train_state.pt`, `latest_train_state.pt`).
"""

import re

from fleet.checkpoints.dcp import METADATA, looks_like, prove_dcp
from fleet.checkpoints.layout import Found, Known, Named, Proof, Tracker, read_tracker
from fleet.checkpoints.model import File, Format, Small
from fleet.checkpoints.names import joined, shown, told
from fleet.checkpoints.pickles import Record
from fleet.checkpoints.torch_files import torch_number, torch_value, whole_zip
from fleet.checkpoints.tree import NotProvenError, Tree

TRACKER = "latest_checkpointed_iteration.txt"
BRIDGE_TRACKER = "latest_train_state.pt"
BRIDGE_STATE = "train_state.pt"
CONFIG, INTEGRITY = "metadata.json", "integrity.json"
_FOLDER = re.compile(r"iter_(\d{7,18})")
_RANK = re.compile(r"mp_rank_(\d{2,})(?:_(\d{3,}))?(?:_(\d{3,}))?")
MODEL, OPTIMIZER, COMMON = "model_optim_rng.pt", "distrib_optim.pt", "common.pt"


class Megatron:
    """`iter_0000100` with a tracker beside it."""

    def find(self, tree: Tree, known: Known) -> Found:
        steps = {name: int(match[1]) for name in tree.folders() if (match := _FOLDER.fullmatch(name))}
        if "release" in tree.folders() and _format(tree, "release") is not None:
            steps["release"] = 0
        if not steps:
            return Found(())
        usual = next((f for n in sorted(steps, reverse=True) if (f := _format(tree, n))), Format.TORCH_DIST)
        named = tuple(Named(_format(tree, name) or usual, name, step) for name, step in steps.items())
        tracker = read_iteration(tree, sorted(steps.values()), known)
        notes = [tracker.trouble] if tracker.trouble else []
        if any(n.format is Format.MEGATRON_BRIDGE for n in named) and tracker.says is not None:
            notes += _second_tracker(tree, tracker.says)
        return Found(named, tuple(notes), claimed=frozenset(steps) | {TRACKER, BRIDGE_TRACKER})

    def prove(self, tree: Tree, named: Named, known: Known) -> Proof:
        step = named.step or 0
        tracker = read_iteration(tree, [s for n in tree.folders() if (s := _step(n)) is not None], known)
        if tracker.says is not None and step > tracker.says:
            raise NotProvenError(f"{TRACKER} says {tracker.says}: this save was not finished")
        if _is_legacy(tree, named.name):
            proof = _prove_legacy(tree, named, tracker)
        else:
            proof = prove_iteration(tree, named.name, need_config=named.format is not Format.MEGATRON_DCP)
        _check_integrity(tree, named.name, known)
        if named.format is Format.MEGATRON_BRIDGE:
            state = joined(named.name, BRIDGE_STATE)
            if (inside := torch_number(tree, state, "step")) != step:
                raise NotProvenError(f"{state} is of step {inside}")
        return proof

    def trackers(self, named: Named) -> tuple[Small, ...]:
        first = Small(path=TRACKER, text="release" if named.name == "release" else str(named.step))
        if named.format is not Format.MEGATRON_BRIDGE:
            return (first,)
        return first, Small(path=BRIDGE_TRACKER, like=joined(named.name, BRIDGE_STATE))


def prove_iteration(tree: Tree, folder: str, *, need_config: bool) -> Proof:
    """A folder of Megatron-Core: DCP's rule, and `metadata.json` where the format has one."""
    if not tree.has_folder(folder):
        raise NotProvenError(f"{shown(folder)} is missing")
    if need_config:
        path = joined(folder, CONFIG)
        if tree.file(path) is None:
            raise NotProvenError("there is no metadata.json, without which Megatron loads nothing: not finished")
        config = tree.json(path)
        backend = config.get("sharded_backend")
        if backend not in {"torch_dist", "torch_dcp", "fsdp_dtensor"}:
            raise NotProvenError(f"metadata.json says {shown(backend, 40)!r}, a format that is not known here")
        if config.get("common_backend") == "torch":  # newer releases keep the common state in the shards
            whole_zip(tree, joined(folder, COMMON))
    for file in tree.files(folder):
        if file.path.endswith(".pt"):
            whole_zip(tree, file.path)
    return prove_dcp(tree, folder, (METADATA, CONFIG))


def _check_integrity(tree: Tree, folder: str, known: Known) -> None:
    """Megatron's own optional list of hashes: megatron/core/dist_checkpointing/validation.py."""
    path = joined(folder, INTEGRITY)
    if tree.file(path) is None:
        return
    listed = tree.json(path)
    hashes = listed.get("files")
    if listed.get("algorithm") != "sha256" or not isinstance(hashes, dict):
        raise NotProvenError(f"{INTEGRITY} is not of a kind that is known here")
    for name, digest in hashes.items():
        place = told(folder, name)
        if place is None or tree.file(place) is None:
            raise NotProvenError(f"{shown(name)} is missing; {INTEGRITY} names it")
        if known.hashes and tree.sha256(place) != digest:
            raise NotProvenError(f"{shown(place)} has not the hash that {INTEGRITY} gives")


def read_iteration(tree: Tree, steps: list[int], known: Known) -> Tracker:
    """Megatron's tracker; `release` counts as 0."""
    if (file := tree.file(TRACKER)) is not None and file.size < 64 and tree.text(TRACKER).strip() == "release":
        return Tracker(TRACKER, 0)
    return read_tracker(tree, TRACKER, steps, known)


def _step(name: str) -> int | None:
    match = _FOLDER.fullmatch(name)
    return int(match[1]) if match else (0 if name == "release" else None)


def _is_legacy(tree: Tree, folder: str) -> bool:
    return any(_RANK.fullmatch(name) for name in tree.folders(folder)) and not looks_like(tree, folder)


def _format(tree: Tree, folder: str) -> Format | None:
    """By what lies in the folder; None for one that does not tell."""
    names = tree.names(folder)
    if "run_config.yaml" in names or BRIDGE_STATE in names:
        return Format.MEGATRON_BRIDGE
    if CONFIG in names or COMMON in names:
        return Format.TORCH_DIST
    if _is_legacy(tree, folder):
        return Format.MEGATRON_LEGACY
    return Format.MEGATRON_DCP if METADATA in names else None


def _second_tracker(tree: Tree, says: int) -> list[str]:
    """Bridge reads its own tracker first, so the two must agree."""
    if tree.file(BRIDGE_TRACKER) is None:
        return [f"{BRIDGE_TRACKER} is missing: Bridge falls back to {TRACKER}"]
    try:
        step = torch_number(tree, BRIDGE_TRACKER, "step")
    except NotProvenError as error:
        return [str(error)]
    return [] if step == says else [f"{BRIDGE_TRACKER} says {step}, {TRACKER} says {says}: they do not agree"]


# --- legacy


def _prove_legacy(tree: Tree, named: Named, tracker: Tracker) -> Proof:
    """There is no marker inside: the tracker must cover it, and every model-parallel rank must be there, whole."""
    step = named.step or 0
    if not tracker.published(step):
        raise NotProvenError(f"nothing in it tells that it was finished, and {tracker.trouble or TRACKER}")
    tree.refuse_strangers(named.name)
    ranks = [name for name in tree.folders(named.name) if _RANK.fullmatch(name)]
    args = _arguments(tree, f"{named.name}/{ranks[0]}/{MODEL}", step)
    wanted = _rank_names(*args)
    missing = sorted(wanted - set(ranks))
    if missing:
        raise NotProvenError(f"{len(missing)} of {len(wanted)} ranks are missing: {', '.join(missing[:3])}")
    if extra := sorted(set(ranks) - wanted):
        raise NotProvenError(
            f"{', '.join(extra[:3])} are beyond the {len(wanted)} ranks of this save: two saves mixed"
        )
    files = tree.below(named.name)
    for file in files:
        whole_zip(tree, file.path)
    for kind in (MODEL, OPTIMIZER):
        having = {f.path.split("/")[1] for f in files if f.path.endswith(f"/{kind}")}
        if having and having != wanted:
            raise NotProvenError(f"{kind} is missing for {', '.join(sorted(wanted - having)[:3])}")
    _same_sizes(files)
    return Proof(f"{TRACKER} covers it and all {len(wanted)} model-parallel ranks are whole", tuple(files))


def _arguments(tree: Tree, path: str, step: int) -> tuple[int, int, int]:
    """Tensor, pipeline and expert parallelism as the save's own arguments tell them."""
    value = torch_value(tree, path)
    inside = value.get("iteration") if hasattr(value, "get") else None
    if type(inside) is int and inside != step:
        raise NotProvenError(f"{shown(path)} is of step {inside}")
    args = value.get("args") if hasattr(value, "get") else None
    if not isinstance(args, Record):
        raise NotProvenError(f"{shown(path)} does not tell its parallelism: nothing proves that every rank is there")
    sizes = [args.get(f"{kind}_model_parallel_size") for kind in ("tensor", "pipeline", "expert")]
    tensor, pipeline, expert = (size if type(size) is int and 0 < size <= 10_000 else None for size in sizes)
    if tensor is None or pipeline is None or tensor * pipeline * (expert or 1) > 1_000_000:
        raise NotProvenError(f"{shown(path)} does not tell its parallelism: nothing proves that every rank is there")
    return tensor, pipeline, expert or 1


def _rank_names(tensor: int, pipeline: int, expert: int) -> set[str]:
    """As `get_checkpoint_name` makes them."""
    return {
        f"mp_rank_{t:02d}" + (f"_{p:03d}" if pipeline > 1 else "") + (f"_{e:03d}" if expert > 1 else "")
        for t in range(tensor)
        for p in range(pipeline)
        for e in range(expert)
    }


def _same_sizes(files: list[File]) -> None:
    """An empty or tiny file among equals. Pipeline stages differ, so only a factor of a thousand is no stage."""
    largest: dict[str, int] = {}
    for file in files:
        name = file.path.rpartition("/")[2]
        largest[name] = max(largest.get(name, 0), file.size)
    for file in files:
        if file.size * 1000 < largest[file.path.rpartition("/")[2]]:
            raise NotProvenError(f"{shown(file.path)} has {file.size} bytes, its siblings up to 1000 times as many")
