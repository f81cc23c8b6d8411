"""Reads `fleet.yaml`, and other files that people write for us. Everything that is wrong is told at once: file, line,
the wrong word and what is allowed.

The file is read as YAML 1.2 reads it: only `true` and `false` are truth values, so the keys `on` and `off` of a power
hook stay words, and `0010` or `1:30` are no surprise numbers (docs/decisions/0001-yaml-in-fleet.md).
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from fleet import policy
from fleet.errors import InvalidInputError
from fleet.faults.tables import load_tables
from fleet.policy_errors import ModelAt, Path, Problem, dotted, explain, policy_model_at, short

Model = TypeVar("Model", bound=BaseModel)

MAX_CHARACTERS = 262_144
"""A policy of 200 clusters has about 60,000; more is a wrong file."""
MAX_DEPTH = 16
"""The shape needs 5."""
MAX_NODES = 20_000
"""Values after aliases are followed: an alias bomb of nine short lines would give a billion."""

_TAG = "tag:yaml.org,2002:"
_PLAIN = {f"{_TAG}{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map")}


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Everything but line breaks and tabs that could move a terminal, and halves of characters."""


class _CoreLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the plain words of YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own shape


for _name, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("int", r"[-+]?[0-9]{1,18}", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+0123456789."),
):
    _CoreLoader.add_implicit_resolver(f"{_TAG}{_name}", re.compile(rf"(?:{_pattern})\Z", re.ASCII), [*_first, ""])


class Words(NamedTuple):
    """How a kind of file is called, and what it holds at least."""

    what: str
    least: str
    like: str


POLICY_WORDS = Words("policy file", "version and clusters", "version: 1, clusters: ...")


class Read(NamedTuple):
    """What the file holds, the line of each value and key, and what was wrong so far."""

    data: object
    lines: Mapping[Path, int]
    problems: list[Problem]
    broken: frozenset[Path]
    """Where a value is missing because of one of `problems`."""


def parse_policy(text: str, file: str) -> policy.Policy:
    """The policy in `text`; `file` is its name for messages.

    Raises InvalidInputError with one line for each thing that is wrong, in the order of the file.
    """
    return parse_file(text, file, policy.Policy, policy_model_at, POLICY_WORDS, _rows_that_do_not_fit)


def parse_file(
    text: str,
    file: str,
    model: type[Model],
    model_at: ModelAt,
    words: Words,
    further: Callable[[Model, Mapping[Path, int]], Iterable[Problem]] = lambda found, lines: (),
) -> Model:
    """What `model` makes of the file; `model_at` says which keys may stand where, `further` what no shape can say.

    Raises InvalidInputError as `parse_policy`.
    """
    read = read_yaml(text, file, what=words.what)
    problems = list(read.problems)
    found: Model | None = None
    if read.data is None:
        raise InvalidInputError(f"{file}:1: the file is empty; it needs at least {words.least}")
    if isinstance(read.data, dict):
        try:
            found = model.model_validate_json(json.dumps(read.data))
        except ValidationError as error:
            problems += explain(error, read.data, read.lines, read.broken, model_at)
        else:
            problems += further(found, read.lines)
    elif not problems:
        problems.append(Problem(1, f"the file must hold keys and values ({words.like})"))
    if problems or found is None:
        raise InvalidInputError(told(problems, file))
    return found


def _rows_that_do_not_fit(found: policy.Policy, lines: Mapping[Path, int]) -> Iterator[Problem]:
    """Overrides that the catalogue of this release cannot take."""
    for index, override in enumerate(found.overrides):
        try:
            load_tables().with_overrides([override])
        except InvalidInputError as error:
            where = ("overrides", index, override.row[0])
            yield Problem(lines.get(where, 1), f"overrides[{index}]: {error}")


def told(problems: Iterable[Problem], file: str) -> str:
    """One line for each, in the order of the file."""
    return "\n".join(f"{file}:{p.line}: {p.text}" for p in sorted(dict.fromkeys(problems)))


