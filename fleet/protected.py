"""What a new attempt of a job needs on another cluster, made of what is known of the job. Pure."""

import re
from collections.abc import Mapping

from fleet.model import NativeJob, Value
from fleet.orders import JobSpec
from fleet.placing import PlaceWish
from fleet.preflight import Protected
from fleet.transfer import wish_of_native

_ACCOUNTING = re.compile(r"^\s+Priority=\S+ Nice=\S+ Account=(?P<account>\S+) QOS=(?P<qos>\S+)", re.MULTILINE)
_WORKDIR = re.compile(r"^\s+WorkDir=(?P<path>/.*)$", re.MULTILINE)
_NOBODY = {"", "(null)", "N/A"}


class JobOrder(Value):
    """How a job came to be, as far as its runbook and the history store tell."""

    job: str
    cluster: str = ""
    native_id: str = ""
    kinds: Mapping[str, str] = {}
    """Clusters of the policy -> kind."""
    wish: PlaceWish | None = None
    """It was submitted for any cluster."""
    spec: JobSpec | None = None
    """It was submitted by us to one cluster."""
    script: str | None = None
    """Batch script or manifest, as saved at its adoption."""
    spec_text: str = ""
    redacted: bool = False
    """A secret was taken out of what was saved, so it cannot be submitted."""
    remembered: Protected | None = None
    """What an earlier look made of it."""

    @property
    def kind(self) -> str:
        return self.kinds.get(self.cluster, "")


def protected(order: JobOrder, native: NativeJob | None) -> tuple[Protected | None, str]:
    """The job as it could go on elsewhere; None and why, where nothing is known that could be submitted.

    `native` is the job live; None while its cluster does not answer.
    """
    wish = order.wish or _of_order(order, native)
    known = order.remembered
    if wish is None and known is not None:
        wish = known.wish
    if wish is None:
        return None, _why_none(order, native)
    targets = tuple(
        name
        for name, kind in sorted(order.kinds.items())
        if name != order.cluster and not wish.stays_away(name, kind)
    )
    user = native.user if native is not None else known.user if known is not None else wish.user or ""
    root = native.tokens.checkpoint if native is not None else None
    if native is None and known is not None and known.cluster == order.cluster:
        root = known.root
    found = Protected(
        job=order.job,
        cluster=order.cluster or None,
        native_id=order.native_id,
        wish=wish,
        user="" if order.kind == "kubernetes" else user,
        root=root or "",
        total_steps=wish.total_steps,
        protections=_protections(order, native),
        targets=targets,
    )
    if not targets:
        kinds = " and ".join(sorted(wish.templates))
        return found, f"it has a template for {kinds} only, and no other cluster takes that"
    return found, ""


def _of_order(order: JobOrder, native: NativeJob | None) -> PlaceWish | None:
    """A job of one cluster: its script as that cluster stored it, else as it was submitted."""
    if native is None or not order.kind:
        return None
    if order.script is not None and not order.redacted:
        wish = as_saved(order.job, native, order.kind, order.script, order.spec_text)
        return wish.model_copy(update={"workdir": order.spec.workdir}) if order.spec is not None else wish
    if order.spec is None:
        return None
    return wish_of_native(order.job, native, order.kind, order.spec.script, order.spec.workdir)


def as_saved(job: str, native: NativeJob, kind: str, script: str, spec_text: str) -> PlaceWish:
    """A job of one cluster as one for all clusters of its kind, under the account and the QOS that it has.

    `script` and `spec_text` are what was saved at its adoption.
    """
    workdir = _WORKDIR.search(spec_text)
    account, qos = accounting(spec_text)
    wish = wish_of_native(job, native, kind, script, workdir["path"] if workdir else "/")
    given = tuple(f"--{key}={word}" for key, word in (("account", account), ("qos", qos)) if word)
    return wish.model_copy(
        update={"options": (*wish.options, *given), "scopes": {**wish.scopes, **({kind: account} if account else {})}}
    )


def accounting(spec_text: str) -> tuple[str, str]:
    """Account and QOS of `scontrol show job`; empty where it has none."""
    found = _ACCOUNTING.search(spec_text)
    words = (found["account"], found["qos"]) if found else ("", "")
    return tuple("" if word in _NOBODY else word for word in words)  # type: ignore[return-value]


def _protections(order: JobOrder, native: NativeJob | None) -> tuple[str, ...]:
    if native is None:
        return (f"not known while {order.cluster or 'its cluster'} does not answer",)
    tokens = native.tokens
    asked = "its owner asked for supervision" if tokens.supervise else "adopted at a person's word"
    held = "held: no scheduler starts it again by itself" if native.held else "not held: its scheduler may restart it"
    return (
        "submitted by us" if order.wish or order.spec else asked,
        held,
        "may move to another cluster (transfer)" if tokens.transfer else "moves to another cluster only when asked",
        *(["its writer refuses an older generation"] if tokens.generation_check else []),
    )


def _why_none(order: JobOrder, native: NativeJob | None) -> str:
    if order.redacted:
        return "its saved script held a secret, which was taken out; take it out of the script, then submit it again"
    if native is None:
        return f"{order.cluster or 'its cluster'} does not answer, and nothing was saved of it before"
    return "its script could not be read when it was adopted; submit it with `runbook submit`"
