"""What `runbook doctor` finds: one value for each thing looked at, and how it is shown."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from fleet.errors import FleetError
from fleet.model import Value

if TYPE_CHECKING:
    from rich.table import Table


class Grade(StrEnum):
    """ok: as it should be. warn: it works, and somebody should know. fail: something will not work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Check(Value):
    """One thing looked at. The names are a promise: scripts choose by `area` and `name`."""

    area: str
    """`here`, `temporal`, `fleet`, a cluster's name, or `job/NAME`."""
    name: str
    grade: Grade
    text: str
    """What was seen."""
    todo: str = ""
    """What to do about it; empty when nothing."""


class Diagnosis(Value):
    """`runbook doctor -o json`."""

    ok: bool
    """Nothing failed."""
    checks: tuple[Check, ...]

    @classmethod
    def of(cls, checks: Iterable[Check]) -> "Diagnosis":
        found = tuple(checks)
        return cls(ok=not any(c.grade is Grade.FAIL for c in found), checks=found)


class Area:
    """Makes the checks of one area."""

    def __init__(self, area: str) -> None:
        self.area = area

    def ok(self, name: str, text: str) -> Check:
        return Check(area=self.area, name=name, grade=Grade.OK, text=text)

    def warn(self, name: str, text: str, todo: str = "") -> Check:
        return Check(area=self.area, name=name, grade=Grade.WARN, text=text, todo=todo)

    def fail(self, name: str, text: str, todo: str = "") -> Check:
        return Check(area=self.area, name=name, grade=Grade.FAIL, text=text, todo=todo)

    async def tried(self, name: str, look: Callable[[], Awaitable[Check | Sequence[Check]]]) -> tuple[Check, ...]:
        """The checks of `look`; what it could not look at is a failed check in the error's own words."""
        try:
            found = await look()
        except FleetError as error:
            return (self.fail(name, str(error)),)
        return (found,) if isinstance(found, Check) else tuple(found)


_STYLE = {Grade.OK: "green", Grade.WARN: "yellow", Grade.FAIL: "bold red"}


def as_table(checks: Sequence[Check]) -> "Table":
    """One row a check, what to do below what was seen."""
    from rich.table import Table
    from rich.text import Text

    from clients.output import clean

    table = Table(box=None, pad_edge=False)
    table.add_column("AREA", no_wrap=True)
    table.add_column("CHECK", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("SEEN, AND WHAT TO DO", overflow="fold")
    area = ""
    for check in checks:
        seen = Text(clean(check.text))
        if check.todo:
            seen.append(f"\n→ {clean(check.todo)}", "bold")
        shown = "" if check.area == area else check.area
        table.add_row(shown, check.name, Text(check.grade, _STYLE[check.grade]), seen)
        area = check.area
    return table
