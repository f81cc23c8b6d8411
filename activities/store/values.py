"""What the history store gives, and what it is told to keep."""

from fleet.model import Value
from fleet.strikes import Inventory, Run, Strike


class SavedSpec(Value):
    """What a job was when it was adopted, for a resubmission or a person."""

    job: str
    cluster: str
    native_id: str
    script: str | None
    spec_text: str
    redacted: bool
    """True: a secret was taken out, so the script is no longer what the user wrote and must not be resubmitted."""
    at: float


class SavedReport(Value):
    """A finished report; `report` is the JSON text of a `fleet.ettr.Report`."""

    subject: str
    kind: str
    report: str
    at: float


class StoreSize(Value):
    """Rows per table, bytes on the disk (indexes and a SQLite file's log included), and the oldest row's time."""

    specs: int
    evidence: int
    reports: int
    verdicts: int
    strikes: int
    runs: int
    samples: int
    inventories: int
    bytes: int
    oldest: float | None = None
    """Epoch seconds; None while the store is empty."""


class Record(Value):
    """What is on the record of nodes and GPUs since a time, oldest first."""

    strikes: tuple[Strike, ...] = ()
    runs: tuple[Run, ...] = ()
    inventories: tuple[Inventory, ...] = ()
    """All of them, whatever their age: they say where a GPU is."""


class Ages(Value):
    """Seconds after which rows are forgotten."""

    evidence: float
    reports: float
    specs: float
    record: float
    """Strikes, runs and samples."""
