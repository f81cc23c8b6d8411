"""Whether a cluster could receive a job: what is checked, what came of it, and what to do. Values and judgement only.

`workflows/preflight.py: preflight_target` asks the cluster and its storage and puts the answers together here.
"""

from collections.abc import Iterable
from enum import StrEnum

from fleet.identity import parse_tokens
from fleet.model import Name, Room, Value
from fleet.placement import Offer, Request, place
from fleet.placing import PlaceWish


class CheckName(StrEnum):
    """What is checked, in the order in which it is shown."""

    CREDENTIALS = "credentials"  # the cluster answers as our account
    STORAGE = "storage"  # the copy's both ends answer the mover of the target's site
    CAPACITY = "capacity"  # room now, or when empty
    ENVIRONMENT = "environment"  # its template passes the cluster's own trial
    SPACE = "space"  # the newest checkpoint fits, quota included where the store tells it
    RUN_AS = "run_as"  # the new attempt runs as the job's own user, account and QOS
    OWNER = "owner"  # the copied files belong to that user


class Check(Value):
    """One check and what came of it."""

    name: CheckName
    ok: bool
    why: str
    do: str = ""
    """What mends it; empty where nothing is to be done."""


class Preflight(Value):
    """One cluster as a target for one job."""

    job: str
    cluster: Name
    site: str = ""
    """Site of its storage there; empty where no checkpoint root is named or no site is known."""
    checks: tuple[Check, ...]
    room_now: bool = False
    """It would get its nodes now, not only when the cluster is empty."""
    at: float
    """When it was asked (epoch seconds)."""

    @property
    def ready(self) -> bool:
        """Nothing is known against it."""
        return bool(self.checks) and all(check.ok for check in self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if not check.ok)

    @property
    def text(self) -> str:
        """One line for people."""
        if not self.ready:
            return "; ".join(f"{c.name}: {c.why}" + (f" ({c.do})" if c.do else "") for c in self.failed)
        return "ready" if self.room_now else "ready, but it would wait for nodes now"


class Protected(Value):
    """A job that could be moved, and all that a new attempt of it needs."""

    job: str
    cluster: Name | None = None
    """Where it is now; None while it has no cluster."""
    native_id: str = ""
    wish: PlaceWish
    user: str = ""
    """The user that it runs as where it is now; empty where its cluster knows none."""
    total_steps: int | None = None
    protections: tuple[str, ...] = ()
    """What protects it, in words: who asked for it, what is held, where it may go."""
    targets: tuple[Name, ...] = ()
    """Clusters that it has a template for, without the one where it is."""

    @property
    def checkpoint(self) -> str | None:
        """Its checkpoint root where it is; None where it names none."""
        return parse_tokens(self.wish.comment).checkpoint


class ProvenCheckpoint(Value):
    """The newest checkpoint of a job that was proven complete, where it lies."""

    site: Name
    entry: str
    step: int | None
    size: int
    """Bytes."""
    files: int
    reason: str
    """What proves it."""
    at: float
    """When it was looked at."""


class Readiness(Value):
    """What the last preflight of a job found."""

    job: str
    cluster: Name | None = None
    native_id: str = ""
    protections: tuple[str, ...] = ()
    checkpoint: ProvenCheckpoint | None = None
    note: str = ""
    """Why there is no checkpoint to show, or nothing to check."""
    targets: tuple[Preflight, ...] = ()
    at: float

    @property
    def ready(self) -> bool:
        """At least one other cluster could receive it."""
        return any(target.ready for target in self.targets)


def capacity(request: Request, room: Room, scope: str) -> tuple[Check, bool]:
    """Whether the cluster could hold the job when it is empty, and whether it has room now.

    A quota counts as it is now: what it would leave in an empty cluster no scheduler tells.
    """
    now = place(request, [Offer(cluster=room.cluster, room=room, scope=scope)])
    if now.choice is not None:
        return Check(name=CheckName.CAPACITY, ok=True, why=now.candidates[0].why.partition(";")[0]), True
    emptied = room.model_copy(
        update={"groups": tuple(g.model_copy(update={"free": g.total}) for g in room.groups), "waiting": ()}
    )
    empty = place(request, [Offer(cluster=room.cluster, room=emptied, scope=scope)])
    why = now.candidates[0].why
    if empty.choice is not None:
        return Check(
            name=CheckName.CAPACITY, ok=True, why=f"it could hold the job when it is empty; now {why}"
        ), False
    do = "raise the quota, or let the job name an account with room" if "leaves" in why else "take it out of the job"
    return Check(name=CheckName.CAPACITY, ok=False, why=empty.candidates[0].why, do=do), False


def failed(name: CheckName, why: str, do: str = "") -> Check:
    """A check that did not pass, or could not be made: what cannot be read is never taken for fine."""
    return Check(name=name, ok=False, why=why[:600], do=do)


def passed(name: CheckName, why: str) -> Check:
    return Check(name=name, ok=True, why=why[:600])


def in_order(checks: Iterable[Check]) -> tuple[Check, ...]:
    """As they are shown."""
    order = list(CheckName)
    return tuple(sorted(checks, key=lambda check: order.index(check.name)))
