"""A wave: many nodes of one cluster fail at once. They are isolated together and repaired one after another.

Values of `GuardCluster`'s ledger and of the signal that begins a wave. What is kept is small on purpose: names only,
for the ledger of 1,000 nodes goes into each new run of the guard.
"""

import re
import textwrap
from collections.abc import Iterable, Mapping
from enum import StrEnum

from fleet.identity import node_workflow_id, op_id
from fleet.model import Value


class Stand(StrEnum):
    """Where a node of a wave stands."""

    NEW = "new"  # nothing was decided about it
    HELD = "held"  # beyond the limit, or the mode wants a person: asked about once, with all others
    LATER = "later"  # isolated as soon as the limit has room
    NEXT = "next"  # isolated next
    REQUESTED = "requested"  # it carries our mark, and its repair waits for its turn
    HEALING = "healing"  # its own runbook was started, or has taken the mark over


class WavePart(Value):
    """Nodes with the same fault, in the order in which they are repaired."""

    why: str
    nodes: tuple[str, ...]


class WaveOrder(Value):
    """Begins a wave, or adds to the one under way."""

    parts: tuple[WavePart, ...]
    by: str = ""


class Wave(Value):
    """Nodes of one part that are not over yet, by where they stand; an order's part is one wave."""

    number: int
    why: str
    marked_at: float = 0.0
    """When the last of its nodes was isolated; 0 before the first."""
    nodes: Mapping[Stand, tuple[str, ...]] = {}
    untold: tuple[str, ...] = ()
    """Isolated, and what a person reads on the node itself (an Event) is still to be written."""


class WaveCount(Value):
    """What a person sees of the waves under way, or of the last ones: numbers of nodes."""

    nodes: int = 0
    """Taken in."""
    isolated: int = 0
    """Isolated by the waves so far."""
    requested: int = 0
    """Repairs requested so far: in the ledger, and the mark on the node."""
    held: int = 0
    """In service: a person is asked about them."""
    later: int = 0
    """In service until the limit has room."""
    healing: int = 0
    done: int = 0
    """Repairs that have ended."""
    left: int = 0
    """Left alone: drained by others, not in the cluster, refused, dropped."""

    @property
    def text(self) -> str:
        """In one line."""
        more = ((self.held, "wait for a person"), (self.later, "wait for the limit"), (self.left, "left alone"))
        shown = "".join(f", {count} {what}" for count, what in more if count)
        return (
            f"{self.nodes} nodes: {self.isolated} isolated, {self.requested} repairs requested, "
            f"{self.healing} healing, {self.done} done{shown}"
        )


class DropOrder(Value):
    """A person takes nodes out of the waves; no names: all of them."""

    nodes: tuple[str, ...] = ()
    by: str
    reason: str = ""


class Dropped(Value):
    """What a drop has ended."""

    nodes: int
    isolated: int
    """Of these, nodes that carry our mark; it stays until somebody releases it."""


def wave_op(cluster: str, node: str, tag: str) -> str:
    """Op id of a node's mark in the wave `tag`; the node's own runbook takes it over as its own."""
    return op_id(node_workflow_id(cluster, node), tag)


LINE = 90
"""Characters of a line in which nodes are listed for a person."""
_NUMBERED = re.compile(r"(.*?)(\d{1,9})")


def folded(names: Iterable[str]) -> str:
    """Names as people write many of them, `gamma-f[1-250,300]`, each stem where it appears first."""
    stems: dict[tuple[str, int], set[int]] = {}
    plain: list[str] = []
    for name in names:
        found = _NUMBERED.fullmatch(name)
        if found:
            width = len(found[2]) if found[2].startswith("0") else 0
            stems.setdefault((found[1], width), set()).add(int(found[2]))
        else:
            plain.append(name)
    numbered = [f"{stem}{_ranges(sorted(numbers), width)}" for (stem, width), numbers in stems.items()]
    return ", ".join([*numbered, *plain])


def _ranges(numbers: list[int], width: int) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    ends = [(f"{a:0{width}}", f"{b:0{width}}") for a, b in runs]
    shown = ",".join(a if a == b else f"{a}-{b}" for a, b in ends)
    return shown if len(numbers) == 1 else f"[{shown}]"


def listed(nodes: Iterable[str]) -> tuple[str, ...]:
    """All of them, in lines of a readable length."""
    return tuple(textwrap.wrap(folded(nodes).replace(",", ", "), LINE))
