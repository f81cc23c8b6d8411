"""What a GPU fleet is: clusters, nodes, jobs, attempts, receipts. Values only; nothing here does anything.

Every value is frozen, so that a rule can be replayed on a recorded one and give the same answer.
Times are seconds since the epoch, UTC (`float`), by the clock that is named in the field.
"""

import re
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MARK = "gpu-runbooks"
"""Our ownership mark: Slurm reasons, labels and taints that start with it are ours (DESIGN.md law 5)."""

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}$"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""A cluster's, node's or job's name: no slash (workflow ids use it), no comma (Slurm splits there), no space."""

OpId = Annotated[str, StringConstraints(pattern=r"^[a-z2-7]{7}$")]
"""Seven base32 characters: one incarnation of a runbook, the same in reasons, labels and taints."""


class Value(BaseModel):
    """A frozen value; unknown fields of a newer release are ignored, so that releases can be mixed."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Phase(StrEnum):
    """Where a native job stands, in one vocabulary for every backend."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"  # Slurm's COMPLETING: ranks may still be alive
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"  # a person's stop
    NODE_LOST = "node_lost"  # ended because the scheduler gave a node up; proves nothing about the ranks
    TIMED_OUT = "timed_out"  # the scheduler's time limit
    ABSENT = "absent"  # not in the controller: unknown, never "done" and never "failed"

    @property
    def ended(self) -> bool:
        return self in {Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED, Phase.NODE_LOST, Phase.TIMED_OUT}


class JobTokens(Value):
    """What the researcher declared in the job's comment or labels (`gpu-runbooks.io/...`)."""

    supervise: bool = False
    transfer: bool = False
    job: Name | None = None
    checkpoint: str | None = None
    """Checkpoint root of the job, an absolute path."""
    checkpoint_signal: str | None = None
    """Signal that makes the job save, e.g. USR1; absent means: never signal it (USR1 kills without a handler)."""
    total_steps: int | None = None
    generation_check: bool = False
    """The job's writer refuses to write when a higher generation exists."""
    log: str | None = None
    dumps: str | None = None
    """Folder in which its ranks leave Flight Recorder dumps, an absolute path."""
    epoch: int = 0
    """Of the submission that made this native object (`JobSpec.epoch`), written by us; 0: none was written."""


_LAUNCH_FAILED = ("launchfailedrequeuedheld", "joblaunchfailure")
"""Letters of Slurm's reasons (22.05 to 25.11) for a launch that failed, a prolog's failure among them."""


class NativeJob(Value):
    """A job as its cluster shows it, at one reading."""

    cluster: Name
    native_id: str
    """Slurm JobId, `job/NAMESPACE/NAME` on Kubernetes, sim id. Others may get it later: check `fingerprint` too."""
    uid: str = ""
    """Kubernetes uid of the job's first object; empty where the backend has none."""
    name: str
    key: str | None = None
    """Idempotency key of a submit of ours, else None."""
    user: str = ""
    phase: Phase
    held: bool = False
    reason: str = ""
    restarts: int = 0
    """The backend's restart count; with our epoch it is the fencing token."""
    nodes: tuple[str, ...] = ()
    nodes_wanted: int = 1
    gpus_per_node: int = 0
    excluded: tuple[str, ...] = ()
    """Nodes that its next attempt will not use, by its owner's word or by ours."""
    own_excluded: tuple[str, ...] = ()
    """Those of them that its owner ruled out; an order of ours takes only the others back."""
    required: tuple[str, ...] = ()
    exit_code: int | None = None
    exit_signal: int | None = None
    priority: int | None = None
    submitted_at: float = 0.0
    started_at: float | None = None
    eligible_at: float | None = None
    tokens: JobTokens = JobTokens()
    adopted: bool = False
    """Carries our mark: some runbook supervises it, or did and has not given it back."""
    batch: bool = True
    """False for interactive allocations, which no scheduler can requeue."""
    requeueable: bool = True
    refusal: str = ""
    """Why we could not adopt it, with what its owner changes; empty where nothing is known against it."""
    array_task: str | None = None

    @property
    def supervised(self) -> bool:
        """Its own runbook moves it: it opted in, was submitted by us, or was adopted at a person's word."""
        return self.tokens.supervise or bool(self.key) or self.adopted

    @property
    def fingerprint(self) -> str:
        """Tells two jobs with a reused id apart. Not by submit time: a requeue changes it (measured on Slurm)."""
        return f"{self.native_id}:{self.uid or self.name}"

    @property
    def launch_failed(self) -> bool:
        """It waits because the scheduler could not launch it: its batch script never ran there."""
        words = re.sub(r"[^a-z]+", "", self.reason.lower())
        return self.phase is Phase.PENDING and words.startswith(_LAUNCH_FAILED)


class NodeState(StrEnum):
    UP = "up"
    DRAINING = "draining"  # takes no new work, still has some
    DRAINED = "drained"  # takes no new work and has none
    DOWN = "down"  # the scheduler's opinion; ranks may live
    REBOOTING = "rebooting"
    UNKNOWN = "unknown"


class NodeCondition(Value):
    """What an agent of the node says about it (Kubernetes node conditions, without the kubelet's own)."""

    type: str
    status: str
    """`True`, `False` or `Unknown`; `Unknown` too when its agent has been silent for long."""
    detail: str = ""
    since: float = 0.0
    """When it last changed, by the agent's clock."""


