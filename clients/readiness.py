"""A job's readiness -> tables and pages for a terminal."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from clients.tables import age, cell, grid, table
from fleet.copying.space import size_text
from fleet.preflight import Readiness


def table_of(rows: Sequence[Readiness]) -> Table:
    """One row for each job and each cluster that it could go to."""
    made = table("JOB", "FROM", "TO", "READY", "WHY", "AGE")
    for row in rows:
        if not row.targets:
            made.add_row(cell(row.job), cell(row.cluster or ""), cell(""), _no(), cell(row.note), cell(age(row.at)))
        for target in row.targets:
            made.add_row(
                cell(row.job),
                cell(row.cluster or ""),
                cell(target.cluster),
                cell("yes", "green") if target.ready else _no(),
                cell(target.text),
                cell(age(target.at)),
            )
    return made


def _no() -> Text:
    return cell("no", "bold red")


def pages(rows: Sequence[Readiness]) -> RenderableType:
    return Group(*(page(row) for row in rows))


def page(found: Readiness) -> RenderableType:
    """What protects the job, what it would resume from, and every check on every other cluster."""
    newest = found.checkpoint
    where = (
        f"{newest.entry} (step {newest.step}, {size_text(newest.size)}) at {newest.site}, seen {age(newest.at)} ago: "
        f"{newest.reason}"
        if newest
        else ""
    )
    head = grid(
        [
            ("job", Text(found.job, style="bold")),
            ("where", "/".join(filter(None, (found.cluster, found.native_id)))),
            *(("protected" if n == 0 else "", line) for n, line in enumerate(found.protections)),
            ("newest proven checkpoint", where or "none"),
            ("note", cell(found.note, "yellow") if found.note else ""),
            ("looked at", f"{age(found.at)} ago"),
        ]
    )
    if not found.targets:
        return Group(head, cell("no other cluster could receive it", "bold red"))
    checks = table("TO", "CHECK", "OK", "WHY", "WHAT TO DO")
    for target in found.targets:
        for check in target.checks:
            ok = cell("yes", "green") if check.ok else _no()
            checks.add_row(
                cell(target.cluster), cell(check.name.replace("_", " ")), ok, cell(check.why), cell(check.do)
            )
    return Group(head, Text(""), checks)
