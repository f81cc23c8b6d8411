"""What every format has in common: it finds its candidates by name, and proves one or says why not."""

from dataclasses import dataclass, field
from typing import Protocol

from fleet.checkpoints.model import File, Format, Small
from fleet.checkpoints.names import number, shown
from fleet.checkpoints.tree import NotProvenError, Tree

ABSURD = 10**9
"""A tracker so far above the highest folder is no step: ranks that disagreed have written such numbers (PC-C08)."""


@dataclass(frozen=True)
class Known:
    """What is known of the job beside its files."""

    total_steps: int | None = None
    """A step above it is none."""
    world: int | None = None
    """Ranks of the job, for formats whose files do not tell it."""
    hashes: bool = False
    """Compare every hash that a receipt or the format's own list names, which reads all the data."""


@dataclass(frozen=True)
class Named:
    """A candidate, by its name alone."""

    format: Format
    name: str
    """Relative to the root."""
    step: int | None
    start: tuple[int, int] = (-1, -1)
    """Generation of its writer, where the name has it: a later one goes first, whatever its step."""

    @property
    def age(self) -> tuple[tuple[int, int], int, str]:
        """The newest compares greatest."""
        return self.start, -1 if self.step is None else self.step, self.name


@dataclass(frozen=True)
class Proof:
    """Why a candidate is complete, and what belongs to it."""

    says: str
    data: tuple[File, ...]
    markers: tuple[File, ...] = ()
    made: tuple[Small, ...] = ()
    notes: tuple[str, ...] = ()
    step: int | None = None
    """As the files tell it, where the name does not."""
    format: Format | None = None
    """Where the files tell a nearer one than the name did."""


@dataclass(frozen=True)
class Found:
    """All candidates of one layout in one root."""

    named: tuple[Named, ...]
    notes: tuple[str, ...] = ()
    movable: bool = True
    claimed: frozenset[str] = field(default_factory=frozenset)
    """Top-level folders and files that are this layout's."""


class Layout(Protocol):
    """One family of formats."""

    def find(self, tree: Tree, known: Known) -> Found:
        """Its candidates; none where the root is not of this layout."""
        ...

    def prove(self, tree: Tree, named: Named, known: Known) -> Proof:
        """Raises NotProvenError with the reason where the candidate is not complete on positive proof."""
        ...

    def trackers(self, named: Named) -> tuple[Small, ...]:
        """Files of a destination's root that name this candidate."""
        ...


class Untracked:
    """A layout whose trainer finds the newest by its name alone."""

    def trackers(self, named: Named) -> tuple[Small, ...]:
        return ()


@dataclass(frozen=True)
class Tracker:
    """A tracker's word about the newest step."""

    path: str
    says: int | None
    """None where it is missing, empty or no number."""
    trouble: str = ""
    """What is wrong with it, for a person."""

    def published(self, step: int) -> bool:
        """The tracker's word covers this step."""
        return self.says is not None and step <= self.says


def read_tracker(tree: Tree, path: str, steps: list[int], known: Known) -> Tracker:
    """A tracker with a number in it, held against the folders that are there and the job's total."""
    if tree.file(path) is None:
        return Tracker(path, None, f"{path} is missing: the trainer would start at step 0")
    try:
        text = tree.text(path)
    except NotProvenError as error:
        return Tracker(path, None, str(error))
    says = number(text)
    if says is None:
        return Tracker(
            path, None, f"{path} holds {shown(text, 40)!r}, which is no step: the trainer would stop there"
        )
    highest = max(steps, default=0)
    if says > (known.total_steps if known.total_steps is not None else highest + ABSURD):
        total = f" of {known.total_steps}" if known.total_steps is not None else ""
        return Tracker(path, None, f"{path} says {says}, an absurd step{total}: it proves nothing")
    if says not in steps:
        return Tracker(path, says, f"{path} says {says}, and no such checkpoint is here")
    return Tracker(path, says)


def bad_step(step: int | None, known: Known) -> str:
    """Why a candidate's step cannot be right; empty for one that can."""
    if step is not None and known.total_steps is not None and step > known.total_steps:
        return f"step {step} is beyond the job's {known.total_steps}"
    return ""
