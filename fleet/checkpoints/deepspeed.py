"""DeepSpeed's tag folders, and the universal ones that a converter makes of them.

Defined in deepspeedai/DeepSpeed: deepspeed/runtime/engine.py (`_get_ckpt_name`, `_get_rank_zero_ckpt_name`,
`_get_expert_ckpt_name`, `_get_optimizer_ckpt_name`; `save_checkpoint` writes `latest` on rank 0 before the last
barrier, so it proves nothing) and deepspeed/checkpoint/ds_to_universal.py (`zero/`, `latest_universal`).
What proves a folder: the model states tell the data-parallel and model-parallel sizes, and every shard of them is
there as a whole zip file.
"""

import re
from dataclasses import dataclass
from typing import Any

from fleet.checkpoints.layout import Found, Known, Named, Proof
from fleet.checkpoints.model import Format, Small
from fleet.checkpoints.names import joined, shown, told
from fleet.checkpoints.pickles import Pairs
from fleet.checkpoints.torch_files import torch_value, whole_zip
from fleet.checkpoints.tree import NotProvenError, Tree

TRACKER, UNIVERSAL_TRACKER = "latest", "latest_universal"
_TAG = re.compile(r"global_step(\d{1,18})(_universal)?")
_MODEL = re.compile(r"mp_rank_(\d{2,})_model_states\.pt")
_MODEL3 = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d{2,})_model_states\.pt")
_OPTIM = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d{2,})_optim_states\.pt")
_EXPERT = re.compile(r"layer_(\d+)_expert_(\d+)_mp_rank_(\d{2,})_model_states\.pt")
_OLD_EXPERT = re.compile(r"expert_\d+_mp_rank_\d{2,}_model_states\.pt")
_EXPERT_OPTIM = re.compile(r"expp_rank_\d+_mp_rank_\d{2,}_optim_states\.pt")
_LAYER = re.compile(r"layer_\d+-model_\d+-model_states\.pt|layer_\d+-model_states\.pt")


class DeepSpeed:
    """`global_step100`, or a user's tag, with `latest` beside it."""

    def find(self, tree: Tree, known: Known) -> Found:
        named = [n for name in tree.folders() if (n := _named(tree, name))]
        notes = []
        for path in (TRACKER, UNIVERSAL_TRACKER):
            if named and (note := _tracker_note(tree, path, {n.name for n in named})):
                notes.append(note)
        claimed = {n.name for n in named} | {TRACKER, UNIVERSAL_TRACKER}
        return Found(tuple(named), tuple(notes), claimed=frozenset(claimed) if named else frozenset())

    def prove(self, tree: Tree, named: Named, known: Known) -> Proof:
        if named.format is Format.DEEPSPEED_UNIVERSAL:
            raise NotProvenError("it was converted, and nothing in it tells that the converter came to its end")
        return prove_tag(tree, named.name, named.step)

    def trackers(self, named: Named) -> tuple[Small, ...]:
        universal = named.format is Format.DEEPSPEED_UNIVERSAL
        return (Small(path=UNIVERSAL_TRACKER if universal else TRACKER, text=named.name),)


def prove_tag(tree: Tree, folder: str, step: int | None) -> Proof:
    """One tag folder, wherever it lies; `step` is what its name says."""
    tree.refuse_strangers(folder)
    shards = _shards(tree, folder)
    sizes = _sizes(tree, shards)
    if step is not None and sizes.step is not None and sizes.step != step:
        raise NotProvenError(f"its model states are of step {sizes.step}")
    _check_ranks(shards, sizes)
    files = tree.below(folder)
    for file in files:
        if file.path.endswith(".pt"):
            whole_zip(tree, file.path)
    count = len(shards.optimizer)
    says = f"all {count} optimizer shards" if count else "all model states"
    return Proof(
        says=f"{says} of data parallel {sizes.data} x model parallel {sizes.model} are there and whole",
        data=tuple(files),
        step=sizes.step,
    )


# --- names


def _named(tree: Tree, name: str) -> Named | None:
    tag = _TAG.fullmatch(name)
    names = tree.names(name)
    if "zero" in tree.folders(name) and any(_MODEL.fullmatch(n) for n in names) and not _any(_OPTIM, names):
        return Named(Format.DEEPSPEED_UNIVERSAL, name, int(tag[1]) if tag else None)
    if tag:
        return Named(Format.DEEPSPEED_UNIVERSAL if tag[2] else Format.DEEPSPEED, name, int(tag[1]))
    if _any(_OPTIM, names) or _any(_MODEL3, names) or _any(_MODEL, names):
        return Named(Format.DEEPSPEED, name, _told_step(tree, name))
    return None


def _told_step(tree: Tree, folder: str) -> int | None:
    """A user's tag tells no step, the model states do, where they can be read."""
    try:
        return _sizes(tree, _shards(tree, folder)).step
    except NotProvenError:
        return None


def _any(pattern: re.Pattern[str], names: set[str]) -> bool:
    return any(pattern.fullmatch(name) for name in names)


def _tracker_note(tree: Tree, path: str, tags: set[str]) -> str:
    if tree.file(path) is None:
        return "" if path == UNIVERSAL_TRACKER else f"{path} is missing: a resume without a tag would find nothing"
    try:
        tag = tree.text(path).strip()
    except NotProvenError as error:
        return str(error)
    if told("", tag) is None:
        return f"{path} holds {shown(tag, 40)!r}, which is no tag"
    return "" if tag in tags else f"{path} says {shown(tag, 60)}, and no such checkpoint is here"


