"""Names, inputs, outputs and time limits of the activities of a preflight.

As in `activities/api.py`: no SDK, no effect.
"""

from collections.abc import Mapping
from datetime import timedelta

from activities.api import Activity, Nothing
from fleet.model import Value
from fleet.preflight import Check, Protected, Readiness


class ProtectedAsk(Value):
    """Jobs whose runbook is running."""

    jobs: tuple[str, ...] = ()
    """Only these; empty: all."""


class JobNames(Value):
    jobs: tuple[str, ...] = ()


class ProtectedJobs(Value):
    jobs: tuple[Protected, ...] = ()
    left: Mapping[str, str] = {}
    """Job -> why it could be moved to no other cluster."""


class ClusterAsk(Value):
    """Would this cluster take the job?"""

    cluster: str
    job: Protected


class ClusterSeen(Value):
    """The checks `credentials`, `capacity`, `environment` and `run_as`."""

    checks: tuple[Check, ...]
    room_now: bool = False
    owner: str = ""
    """User to whom copied files must belong there, or `UID[:GID]`; empty: nobody says."""


class Readinesses(Value):
    found: tuple[Readiness, ...] = ()


LIST_JOBS = Activity("list_supervised_jobs", Nothing, JobNames, timedelta(seconds=60), timedelta(seconds=600))
LIST_PROTECTED = Activity(
    "list_protected_jobs", ProtectedAsk, ProtectedJobs, timedelta(seconds=120), timedelta(seconds=600)
)
CHECK_CLUSTER = Activity(
    "check_target_cluster", ClusterAsk, ClusterSeen, timedelta(seconds=90), timedelta(seconds=180)
)
SAVE_READINESS = Activity("save_readiness", Readiness, Nothing, timedelta(seconds=20), timedelta(seconds=600))
READ_READINESS = Activity("read_readiness", ProtectedAsk, Readinesses, timedelta(seconds=20), timedelta(seconds=60))
