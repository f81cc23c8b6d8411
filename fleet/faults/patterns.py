"""Checks a pattern of the catalogue before it may meet a line: one that can run away is refused.

The check is simple on purpose and refuses some harmless patterns too. Refused are a repeated group that holds a
repeat, an option or an alternative (`(a+)+`, `(a|aa)*`, `(a?){9}`), back references, conditions, and repeats whose
widths multiply to more than `MAX_WORK`. A backtracking search tries at most that many ways from each place of a
line, and lines are cut (`LINE_LIMIT`).
"""

import re

from fleet.errors import InvalidInputError

LINE_LIMIT = 4096
"""Characters of one line that a pattern may see. A bound on work, far above every known message."""

MAX_WORK = 2 * LINE_LIMIT
"""Product of the ways in which a pattern's repeats can match: one open repeat and an option, or `.{0,80}` twice."""
_REPEAT = re.compile(r"[*+?]|\{(\d*)(,?)(\d*)\}")


def safe_pattern(text: str) -> re.Pattern[str]:
    """Compiles `text`. Raises InvalidInputError with the reason when it is no pattern or may run away."""
    try:
        compiled = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidInputError(f"pattern {text!r} does not compile: {error}") from error
    if compiled.match(""):
        raise InvalidInputError(f"pattern {text!r} matches an empty line; it would match everything")
    if why := _runs_away(text):
        raise InvalidInputError(f"pattern {text!r} may run away: {why}; write it without")
    return compiled


def _runs_away(text: str) -> str:
    """Why the pattern may take too long, or an empty text."""
    groups: list[bool] = []  # for each open group: does it hold a repeat, an option or an alternative
    closed = False  # does the item just before hold one
    work = 1
    at = 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            if text[at + 1 : at + 2].isdigit():
                return "a back reference"
            closed, at = False, at + 2
            continue
        if char == "[":
            closed, at = False, _end_of_set(text, at)
            continue
        if text.startswith(("(?P=", "(?("), at):
            return "a back reference"
        found = _REPEAT.match(text, at)
        if char == "(":
            groups.append(False)
            closed, at = False, _start_of_group(text, at)
        elif char == ")":
            closed = groups.pop() if groups else False
            at += 1
        elif found:
            most, ways = _size(found)
            if closed and most > 1:
                return "a repeat inside a repeat"
            work *= ways
            groups[:] = [True for _ in groups] if ways > 1 else groups
            at = found.end()
            at += text[at : at + 1] in {"?", "+"}  # lazy and possessive forms
        else:
            if char == "|":
                groups[:] = [True for _ in groups]
            closed, at = False, at + 1
    return f"its repeats can match in {work} ways, more than {MAX_WORK}" if work > MAX_WORK else ""


def _size(found: re.Match[str]) -> tuple[int, int]:
    """(how often it may match at most, in how many ways)."""
    if found.group(0) in {"*", "+"}:
        return LINE_LIMIT, LINE_LIMIT
    if found.group(0) == "?":
        return 1, 2
    low, comma, high = found.groups()
    least = int(low or 0)
    most = int(high) if high else LINE_LIMIT if comma else least
    return most, max(most - least + 1, 1)


def _end_of_set(text: str, at: int) -> int:
    """Position after the character set that starts at `at`; a `]` right at its start belongs to it."""
    at += 1
    if text[at : at + 1] == "^":
        at += 1
    if text[at : at + 1] == "]":
        at += 1
    while at < len(text) and text[at] != "]":
        at += 2 if text[at] == "\\" else 1
    return at + 1


def _start_of_group(text: str, at: int) -> int:
    """Position after `(` and its kind, so that `(?:` is not read as a repeat."""
    kind = re.compile(r"\(\?(?:P<\w+>|<[=!]|[:=!>])").match(text, at)
    return kind.end() if kind else at + 1
