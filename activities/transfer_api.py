"""Names, inputs, outputs and time limits of the activities of a move to another cluster.

As in `activities/api.py`: no SDK, no effect. The storage is asked by `activities/site_api.py`.
"""

from datetime import timedelta

from activities.api import Activity
from fleet.model import NativeJob, Value
from fleet.placing import PlaceWish


class WishIn(Value):
    """A job that was submitted or adopted for one cluster."""

    cluster: str
    job: str
    native: NativeJob


class WishOut(Value):
    wish: PlaceWish


FIND_WISH = Activity("find_wish", WishIn, WishOut, timedelta(seconds=20), timedelta(seconds=600))
