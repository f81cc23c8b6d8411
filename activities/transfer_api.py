"""Names, inputs, outputs and time limits of the activities of a move to another cluster.

As in `activities/api.py`: no SDK, no effect. `PLAN_MOVE` and `FIND_WISH` read policy and store on the runbooks' queue,
`FIND_CHECKPOINT` reads a root on the queue of its site.
"""

from datetime import timedelta

from activities.api import Activity
from fleet.copying.manifest import Parts
from fleet.model import NativeJob, Value
from fleet.placing import PlaceWish
from fleet.transfer import Way


class WishIn(Value):
    """A job that was submitted or adopted for one cluster."""

    cluster: str
    job: str
    native: NativeJob


class WishOut(Value):
    wish: PlaceWish


class MoveIn(Value):
    """Where the job is, where it could go, and the checkpoint root that it names where it is."""

    cluster: str
    target: str
    root: str | None


class MovePlan(Value):
    """The way of its checkpoint, and how much may be copied without asking."""

    way: Way
    across_size: float
    """Bytes."""


class RootIn(Value):
    """A checkpoint root as the site's data worker sees it."""

    cluster: str
    root: str


class Checkpoint(Value):
    """The newest complete checkpoint of a root."""

    name: str = ""
    """Folder or file, relative to the root; empty: there is none."""
    step: int | None = None
    size: int = 0
    """Bytes."""
    parts: Parts | None = None
    """How a copy takes it; None where there is none."""
    why: str
    """What proves it, or why there is none."""
    rejected: tuple[str, ...] = ()
    """`ENTRY: reason` of those that are not complete, newest first."""


FIND_WISH = Activity("find_wish", WishIn, WishOut, timedelta(seconds=20), timedelta(seconds=600))
PLAN_MOVE = Activity("plan_move", MoveIn, MovePlan, timedelta(seconds=20), timedelta(seconds=600))
FIND_CHECKPOINT = Activity("find_checkpoint", RootIn, Checkpoint, timedelta(hours=1), timedelta(hours=2))
