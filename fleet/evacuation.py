"""What is on a node and is moved by no runbook of its own: who stays, why, and what a person may let happen to it."""

from enum import StrEnum

from fleet.model import OpId, Value


class Hold(StrEnum):
    """Why something is still on the node."""

    MOVABLE = "movable"  # its controller makes another one elsewhere; nobody has asked it to leave yet
    WORK = "work"  # somebody's job, or it holds GPUs: the policy says whether it is asked to leave
    UNMANAGED = "unmanaged"  # nothing would bring it back
    PROTECTED = "protected"  # its eviction was refused, by a disruption budget most of the time
    LEAVING = "leaving"  # asked to leave, within its grace
    STUCK = "stuck"  # its grace is over and nobody has reported its end
    KEPT = "kept"  # all of it has ended; only a finalizer keeps the object


LOST = frozenset({Hold.WORK, Hold.UNMANAGED})
"""What is not simply made again elsewhere: a person is asked before the power is taken from under it."""
REFUSES = frozenset({Hold.MOVABLE, Hold.WORK, Hold.UNMANAGED, Hold.PROTECTED})
"""What a person may have deleted."""


class Occupant(Value):
    """One of those that are still there."""

    id: str
    """As people name it: `pod/NAMESPACE/NAME`, `volume/NAME`."""
    uid: str
    """Tells it from a later one of the same name: an approval counts for this one only."""
    owner: str
    """Kind and name of what made it, or that nothing did."""
    holder: str
    """Native id under which it holds the node's GPUs, if it does."""
    hold: Hold
    why: str

    def __str__(self) -> str:
        return f"{self.id} ({self.owner}): {self.why}"


class EvacuationOrder(Value):
    """What may be done to those on a node in one pass."""

    op: OpId
    evict: bool = False
    """Ask what is movable to leave. False: look only."""
    others: bool = False
    """The policy lets other people's work be asked as well."""
    forced: tuple[str, ...] = ()
    """Uids of those that a person let us delete against what protects them."""
    fenced: bool = False
    """The runbook holds a receipt for the node: what no daemon can let go any more is taken from the cluster's books,
    if the node's power is read as off once more."""


class EvacuationState(Value):
    """What one pass saw last."""

    occupants: tuple[Occupant, ...] = ()
    """Empty where nothing is waited for."""
    asked: tuple[str, ...] = ()
    """Ids of those that this pass asked to leave, or deleted."""
    ignored: tuple[str, ...] = ()
    """Ids of what belongs to the node itself and stays on it."""
    again_in: float = 0.0
    """Seconds after which a refused eviction is worth another try, where the cluster named them."""


def force_step(occupant: Occupant, node: str) -> str:
    """What an approval does to one of those that are still there; empty where it does nothing."""
    who = f"{occupant.id} ({occupant.owner})"
    if occupant.hold is Hold.KEPT:
        return f"go on without {who}: it has ended; its finalizer is left to whoever set it"
    if occupant.hold is Hold.STUCK:
        return f"power off {node} under {who}"
    return f"delete {who} with its own grace, against what protects it" if occupant.hold in REFUSES else ""
