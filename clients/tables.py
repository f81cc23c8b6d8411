"""Cells, rows and columns of what a terminal shows; colours only underline what words say."""

import time
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from clients.output import clean
from fleet.report import lasting


def age(at: float | None, now: float | None = None) -> str:
    """How long ago, as short as `4m10s`."""
    if at is None:
        return "-"
    passed = max(0.0, (time.time() if now is None else now) - at)
    return f"{passed:.0f}s" if passed < 59.5 else lasting(passed)


def cell(text: object, style: str = "") -> Text:
    """Any text as one cell: cleaned, never read as markup."""
    return Text(clean(text) or "-", style=style)


def grid(rows: Sequence[tuple[str, object]]) -> Table:
    """`name  value` lines; empty values are left out."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        if value:
            table.add_row(name, value if isinstance(value, Text) else cell(value))
    return table


def table(*columns: str) -> Table:
    """An unframed table; the first column never breaks, so that it can be copied."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, column in enumerate(columns):
        made.add_column(column, no_wrap=number == 0 or number == len(columns) - 1, overflow="fold")
    return made
