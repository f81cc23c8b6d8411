"""What every bench gives, and how it is shown: a table for people, `-o json` as a promise."""

import json
import math
from collections.abc import Sequence
from typing import Any

from pydantic import computed_field
from rich.console import Console
from rich.table import Table

from bench.machine import Machine
from fleet.model import Value


class Figure(Value):
    """One measured thing, and the same thing done the other way in the same run."""

    name: str
    value: float
    unit: str
    other: str = ""
    """Name of the alternative; empty where there is none."""
    other_value: float | None = None
    """The alternative's value, in the same unit."""
    at_most: float | None = None
    """The goal; None for a figure that is only told."""

    @computed_field  # type: ignore[prop-decorator]  # pydantic's own form for a computed property
    @property
    def ratio(self) -> float | None:
        """This value over the alternative's; None without one."""
        return self.value / self.other_value if self.other_value else None

    @computed_field  # type: ignore[prop-decorator]  # as above
    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without a goal."""
        return None if self.at_most is None else self.value <= self.at_most


class Result(Value):
    """One run of one bench."""

    bench: str
    machine: Machine
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()
    """What a reader must know to judge the figures."""

    @computed_field  # type: ignore[prop-decorator]  # as above
    @property
    def goal_met(self) -> bool:
        """No figure misses its goal. A run without figures has shown nothing, so it has missed."""
        return bool(self.figures) and all(f.met is not False for f in self.figures)


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` (0 to 1) of them do not exceed: nearest rank, so it is one that was measured.

    Raises ValueError without values.
    """
    if not values:
        raise ValueError("no values: nothing was measured")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median(values: Sequence[float]) -> float:
    """Half of them do not exceed it."""
    return quantile(values, 0.5)


def render(result: Result, console: Console) -> None:
    """The table for people."""
    table = Table(title=f"bench {result.bench}", title_justify="left")
    table.add_column("figure")
    for head in ("value", "other way", "ratio", "goal"):
        table.add_column(head, justify="right" if head in {"value", "ratio"} else "left")
    for figure in result.figures:
        table.add_row(figure.name, shown(figure.value, figure.unit), _other(figure), _ratio(figure), _goal(figure))
    console.print(table)
    for note in (result.machine.line(), *result.notes):
        console.print(f"- {note}", markup=False, highlight=False)


def as_json(result: Result) -> str:
    """The figures for programs; keys are only ever added."""
    return json.dumps(record(result), indent=1, ensure_ascii=False)


def record(result: Result) -> dict[str, Any]:
    """What `as_json` writes."""
    return result.model_dump(mode="json")


def shown(value: float, unit: str) -> str:
    """Three significant digits, thousands in full."""
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{digits} {unit}".strip()


def _other(figure: Figure) -> str:
    if figure.other_value is None:
        return "-"
    return f"{shown(figure.other_value, figure.unit)}  {figure.other}"


def _ratio(figure: Figure) -> str:
    """How many times the other way, or which part of it."""
    ratio = figure.ratio
    if ratio is None:
        return "-"
    return f"{ratio:.3g}x" if ratio >= 1 or ratio == 0 else f"1/{1 / ratio:.3g}"


def _goal(figure: Figure) -> str:
    if figure.at_most is None:
        return "-"
    return f"{'met' if figure.met else 'MISSED'}: at most {shown(figure.at_most, figure.unit)}"
