"""Names, inputs, outputs and time limits of the activities of a placement.

As in `activities/api.py`: no SDK, no effect.
"""

from collections.abc import Mapping
from datetime import timedelta

from activities.api import Activity, Nothing, PolicyIn, Submit
from fleet.model import NativeJob, Room, Value
from fleet.placement import Offer, Placement, Request


class Clusters(Value):
    """Clusters of the policy, by name, and the kind of each."""

    kinds: Mapping[str, str]
    streams: int = 0
    """Files at once of a copy; 0: the policy names no sites, so nothing is known of any storage."""


class Trial(Value):
    """What a cluster refuses of a job; empty where it would take it."""

    refuses: tuple[str, ...] = ()


class PlaceAsk(Value):
    request: Request
    offers: tuple[Offer, ...]


class WaitPlaced(Value):
    """Wait until the job has nodes, is over, or it is `until` (epoch seconds)."""

    cluster: str
    native_id: str
    until: float


class WaitedPlaced(Value):
    native: NativeJob | None
    """As it was seen last; None when the cluster could not be read."""
    why: str = ""


LIST_CLUSTERS = Activity("list_clusters", Nothing, Clusters, timedelta(seconds=20), timedelta(seconds=600))
READ_ROOM = Activity("read_room", PolicyIn, Room, timedelta(seconds=20), timedelta(seconds=30))
TRY_SUBMIT = Activity("try_submit", Submit, Trial, timedelta(seconds=30), timedelta(seconds=60))
PLACE = Activity("choose_cluster", PlaceAsk, Placement, timedelta(seconds=20), timedelta(seconds=600))
WAIT_PLACED = Activity("wait_placed", WaitPlaced, WaitedPlaced, timedelta(days=30), timedelta(days=30))
