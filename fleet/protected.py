"""What a new attempt of a job needs on another cluster, made of what is known of the job. Pure."""

import re
from collections.abc import Mapping

from fleet.identity import TOKEN_PREFIX, parse_tokens
from fleet.ledger import Ledger
from fleet.model import NativeJob, Value
from fleet.orders import JobSpec
from fleet.placement import Request
from fleet.placing import BATCH, ClusterWords, PlaceWish
from fleet.preflight import Protected

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
    ledger: Ledger | None = None
    remembered: Protected | None = None
    """What an earlier look made of it."""

    @property
    def kind(self) -> str:
        return self.kinds.get(self.cluster, "")


def protected(order: JobOrder, native: NativeJob | None) -> tuple[Protected | None, str]:
    """The job as it could go on elsewhere; None and why, where nothing is known that could be submitted.

    `native` is the job live; None while its cluster does not answer.
    """
    wish = order.wish or _of_spec(order, native) or _of_saved(order, native)
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
    found = Protected(
        job=order.job,
        cluster=order.cluster or None,
        native_id=order.native_id,
        wish=wish,
        user="" if order.kind == "kubernetes" else user,
        total_steps=parse_tokens(wish.comment).total_steps,
        protections=_protections(order, native),
        targets=targets,
    )
    if not targets:
        kinds = " and ".join(sorted(wish.templates))
        return found, f"it has a template for {kinds} only, and no other cluster takes that"
    return found, ""


def _of_spec(order: JobOrder, native: NativeJob | None) -> PlaceWish | None:
    spec = order.spec
    if spec is None or not order.kind:
        return None
    return PlaceWish(
        request=_request(order, native),
        name=spec.name,
        templates={order.kind: spec.script},
        comment=spec.comment,
        workdir=spec.workdir,
        user=spec.user,
    )


def _of_saved(order: JobOrder, native: NativeJob | None) -> PlaceWish | None:
    """An adopted job: the script as its cluster stored it, and what was not in it."""
    if order.script is None or order.redacted or native is None or not order.kind:
        return None
    workdir = _WORKDIR.search(order.spec_text)
    account, qos = accounting(order.spec_text)
    given = tuple(f"--{key}={word}" for key, word in (("account", account), ("qos", qos)) if word)
    alike = [name for name, kind in sorted(order.kinds.items()) if kind == order.kind] if given else []
    return PlaceWish(
        request=_request(order, native),
        name=native.name,
        templates={order.kind: order.script},
        clusters={name: ClusterWords(options=given, scope=account) for name in alike},
        comment=comment_of(native),
        workdir=workdir["path"] if workdir else "/",
        user=native.user if order.kind in BATCH else None,
    )


def accounting(spec_text: str) -> tuple[str, str]:
    """Account and QOS of `scontrol show job`; empty where it has none."""
    found = _ACCOUNTING.search(spec_text)
    words = (found["account"], found["qos"]) if found else ("", "")
    return tuple("" if word in _NOBODY else word for word in words)  # type: ignore[return-value]


def comment_of(native: NativeJob) -> str:
    """Its tokens as they stand in a comment."""
    tokens = native.tokens
    words = [
        ("checkpoint", tokens.checkpoint),
        ("total-steps", tokens.total_steps),
        ("checkpoint-signal", tokens.checkpoint_signal),
        ("generation-check", "yes" if tokens.generation_check else None),
        ("log", tokens.log),
        ("dumps", tokens.dumps),
    ]
    flags = [name for name, given in (("supervise", True), ("transfer", tokens.transfer)) if given]
    said = [f"{key}={value}" for key, value in words if value is not None]
    return " ".join(f"{TOKEN_PREFIX}{word}" for word in (*flags, *said))


def _request(order: JobOrder, native: NativeJob | None) -> Request:
    last = order.ledger.last if order.ledger else None
    nodes = native.nodes_wanted if native is not None else len(last.nodes) if last is not None else 1
    return Request(
        job=order.job, nodes=max(1, nodes), gpus_per_node=native.gpus_per_node if native is not None else 0
    )


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