# --- shards


@dataclass(frozen=True)
class _Shards:
    """(data rank, model rank) of each file, by kind."""

    folder: str
    model: dict[int, str]
    model3: dict[tuple[int, int], str]
    optimizer: dict[tuple[int, int], str]
    experts: set[tuple[int, int, int]]
    """(layer, expert, model rank)."""
    uncounted: bool
    """There are experts' files that no number in the states speaks of."""


@dataclass(frozen=True)
class _Sizes:
    """As the model states tell them."""

    data: int
    model: int
    sharded: bool
    """The optimizer is in files of its own."""
    step: int | None
    experts: tuple[int, ...]
    """Experts of each layer that has some."""
    placed: bool
    """Experts were placed automatically (AutoEP), in ways that are not known here."""


def _shards(tree: Tree, folder: str) -> _Shards:
    names = tree.names(folder)
    optimizer = {(int(m[1]), int(m[2])): n for n in sorted(names) if (m := _OPTIM.fullmatch(n))}
    if sum(1 for n in names if _OPTIM.fullmatch(n)) != len(optimizer):
        raise NotProvenError("some ranks have two optimizer shards: two saves mixed")
    return _Shards(
        folder,
        {int(m[1]): n for n in names if (m := _MODEL.fullmatch(n))},
        {(int(m[1]), int(m[2])): n for n in names if (m := _MODEL3.fullmatch(n))},
        optimizer,
        {(int(m[1]), int(m[2]), int(m[3])) for n in names if (m := _EXPERT.fullmatch(n))},
        _any(_OLD_EXPERT, names) or _any(_EXPERT_OPTIM, names),
    )


def _sizes(tree: Tree, shards: _Shards) -> _Sizes:
    first = min(shards.model.items(), default=None) or min(shards.model3.items(), default=None)
    if first is None:
        raise NotProvenError("there are no model states")
    path = joined(shards.folder, first[1])
    value = torch_value(tree, path)
    if not hasattr(value, "get"):
        raise NotProvenError(f"{shown(path)} holds no model states")
    data, model, step = (value.get(key) for key in ("dp_world_size", "mp_world_size", "global_steps"))
    if not (_count(data) and _count(model)):
        raise NotProvenError(f"{shown(path)} does not tell the number of ranks: nothing proves that all are there")
    experts = value.get("num_experts")
    counted = isinstance(experts, list) and len(experts) <= 10_000 and all(_count(e) for e in experts)
    return _Sizes(
        data,
        model,
        _is_sharded(value),
        step if type(step) is int and step >= 0 else None,
        tuple(experts) if counted else (),
        value.get("ds_autoep_layers") is not None,
    )


def _count(value: Any) -> bool:
    return type(value) is int and 0 < value <= 1_000_000


def _is_sharded(states: Any) -> bool:
    stage = _setting(states, "zero_optimization", "stage")
    return (type(stage) is int and stage > 0) or _setting(states, "bf16", "enabled") is True


def _setting(states: Any, section: str, key: str) -> Any:
    """A value of DeepSpeed's own configuration, which the model states hold."""
    here = states
    for name in ("ds_config", section, key):
        here = here.get(name) if isinstance(here, Pairs) else None
    return here


def _check_ranks(shards: _Shards, sizes: _Sizes) -> None:
    """Each shard that the sizes call for, and none beyond them."""
    every = {(d, m) for d in range(sizes.data) for m in range(sizes.model)}
    if shards.model3:
        _same("model state", every, set(shards.model3))
    else:
        _same("model state", {(0, m) for m in range(sizes.model)}, {(0, m) for m in shards.model})
    if shards.optimizer or sizes.sharded:
        _same("optimizer shard", every, set(shards.optimizer))
    _check_experts(shards, sizes)


def _check_experts(shards: _Shards, sizes: _Sizes) -> None:
    """Every expert of every layer; how many optimizer files there are without ZeRO, nothing tells."""
    if shards.uncounted or sizes.placed or (shards.experts and not sizes.experts):
        raise NotProvenError(
            "it has experts, and nothing in it tells how many files of them: only a receipt proves it"
        )
    if sum(sizes.experts) * sizes.model > 1_000_000:
        raise NotProvenError("its states tell an absurd number of experts")
    wanted = {
        (layer, expert, m)
        for layer, count in enumerate(sizes.experts)
        for expert in range(count)
        for m in range(sizes.model)
    }
    if missing := wanted - shards.experts:
        layer, expert, _ = min(missing)
        have = len(wanted) - len(missing)
        raise NotProvenError(
            f"only {have} of {len(wanted)} experts are here; missing: layer {layer}, expert {expert}"
        )
    if extra := shards.experts - wanted:
        layer, expert, _ = min(extra)
        raise NotProvenError(f"layer {layer}, expert {expert} is beyond the experts of this save: two saves mixed")


def _same(what: str, wanted: set[tuple[int, int]], there: set[tuple[int, int]]) -> None:
    def few(ranks: set[tuple[int, int]]) -> str:
        names = [f"data rank {d}, model rank {m}" for d, m in sorted(ranks)]
        return "; ".join(names[:2]) + ("; …" if len(names) > 2 else "")

    if missing := wanted - there:
        have = len(wanted) - len(missing)
        raise NotProvenError(f"only {have} of {len(wanted)} {what}s are here; missing: {few(missing)}")
    if extra := there - wanted:
        raise NotProvenError(
            f"there is a {what} beyond the {len(wanted)} of this save, two saves mixed: {few(extra)}"
        )
