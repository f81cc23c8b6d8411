"""Ways in which a root of a real library goes wrong, with the answer that is right.

Each breaks the root in place and is used twice: by the tests, against our judgement, and by `make_real --verify`,
against the library itself.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

NEWEST = {
    "dcp": "step_30",
    "torch_dist": "iter_0000030",
    "deepspeed_zero1": "global_step30",
    "deepspeed_zero3": "global_step30",
    "deepspeed_experts": "global_step30",
    "hf_trainer": "checkpoint-30",
    "lightning": "epoch=3-step=30.ckpt",
    "orbax": "30",
}
"""The newest entry of each root as its library wrote it."""


UNFINISHED = "30.orbax-checkpoint-tmp"


@dataclass(frozen=True)
class Variant:
    """One trouble."""

    library: str
    name: str
    breaks: Callable[[Path], None]
    newest: int | None
    """Step of the newest complete checkpoint afterwards."""
    reason: str
    """What the reason of the refused entry, or a note of the root, says."""
    library_tells: bool | None
    """Whether the library refuses the broken entry (True), loads it all the same (False: it cannot tell, or the entry
    is not broken), or is not asked (None)."""

    renamed: str = ""
    """The entry's name afterwards, where it is another."""

    @property
    def entry(self) -> str:
        return self.renamed or NEWEST[self.library]

    def __str__(self) -> str:
        return f"{self.library}: {self.name}"


def cut(pattern: str) -> Callable[[Path], None]:
    """The last fifth of a file is gone."""

    def breaks(root: Path) -> None:
        file = _one(root, pattern)
        file.write_bytes(file.read_bytes()[: file.stat().st_size * 4 // 5])

    return breaks


def lose(pattern: str) -> Callable[[Path], None]:
    """A file or a folder is gone."""

    def breaks(root: Path) -> None:
        gone = _one(root, pattern)
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()

    return breaks


def cut_largest(folder: str) -> Callable[[Path], None]:
    """As `cut`, of the largest file in a folder: Orbax gives its files random names."""
    return lambda root: cut(f"{folder}/{_largest(root / folder)}")(root)


def lose_largest(folder: str) -> Callable[[Path], None]:
    """As `lose`, of the largest file in a folder."""
    return lambda root: lose(f"{folder}/{_largest(root / folder)}")(root)


def _largest(folder: Path) -> str:
    return max(folder.iterdir(), key=lambda p: p.stat().st_size).name


def say(path: str, text: str) -> Callable[[Path], None]:
    """A tracker says something else."""
    return lambda root: (root / path).write_text(text) and None


def rename(old: str, new: str) -> Callable[[Path], None]:
    """A folder or file under another name."""
    return lambda root: (root / old).rename(root / new) and None


def _one(root: Path, pattern: str) -> Path:
    found = sorted(root.glob(pattern))
    assert found, pattern
    return found[-1]


def _old_step_inside(root: Path) -> None:
    """The state file of an older save in a newer folder."""
    shutil.copy(root / "checkpoint-20/trainer_state.json", root / "checkpoint-30/trainer_state.json")


def _uncommitted(root: Path) -> None:
    """As Orbax leaves it until the very end."""
    path = root / "30/_CHECKPOINT_METADATA"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"commit_timestamp_nsecs": None}))
    (root / "30/commit_success.txt").unlink()


def _retention(pattern: str) -> Callable[[Path], None]:
    """A deletion under way: the first file of a folder, in the order of names, is gone."""

    def breaks(root: Path) -> None:
        next(p for p in sorted(root.glob(pattern)) if p.is_file()).unlink()

    return breaks


