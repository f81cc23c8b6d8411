"""The fault catalogue: what NVIDIA, Slurm, NCCL and others say about each code, as rows that cite their source.

The data lies in `catalogue/*.csv`. A fleet changes a row in `fleet.yaml` (`overrides`), never in code. Every verdict
carries `Tables.version`, so that an old one can be understood after the table changed.
"""

import csv
import hashlib
import io
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Literal, TypeVar

from pydantic import ConfigDict, Field, ValidationError, field_validator

from fleet.errors import InvalidInputError
from fleet.faults.evidence import FaultClass
from fleet.faults.patterns import safe_pattern
from fleet.model import Value

if TYPE_CHECKING:
    from fleet.faults.overrides import OverrideLike

Rung = Literal["none", "reset", "reboot", "power_cycle", "person"]
RUNGS: tuple[Rung, ...] = ("none", "reset", "reboot", "power_cycle", "person")
"""First repair rungs, from the mildest to the widest."""


class Row(Value):
    """One row. Unknown columns are an error; the source is always named."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    fault: FaultClass = Field(alias="class")
    title: str = Field(min_length=1)
    """What it is, as the middle of a sentence."""
    source: str = Field(min_length=1)
    overridden: str = ""
    """Why this fleet changed the row; empty for the catalogue's own."""


class XidRow(Row):
    """One XID of the driver."""

    xid: int = Field(ge=1, le=9999)
    name: str = Field(min_length=1)
    first_rung: Rung
    gpu_reset_ok: bool
    """A GPU reset can reach the device."""
    scope: Literal["gpu", "node", "fabric", "job", "none"]
    action: str
    """NVIDIA's own bucket for the code."""
    notes: str = ""


class SxidRow(Row):
    """One error code of the NVSwitch."""

    sxid: int
    first_rung: Rung


class RecoveryRow(Row):
    """One value of the driver's recovery action (XID 154)."""

    value: int
    name: str
    first_rung: Rung


class LinkBitRow(Row):
    """One bit of the register words of an XID 74 (NVLink 4 and older)."""

    word: int = Field(ge=1, le=7)
    """Counted from 1, as in NVIDIA's rules."""
    bit: int = Field(ge=0, le=31)
    effect: Literal["own", "peer", "fabric"]
    """`own`: this GPU or its side of the link. `peer`: another device failed. `fabric`: so did it, and all need a
    reset."""
    times: int = Field(ge=1)
    """Errors on one link within a day from which it counts; fewer are the link's bad luck."""
    first_rung: Rung


class LinkEventRow(Row):
    """What an NVLink 5 line (XID 144 to 150) means by its unit and its debug words."""

    units: str = Field(pattern=r"^[A-Z][A-Z0-9_]*( [A-Z][A-Z0-9_]*)*$")
    """Names of the part of the link that reports."""
    read: Literal["bits", "value", "reason", "any"]
    """What `values` are compared with: the bits of the error status (second word), the status as a number, or the
    reason of a lost link (bits 25 to 20 of the first word). `any`: the unit says all."""
    values: str = Field(pattern=r"^[0-9a-f]*( [0-9a-f]+)*$")
    """Hexadecimal, several apart."""
    effect: Literal["own", "peer"]
    first_rung: Rung
    high_rung: Rung
    """Where the bit above the unit's subcode is set: this rung, and hardware; `none` where that bit means nothing."""
    again_rung: Rung
    """For the second time within a day on one GPU."""

    @property
    def numbers(self) -> frozenset[int]:
        return frozenset(int(value, 16) for value in self.values.split())


class ExitRow(Row):
    """One exit code and, where it stands for one, its signal (`-` for none)."""

    code: int
    signal: str
    secondary: bool
    """Never a root: something else ended the process."""
    first_rung: Rung = "none"
    """An exit code repairs no node by itself; a fleet whose platform has codes of its own may say otherwise."""