def read_yaml(text: str, file: str, depth: int = MAX_DEPTH, what: str = "file for us") -> Read:
    """Text to plain data, None for an empty file. Raises InvalidInputError where there is nothing to go on with."""
    if len(text) > MAX_CHARACTERS:
        raise InvalidInputError(f"{file}:1: longer than {MAX_CHARACTERS} characters; this is no {what}")
    try:
        _bound(text, file, depth)
        loader = _CoreLoader(text)
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(str(part) for part in (error.context, error.problem) if part)
        what += '; write words with braces in quotes: "{node}"' if "got '{'" in what else ""
        raise InvalidInputError(f"{file}:{mark.line + 1 if mark else 1}: not readable as YAML: {what}") from None
    except yaml.YAMLError as error:
        what = " ".join(str(error).split())
        raise InvalidInputError(f"{file}:1: not readable as YAML: {what}") from None
    if root is None or (isinstance(root, yaml.ScalarNode) and not root.value.strip()):
        return Read(None, {}, [], frozenset())
    builder = _Builder(file, depth)
    data = builder.build(root, (), ())
    return Read(data, builder.lines, builder.problems, frozenset(builder.broken))


def _bound(text: str, file: str, most: int) -> None:
    """Refuses deep nesting before anything recursive sees it."""
    depth = 0
    for event in yaml.parse(text, Loader=_CoreLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > most:
                line = event.start_mark.line + 1 if event.start_mark else 1
                raise InvalidInputError(f"{file}:{line}: nested deeper than {most} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _Builder:
    """Turns YAML nodes into plain data, remembers lines, and collects what the shape cannot say."""

    def __init__(self, file: str, depth: int) -> None:
        self.file = file
        self.depth = depth
        self.lines: dict[Path, int] = {}
        self.problems: list[Problem] = []
        self.broken: set[Path] = set()
        self._nodes = 0

    def build(self, node: yaml.Node, path: Path, above: tuple[yaml.Node, ...]) -> object:
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise InvalidInputError(f"{self.file}:{line}: more than {MAX_NODES} values once aliases are followed")
        wrong = self._wrong(node, above)
        if wrong:
            self.problems.append(Problem(line, wrong))
            self.broken.add(path)
            return None
        if isinstance(node, yaml.MappingNode):
            return dict(self._pairs(node, path, (*above, node)))
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, i), (*above, node)) for i, item in enumerate(node.value)]
        return self._scalar(node)

    def _wrong(self, node: yaml.Node, above: tuple[yaml.Node, ...]) -> str | None:
        if any(node is other for other in above) or len(above) > self.depth:
            return "an alias (*name) leads deeper and deeper; write the values out"
        if node.tag not in _PLAIN:
            return f"the tag {node.tag} is not allowed; write a plain value"
        if isinstance(node, yaml.ScalarNode) and _CONTROL.search(node.value):
            return "a text holds control characters; take them out"
        return None

    def _pairs(
        self, node: yaml.MappingNode, path: Path, above: tuple[yaml.Node, ...]
    ) -> Iterator[tuple[str, object]]:
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            where = f" under {dotted(path)}" if path else ""
            if not isinstance(key, yaml.ScalarNode):
                self.problems.append(Problem(line, f"a key{where} is a list or a mapping; write a word"))
            elif _CONTROL.search(key.value) or "\n" in key.value:
                self.problems.append(Problem(line, f"a key{where} holds control characters; take them out"))
            elif key.value == "<<":
                self.problems.append(Problem(line, f"merge keys (<<) are not read{where}; write the values out"))
            elif key.value in seen:
                first = seen[key.value]
                self.problems.append(
                    Problem(line, f"key '{short(key.value)}' is given twice{where}; the first is on line {first}")
                )
            else:
                seen[key.value] = line
                self.lines[(*path, key.value)] = line
                yield key.value, self.build(value, (*path, key.value), above)

    @staticmethod
    def _scalar(node: yaml.Node) -> object:
        text = str(node.value)
        kind = node.tag.removeprefix(_TAG)
        try:
            if kind == "int":
                return int(text)
            if kind == "float":
                number = float(text)
                return text if number in {float("inf"), float("-inf")} else number
        except ValueError:  # an explicit tag such as !!int on a word
            return text
        if kind == "bool" and text.lower() in {"true", "false"}:
            return text.lower() == "true"
        return None if kind == "null" else text
