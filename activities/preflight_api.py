"""Names, inputs, outputs and time limits of the activities of a preflight.

As in `activities/api.py`: no SDK, no effect.
"""

from datetime import timedelta

from activities.api import Activity, Nothing, OnJob
from fleet.model import NativeJob, Value
from fleet.preflight import Check, Protected, Readiness
from fleet.protected import JobOrder


def _s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


class OneJob(Value):
    job: str


class Jobs(Value):
    """Jobs by their fleet names."""

    jobs: tuple[str, ...] = ()


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


class SaveIn(Value):
    """What a preflight found, and what it was found for: the second serves while the job's cluster is away."""

    readiness: Readiness
    protected: Protected | None = None


class Readinesses(Value):
    """The last one of each job."""

    found: tuple[Readiness, ...] = ()


MANY = 1000
"""Jobs of which the last preflight is read at a time: an answer travels in one payload."""

LIST_JOBS = Activity("list_supervised_jobs", Nothing, Jobs, _s(60), _s(600))
FIND_ORDER = Activity("find_job_order", OneJob, JobOrder, _s(30), _s(300))
READ_HOME = Activity("read_job", OnJob, NativeJob, _s(20), _s(40))
"""The same reading as `READ_JOB`, not waited for as long: a cluster that is away is no reason to stop."""
CHECK_CLUSTER = Activity("check_target_cluster", ClusterAsk, ClusterSeen, _s(90), _s(180))
SAVE_READINESS = Activity("save_readiness", SaveIn, Nothing, _s(20), _s(600))
READ_READINESS = Activity("read_readiness", Jobs, Readinesses, _s(20), _s(60))