class NodeFacts(Value):
    """A node as its cluster shows it, at one reading."""

    cluster: Name
    node: Name
    state: NodeState
    responding: bool = True
    """The node's daemon answers. False with `DOWN` means: nobody knows what runs there."""
    boot: str = ""
    """Opaque boot identity; two equal strings are the same boot."""
    booted_at: float = 0.0
    """Boot time by the controller's clock; proof of a reboot is a boot that is newer than the request."""
    gpus: int = 0
    gpus_expected: int = 0
    reason: str = ""
    op: str | None = None
    """Op id when the isolation carries our mark, else None."""
    drained: bool = False
    """Carries a drain (or cordon), whoever set it."""
    reserved_by: str | None = None
    """Name of a maintenance reservation over the node."""
    jobs: tuple[str, ...] = ()
    """Native ids the scheduler places on it (running or completing)."""
    conditions: tuple[NodeCondition, ...] = ()
    read_at: float = 0.0

    @property
    def isolated_by_us(self) -> bool:
        return self.drained and self.op is not None

    @property
    def foreign_drain(self) -> bool:
        return self.drained and self.op is None


BOOT_MARGIN = 2.0
"""Seconds by which a boot must be newer: Slurm's BootTime of one boot was seen to differ by 1 s."""


def is_newer(facts: NodeFacts, boot: str, booted_at: float) -> bool:
    """Whether a node shows another and newer boot. Requested is not done; Ready is not rebooted."""
    return bool(facts.boot) and facts.boot != boot and facts.booted_at > booted_at + BOOT_MARGIN


class ReceiptGrade(StrEnum):
    """How we know that the ranks of an attempt are gone from a node, strongest first (DESIGN.md law 3)."""

    POWER_OFF = "power_off"
    BOOT_CHANGED = "boot_changed"
    DAEMON_GONE = "daemon_gone"  # kubelet or slurmd answers and says the process is gone
    ATTESTED = "attested"  # a named person says so
    LEASE_EXPIRED = "lease_expired"


class NodeReceipt(Value):
    """One node's part of a fence receipt."""

    node: Name
    grade: ReceiptGrade
    detail: str
    at: float


class FenceReceipt(Value):
    """Proof that attempt `generation` of a job runs nowhere any more. No receipt, no next attempt."""

    cluster: Name
    native_id: str
    generation: int
    nodes: tuple[NodeReceipt, ...]

    def grade(self) -> ReceiptGrade | None:
        """The weakest part; None when the attempt never held a node."""
        order = list(ReceiptGrade)
        return max((n.grade for n in self.nodes), key=order.index, default=None)


class Progress(Value):
    """The last training step seen from one attempt's own output."""

    step: int | None = None
    first_step: int | None = None
    resumed_from: int | None = None
    saved: int | None = None
    """Step of the newest complete checkpoint that the attempt says it wrote."""
    loss: float | None = None
    total: int | None = None
    seen_at: float | None = None
    first_step_at: float | None = None
    done: bool = False


class NodeGroup(Value):
    """Nodes of one cluster that are alike for a job: one GPU model, one count of GPUs, one topology domain."""

    gpu_model: str = ""
    """As the cluster names it; empty where it does not say."""
    gpus: int = 0
    """Of each node, those that work now."""
    domain: str = ""
    """The switch or block that they hang on; empty where the cluster does not say."""
    free: int = Field(default=0, ge=0)
    """Nodes that nothing runs on and that take work."""
    total: int = Field(default=0, ge=0)


class Quota(Value):
    """What a limit of the cluster still lets one more job have; None: it does not limit that."""

    name: str
    """As its cluster names it, for people."""
    scope: str = ""
    """The namespace or account that it binds; empty: everybody."""
    gpus_left: int | None = None
    nodes_left: int | None = None


class Room(Value):
    """What a placement weighs of one cluster, at one reading."""

    cluster: Name
    groups: tuple[NodeGroup, ...] = ()
    """All nodes, those that are alike counted together."""
    quotas: tuple[Quota, ...] = ()
    waiting: tuple[int, ...] = ()
    """Whole nodes that each job wants which waits for room, the largest first."""
    read_at: float = 0.0


class Capacity(Value):
    """What could start now."""

    cluster: Name
    free_nodes: tuple[str, ...]
    unreported: tuple[str, ...] = ()
    """Nodes of which a controller that has just started knows nothing yet."""
    total_nodes: int
    read_at: float


class CheckResult(Value):
    """What a check run on a node said. `ran` False: the checker itself failed, which is not "sick"."""

    node: Name
    suite: str
    ran: bool
    passed: bool
    gpus: int | None = None
    uuids: tuple[str, ...] = ()
    """Of the GPUs that answered, where the check tells them."""
    detail: str = ""


class ClusterFacts(Value):
    """What a probe found; waits are derived from it and never guessed."""

    cluster: Name
    kind: str
    version: str = ""
    node_down_after: float = 0.0
    """Seconds until the scheduler notices a lost node."""
    stop_takes: float = 0.0
    """Seconds a stop with grace may take."""
    requeue_delay: float = 0.0
    """Seconds the scheduler itself keeps a requeued job waiting."""
    reboot_timeout: float = 300.0
    notes: tuple[str, ...] = ()
    """What the cluster cannot do, for people; nothing here stops a runbook."""


def label_safe(text: str) -> str:
    """Turns any text into a legal name part: every other character becomes a dash."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-._") or "x"


class NodeRef(Value):
    """`CLUSTER/NODE` as people write it."""

    cluster: Name
    node: Name = Field()

    @classmethod
    def parse(cls, text: str) -> "NodeRef":
        """Raises ValueError with what to write instead."""
        cluster, slash, node = text.partition("/")
        if not slash or not re.match(NAME_PATTERN, cluster) or not re.match(NAME_PATTERN, node):
            raise ValueError(f"{text!r} is not CLUSTER/NODE; write e.g. alpha/alpha2")
        return cls(cluster=cluster, node=node)

    def __str__(self) -> str:
        return f"{self.cluster}/{self.node}"
