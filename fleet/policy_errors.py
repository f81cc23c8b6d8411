"""Turns pydantic's findings about a policy into lines of the file and words of its user."""

import difflib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fleet import policy
from fleet.policy_overrides import Override

Path = tuple[str | int, ...]
"""Keys and list positions from the top of the file."""


ModelAt = Callable[[Path, object], type[BaseModel]]
"""Which value stands at a path of the given data."""


class Problem(NamedTuple):
    """One thing that is wrong, and the line it stands on."""

    line: int
    text: str


_TYPES = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "keys and values",
    "mapping_type": "keys and values",
    "model_type": "keys and values",
    "model_attributes_type": "keys and values",
}
_KINDS: Mapping[str, type[BaseModel]] = {
    "slurm": policy.SlurmCluster,
    "sim": policy.SimCluster,
    "kubernetes": policy.KubernetesCluster,
}
_SECTIONS: Mapping[str, type[BaseModel]] = {
    "limits": policy.Limits,
    "keep": policy.Keep,
    "approvers": policy.Approver,
    "notify": policy.Notify,
    "overrides": Override,
    "sites": policy.Site,
    "copies": policy.Copies,
}


def dotted(path: Path) -> str:
    """`approvers[0].key`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{short(part)}" if text else short(part)
    return text


def short(text: str) -> str:
    """At most 40 characters of a text from the file."""
    return text if len(text) <= 40 else text[:37] + "..."


def explain(
    error: ValidationError,
    data: object,
    lines: Mapping[Path, int],
    broken: frozenset[Path] = frozenset(),
    model_at: ModelAt | None = None,
) -> list[Problem]:
    """One problem for each finding, save where the value is `broken` and that was told already."""
    findings = error.errors(include_url=False)
    at = model_at or policy_model_at
    return [_explain(f, data, lines, at) for f in findings if _locate(f["loc"], data, absent=False)[0] not in broken]


def _explain(found: ErrorDetails, data: object, lines: Mapping[Path, int], model_at: ModelAt) -> Problem:
    kind = found["type"]
    path, value = _locate(found["loc"], data, absent=kind == "missing")
    line = _line(path, lines)
    parent = path[:-1]
    under = f" under {dotted(parent)}" if parent else ""
    if kind == "extra_forbidden":
        allowed = allowed_keys(parent, data, model_at)
        return Problem(
            line, f"unknown key '{short(str(path[-1]))}'{under}; allowed: {_choices(str(path[-1]), allowed)}"
        )
    if kind == "missing":
        return Problem(_line(parent, lines), f"key '{path[-1]}' is missing{under}")
    if found["loc"][-1:] == ("[key]",):
        return Problem(line, _bad_key(found, path, under))
    if kind in {"union_tag_invalid", "union_tag_not_found"}:
        return Problem(_line((*path, "kind"), lines), _bad_kind(path, value))
    if value is None:
        return Problem(line, f"{dotted(path)}: is empty; give a value or take the key out")
    return Problem(line, f"{dotted(path)}: {_what(found, value)}" if path else _what(found, value))


def _locate(loc: tuple[int | str, ...], data: object, *, absent: bool) -> tuple[Path, Any]:
    """The path in the file (pydantic also names union members and `[key]`), and the value there."""
    path: list[str | int] = []
    here: Any = data
    for place, part in enumerate(loc):
        if part == "[key]":
            continue
        last = place == len(loc) - 1
        if isinstance(here, dict) and part not in here and not (last and absent):
            continue  # the name of a union member, for example `slurm`
        path.append(part)
        here = _inside(here, part)
    return tuple(path), here


def _inside(value: Any, part: int | str) -> Any:
    if isinstance(value, dict):
        return value.get(part)
    return value[part] if isinstance(value, list) and isinstance(part, int) else None


def _line(path: Path, lines: Mapping[Path, int]) -> int:
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


def allowed_keys(path: Path, data: object, model_at: ModelAt | None = None) -> list[str]:
    """The keys that may stand at `path`, in the order of the documentation."""
    model = (model_at or policy_model_at)(path, data)
    return [field.alias or name for name, field in model.model_fields.items()]


def policy_model_at(path: Path, data: object) -> type[BaseModel]:
    """The part of a policy that stands at `path`."""
    if not path:
        return policy.Policy
    if path[0] == "clusters":
        if len(path) > 2:
            return policy.PowerHook
        clusters: Any = data["clusters"] if isinstance(data, dict) else {}
        return _KINDS[clusters[path[1]]["kind"]]
    return _SECTIONS[str(path[0])]


def _bad_key(found: ErrorDetails, path: Path, under: str) -> str:
    name = str(path[-1])
    if found["type"] == "literal_error":
        return f"unknown key '{short(name)}'{under}; allowed: {_choices(name, _expected(found))}"
    if path[0] == "modes":
        return f"unknown step '{short(name)}'{under}; allowed: {_choices(name, list(policy.Step))}"
    return (
        f"the name '{short(name)}'{under} is not legal; it starts with a letter or a digit and goes on with those "
        "and . _ : - only, at most 200"
    )


def _bad_kind(path: Path, value: Any) -> str:
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind is None:
        return f"key 'kind' is missing under {dotted(path)}; allowed values: {', '.join(_KINDS)}"
    return f"unknown kind {_shown(kind)} under {dotted(path)}; allowed: {_choices(str(kind), list(_KINDS))}"


def _what(found: ErrorDetails, value: Any) -> str:
    kind, context = found["type"], found.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind in _TYPES:
        return f"must be {_TYPES[kind]}, not {_shown(value)}{_quotes(value)}"
    if kind == "enum":
        return f"cannot be {_shown(value)}; allowed: {_choices(str(value), _expected(found))}"
    if kind == "literal_error":
        return f"is {_shown(value)}; this release reads {context['expected']}"
    if kind in {"greater_than_equal", "less_than_equal"}:
        edge = "at least" if kind == "greater_than_equal" else "at most"
        return f"is {_shown(value)}; it must be {edge} {context.get('ge', context.get('le'))}"
    if kind in {"too_short", "string_too_short"}:
        return "is empty; it needs at least one entry" if kind == "too_short" else "is empty; write a text"
    if kind in {"too_long", "string_too_long"}:
        return f"is too long; at most {context['max_length']}"
    return found["msg"]


def _expected(found: ErrorDetails) -> list[str]:
    """The words in pydantic's `'a', 'b' or 'c'`."""
    text = str(found.get("ctx", {})["expected"])
    return [word.strip(" '") for word in text.replace(" or ", ", ").split(",")]


def _quotes(value: Any) -> str:
    """`[p, {node}]` without quotes is a mapping to YAML."""
    braces = isinstance(value, dict) and len(value) == 1 and next(iter(value.values())) is None
    return f'; write it in quotes: "{{{short(next(iter(value)))}}}"' if braces else ""


def _choices(word: str, allowed: list[str]) -> str:
    close = difflib.get_close_matches(word, allowed, n=1, cutoff=0.6)
    return ", ".join(allowed) + (f"; did you mean '{close[0]}'?" if close else "")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, dict):
        return "keys and values"
    if isinstance(value, list):
        return "a list"
    return short(repr(value))
