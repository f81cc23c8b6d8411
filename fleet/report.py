"""The story of one incident or job as a value, and as plain aligned text for a terminal or a mail."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from fleet.ettr import Bucket, buckets, ettr, steps_lost
from fleet.identity import job_workflow_id
from fleet.ledger import Attempt, Ledger, Rung, Stage
from fleet.model import ReceiptGrade, Value

HOUR = 3600.0
"""Seconds; the sliding window of the second ETTR (ByteRobust)."""


class AttemptRow(Value):
    """One attempt as the report shows it."""

    generation: int
    cluster: str
    native_id: str
    rung: Rung
    cause: str = ""
    nodes: tuple[str, ...] = ()
    ordered_at: float
    queued: float | None = None
    """Seconds from the order to running; None when it never ran."""
    ran: float | None = None
    """Seconds from running to its end or now."""
    resumed_from: int | None = None
    last_step: int | None = None
    ended_by: str = ""
    """Title or rule of the verdict, empty while it runs and when it ended well."""
    proof: ReceiptGrade | None = None
    """Weakest part of its fence receipt."""


class StageRow(Value):
    """One stage of the recovery that led to attempt `generation`."""

    generation: int
    stage: Stage
    at: float
    seconds: float | None
    """None while it lasts."""
    note: str = ""


class Report(Value):
    """What is kept and shown of a runbook's subject. Times are epoch seconds, durations seconds."""

    kind: str
    """`job`, or the kind of another subject."""
    subject: str
    """Workflow id."""
    job: str | None = None
    cluster: str = ""
    started_at: float
    ended_at: float | None = None
    """None while it goes on."""
    made_at: float
    title: str = ""
    """The last verdict in one line."""
    rule: str = ""
    attempts: tuple[AttemptRow, ...] = ()
    timeline: tuple[StageRow, ...] = ()
    buckets: Mapping[Bucket, float] = {}
    ettr: float | None = None
    ettr_hour: float | None = None
    steps_lost: int = 0
    lines: tuple[str, ...] = ()
    """The runbook's own story, oldest first."""


def job_report(ledger: Ledger, now: float, story: tuple[str, ...] = ()) -> Report:
    """The report of a job at `now`, finished or not."""
    verdict = next((a.verdict for a in reversed(ledger.attempts) if a.verdict is not None), None)
    end = now if ledger.done_at is None else ledger.done_at
    return Report(
        kind="job",
        subject=job_workflow_id(ledger.job),
        job=ledger.job,
        cluster=ledger.last.cluster if ledger.last else "",
        started_at=ledger.submitted_at,
        ended_at=ledger.done_at,
        made_at=now,
        title=verdict.title if verdict else "",
        rule=verdict.rule if verdict else "",
        attempts=tuple(_attempt_row(a, end) for a in ledger.attempts),
        timeline=tuple(_timeline(ledger.attempts)),
        buckets=buckets(ledger, now),
        ettr=ettr(ledger, now),
        ettr_hour=ettr(ledger, now, since=end - HOUR),
        steps_lost=steps_lost(ledger),
        lines=story,
    )


def _attempt_row(attempt: Attempt, end: float) -> AttemptRow:
    running = attempt.running_at
    until = end if attempt.ended_at is None else attempt.ended_at
    return AttemptRow(
        generation=attempt.generation,
        cluster=attempt.cluster,
        native_id=attempt.native_id,
        rung=attempt.rung,
        cause=attempt.cause,
        nodes=attempt.nodes,
        ordered_at=attempt.ordered_at,
        queued=None if running is None or not attempt.ordered_at else max(0.0, running - attempt.ordered_at),
        ran=None if running is None else max(0.0, until - running),
        resumed_from=attempt.progress.resumed_from,
        last_step=attempt.progress.step,
        ended_by=(attempt.verdict.title or attempt.verdict.rule) if attempt.verdict else "",
        proof=attempt.receipt.grade() if attempt.receipt else None,
    )


