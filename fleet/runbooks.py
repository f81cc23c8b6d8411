"""What every floor must know of the runbooks: their types, the names of their messages, their inputs and results.

A machine talks by signal, a person by update. Values only; the order of steps is in `workflows/`.
"""

from collections.abc import Mapping
from enum import StrEnum

from fleet.decision import Action, Decision
from fleet.faults.evidence import Evidence, Verdict
from fleet.lease import LeaseKey, SeatSeen
from fleet.ledger import Attempt, Ledger, Span
from fleet.model import FenceReceipt, NativeJob, NodeReceipt, Progress, Value
from fleet.orders import JobSpec
from fleet.people import Outcome, Question
from fleet.placement import Placement
from fleet.placing import PlaceWish
from fleet.transfer import Former, Moves
from fleet.waves import Wave, WaveCount


class Runbook(StrEnum):
    """Workflow types (DESIGN.md section 3)."""

    SUPERVISE = "SuperviseJob"
    RESTART = "RestartInPlace"
    FAILOVER = "FailoverInCluster"
    HEAL = "HealNode"
    ASK = "AskHuman"
    WATCH = "WatchCluster"
    GUARD = "GuardCluster"
    LEMONS = "FindLemons"
    PLACE = "PlaceJob"
    TRANSFER = "FailoverAcrossClusters"
    LEASE = "HoldLease"
    PREFLIGHT = "PreflightTargets"
    REPLICATE = "ReplicateCheckpoints"


REFUSED = "Refused"
"""Type of an update's refusal."""
NOT_ALLOWED = "NotAllowed"
"""The same where it concerns the person: no approver, no signature or a bad one."""


class Signal(StrEnum):
    """Signals, by the name they are registered under."""

    CHANGED = "changed"  # to a job: its native state moved
    EVIDENCE = "evidence"  # to a job or a watch
    RECEIPT = "receipt"  # to a job: a node was proven clean
    REQUEST = "request"  # to a node: heal it, or fence it for a job
    EVACUATED = "evacuated"  # to a node: a job has left it
    WITHDRAWN = "withdrawn"  # to a node: a job waits for its fence no more
    WAVE = "wave"  # to a guard: many nodes failed at once
    JOIN = "join"  # to a lease: a launcher wants a seat


class Update(StrEnum):
    """Updates, by the name they are registered under."""

    ORDER = "order"  # to a job: a person wants a restart or a failover
    ANSWER = "answer"  # to a question
    FREEZE = "freeze"
    UNFREEZE = "unfreeze"
    ACQUIRE = "acquire"
    RELEASE = "release"
    DROP = "drop"  # to a guard: a person takes nodes out of its waves
    REVOKE = "revoke"  # to a lease: no renewal succeeds any more


VIEW = "view"
"""Query of every runbook: what a person sees of it."""

LEASE_STATE = "lease"
"""Query of a lease: its seats (`fleet.lease.LeaseState`)."""
REVOKED_MEMO = "revoked"
"""Memo key of a lease: why it was taken back, or absent. A launcher reads it by `describe`, which needs no worker."""

FINGERPRINT_MEMO = "fingerprint"
"""Memo key of a job's runbook: which native job it supervises. A closed runbook of this very job means hands off,
and a new job of the same name is told apart."""

LEFT_MEMO = "left"
"""Memo key of a job's runbook: fingerprints of its objects in clusters that it has left. They are never taken up."""

FREEZE_MEMO = "freeze"
"""Memo key of a guard: the freeze, or null. Read by `describe`, which needs no worker."""


class SuperviseInput(Value):
    """A job to supervise: already there (`native_id`), to be submitted (`spec`), to be placed (`wish`), or carried
    over (`ledger`)."""

    job: str
    cluster: str
    native_id: str | None = None
    fingerprint: str = ""
    spec: JobSpec | None = None
    wish: PlaceWish | None = None
    """For any cluster; `cluster` is empty until one is chosen."""
    ledger: Ledger | None = None
    native: NativeJob | None = None
    adopted: bool = False
    by: str = "watch"
    story: tuple[str, ...] = ()
    questions: int = 0
    """Questions asked so far: their numbers, and so what was signed for one, are never used again."""
    seen: tuple[str, ...] = ()
    """Keys of evidence that was handled already."""
    left_at: int | None = None
    home: PlaceWish | None = None
    """The job as it was submitted for any cluster, for a move; None: it was submitted for one."""
    epoch: int = 0
    """Of its newest submit; the next one is greater by one."""
    former: tuple[Former, ...] = ()
    """Its objects in clusters that it has left, as long as they are not seen to be over."""


class PlaceInput(Value):
    """A job that has no cluster yet, or leaves one."""

    wish: PlaceWish
    generation: int
    """Of the attempt to come."""
    ask: bool = True
    """A person is asked when no cluster takes it; else it ends with NOT_PLACED and nothing waits anywhere."""


class PlaceEnd(StrEnum):
    """How a placement can end."""

    PLACED = "placed"  # it runs, or ran
    NOT_PLACED = "not_placed"  # it is nowhere, and nothing of it waits anywhere
    LEFT = "left"  # a person took over; the text says what is where
    CANCELLED = "cancelled"


class PlaceResult(Value):
    """How a placement ended. A failure is no exception."""

    ended: PlaceEnd
    text: str
    cluster: str = ""
    """Where it runs."""
    spec: JobSpec | None = None
    """What was submitted there."""
    native: NativeJob | None = None


class EvidenceBatch(Value):
    evidence: tuple[Evidence, ...]


class Order(Value):
    """A person's wish for a job."""

    want: Action
    by: str
    reason: str
    exclude: tuple[str, ...] = ()
    to: str = ""
    """Of a transfer: the cluster; empty: any."""
    valid_until: float | None = None
    """An order that nobody took until then is refused: it may have been told as failed. None = for ever."""


