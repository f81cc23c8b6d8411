"""Names, inputs, outputs and time limits of every activity. No SDK, no effect: workflows import this file.

`budget` is the time for the whole step with all its retries; when it is spent the runbook parks and asks.
Every activity beats once a second while it runs (`activities/registry.py`), so a dead worker is noticed after
`HEARTBEAT` and a cancel arrives within the worker's throttle. `mutates` steps look at the freeze before they write.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

from fleet.baselines import Baseline
from fleet.decision import Decision, DecisionInput
from fleet.evacuation import EvacuationOrder, EvacuationState
from fleet.faults.evidence import Evidence, Verdict
from fleet.model import CheckResult, FenceReceipt, NativeJob, NodeFacts, NodeReceipt, Progress, Value
from fleet.orders import AdoptedJob, JobSpec, StartOrder, StopProof, StopQuery
from fleet.people import Signer
from fleet.policy import StepMode
from fleet.strikes import Strike

In = TypeVar("In", bound=Value)
Out = TypeVar("Out", bound=Value)


@dataclass(frozen=True)
class Activity(Generic[In, Out]):
    """One activity: its registered name, its one input, its one output and its limits."""

    name: str
    takes: type[In]
    gives: type[Out]
    start_to_close: timedelta
    budget: timedelta
    mutates: bool = False


HEARTBEAT = timedelta(seconds=6)
"""Three beats of the worker's 2 s throttle: how long a worker that died with -9 goes unnoticed."""
SCHEDULE_TO_START = timedelta(minutes=5)
"""A queue that nobody polls for this long is a fault of its own; a worker's restart takes seconds."""


def _s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


# -- inputs and outputs


class Nothing(Value):
    """No answer wanted."""


class OnJob(Value):
    cluster: str
    native_id: str


class OnNode(Value):
    cluster: str
    node: str
    op: str = ""
    text: str = ""


class PowerOn(Value):
    """Power on and wait for a boot that is newer than the one before."""

    cluster: str
    node: str
    op: str
    boot_before: str
    booted_before: float
    timeout: float


class Submit(Value):
    cluster: str
    spec: JobSpec


class Adopt(Value):
    cluster: str
    native_id: str
    job: str


class Checkpoint(Value):
    """Ask for a checkpoint and wait for a newer one, at most `grace` seconds."""

    cluster: str
    native_id: str
    restarts: int
    signal: str
    grace: float
    newer_than: int | None = None


class Stop(Value):
    cluster: str
    native_id: str
    restarts: int
    timeout: float


class Prove(Value):
    """Ask until every node is proven or `patience` seconds are over."""

    cluster: str
    query: StopQuery
    patience: float = 20.0


class Start(Value):
    cluster: str
    order: StartOrder
    receipt: FenceReceipt
    """No receipt, no attempt: the activity checks that it covers every node of the old one."""
    old_nodes: tuple[str, ...]


class WaitRunning(Value):
    cluster: str
    native_id: str
    restarts: int
    """Restart count of the new attempt at least."""
    timeout: float


class WaitStep(Value):
    """Wait for the first step of attempt `restarts` above `resumed` and at most `total`."""

    cluster: str
    native_id: str
    restarts: int
    resumed: int | None
    total: int | None
    timeout: float


class StepSeen(Value):
    progress: Progress
    ok: bool
    why: str = ""


class Reboot(Value):
    cluster: str
    node: str
    op: str
    requested_at: float
    boot_before: str
    booted_before: float
    timeout: float


class Check(Value):
    cluster: str
    node: str
    op: str
    suite: str = "quick"


class Evacuate(Value):
    """One pass over what is on the node beside the supervised jobs."""

    cluster: str
    node: str
    order: EvacuationOrder


class EvidenceIn(Value):
    cluster: str
    evidence: tuple[Evidence, ...] = ()


class Look(Value):
    """The job's live state and the progress of the attempt with this restart count."""

    cluster: str
    native_id: str
    restarts: int


class Looked(Value):
    native: NativeJob
    progress: Progress
    boots: Mapping[str, str] = {}
    """Boot identity of each node that the job holds, read when `with_boots` mattered: while it runs."""


class Gather(Value):
    """Everything the cluster can say about why attempt `restarts` is in trouble."""

    cluster: str
    native_id: str
    job: str
    nodes: tuple[str, ...]
    restarts: int


class Hang(Value):
    """An attempt of a job that may hang, or was ended by a watchdog because it did."""

    cluster: str
    native_id: str
    job: str
    nodes: tuple[str, ...]
    """In the cluster's order."""
    since: float
    """When it began to run (epoch seconds): older dumps are another attempt's."""


class NeedsNodes(Value):
    """Asks how many nodes could take the job, its own ones counted as free."""

    cluster: str
    native_id: str
    exclude: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    wanted: int = 0
    """Fewer than these are believed only from a controller that has heard of all its nodes."""