VARIANTS = (
    Variant("dcp", "truncated shard", cut("step_30/__1_0.distcp"), 20, "was cut", True),
    Variant("dcp", "missing shard", lose("step_30/__1_0.distcp"), 20, "is missing", True),
    Variant("dcp", "missing marker", lose("step_30/.metadata"), 20, "no .metadata", True),
    Variant("dcp", "truncated marker", cut("step_30/.metadata"), 20, "not trusted", True),
    Variant("dcp", "unfinished", rename("step_30/.metadata", "step_30/.metadata.tmp"), 20, "not finished", True),
    Variant("dcp", "retention deleting it", _retention("step_30/*"), 20, "no .metadata", True),
    Variant("torch_dist", "truncated shard", cut("iter_0000030/__1_0.distcp"), 20, "was cut", True),
    Variant("torch_dist", "missing shard", lose("iter_0000030/__1_0.distcp"), 20, "is missing", True),
    Variant("torch_dist", "missing marker", lose("iter_0000030/metadata.json"), 20, "no metadata.json", True),
    Variant("torch_dist", "missing DCP marker", lose("iter_0000030/.metadata"), 20, "no .metadata", True),
    Variant("torch_dist", "truncated common.pt", cut("iter_0000030/common.pt"), 20, "was cut", True),
    Variant("torch_dist", "stale tracker", say("latest_checkpointed_iteration.txt", "20"), 20, "says 20", None),
    Variant("torch_dist", "tracker ahead", say("latest_checkpointed_iteration.txt", "40"), 30, "no such", None),
    Variant("torch_dist", "empty tracker", say("latest_checkpointed_iteration.txt", ""), 30, "is no step", None),
    Variant(
        "torch_dist", "absurd tracker", say("latest_checkpointed_iteration.txt", "4160813071"), 30, "absurd", None
    ),
    Variant("torch_dist", "no tracker", lose("latest_checkpointed_iteration.txt"), 30, "is missing", None),
    Variant("torch_dist", "retention deleting it", _retention("iter_0000030/__*"), 20, "is missing", True),
    Variant("deepspeed_zero1", "truncated shard", cut("global_step30/zero_pp_rank_1*optim*"), 20, "was cut", True),
    Variant("deepspeed_zero1", "half of the shards", lose("global_step30/zero_pp_rank_1*"), 20, "1 of 2", True),
    Variant("deepspeed_zero1", "no model states", lose("global_step30/mp_rank_00*"), 20, "no model states", True),
    Variant("deepspeed_zero1", "stale tracker", say("latest", "global_step20"), 30, "", False),
    Variant("deepspeed_zero1", "tracker of a lost one", say("latest", "global_step40"), 30, "no such", None),
    Variant("deepspeed_zero1", "hostile tracker", say("latest", "../../etc"), 30, "is no tag", None),
    Variant("deepspeed_zero1", "moved tag", rename("global_step30", "best"), 30, "no such", None),
    Variant("deepspeed_zero3", "half of the shards", lose("global_step30/*rank_1*optim*"), 20, "1 of 2", True),
    Variant("deepspeed_zero3", "half of the models", lose("global_step30/*rank_1*model*"), 20, "1 of 2", True),
    Variant("deepspeed_zero3", "truncated model", cut("global_step30/*rank_1*model*"), 20, "was cut", True),
    Variant("deepspeed_experts", "an expert is missing", lose("global_step30/layer_1*"), 20, "7 of 8 experts", True),
    Variant("deepspeed_experts", "truncated expert", cut("global_step30/layer_1*"), 20, "was cut", True),
    Variant("hf_trainer", "truncated weights", cut("checkpoint-30/model.safetensors"), 20, "its header says", True),
    Variant("hf_trainer", "truncated optimizer", cut("checkpoint-30/optimizer.pt"), 20, "was cut", True),
    Variant("hf_trainer", "missing marker", lose("checkpoint-30/trainer_state.json"), 20, "is missing", True),
    Variant("hf_trainer", "no optimizer", lose("checkpoint-30/optimizer.pt"), 20, "no optimizer.pt", False),
    Variant("hf_trainer", "no random state", lose("checkpoint-30/rng_state.pth"), 20, "no rng_state", False),
    Variant("hf_trainer", "no weights", lose("checkpoint-30/model.safetensors"), 20, "no weights", True),
    Variant("hf_trainer", "state of another step", _old_step_inside, 20, "of step 20", False),
    Variant("lightning", "truncated file", cut("epoch=3*"), 30, "was cut", True),
    Variant("orbax", "missing marker", lose("30/_CHECKPOINT_METADATA"), 20, "_CHECKPOINT_METADATA is missing", None),
    Variant("orbax", "unfinished", rename("30", UNFINISHED), 20, "not finished", True, UNFINISHED),
    Variant("orbax", "truncated shard", cut_largest("30/state/ocdbt.process_0/d"), 20, "was cut", True),
    Variant("orbax", "missing shard", lose_largest("30/state/ocdbt.process_0/d"), 20, "is missing", True),
    Variant("orbax", "not committed", _uncommitted, 20, "no commit time", None),
    Variant("orbax", "truncated manifest", cut("30/state/manifest.ocdbt"), 20, "was cut", True),
    Variant("orbax", "no manifest", lose("30/state/manifest.ocdbt"), 20, "manifest.ocdbt is missing", True),
    Variant("orbax", "no item", lose("30/state"), 20, "no item", True),
)
