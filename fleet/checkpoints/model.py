"""What a checkpoint is: its files, its markers, the trackers that name it, and the judgement on all of a root's.

Every path is relative to the checkpoint root, with `/` between names, and has passed `fleet.checkpoints.names`.
"""

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from fleet.model import Value

FOLDER = ".gpu-runbooks"
"""The one folder of a checkpoint root that we write in (DESIGN.md section 3)."""


class Format(StrEnum):
    """Who wrote it; each has a file here that cites where its layout is defined."""

    TORCH_DIST = "torch_dist"
    """Megatron-Core's default."""
    MEGATRON_BRIDGE = "megatron_bridge"
    MEGATRON_LEGACY = "megatron_legacy"
    MEGATRON_DCP = "megatron_dcp"
    """Megatron's `torch_dcp` and `fsdp_dtensor`."""
    NVRX_LOCAL = "nvrx_local"
    """Node-local files of NVIDIA's resiliency extension: they never leave their nodes."""
    DCP = "dcp"
    """PyTorch's distributed checkpoint, under whatever folder names."""
    TORCHTITAN = "torchtitan"
    DEEPSPEED = "deepspeed"
    DEEPSPEED_UNIVERSAL = "deepspeed_universal"
    HF_TRAINER = "hf_trainer"
    NEMO = "nemo"
    """NeMo 2."""
    LIGHTNING = "lightning"
    ORBAX = "orbax"
    VERL = "verl"
    MARKED = "marked"
    """Folders with a COMPLETE marker that lists each shard's hash, as our lab's training program writes them."""
    RECEIPT = "receipt"
    """Any files that a receipt of ours lists with their hashes."""


class File(Value):
    """One file as it was listed."""

    path: str
    size: int = Field(ge=0)
    """Bytes."""
    modified: float = 0.0
    """Seconds since the epoch by the store's own clock; 0 where the store tells none."""


class Small(Value):
    """A small file that a copy makes at its destination instead of copying one: told in full, or like another."""

    path: str
    text: str | None = None
    """The whole content."""
    like: str | None = None
    """Path of the file of the same checkpoint whose bytes it gets."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.text is None) == (self.like is None):
            raise ValueError("give one of text and like")
        return self


class Entry(Value):
    """One checkpoint of a root: what a copy must bring over, and in which order.

    A copy writes `data` first, then `markers`, then `made`, publishes, and writes `trackers` last of all.
    """

    format: Format
    name: str
    """Its folder or file; the pattern of its files where it is neither."""
    step: int | None = Field(default=None, ge=0)
    """Training step; None where neither the name nor the files tell it."""
    data: tuple[File, ...] = ()
    """What is loaded. Files that the format ignores are left out: they may belong to another save."""
    markers: tuple[File, ...] = ()
    """Files whose presence says that the save was finished; part of the checkpoint."""
    made: tuple[Small, ...] = ()
    """Markers that the destination needs and the source may do without."""
    trackers: tuple[Small, ...] = ()
    """Files of the root that name the checkpoint to resume from, as they must be at a destination where this one is
    the newest. The source's own are never changed."""

    @property
    def size(self) -> int:
        """Bytes of data and markers."""
        return sum(file.size for file in (*self.data, *self.markers))


class Candidate(Value):
    """A checkpoint and what is thought of it."""

    entry: Entry
    complete: bool
    reason: str
    """What proves it, or why it is not taken; one line without control characters."""
    notes: tuple[str, ...] = ()
    """What a person should know although it does not decide: extra files, a path that breaks after a move."""


class Judgement(Value):
    """All checkpoints of one root, the newest first."""

    format: Format | None
    """None when the layout is not known, or is more than one: then a person decides and nothing is complete."""
    candidates: tuple[Candidate, ...] = ()
    question: str = ""
    """What a person is asked; empty when nobody is needed."""
    notes: tuple[str, ...] = ()
    """About the root: trackers that name something else, names that were refused."""
    movable: bool = True
    """False for node-local storage: never a source for another cluster."""

    @property
    def newest_complete(self) -> Candidate | None:
        """The one to resume from."""
        return next((c for c in self.candidates if c.complete), None)

    @property
    def steps_lost(self) -> int | None:
        """Steps between the newest candidate and the newest complete one; None without a complete one."""
        newest = self.newest_complete
        steps = [c.entry.step for c in self.candidates if c.entry.step is not None]
        if newest is None or newest.entry.step is None or not steps:
            return None
        return max(0, max(steps) - newest.entry.step)
