"""What a node or a GPU has on its record over weeks: strikes, runs, measured figures, and which GPUs a node held.

A strike is one thing that went wrong at a place, told once whoever saw it. Nothing here judges: `fleet.lemons` counts
strikes, `fleet.baselines` compares figures. Times are epoch seconds.
"""

import hashlib
from collections.abc import Collection, Iterable
from enum import StrEnum

from fleet.decision import DecisionInput
from fleet.faults.evidence import Evidence, FaultClass, Kind
from fleet.model import NativeJob, Phase, Value

DAY = 86400.0
UUID = "GPU-"
"""How NVML's uuid of a GPU begins; any other name of one is an address, which a replacement inherits."""
_DETAILS = {"171", "172"}
"""XIDs that are detail lines of a 48, which counts (NVIDIA Xid catalog)."""


class StrikeKind(StrEnum):
    """What went wrong (the raw material of the seven signals of arXiv 2410.21680)."""

    EXCLUDED = "excluded"  # a user's job rules the node out; `code` is the user
    XID = "xid"  # `code` is its number
    REPAIR = "repair"  # a runbook took the node in hand: the repair ticket
    TAKEN_OUT = "taken_out"  # out of the scheduler: isolated by us, drained by others, or given up as down
    MULTI_NODE_FAIL = "multi_node_fail"  # a job on several nodes ended because of this one
    SINGLE_NODE_FAIL = "single_node_fail"  # a job on this node alone ended because of it: the blame is exact


class Strike(Value):
    """One thing on the record of a node and, where known, of a GPU."""

    kind: StrikeKind
    cluster: str
    node: str
    gpu: str | None = None
    """GPU uuid; None where only the node, or only an address, is known."""
    pci: str | None = None
    """PCI address of the GPU, beside or instead of the uuid."""
    code: str = ""
    job: str | None = None
    at: float
    source: str
    """What makes it one: equal for two reports of one thing."""

    @property
    def key(self) -> str:
        """Equal for two reports of one thing."""
        return _key(self.kind, self.cluster, self.node, self.source)


class Run(Value):
    """A job that ran on one node alone: what the failures on that node are compared with."""

    cluster: str
    node: str
    source: str
    """Native job and its restart count."""
    at: float

    @property
    def key(self) -> str:
        """Equal for two looks at one attempt."""
        return _key("run", self.cluster, self.node, self.source)


class Sample(Value):
    """One measured figure of a node or one of its GPUs."""

    measure: str
    """Name of the figure; its unit belongs to the name."""
    value: float
    cluster: str
    node: str
    gpu: str | None = None
    at: float
    source: str

    @property
    def key(self) -> str:
        """Equal for two reports of one measurement."""
        return _key("sample", self.cluster, self.node, self.source)


class Inventory(Value):
    """All GPUs that answered on a node at one time."""

    cluster: str
    node: str
    gpus: tuple[str, ...]
    """Uuids, sorted."""
    at: float


def strikes_of(evidence: Evidence) -> tuple[Strike, ...]:
    """What the evidence puts on the record of its node; empty for most kinds."""
    kind = {
        Kind.XID: StrikeKind.XID,
        Kind.NODE_DRAINED: StrikeKind.TAKEN_OUT,
        Kind.NODE_DOWN: StrikeKind.TAKEN_OUT,
    }.get(evidence.kind)
    if kind is None or evidence.node is None or (evidence.kind is Kind.XID and evidence.code in _DETAILS):
        return ()
    gpu = evidence.gpu if evidence.gpu is not None and evidence.gpu.startswith(UUID) else None
    return (
        Strike(
            kind=kind,
            cluster=evidence.cluster,
            node=evidence.node,
            gpu=gpu,
            pci=evidence.pci or (evidence.gpu if gpu is None else None),
            code=evidence.code or "",
            job=evidence.job,
            at=_when(evidence),
            source=_told_once(evidence),
        ),
    )