class Accepted(Value):
    text: str


class ReceiptNote(Value):
    """Sent to a job's runbook by a node's."""

    cluster: str
    receipt: NodeReceipt


class RecoveryInput(Value):
    """One recovery of one job: in place or elsewhere in the cluster."""

    job: str
    cluster: str
    op: str
    generation: int
    """Of the attempt to come."""
    native: NativeJob
    old: Attempt
    """The attempt in trouble: its nodes, boots and progress."""
    verdict: Verdict
    decision: Decision
    in_place: bool
    requester: str = ""
    detected_at: float
    decided_from: float
    """When the job's runbook took it up: detection ends and the decision begins."""
    signals_sent: Mapping[str, str] = {}
    wish: PlaceWish | None = None
    """Of a transfer: the job for any cluster."""
    epoch: int = 0
    """Of a transfer: of the submit to come."""
    to: str = ""
    """Of a transfer: the cluster that a person named."""


class RecoveryResult(Value):
    """How a recovery ended. Everything is in the value: a failure is no exception."""

    ended: "RecoveryEnd"
    text: str
    native: NativeJob | None = None
    receipt: FenceReceipt | None = None
    progress: Progress = Progress()
    spans: tuple[Span, ...] = ()
    old_ended_at: float | None = None
    in_place: bool = False
    cluster: str = ""
    """Where the job is now, if it was moved; else empty."""


class RecoveryEnd(StrEnum):
    """How a recovery can end."""

    TRAINING = "training"  # a new step was seen
    JOB_ENDED = "job_ended"  # the job ended by itself meanwhile
    DENIED = "denied"  # a person said no, or nobody answered
    NOT_NEEDED = "not_needed"  # what made it necessary was over before anything was touched
    STUCK = "stuck"  # a step was refused or failed; the text says what state it is in
    GIVEN_UP = "given_up"  # a person (or nobody in time) ended a parked step
    NO_STEP = "no_step"  # it runs, and no new step came in time
    CANCELLED = "cancelled"


class Ending(Value):
    """How a job's or a node's runbook ended."""

    text: str
    """In words, with the state that it left behind."""
    ok: bool
    """It reached what it is for: the job is done, the node is back at work or needed nothing."""


class HealRequestNote(Value):
    """To a node's runbook: why, and which job waits for a fence."""

    evidence: tuple[Evidence, ...] = ()
    verdict: Verdict | None = None
    fence_for: str | None = None
    suspect: bool = False
    """A job was moved away from it without a proven fault of the node: it is checked, not rebooted."""
    by: str = ""


class LemonsInput(Value):
    """The fleet is read anew at each run."""


class PreflightInput(Value):
    """Which jobs; none named: all under supervision."""

    jobs: tuple[str, ...] = ()
    """Also those that are left when a run begins anew."""
    ready: int = 0
    """Jobs so far that could move."""
    unready: int = 0


class ReplicateInput(Value):
    """The jobs are read anew at each run."""

    jobs: tuple[str, ...] = ()
    """Those that are left when a run begins anew."""
    done: int = 0
    """Copies that this run has made so far."""
    failed: int = 0


class HealInput(Value):
    cluster: str
    node: str
    request: HealRequestNote = HealRequestNote()


class Evacuated(Value):
    job: str
    text: str = ""


class AskInput(Value):
    question: Question
    link: str = ""


class WatchInput(Value):
    cluster: str
    routed: int = 0
    seen: tuple[str, ...] = ()
    """Keys of evidence that was taken in already."""
    inbox: tuple[Evidence, ...] = ()
    """Evidence that came while the run before ended."""


class Lease(Value):
    """A node that is out of service by one of our runbooks."""

    node: str
    holder: str
    op: str
    since: float


class Freeze(Value):
    by: str
    reason: str
    at: float


class GuardInput(Value):
    """State of a guard, carried over its restarts."""

    scope: str
    freeze: Freeze | None = None
    leases: tuple[Lease, ...] = ()
    waves: tuple[Wave, ...] = ()
    wave_count: WaveCount = WaveCount()
    waves_taken: int = 0
    """Waves so far: their numbers, and so the marks made of them, are never used again."""
    questions: int = 0


class LeaseWish(Value):
    node: str
    holder: str
    op: str


class LeaseAnswer(Value):
    granted: bool
    why: str = ""
    mark: str = ""
    """Op id of the mark with which a wave has isolated the node already: the holder's from now on."""
    marked_at: float = 0.0


class LeaseInput(Value):
    """A launcher's lease: begun by the first launcher, or by whoever takes it back."""

    key: LeaseKey
    seats: tuple[SeatSeen, ...] = ()
    """Those of an earlier run, when it is taken back after it ended."""


class Revoke(Value):
    why: str = ""


class FreezeOrder(Value):
    by: str
    reason: str


class View(Value):
    """What a person sees of any runbook (`runbook describe`)."""

    workflow: str
    kind: Runbook
    step: str = ""
    waits_for: str = ""
    next: str = ""
    story: tuple[str, ...] = ()
    verdict: Verdict | None = None
    ledger: Ledger | None = None
    question: Question | None = None
    outcome: Outcome | None = None
    freeze: Freeze | None = None
    leases: tuple[Lease, ...] = ()
    wave: WaveCount | None = None
    """Of a guard: its waves under way or the last ones; None when it has had none."""
    op: str = ""
    result: str = ""
    placement: Placement | None = None
    """Of a placement: the last choice, with the reason for each cluster."""
    moves: Moves | None = None
    """Of a job: what says whether it could go to another cluster."""


RecoveryResult.model_rebuild()