def _timeline(attempts: Iterable[Attempt]) -> Iterable[StageRow]:
    for attempt in attempts:
        for span in sorted(attempt.spans, key=lambda s: s.start):
            seconds = None if span.end is None else max(0.0, span.end - span.start)
            yield StageRow(
                generation=attempt.generation, stage=span.stage, at=span.start, seconds=seconds, note=span.note
            )


# -- text


def render_text(report: Report) -> str:
    """Aligned plain text. Control characters of foreign texts are taken out, so a log line cannot move a terminal."""
    parts = [_head(report)]
    if report.attempts:
        parts.append(_section("Attempts", _attempts(report.attempts)))
    if report.timeline:
        parts.append(_section("Recovery, stage by stage", _stages(report.timeline)))
    if report.buckets:
        parts.append(_section("Where the time went", _shares(report.buckets)))
    if report.lines:
        parts.append(_section("Story", [_clean(line) for line in report.lines]))
    return "\n\n".join(parts) + "\n"


def _head(report: Report) -> str:
    end = report.made_at if report.ended_at is None else report.ended_at
    state = "still going on" if report.ended_at is None else f"until {moment(report.ended_at)}"
    rows = [("subject", report.subject)]
    if report.cluster:
        rows.append(("cluster", report.cluster))
    if report.rule:
        rows.append(("cause", f"{report.title} ({report.rule})" if report.title else report.rule))
    rows.append(("time", f"{moment(report.started_at)}, {state}, {lasting(max(0.0, end - report.started_at))}"))
    if report.ettr is not None:
        hour = "" if report.ettr_hour is None else f", over the last hour {report.ettr_hour:.3f}"
        rows.append(("ETTR", f"{report.ettr:.3f}{hour}"))
    if report.kind == "job":
        rows.append(("steps lost", str(report.steps_lost)))
    return "\n".join(["Report", *_table(rows)])


def _attempts(rows: Sequence[AttemptRow]) -> list[str]:
    head = ("#", "how", "cluster", "nodes", "steps", "queued", "ran", "ended by", "proof it is gone")
    return _table([head, *(_attempt_cells(r) for r in rows)])


def _attempt_cells(row: AttemptRow) -> tuple[str, ...]:
    nodes = ",".join(row.nodes[:4]) + (f" and {len(row.nodes) - 4} more" if len(row.nodes) > 4 else "")
    first = "?" if row.resumed_from is None else str(row.resumed_from)
    return (
        str(row.generation),
        row.rung.value.replace("_", " "),
        row.cluster,
        nodes or "-",
        "-" if row.last_step is None else f"{first} to {row.last_step}",
        lasting(row.queued),
        lasting(row.ran),
        row.ended_by or "-",
        row.proof.value.replace("_", " ") if row.proof else "-",
    )


def _stages(rows: Sequence[StageRow]) -> list[str]:
    cells = [("attempt", "stage", "at", "took", "")]
    for row in rows:
        took = "lasts" if row.seconds is None else lasting(row.seconds)
        cells.append((str(row.generation), row.stage.value.replace("_", " "), moment(row.at), took, row.note))
    return _table(cells)


def _shares(shares: Mapping[Bucket, float]) -> list[str]:
    """Buckets that hold something, in their order, and the sum."""
    whole = sum(shares.values())
    cells = [("bucket", "time", "share")]
    for bucket in Bucket:
        seconds = shares.get(bucket, 0.0)
        if seconds:
            cells.append((bucket.value, lasting(seconds), f"{seconds / whole:.1%}"))
    return _table([*cells, ("together", lasting(whole), "")])


def lasting(seconds: float | None) -> str:
    """`4.2s`, `2m03s`, `1h02m`, `3d04h`; a dash for None."""
    if seconds is None:
        return "-"
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    for above, unit, small, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= above:
            return f"{whole // above}{unit}{whole % above // small:02d}{below}"
    raise AssertionError(whole)


def moment(at: float) -> str:
    """Time of day with date, UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _section(title: str, lines: Iterable[str]) -> str:
    return "\n".join([title, *(f"  {line}" if not line.startswith("  ") else line for line in lines)])


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, two spaces apart, indented."""
    clean = [[_clean(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in clean) for i in range(len(clean[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in clean
    ]


def _clean(text: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]+", " ", text).strip()