def samples_of(evidence: Evidence) -> tuple[Sample, ...]:
    """The figure that the evidence carries, if it is one."""
    if evidence.kind is not Kind.MEASURED or evidence.node is None or evidence.value is None or not evidence.code:
        return ()
    return (
        Sample(
            measure=evidence.code,
            value=evidence.value,
            cluster=evidence.cluster,
            node=evidence.node,
            gpu=evidence.gpu,
            at=_when(evidence),
            source=evidence.key,
        ),
    )


def our_strike(kind: StrikeKind, cluster: str, node: str, op: str, at: float) -> Strike:
    """What a runbook of ours did to the node; once for each op."""
    return Strike(kind=kind, cluster=cluster, node=node, at=at, source=op)


def failure_strikes(decided: DecisionInput) -> tuple[Strike, ...]:
    """A supervised job's attempt that hardware ended, on the record of the node at fault."""
    attempt, culprit = decided.ledger.last, decided.verdict.culprit
    if attempt is None or decided.want is not None or decided.verdict.fault is not FaultClass.HARDWARE:
        return ()
    if culprit.node is None or culprit.node not in attempt.nodes:
        return ()
    return (
        Strike(
            kind=_fail(len(attempt.nodes)),
            cluster=attempt.cluster,
            node=culprit.node,
            gpu=culprit.gpu if culprit.gpu is not None and culprit.gpu.startswith(UUID) else None,
            code=decided.verdict.rule,
            job=decided.ledger.job,
            at=decided.at,
            source=f"{decided.ledger.job}#{attempt.generation}",
        ),
    )


def job_strikes(jobs: Iterable[NativeJob], down: Collection[str], now: float) -> tuple[Strike, ...]:
    """What jobs without a runbook of ours say of nodes: those that lost one, and those whose users rule one out.

    `down` are the nodes that are given up now: of a job on several, only those are to blame.
    """
    found: list[Strike] = []
    for job in jobs:
        if job.supervised:
            continue
        attempt = f"{job.fingerprint}#{job.restarts}"
        common = {"cluster": job.cluster, "job": job.native_id, "at": now}
        if job.phase is Phase.NODE_LOST:
            blamed = job.nodes if len(job.nodes) == 1 else tuple(n for n in job.nodes if n in down)
            kind = _fail(len(job.nodes))
            found += [Strike(kind=kind, node=node, source=attempt, code="node_lost", **common) for node in blamed]
        elif not job.phase.ended and job.phase is not Phase.ABSENT:
            kind = StrikeKind.EXCLUDED
            found += [Strike(kind=kind, node=n, source=attempt, code=job.user, **common) for n in job.excluded]
    return tuple(found)


def single_runs(jobs: Iterable[NativeJob], now: float) -> tuple[Run, ...]:
    """The attempts that run on one node alone."""
    return tuple(
        Run(cluster=j.cluster, node=j.nodes[0], source=f"{j.fingerprint}#{j.restarts}", at=j.started_at or now)
        for j in jobs
        if j.phase is Phase.RUNNING and len(j.nodes) == 1
    )


def _fail(nodes: int) -> StrikeKind:
    return StrikeKind.SINGLE_NODE_FAIL if nodes == 1 else StrikeKind.MULTI_NODE_FAIL


def _told_once(evidence: Evidence) -> str:
    """Alike for one thing told with and without its boot: the same code at the same place in the same second, or the
    same line without a time on the same day."""
    line = f"{evidence.raw_hash} on day {evidence.seen_at // DAY:.0f}"
    when = line if evidence.happened_at is None else f"{evidence.happened_at:.0f}"
    return f"{evidence.code} {evidence.pci or evidence.gpu} {when}"


def _when(evidence: Evidence) -> float:
    """When it happened, as far as known; never after it was seen, for clocks differ."""
    happened = evidence.happened_at
    return evidence.seen_at if happened is None else min(happened, evidence.seen_at)


def _key(*parts: str) -> str:
    return hashlib.sha256("\x1f".join(parts).encode(errors="surrogatepass")).hexdigest()[:32]
