"""What is asked of the storage of a job: where it lies, which checkpoint there is complete, and who may write there.

As in `activities/api.py`: no SDK, no effect. `FIND_STORAGE` runs on `runbooks`, the others on `data.<site>`.
"""

from collections.abc import Mapping
from datetime import timedelta

from activities.api import Activity
from activities.copy_api import CopyOrder
from fleet.copying.manifest import Parts
from fleet.copying.places import copy_op
from fleet.model import Value
from fleet.preflight import Check, Protected
from fleet.sites import Storage
from fleet.stock import Held, held_checkpoint


class StorageAsk(Value):
    """A folder of a job's, as it names it on a cluster, and where it would be on another one."""

    cluster: str
    path: str
    target: str = ""
    """Another cluster; empty: none is meant."""
    common: str = ""
    """The root that the job names for all clusters but those of `own`; empty: `path` keeps its place."""
    own: Mapping[str, str] = {}
    """Cluster -> the root that the job names there."""


class Storages(Value):
    """The folder at both ends."""

    source: Storage | None = None
    target: Storage | None = None
    why: str = ""
    """Why one is missing, with what to do."""


class LocateAsk(Value):
    """A folder that a job names: where it is for each of these clusters."""

    path: str
    clusters: tuple[str, ...]
    first: tuple[str, ...] = ()
    """Clusters on which the path is meant, before the others."""
    own: Mapping[str, str] = {}
    """Cluster -> the folder that the job names there instead."""
    whole: bool = False
    """It may be all of a site's storage."""


class Located(Value):
    """Clusters without a site are left out; all of them where no site has the path."""

    storages: Mapping[str, Storage] = {}


class FindDataset(Value):
    """A dataset on one site."""

    storage: Storage
    """The folder that holds the dataset's folder."""
    sums: str
    """Its manifest, relative to that."""
    told: bool
    """A person says that it is there; else only a receipt of ours proves it."""


class FoundDataset(Value):
    """What a site holds of a dataset."""

    there: bool
    size: int = 0
    """Bytes of the files that its manifest lists."""
    files: int = 0
    why: str = ""
    """Why it is not there."""


class ReplicasAsk(Value):
    """Where a job's checkpoints are copied to in advance."""

    job: Protected


class Replica(Value):
    """One site that gets them."""

    cluster: str
    """A cluster there that could receive the job: its freeze holds; empty where there is none."""
    source: Storage
    target: Storage
    owner: str = ""
    """To whom the files must belong there."""


class Replicas(Value):
    """By today's policy."""

    every: int = 0
    """Each so many-th complete checkpoint."""
    bandwidth: float | None = None
    """Bytes a second of one copy at most."""
    sites: tuple[Replica, ...] = ()
    why: str = ""
    """Why there is none."""


class FindCheckpoints(Value):
    """A checkpoint root on one site."""

    storage: Storage
    total_steps: int | None = None
    """A higher step is none."""


class FoundCheckpoint(Value):
    """The newest complete one."""

    entry: str
    step: int | None
    size: int
    """Bytes."""
    files: int
    reason: str
    """What proves it."""
    parts: Parts | None = None
    """How a copy names it."""
    fixed: str = ""
    """Why it cannot be copied; empty when it can."""
    ours: bool = False
    """A copy of ours: its receipt is there."""


class FoundCheckpoints(Value):
    """What a root holds, by the judgement of `runbook checkpoints`."""

    site: str
    there: bool
    """The root itself is there."""
    newest: FoundCheckpoint | None = None
    """Complete on positive proof."""
    complete: tuple[int, ...] = ()
    """Steps of the complete ones, the newest first, as many as fit a history."""
    ours: tuple[int, ...] = ()
    """Those of them that were copied there by us."""
    refused: tuple[str, ...] = ()
    """Newer ones than the newest complete one, each with its reason; the newest few."""
    question: str = ""
    """What a person must look at; empty when nobody must."""
    steps_lost: int | None = None
    at: float

    @property
    def blocked(self) -> bool:
        """There are checkpoints, and none of them can be copied as it stands."""
        return bool(self.question or (self.newest is not None and self.newest.parts is None))


class SiteAsk(Value):
    """Could the job's files be brought there, and would they be its user's?"""

    cluster: str
    """The target's."""
    storage: Storage
    """The target root."""
    owner: str = ""
    """User of the new attempt, or `UID[:GID]`; empty: not known."""
    order: CopyOrder | None = None
    """The copy that would be made; None: there is nothing to copy, now or at all."""
    because: str = ""
    """Why there is nothing to copy."""
    blocked: bool = False
    """What there is cannot be copied, or a person must look first."""


class SiteSeen(Value):
    """The checks `storage`, `space` and `owner`."""

    checks: tuple[Check, ...]
    to_copy: int = 0
    """Bytes that a copy would have to move now."""


def held(found: FoundCheckpoints | str) -> Held:
    """What a site holds, as a placement weighs it; a text says why it cannot be told. A layout that nobody knows may
    hold anything."""
    if isinstance(found, str) or found.question:
        return Held(there=False, unknown=found if isinstance(found, str) else found.question)
    if found.newest is None:
        return Held(there=False)
    return held_checkpoint(found.newest.step, found.newest.size, found.newest.files)


def copy_order(
    cluster: str, source: Storage, target: Storage, parts: Parts, *, owner: str = "", bandwidth: float | None = None
) -> CopyOrder:
    """The copy of one entry to `cluster`'s storage, for the mover of the target's site. Replication, preflight and
    failover name it alike, so that each goes on where another ended."""
    place = source.seen_from(target.site)
    return CopyOrder(
        cluster=cluster,
        op=copy_op(place, parts.name, target.path),
        source=place,
        target=target.path,
        parts=parts,
        owner=owner,
        origin=f"{source.site}:{source.path}",
        bandwidth=bandwidth,
    )


FIND_STORAGE = Activity("find_storage", StorageAsk, Storages, timedelta(seconds=20), timedelta(seconds=600))
LOCATE = Activity("locate_storage", LocateAsk, Located, timedelta(seconds=20), timedelta(seconds=600))
FIND_DATASET = Activity("find_dataset", FindDataset, FoundDataset, timedelta(minutes=15), timedelta(hours=1))
PLAN_REPLICAS = Activity("plan_replicas", ReplicasAsk, Replicas, timedelta(seconds=20), timedelta(seconds=600))
FIND_CHECKPOINTS = Activity(
    "find_checkpoints", FindCheckpoints, FoundCheckpoints, timedelta(minutes=15), timedelta(hours=1)
)
CHECK_SITE = Activity("check_site", SiteAsk, SiteSeen, timedelta(minutes=15), timedelta(minutes=30))
