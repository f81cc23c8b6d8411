"""The attempt ledger of a job: every start that we ordered or observed, and where its time went."""

from collections.abc import Mapping
from enum import StrEnum

from fleet.faults.evidence import Evidence, Verdict
from fleet.model import FenceReceipt, NativeJob, Progress, Value


class Rung(StrEnum):
    """How an attempt came to be, from the mildest to the widest."""

    FIRST = "first"
    OBSERVED = "observed"  # a start that somebody else ordered
    IN_PLACE = "in_place"
    IN_CLUSTER = "in_cluster"
    ACROSS_CLUSTERS = "across_clusters"


class Stage(StrEnum):
    """What a recovery spends its time on, in the order of the incident report."""

    DETECT = "detect"
    DECIDE = "decide"
    PERSON = "wait_for_person"
    ISOLATE = "isolate"
    FENCE = "fence"
    STOP = "stop"  # the checkpoint that was asked for, and the stop with grace
    COPY = "copy"
    REQUEUE = "requeue_wait"
    START = "start"
    LOAD = "load"
    FIRST_STEP = "first_new_step"


class Span(Value):
    """One stage of one recovery. `end` is None while it lasts."""

    stage: Stage
    start: float
    end: float | None = None
    note: str = ""


class Attempt(Value):
    """One generation of a job."""

    generation: int
    cluster: str
    native_id: str
    restarts: int
    rung: Rung
    cause: str = ""
    """Rule id of the verdict that led to it."""
    nodes: tuple[str, ...] = ()
    boots: Mapping[str, str] = {}
    ordered_at: float = 0.0
    running_at: float | None = None
    ended_at: float | None = None
    progress: Progress = Progress()
    verdict: Verdict | None = None
    """Why it ended, when it ended badly."""
    receipt: FenceReceipt | None = None
    """Proof that it is gone."""
    spans: tuple[Span, ...] = ()
    """Stages of the recovery that led to it."""
    charge: int = 1
    """What it cost the budget; 2 when it failed within ten minutes of its start."""

    def on_its_node(self, evidence: Evidence) -> bool:
        """Whether it was seen on a node of this attempt, and not before it on an earlier boot of that node."""
        boot = self.boots.get(evidence.node or "")
        before = (evidence.happened_at or evidence.seen_at) < (self.running_at or self.ordered_at)
        return evidence.node in self.nodes and not (before and evidence.boot and boot and evidence.boot != boot)


class Ledger(Value):
    """All attempts of one job, oldest first."""

    job: str
    submitted_at: float
    attempts: tuple[Attempt, ...] = ()
    complete_checkpoint: int | None = None
    """Step of the newest complete checkpoint known; only a newer one resets budgets."""
    reset_at: float | None = None
    resets_today: int = 0
    done_at: float | None = None

    @property
    def generation(self) -> int:
        return self.attempts[-1].generation if self.attempts else 0

    @property
    def last(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    def with_attempt(self, attempt: Attempt) -> "Ledger":
        """Appends it. Raises ValueError unless its generation is the next one."""
        if attempt.generation != self.generation + 1:
            raise ValueError(f"attempt {attempt.generation} cannot follow {self.generation}")
        return self.model_copy(update={"attempts": (*self.attempts, attempt)})

    def with_last(self, **changes: object) -> "Ledger":
        """Replaces fields of the last attempt. Raises ValueError when there is none."""
        if not self.attempts:
            raise ValueError("the ledger has no attempt yet")
        last = self.attempts[-1].model_copy(update=changes)
        return self.model_copy(update={"attempts": (*self.attempts[:-1], last)})


class JobSnapshot(Value):
    """What a decision looks at, beside the ledger."""

    native: NativeJob
    progress: Progress = Progress()
