"""Names, inputs, outputs and time limits of the activities of a launcher's lease.

As in `activities/api.py`: no SDK, no effect.
"""

from datetime import timedelta

from activities.api import Activity
from fleet.lease import ClusterLoss, LeaseLapse, Seat
from fleet.ledger import Attempt
from fleet.model import Value


class HoldIn(Value):
    """One launcher's seat, for as long as its ranks run."""

    seat: Seat


class Left(Value):
    """What a launcher says when nothing of it runs any more."""

    text: str = ""


class LapseIn(Value):
    """Take the lease of an attempt back and wait until no rank of it can run."""

    cluster: str
    """The old one: its freeze stops this, for it ends the training."""
    attempt: Attempt
    checks_generation: bool
    """From the job's own tokens."""
    loss: ClusterLoss
    why: str = ""


HOLD_LEASE = Activity("hold_lease", HoldIn, Left, timedelta(days=365), timedelta(days=366))
"""Beats by the launcher itself, not by a worker: each beat is a renewal. A worker only hands it out."""
LAPSE_LEASE = Activity("lapse_lease", LapseIn, LeaseLapse, timedelta(days=3), timedelta(days=4), mutates=True)
