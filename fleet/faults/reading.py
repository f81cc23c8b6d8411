"""What one piece of evidence means, taken alone: the value, the order of strength, and how it is put in words."""

from dataclasses import dataclass
from enum import IntEnum

from fleet.faults.evidence import Culprit, Evidence, FaultClass, Kind
from fleet.faults.tables import Row, Rung
from fleet.faults.xid_text import mig_instance


class Tier(IntEnum):
    """Order of evidence, strongest first (fault taxonomy, section 2)."""

    GPU_GONE = 1
    RECOVERY = 2
    MEMORY = 3
    SWITCH = 4
    LINK = 5
    FIRMWARE = 6
    OTHER_HARDWARE = 7
    NODE = 8
    TEXT_HARDWARE = 9
    CONTAINED = 10
    UNREAD = 11  # an XID that nobody knows, a kernel line that cannot be read: forbids the verdict "user"
    TRANSIENT = 12
    RECORD = 13  # out of host memory, the time limit
    BAD_RESUME = 14
    USER = 15
    APP_XID = 16
    UNKNOWN = 17
    BARE_EXIT = 18
    SECONDARY = 19  # never a root
    INFORMATIONAL = 20


NOBODY = Culprit()


@dataclass(frozen=True, eq=False)
class Reading:
    """What one piece of evidence means by itself. Compared by identity: a judgement may hold thousands."""

    evidence: Evidence
    tier: Tier
    fault: FaultClass
    rule: str
    what: str
    """Names it: `XID 79`, `a failed check`."""
    phrase: str
    """Says it: `the GPU has fallen off the bus`."""
    first_rung: Rung = "none"
    confidence: float = 0.5
    culprit: Culprit = NOBODY
    minor: int = 0
    """Order within the tier; a detail of another line stands behind it."""
    notes: tuple[str, ...] = ()
    elsewhere: bool = False
    """The job is to run on other nodes."""

    @property
    def short(self) -> str:
        return self.what + where(self.evidence)


def where(e: Evidence) -> str:
    """` on alpha2 (GPU 0000:ab:00)`, as far as known."""
    instance = mig_instance(e.detail) if e.kind is Kind.XID else None
    gpu = f" (GPU {e.gpu}{f', MIG instance {instance}' if instance else ''})" if e.gpu else ""
    return (f" on {e.node}" if e.node else "") + gpu


def blamed(e: Evidence, fault: FaultClass) -> Culprit:
    """Whom a fault of this class points at."""
    if fault is FaultClass.HARDWARE:
        return Culprit(node=e.node, gpu=e.gpu)
    if fault is FaultClass.USER:
        return Culprit(job=e.job)
    return Culprit(node=e.node, gpu=e.gpu, job=e.job)


def own_words(row: Row | None) -> tuple[str, ...]:
    """Why this fleet changed the row, as a note of the verdict."""
    return (f"this fleet's own row: {row.overridden}",) if row is not None and row.overridden else ()


def informational(e: Evidence, rule: str, what: str, phrase: str) -> Reading:
    """A record: no action follows from it."""
    culprit = Culprit(node=e.node)
    return Reading(
        e, Tier.INFORMATIONAL, FaultClass.INFORMATIONAL, rule, what, phrase, confidence=0.8, culprit=culprit
    )
