"""What was seen (`Evidence`) and what we make of it (`Verdict`). Pure values."""

import hashlib
from enum import StrEnum

from pydantic import Field

from fleet.model import Value


class Source(StrEnum):
    """Who saw it."""

    KERNEL = "kernel"
    SCHEDULER = "scheduler"
    JOB = "job"
    NODE_AGENT = "node_agent"
    HEALTH_CHECK = "health_check"
    PERSON = "person"


class Kind(StrEnum):
    """What kind of thing was seen."""

    XID = "xid"
    SXID = "sxid"  # a switch's own error line
    GPU_LOST = "gpu_lost"
    NODE_DOWN = "node_down"
    NODE_DRAINED = "node_drained"  # a health check or a person drained it; theirs to undo
    JOB_EXIT = "job_exit"
    JOB_REQUEUED = "job_requeued"
    JOB_STALLED = "job_stalled"
    BAD_RESUME = "bad_resume"
    LOG_TEXT = "log_text"
    CHECK_FAILED = "check_failed"
    NODE_CONDITION = "node_condition"  # Kubernetes: what an agent of the node wrote into its status
    KERNEL_TEXT = "kernel_text"  # a line of the kernel without a GPU's number: network, storage, memory
    GPU_FIELD = "gpu_field"  # a field of NVML or DCGM that is not as it should be
    DCGM_ERROR = "dcgm_error"  # an error of a DCGM diagnostic
    MEASURED = "measured"  # a figure of a test, with its number in `value`
    FLIGHT_RECORD = "flight_record"  # a collective as one rank's Flight Recorder saw it
    HANG = "hang"  # what the dumps of all ranks say together
    FACT = "fact"  # a circumstance that a judgement needs and that is neither good nor bad itself; see `Fact`
    UNREADABLE = "unreadable"


class Fact(StrEnum):
    """Codes of `Kind.FACT`."""

    BOOTED = "booted"  # `node` booted at `happened_at`; that alone makes nothing void, a boot's name does
    GPU_RESET = "gpu_reset"  # a reset of `gpu`, confirmed, at `happened_at`: what was before it is over
    SHM_USED = "shm_used"  # `value` GiB in /dev/shm of `node` belong to no live process
    KNOWN_GOOD = "known_good"  # the program of `job` ran well before, on other GPUs too
    REPLAY_CLEAN = "replay_clean"  # `job` passed the same step with the same data on other nodes
    REPLAY_SAME = "replay_same"  # it failed there in the same way


EARLIER_BOOT = "earlier"
"""Boot identity of a line that a log itself places before the node's present boot."""


class Evidence(Value):
    """One thing seen, by whom, where and when."""

    source: Source
    kind: Kind
    cluster: str
    node: str | None = None
    gpu: str | None = None
    """GPU uuid, or the PCI address when the uuid cannot be had."""
    job: str | None = None
    """Fleet name of the job."""
    code: str | None = None
    """XID number, exit code, signal name or scheduler reason, as text."""
    boot: str | None = None
    """Boot identity at the time it was seen; evidence from before the present boot is void."""
    seen_at: float
    happened_at: float | None = None
    detail: str = Field(default="", max_length=2000)
    raw_hash: str = ""
    pci: str | None = None
    """PCI address of the GPU (`0000:ab:00`), beside the uuid in `gpu` where both are known."""
    stamp: float | None = None
    """Position by the source's own clock: kernel seconds, seconds of a stamp without a zone, or a line number.
    Two of them compare only within one source, node and boot."""
    rank: int | None = None
    """Rank that said it, where the line names one."""
    count: int = 1
    """Lines that said the same within one burst."""
    value: float | None = None
    """Number that was read or measured, in the unit that the code's own row or the detail names."""
    nodes: tuple[str, ...] = ()
    """All nodes of the job's attempt, where known; `node` is the one that the piece is about."""

    @property
    def key(self) -> str:
        """Equal for two reports of one thing."""
        parts = (self.source, self.kind, self.cluster, self.node, self.gpu, self.job, self.code, self.boot)
        happened = f"{self.happened_at:.0f}" if self.happened_at is not None else self.raw_hash
        return hashlib.sha256("\x1f".join([*(str(p) for p in parts), happened]).encode()).hexdigest()[:16]

    @property
    def text(self) -> str:
        """In one line, for a person who is asked: what, where, and what was read."""
        code = f" {self.code}" if self.code else ""
        node = f" on {self.node}" if self.node else ""
        gpu = f" (GPU {self.gpu or self.pci})" if self.gpu or self.pci else ""
        job = f" job {self.job}" if self.job else ""
        times = f" ({self.count} lines)" if self.count > 1 else ""
        return f"{self.source} {self.kind}{code}{node}{gpu}{job}: {self.detail[:200] or 'no detail'}{times}"


class FaultClass(StrEnum):
    """The routing verdict (DESIGN.md section 4)."""

    HARDWARE = "hardware"
    TRANSIENT = "transient"
    USER = "user"
    UNKNOWN = "unknown"
    INFORMATIONAL = "informational"


class Culprit(Value):
    """Who is at fault, as far as known."""

    node: str | None = None
    gpu: str | None = None
    job: str | None = None


class Verdict(Value):
    """An explainable judgement: the same evidence always gives the same one."""

    fault: FaultClass
    culprit: Culprit = Culprit()
    rule: str
    """Id of the catalogue row or rule that decided."""
    title: str = ""
    """One line for a tired person."""
    first_rung: str = "reboot"
    """First node repair rung: none, reset, reboot, power_cycle, person."""
    companions: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    """Other readings and why they were refused."""
    confidence: float = 0.5
    """0 to 1; a rank for people, no probability."""
    elsewhere: bool = False
    """A restart on the same nodes would prove nothing or meet the same trouble: the job is to run on other nodes."""
    catalogue: str = ""
    evidence: tuple[str, ...] = ()
    """Keys of the evidence used."""
    evidence_text: tuple[str, ...] = ()
    """The same in words, for people; empty in a verdict of an older release."""

    @property
    def shown(self) -> tuple[str, ...]:
        """What a question shows of the evidence."""
        return self.evidence_text or self.evidence