class PatternRow(Row):
    """One pattern of a log. The first row that matches a line decides."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    pattern: str
    secondary: bool
    first_rung: Rung

    @field_validator("pattern")
    @classmethod
    def _cannot_run_away(cls, text: str) -> str:
        try:
            safe_pattern(text)
        except InvalidInputError as error:
            raise ValueError(str(error)) from error
        return text

    @property
    def compiled(self) -> re.Pattern[str]:
        return safe_pattern(self.pattern)


class TextRow(PatternRow):
    """One pattern of a job's log."""

    where: Literal["line", "exception"]
    """`line`: any line. `exception`: only the last line of a Python traceback."""


class KernelTextRow(PatternRow):
    """One pattern of the kernel's log beside the GPU driver's own lines. Its group `device`, where it has one, names
    what the line is about."""

    mark: str = Field(min_length=3)
    """A part that every matching line has: found fast, before the pattern is tried."""


class DcgmRow(Row):
    """One error of DCGM's diagnostic, or (`severity:N`) what a severity alone means."""

    error: str = Field(pattern=r"^(?:severity:)?[0-9]{1,4}$")
    name: str = Field(pattern=r"^[A-Z][A-Z0-9_]*$")
    """As in `dcgm_errors.h`, without `DCGM_FR_`."""
    severity: Literal["none", "monitor", "isolate", "unknown", "triage", "config", "reset"]
    """DCGM's own; it picks a remedy only, for every failed test is a failed test."""
    category: str
    first_rung: Rung


class FieldRow(Row):
    """One field of a GPU that NVML, DCGM or the exporter reports, and which of its values are bad."""

    field: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    names: str = Field(pattern=r"^[A-Z0-9_&-]+( [A-Z0-9_&-]+)*$")
    """What DCGM and its exporter call it, in several releases: a name, `NAME&MASK` for bits of it, or `MAX-NOW`."""
    bad: str = Field(pattern=r"^[>=][0-9]{1,18}$")
    """`>N` or `=N`."""
    first_rung: Rung

    def is_bad(self, value: float) -> bool:
        """Whether the field says that something is wrong."""
        limit = float(self.bad[1:])
        return value > limit if self.bad[0] == ">" else value == limit


class ReasonRow(Row):
    """One end state or reason of the scheduler, of a job or of a node."""

    applies: Literal["job", "node"]
    reason: str
    secondary: bool
    first_rung: Rung


class ConditionRow(Row):
    """One type of Kubernetes node condition that node agents write. Some are bad when True, some when False."""

    type: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9]*$")
    fault: Literal[FaultClass.HARDWARE, FaultClass.INFORMATIONAL] = Field(alias="class")
    bad: Literal["True", "False"]
    first_rung: Rung


R = TypeVar("R", bound=Row)
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Tables:
    """The whole catalogue. Two with the same `version` give the same verdicts."""

    xid: Mapping[int, XidRow]
    sxid: Mapping[int, SxidRow]
    recovery: Mapping[int, RecoveryRow]
    exits: Mapping[int, ExitRow]
    texts: Mapping[str, TextRow]
    reasons: Mapping[tuple[str, str], ReasonRow]
    conditions: Mapping[str, ConditionRow]
    dcgm: Mapping[str, DcgmRow]
    fields: Mapping[str, FieldRow]
    kernel_texts: Mapping[str, KernelTextRow]
    link_bits: Mapping[tuple[int, int], LinkBitRow]
    link_events: Mapping[tuple[str, str, str], LinkEventRow]
    version: str

    def with_overrides(self, overrides: "Iterable[OverrideLike]") -> "Tables":
        """The catalogue with a fleet's own rows, under another version. Raises InvalidInputError; see `overrides`."""
        from fleet.faults.overrides import overridden  # it builds rows and tables, so it stands above this module

        return overridden(self, overrides)

    def exit(self, code: str) -> ExitRow | None:
        """Row of `137`, `-9`, `SIGKILL` or `signal 9`; None for one that is not in the table."""
        text = code.strip().upper().removeprefix("EXIT").strip(" :")
        for row in self.exits.values():
            if row.signal not in {"", "-"} and text == row.signal:
                return row
        number = re.fullmatch(r"(SIGNAL |-)?\s*(\d{1,5})", text)
        if number is None:
            return None
        return self.exits.get(int(number.group(2)) + (128 if number.group(1) else 0))

    def reason(self, applies: str, text: str) -> ReasonRow | None:
        """Row of a scheduler's reason. A job's matches as a whole, a node's by how a part of it begins."""
        if applies == "job":
            return self.reasons.get(("job", plain(text)))
        parts = [plain(part) for part in re.split(r";| : ", text[:2000])]
        rows = (row for (kind, _), row in self.reasons.items() if kind == "node")
        return next((row for row in rows if any(p.startswith(plain(row.reason)) for p in parts)), None)


