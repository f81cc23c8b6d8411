"""What `-o json` prints. The keys are a promise: they are only ever added to (tests/clients/test_shapes.py).

Times are seconds since the epoch, UTC, as in every value of ours; the tables show ages.
"""

from collections.abc import Mapping

from fleet.baselines import Baseline
from fleet.faults.evidence import Evidence, Verdict
from fleet.model import Value
from fleet.people import Choice, Question
from fleet.placement import Candidate
from fleet.plans import PlannedStep
from fleet.preflight import Readiness
from fleet.runbooks import View


class RunRow(Value):
    """One runbook of `runbook list`."""

    id: str
    kind: str
    """job, place, restart, failover, node, ask, watch, guard, lemons, preflight or replicas."""
    status: str
    """running, completed, failed, cancelled, terminated or timed_out."""
    cluster: str = ""
    job: str = ""
    node: str = ""
    step: str = ""
    fault: str = ""
    needs_human: bool = False
    started_at: float
    ended_at: float | None = None


class Description(Value):
    """`runbook describe`. `view` is None when no worker can answer; `note` then says why."""

    run: RunRow | None
    view: View | None = None
    note: str = ""
    ui: str = ""
    remembered: "Remembered | None" = None
    readiness: Readiness | None = None
    """Of a job: what protects it, its newest proven checkpoint, and the last preflight of each other cluster."""


class Remembered(Value):
    """What the history store knows of a subject, newest last."""

    evidence: tuple[Evidence, ...] = ()
    verdict: Verdict | None = None
    reports: tuple[str, ...] = ()
    """Kinds of the stored reports."""


class Started(Value):
    """A runbook that was started, or told something."""

    id: str
    state: str
    """started, ordered, cancelled, frozen, unfrozen, sent ..."""
    text: str = ""
    ui: str = ""


class Ended(Value):
    """How a runbook ended that was waited for."""

    id: str
    status: str
    ok: bool
    result: str = ""


class OpenQuestion(Value):
    """A question as it is listed and shown."""

    id: str
    subject: str
    title: str
    why: str
    plan_hash: str
    steps: tuple[str, ...]
    evidence: tuple[str, ...] = ()
    options: tuple[Choice, ...]
    default: Choice
    asked_at: float
    expires_at: float
    approvers: tuple[str, ...] = ()
    """Empty: no signature can be checked; only the embedded server takes such an answer."""

    @classmethod
    def of(cls, question: Question) -> "OpenQuestion":
        return cls(
            id=question.id,
            subject=question.plan.subject,
            title=question.plan.title,
            why=question.why,
            plan_hash=question.plan.digest,
            steps=question.plan.steps,
            evidence=question.evidence,
            options=question.options,
            default=question.default,
            asked_at=question.asked_at,
            expires_at=question.expires_at,
            approvers=tuple(s.name for s in question.signers),
        )


class DryRun(Value):
    """What would be done, by the same code that would do it. Nothing was changed."""

    id: str
    """Workflow id of the runbook that would act."""
    action: str
    why: str
    mode: str
    when: str
    """`at once`, `after an approval`, `never`; under a freeze `after the unfreeze`, `after an approval and the
    unfreeze`."""
    exclude: tuple[str, ...] = ()
    delay: float = 0.0
    tries_left: int | None = None
    policy_hash: str = ""
    steps: tuple[PlannedStep, ...] = ()
    notes: tuple[str, ...] = ()


class LemonRow(Value):
    """One node or GPU of `runbook lemons`."""

    subject: str
    """CLUSTER/NODE, or the GPU's uuid."""
    cluster: str
    node: str
    """Itself, or where the GPU is now."""
    gpu: str | None = None
    score: float
    strikes: int
    """On its record in the last 28 days."""
    last_at: float
    text: str
    """Which signals stand out, by how much, and what was not counted."""
    out: bool
    """The node takes no work now."""
    answer: str = ""
    """What a person said about just this record."""


class PlacementPlan(Value):
    """`submit JOB.yaml --dry-run`: the cluster that would be tried first, and the reason for each one."""

    id: str
    job: str
    choice: str | None
    """None: no cluster can take it now; the runbook would ask a person."""
    why: str
    candidates: tuple[Candidate, ...]
    """In the order in which they would be tried, then those that cannot take it."""
    start_within: float | None = None
    """Seconds; None: `limits.place_timeout` of the policy."""


class EvidenceSent(Value):
    """`runbook evidence`."""

    id: str
    cluster: str
    node: str
    sent: int
    lines: int
    dropped: dict[str, int]


class Why(Value):
    """`runbook why`: the verdict on a node, and from what."""

    cluster: str
    node: str
    source: str
    """`runbook` (under way or ended, still in Temporal), `store`, or `nothing`."""
    step: str = ""
    result: str = ""
    """How its runbook ended; empty while one is under way, and where Temporal knows none."""
    ended_at: float | None = None
    verdict: Verdict | None = None
    evidence: tuple[Evidence, ...] = ()
    strikes: Mapping[str, int] = {}
    """What is on its record of the last 28 days, by kind."""
    baselines: tuple[Baseline, ...] = ()
    """Its figures and its GPUs', beside their past and the fleet's."""


class GivenBack(Value):
    """`runbook release`."""

    subject: str
    cancelled: tuple[str, ...] = ()
    """Runbooks that were cancelled for it."""
    lines: tuple[str, ...] = ()
    """What was given back, in words."""
    failed: tuple[str, ...] = ()
    changed: bool = True


class LogLines(Value):
    job: str
    cluster: str
    native_id: str
    lines: tuple[str, ...]


Description.model_rebuild()
