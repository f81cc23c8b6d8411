"""Catalogue rows that a fleet changes, or adds, in `fleet.yaml`."""

from collections import Counter
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from fleet.faults.evidence import FaultClass
from fleet.policy_types import Strict


class FirstRung(StrEnum):
    """First repair rung of a node, from the mildest to a person."""

    NONE = "none"
    RESET = "reset"
    REBOOT = "reboot"
    POWER_CYCLE = "power_cycle"
    PERSON = "person"


RowId = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,60}$")]
RowType = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9]{0,120}$")]
ReasonText = Annotated[str, StringConstraints(strip_whitespace=True, min_length=2, max_length=120)]
ROW_KINDS = (
    "xid",
    "sxid",
    "recovery_action",
    "dcgm_error",
    "gpu_field",
    "exit_code",
    "log_text",
    "kernel_text",
    "job_reason",
    "node_reason",
    "node_condition",
)
"""Keys that name a row of the catalogue."""


class Override(Strict):
    """One catalogue row, changed for this fleet, or a row of its own; one of the first eleven keys names it."""

    xid: int | None = Field(default=None, ge=1, le=9999)
    """XID number of the row; one that the catalogue lacks is added."""
    sxid: int | None = Field(default=None, ge=1, le=999_999)
    """Number of an NVSwitch error; one that the catalogue lacks is added."""
    recovery_action: int | None = Field(default=None, ge=0, le=99)
    """Value of the driver's recovery action (XID 154, NVML)."""
    dcgm_error: int | None = Field(default=None, ge=0, le=9999)
    """Number of an error of DCGM's diagnostic."""
    gpu_field: RowId | None = None
    """Name of a GPU field's row (`ecc_uncorrectable`)."""
    exit_code: int | None = Field(default=None, ge=0, le=255)
    """Exit code of a process; one that the catalogue lacks is added (platforms have codes of their own)."""
    log_text: RowId | None = None
    """Id of a pattern of the job's log; with `pattern`, a new one, which is tried before the catalogue's."""
    kernel_text: RowId | None = None
    """Id of a pattern of the kernel's log."""
    job_reason: ReasonText | None = None
    """End state or reason of a job, of Slurm or Kubernetes; one that the catalogue lacks is added."""
    node_reason: ReasonText | None = None
    """Beginning of a node's reason in Slurm; one that the catalogue lacks is added."""
    node_condition: RowType | None = None
    """Type of a Kubernetes node condition; one that the catalogue lacks is added and is bad when True."""
    pattern: Annotated[str, StringConstraints(min_length=1, max_length=500)] | None = None
    """Regular expression of `log_text` or `kernel_text`. One that can run away (a repeat inside a repeat, too many
    open repeats) is refused."""
    fault: FaultClass | None = Field(default=None, alias="class")
    """hardware, transient, user, unknown or informational; absent = as in the catalogue."""
    first_rung: FirstRung | None = None
    """First repair rung: none, reset, reboot, power_cycle or person; absent = as in the catalogue."""
    why: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500)]
    """Reason, shown with every verdict that uses the row. No default: whoever is woken wants it."""

    @property
    def row(self) -> tuple[str, str | int]:
        """Kind and key of the row."""
        return next((kind, key) for kind in ROW_KINDS if (key := getattr(self, kind)) is not None)

    @model_validator(mode="after")
    def _changes_one_row(self) -> Self:
        named = [kind for kind in ROW_KINDS if getattr(self, kind) is not None]
        if len(named) != 1:
            raise ValueError(f"give exactly one of {', '.join(ROW_KINDS)}" + (f", not {len(named)}" if named else ""))
        if self.fault is None and self.first_rung is None and self.pattern is None:
            raise ValueError("give class or first_rung, else it changes nothing")
        return self


def different_rows(overrides: tuple[Override, ...]) -> tuple[Override, ...]:
    """Each row once. Raises ValueError."""
    twice = [row for row, count in Counter(o.row for o in overrides).items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0][0]} {twice[0][1]} is given twice; keep one")
    return overrides