class FreeNodes(Value):
    free: int


class JobOn(Value):
    """A native job and, when it is supervised, its fleet name."""

    job: NativeJob
    name: str | None


class FindJob(Value):
    """By its fleet name, its native id or its user's name."""

    cluster: str
    job: str


class Found(Value):
    """Empty when the cluster has no such job now; more than one when the name is not unique."""

    jobs: tuple[JobOn, ...] = ()


class Subject(Value):
    """A node (`cluster` and `node`) or a job (its fleet name); `limit` newest things."""

    cluster: str = ""
    node: str | None = None
    job: str | None = None
    limit: int = 50


class StoredReport(Value):
    subject: str
    kind: str
    report: str
    """JSON of a `fleet.report.Report`."""
    at: float


class History(Value):
    """What the store remembers of a subject, newest last."""

    evidence: tuple[Evidence, ...] = ()
    verdict: Verdict | None = None
    reports: tuple[StoredReport, ...] = ()
    strikes: tuple[Strike, ...] = ()
    """Of a node: what is on its record of the last 28 days, oldest first."""
    baselines: tuple[Baseline, ...] = ()
    """Of a node: its figures and its GPUs', beside the fleet's."""


class ClusterView(Value):
    """A cluster as a person lists it."""

    nodes: tuple[NodeFacts, ...]
    jobs: tuple[JobOn, ...]


class Alive(Value):
    """Workflow ids asked about, or those found running."""

    ids: tuple[str, ...]


class PolicyIn(Value):
    cluster: str


class LimitOut(Value):
    nodes_out: int
    """How many nodes of the cluster may be out at a time, by its size today."""


class PolicyOut(Value):
    """What a runbook needs of the policy at one decision, and the policy's hash."""

    modes: Mapping[str, StepMode]
    drain_deadline: float
    question_expiry: float
    stall_after: float
    checkpoint_grace: float
    step_timeout: float
    run_timeout: float
    place_timeout: float = 900.0
    cluster_lost_after: float = 600.0
    settle: float
    budget_resets_per_day: int
    reboot_timeout: float = 900.0
    wave_from: int = 10
    """So many nodes of a cluster with a hardware fault at once are one wave."""
    signers: tuple[Signer, ...] = ()
    has_power: bool = False
    evict_others: bool = False
    """Other people's work on a sick node is asked to leave at once, not only waited for."""
    policy_hash: str = ""

    def mode(self, step: str) -> StepMode:
        """Missing = propose."""
        return self.modes.get(step, StepMode.PROPOSE)


class JudgeIn(Value):
    cluster: str
    evidence: tuple[Evidence, ...]
    job: str | None = None
    node: str | None = None


class Holders(Value):
    jobs: tuple[JobOn, ...]


class LogTail(Value):
    lines: tuple[str, ...]


class LeaseIn(Value):
    cluster: str
    node: str
    holder: str
    """Workflow id of the runbook that asks; the lease lives as long as it runs."""
    op: str


class LeaseOut(Value):
    granted: bool
    why: str = ""
    mark: str = ""
    """Op id of the mark with which a wave has isolated the node already."""
    marked_at: float = 0.0


class HealRequest(Value):
    """A runbook or the watch wants a node healed or only fenced."""

    cluster: str
    node: str
    evidence: tuple[Evidence, ...] = ()
    verdict: Verdict | None = None
    job: str | None = None
    fence: bool = False
    suspect: bool = False
    by: str = ""


class TellJob(Value):
    """A signal to a job's runbook; a runbook that is gone is no error."""

    job: str
    signal: str
    receipt: NodeReceipt | None = None
    cluster: str = ""
    node: str = ""
    text: str = ""
    evidence: tuple[Evidence, ...] = ()


class TellNode(Value):
    cluster: str
    node: str
    job: str
    signal: str
    text: str = ""


class Told(Value):
    delivered: bool


class ReportIn(Value):
    subject: str
    kind: str
    report: str
    """JSON of a `fleet.report.Report`."""


class WatchIn(Value):
    cluster: str
    seconds: float


class WatchOut(Value):
    changes: int


class GiveBackOut(Value):
    lines: tuple[str, ...]


class CheckpointOut(Value):
    saved: int | None
    asked: bool
    why: str = ""


class StopOut(Value):
    job: NativeJob
    ordered: bool
    """True when we stopped it and every node answered before and after."""
    ended_at: float


# -- the activities

