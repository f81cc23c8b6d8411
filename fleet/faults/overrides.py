"""A fleet's own rows of the catalogue: `overrides` of `fleet.yaml`."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from pydantic import ValidationError

from fleet.errors import InvalidInputError
from fleet.faults.evidence import FaultClass
from fleet.faults.tables import (
    RUNGS,
    ConditionRow,
    DcgmRow,
    ExitRow,
    FieldRow,
    KernelTextRow,
    ReasonRow,
    RecoveryRow,
    Row,
    SxidRow,
    Tables,
    TextRow,
    XidRow,
    digest,
    plain,
)

OWN = "this fleet"
"""Source of a row that the catalogue does not have."""


class OverrideLike(Protocol):
    """A changed row, as `fleet.policy.Override` has it; None keeps the catalogue's value."""

    @property
    def row(self) -> tuple[str, str | int]: ...
    @property
    def fault(self) -> FaultClass | None: ...
    @property
    def first_rung(self) -> str | None: ...
    @property
    def pattern(self) -> str | None: ...
    @property
    def why(self) -> str: ...


class _Table(NamedTuple):
    """Where the rows of one kind of override lie."""

    attribute: str
    model: type[Row]
    key: Callable[[str | int], Any]
    new: Mapping[str, Any] | None
    """Values of a row that the catalogue lacks; None where a fleet cannot add one."""


_UNLISTED = {"fault": FaultClass.UNKNOWN, "first_rung": "person", "title": "a code that is not in the catalogue"}
_OWN_TEXT = {"fault": FaultClass.UNKNOWN, "first_rung": "none", "title": "a text of this fleet", "secondary": False}
_OWN_XID = {**_UNLISTED, "name": "UNLISTED", "gpu_reset_ok": False, "scope": "gpu", "action": "none"}

KINDS: Mapping[str, _Table] = {
    "xid": _Table("xid", XidRow, int, _OWN_XID),
    "sxid": _Table("sxid", SxidRow, int, _UNLISTED),
    "recovery_action": _Table("recovery", RecoveryRow, int, None),
    "dcgm_error": _Table("dcgm", DcgmRow, str, None),
    "gpu_field": _Table("fields", FieldRow, str, None),
    "exit_code": _Table(
        "exits", ExitRow, int, {**_UNLISTED, "first_rung": "none", "signal": "-", "secondary": False}
    ),
    "log_text": _Table("texts", TextRow, str, {**_OWN_TEXT, "where": "line"}),
    "kernel_text": _Table("kernel_texts", KernelTextRow, str, None),
    "job_reason": _Table(
        "reasons",
        ReasonRow,
        lambda text: ("job", plain(str(text))),
        {**_UNLISTED, "applies": "job", "secondary": False},
    ),
    "node_reason": _Table(
        "reasons",
        ReasonRow,
        lambda text: ("node", plain(str(text))),
        {**_UNLISTED, "applies": "node", "secondary": False},
    ),
    "node_condition": _Table(
        "conditions",
        ConditionRow,
        str,
        {
            "fault": FaultClass.INFORMATIONAL,
            "first_rung": "none",
            "title": "a condition of this fleet",
            "bad": "True",
        },
    ),
}
"""Key of an override in `fleet.yaml` -> the rows that it changes."""
_NAMES = {"recovery_action": "value", "job_reason": "reason", "node_reason": "reason", "node_condition": "type"}
_NAMES |= {"exit_code": "code", "log_text": "id", "kernel_text": "id"}
_WITH_PATTERN = {"log_text", "kernel_text"}


def overridden(tables: Tables, overrides: Iterable[OverrideLike]) -> Tables:
    """The catalogue with a fleet's own rows, under another version.

    A pattern of the fleet's own is tried before the catalogue's. Raises InvalidInputError for a row that neither is
    there nor can be added, a rung that does not exist, an empty reason, a pattern that may run away, one row twice.
    """
    changed: dict[str, dict[Any, Row]] = {}
    texts: list[str] = []
    for override in sorted(overrides, key=lambda o: tuple(map(str, o.row))):
        kind, name = override.row
        table = KINDS[kind]
        rows = changed.setdefault(table.attribute, {})
        if table.key(name) in rows:
            raise InvalidInputError(f"override for {kind} {name} stands twice; keep one")
        row = _row(tables, override)
        rows[table.key(name)] = row
        texts.append(f"{kind}{row.model_dump_json()}")
    if not changed:
        return tables
    parts: dict[str, Any] = {
        attribute: _merged(getattr(tables, attribute), rows) for attribute, rows in changed.items()
    }
    return replace(tables, **parts, version=digest(tables.version, *texts))


def _merged(rows: Mapping[Any, Row], own: Mapping[Any, Row]) -> Mapping[Any, Row]:
    """Changed rows keep their place, new ones stand first."""
    new = {key: row for key, row in own.items() if key not in rows}
    return {**new, **rows, **{key: row for key, row in own.items() if key in rows}}


def _row(tables: Tables, override: OverrideLike) -> Row:
    kind, name = override.row
    table = KINDS[kind]
    if override.first_rung is not None and override.first_rung not in RUNGS:
        raise InvalidInputError(f"override for {kind} {name}: first_rung is one of {', '.join(RUNGS)}")
    if not override.why.strip():
        raise InvalidInputError(f"override for {kind} {name}: say why")
    if override.pattern is not None and kind not in _WITH_PATTERN:
        raise InvalidInputError(f"override for {kind} {name}: a pattern belongs to log_text or kernel_text")
    rows: Mapping[Any, Row] = getattr(tables, table.attribute)
    base = rows.get(table.key(name))
    values = dict(base.model_dump()) if base is not None else _new(kind, name, override, rows)
    wanted = {"fault": override.fault, "first_rung": override.first_rung, "pattern": override.pattern}
    values |= {key: value for key, value in wanted.items() if value is not None}
    try:
        return table.model.model_validate(values | {"overridden": override.why.strip()})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        what = first["msg"].removeprefix("Value error, ")
        raise InvalidInputError(f"override for {kind} {name}: {what}") from error


def _new(kind: str, name: str | int, override: OverrideLike, rows: Mapping[Any, Row]) -> dict[str, Any]:
    table = KINDS[kind]
    if table.new is None or (kind in _WITH_PATTERN and override.pattern is None):
        known = sorted(str(key) for key in rows)
        near = difflib.get_close_matches(str(name), known, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(known[:12])} and so on"
        more = "; a new text needs its pattern" if kind == "log_text" else ""
        raise InvalidInputError(f"override for {kind} {name}: the catalogue has no such row{more}; {hint}")
    return {**table.new, _NAMES.get(kind, kind): name, "source": OWN}