def plain(text: str) -> str:
    """A reason without case, blanks and marks: Slurm's tools spell one reason in several ways."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


def worst_rung(*rungs: Rung) -> Rung:
    """The widest of them."""
    return max(rungs, key=RUNGS.index, default="none")


@cache
def load_tables() -> Tables:
    """The catalogue that comes with this release. Raises InvalidInputError with file, line and reason."""
    texts = {name: _read(name) for name in FILES}
    return build_tables(texts)


def build_tables(texts: Mapping[str, str]) -> Tables:
    """The catalogue from the text of its files. Raises InvalidInputError with file, line and reason."""
    return Tables(
        xid=_rows("xid.csv", texts, XidRow, lambda row: row.xid),
        sxid=_rows("sxid.csv", texts, SxidRow, lambda row: row.sxid),
        recovery=_rows("recovery_actions.csv", texts, RecoveryRow, lambda row: row.value),
        exits=_rows("exit_codes.csv", texts, ExitRow, lambda row: row.code),
        texts=_rows("log_text.csv", texts, TextRow, lambda row: row.id),
        reasons=_rows("scheduler_reasons.csv", texts, ReasonRow, lambda row: (row.applies, plain(row.reason))),
        conditions=_rows("node_conditions.csv", texts, ConditionRow, lambda row: row.type),
        dcgm=_rows("dcgm_errors.csv", texts, DcgmRow, lambda row: row.error),
        fields=_rows("gpu_fields.csv", texts, FieldRow, lambda row: row.field),
        kernel_texts=_rows("kernel_text.csv", texts, KernelTextRow, lambda row: row.id),
        link_bits=_rows("nvlink_bits.csv", texts, LinkBitRow, lambda row: (row.word, row.bit)),
        link_events=_rows("nvlink_events.csv", texts, LinkEventRow, lambda row: (row.units, row.read, row.values)),
        version=digest(*(texts[name] for name in FILES)),
    )


FILES = (
    "xid.csv",
    "sxid.csv",
    "recovery_actions.csv",
    "exit_codes.csv",
    "log_text.csv",
    "scheduler_reasons.csv",
    "node_conditions.csv",
    "dcgm_errors.csv",
    "gpu_fields.csv",
    "kernel_text.csv",
    "nvlink_bits.csv",
    "nvlink_events.csv",
)
"""The catalogue's files, in the order in which its version counts them."""


def _read(name: str) -> str:
    return resources.files("fleet.faults").joinpath("catalogue", name).read_text(encoding="utf-8")


def digest(*texts: str) -> str:
    """Version of a catalogue with these texts."""
    return hashlib.sha256("\x1f".join(texts).encode()).hexdigest()[:12]


def _rows(name: str, texts: Mapping[str, str], model: type[R], key: Callable[[R], K]) -> Mapping[K, R]:
    rows: dict[K, R] = {}
    reader = csv.DictReader(io.StringIO(texts[name]))
    for raw in reader:
        where = f"{name}, line {reader.line_num}"
        try:
            row = model.model_validate(raw)
            if row.overridden:
                raise InvalidInputError(f"{where}: overridden: only a fleet's own row has it")
        except ValidationError as error:
            first = error.errors()[0]
            raise InvalidInputError(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        if key(row) in rows:
            raise InvalidInputError(f"{where}: {key(row)} stands twice; keep one row")
        rows[key(row)] = row
    if not rows:
        raise InvalidInputError(f"{name}: no rows; the catalogue is incomplete, install the release again")
    return rows