READ_JOB = Activity("read_job", OnJob, NativeJob, _s(20), _s(600))
LOOK = Activity("look_at_job", Look, Looked, _s(30), _s(600))
GATHER = Activity("gather_evidence", Gather, EvidenceIn, _s(60), _s(600))
DIAGNOSE_HANG = Activity("diagnose_hang", Hang, EvidenceIn, _s(240), _s(900))
COUNT_FREE = Activity("count_free_nodes", NeedsNodes, FreeNodes, _s(30), _s(600))
READ_NODE = Activity("read_node", OnNode, NodeFacts, _s(20), _s(600))
READ_LOG = Activity("read_log", OnJob, LogTail, _s(20), _s(60))
READ_HOLDERS = Activity("read_holders", OnNode, Holders, _s(20), _s(600))


FIND_JOB = Activity("find_job", FindJob, Found, _s(20), _s(60))
READ_CLUSTER = Activity("read_cluster", PolicyIn, ClusterView, _s(30), _s(60))
READ_HISTORY = Activity("read_history", Subject, History, _s(20), _s(60))

SUBMIT_JOB = Activity("submit_job", Submit, NativeJob, _s(120), _s(900), mutates=True)
ADOPT_JOB = Activity("adopt_job", Adopt, AdoptedJob, _s(60), _s(900), mutates=True)
GIVE_BACK_JOB = Activity("give_back_job", OnJob, NativeJob, _s(60), _s(900))
GIVE_BACK_ALL = Activity("give_back_all", OnNode, GiveBackOut, _s(300), _s(900))
REQUEST_CHECKPOINT = Activity("request_checkpoint", Checkpoint, CheckpointOut, _s(300), _s(400), mutates=True)
STOP_JOB = Activity("stop_job", Stop, StopOut, _s(900), _s(1800), mutates=True)
PROVE_STOPPED = Activity("prove_stopped", Prove, StopProof, _s(180), _s(900))
START_ATTEMPT = Activity("start_attempt", Start, NativeJob, _s(120), _s(900), mutates=True)
WAIT_RUNNING = Activity("wait_running", WaitRunning, NativeJob, timedelta(days=30), timedelta(days=30))
WAIT_STEP = Activity("wait_step", WaitStep, StepSeen, timedelta(days=2), timedelta(days=2))
HOLD_JOB = Activity("hold_job", OnJob, NativeJob, _s(60), _s(900), mutates=True)
CANCEL_JOB = Activity("cancel_job", OnJob, NativeJob, _s(60), _s(900), mutates=True)

ISOLATE_NODE = Activity("isolate_node", OnNode, NodeFacts, _s(60), _s(900), mutates=True)
EVACUATE_NODE = Activity("evacuate_node", Evacuate, EvacuationState, _s(120), _s(900), mutates=True)
RELEASE_NODE = Activity("release_node", OnNode, NodeFacts, _s(120), _s(900), mutates=True)
POWER_OFF = Activity("power_off_node", OnNode, NodeReceipt, _s(180), _s(900), mutates=True)
POWER_ON = Activity("power_on_node", PowerOn, NodeFacts, _s(3600), _s(7200), mutates=True)
REBOOT_NODE = Activity("reboot_node", Reboot, NodeFacts, _s(3600), _s(7200), mutates=True)
CHECK_NODE = Activity("check_node", Check, CheckResult, _s(1800), _s(3600), mutates=True)

RECORD_EVIDENCE = Activity("record_evidence", EvidenceIn, Nothing, _s(20), _s(600))
JUDGE = Activity("judge", JudgeIn, Verdict, _s(20), _s(600))
DECIDE = Activity("decide", DecisionInput, Decision, _s(20), _s(600))
READ_LIMIT = Activity("read_limit", PolicyIn, LimitOut, _s(20), _s(600))
READ_POLICY = Activity("read_policy", PolicyIn, PolicyOut, _s(20), _s(600))
FIND_ALIVE = Activity("find_alive", Alive, Alive, _s(20), _s(600))
ACQUIRE_LEASE = Activity("acquire_lease", LeaseIn, LeaseOut, _s(20), _s(600))
RELEASE_LEASE = Activity("release_lease", LeaseIn, Nothing, _s(20), _s(600))
REQUEST_HEAL = Activity("request_heal", HealRequest, Told, _s(20), _s(600))
TELL_JOB = Activity("tell_job", TellJob, Told, _s(20), _s(600))
TELL_NODE = Activity("tell_node", TellNode, Told, _s(20), _s(600))
SAVE_REPORT = Activity("save_report", ReportIn, Nothing, _s(20), _s(3600))
WATCH = Activity("watch_cluster", WatchIn, WatchOut, timedelta(hours=2), timedelta(hours=3))
WAIT_UNFROZEN = Activity("wait_unfrozen", OnNode, Nothing, timedelta(days=30), timedelta(days=30))

ERROR_FROZEN = "Frozen"
"""Failure type of a mutating step under a freeze; the runbook waits and tries again."""
ERROR_PERMANENT = "Permanent"
ERROR_REFUSED = "Refused"
ERROR_TEMPORARY = "Temporary"
ERROR_AMBIGUOUS = "Ambiguous"
