"""Whether a cluster could receive a job: what is checked, what came of it, and what to do. Values and judgement only.

`workflows/preflight.py: preflight_target` asks the cluster and its storage and puts the answers together here.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from fleet.model import Name, Room, Value
from fleet.orders import JobSpec
from fleet.placement import Offer, Request, place
from fleet.placing import PlaceWish

_KEY = r"""["']?{}["']?\s*:\s*["']?([^\s"',}}]+)"""
_RUN_AS_USER = re.compile(_KEY.format("runAsUser"))
_FS_GROUP = re.compile(_KEY.format("(?:fsGroup|runAsGroup)"))
_SERVICE_ACCOUNT = re.compile(_KEY.format("serviceAccountName"))
_IMAGE = re.compile(_KEY.format("image") + r"|--container-image[= ](\S+)")
_MODULE = re.compile(r"^\s*(?:module\s+(?:load|add)|ml)\s+([^#;&|\n]+)", re.MULTILINE)
_ACCOUNTING = {
    "account": re.compile(r"(?:--account[= ]|-A ?)(\S+)"),
    "QOS": re.compile(r"(?:--qos[= ]|-q ?)(\S+)"),
}


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
    owner: str = ""
    """To whom copied files must belong there: a user, or `UID[:GID]`; empty: nobody says."""
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
    root: str = ""
    """Its checkpoint root where it is now, as its cluster shows it; empty: as it was submitted."""
    total_steps: int | None = None
    protections: tuple[str, ...] = ()
    """What protects it, in words: who asked for it, what is held, where it may go."""
    targets: tuple[Name, ...] = ()
    """Clusters that it has a template for, without the one where it is."""

    @property
    def checkpoint(self) -> str | None:
        """Its checkpoint root where it is; None where it names none."""
        return self.root or self.wish.roots.get(self.cluster or "") or self.wish.checkpoint


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


class NewUser(NamedTuple):
    """Who a new attempt would run as."""

    check: Check
    owner: str
    """To whom its files must belong: a user, or `UID[:GID]`; empty where nobody says."""


def run_as(spec: JobSpec, kind: str, own: str, me: str) -> NewUser:
    """Who the new attempt would be there. `own`: the job's user where it is now, empty where that says nothing there
    (a Kubernetes namespace has none); `me`: the account of the cluster's worker, which a batch job without a user
    runs as."""
    if kind == "kubernetes":
        uid, gid = _first(_RUN_AS_USER, spec.script), _first(_FS_GROUP, spec.script)
        account = _first(_SERVICE_ACCOUNT, spec.script) or "default"
        who = f"user {uid}" if uid else "the image's user"
        owner = f"{uid}:{gid}" if uid and gid else uid
        return NewUser(passed(CheckName.RUN_AS, f"its pods run as {who}, service account {account}"), owner)
    user = spec.user or (own if kind == "sim" else me)
    if own and user != own:
        why = f"it runs as {own} now, and would run as {user}"
        return NewUser(failed(CheckName.RUN_AS, why, f"submit it with `user: {own}`"), own)
    words = " ".join((*spec.options, *(line for line in spec.script.splitlines() if line.startswith("#"))))
    named = [f"{what} {found}" for what, how in _ACCOUNTING.items() if (found := _first(how, words))]
    return NewUser(passed(CheckName.RUN_AS, f"as {', '.join([user or 'its own user', *named])}"), user)


def cannot_become(user: str, me: str, *, root: bool, known: bool) -> Check | None:
    """Why the worker of a batch cluster cannot submit as `user`; None when it can. Its scheduler lets only root do
    it for somebody else."""
    if not user or user == me:
        return None
    if not known:
        return failed(CheckName.RUN_AS, f"the cluster's worker knows no user {user}", f"make {user} known there")
    if not root:
        do = f"run the worker there as root or as {user}"
        return failed(CheckName.RUN_AS, f"the cluster's worker is {me} and cannot submit as {user}", do)
    return None


def named_in(template: str) -> str:
    """Images and modules that a batch script or manifest names; whether they are there only its nodes can tell."""
    images = sorted({name for pair in _IMAGE.findall(template) for name in pair if name})
    modules = sorted({word for line in _MODULE.findall(template) for word in line.split()})
    found = (("image", images), ("module", modules))
    return "; ".join(f"it names the {what} {', '.join(names)[:200]}" for what, names in found if names)


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""


def failed(name: CheckName, why: str, do: str = "") -> Check:
    """A check that did not pass, or could not be made: what cannot be read is never taken for fine."""
    return Check(name=name, ok=False, why=why[:600], do=do)


def passed(name: CheckName, why: str) -> Check:
    return Check(name=name, ok=True, why=why[:600])


def in_order(checks: Iterable[Check]) -> tuple[Check, ...]:
    """As they are shown."""
    order = list(CheckName)
    return tuple(sorted(checks, key=lambda check: order.index(check.name)))
