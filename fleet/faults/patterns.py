"""Checks a pattern of the catalogue before it may meet a line: one that can run away is refused.

The check is simple on purpose and refuses some harmless patterns too. Refused are a repeated group that holds a
repeat or an alternative (`(a+)+`, `(a|aa)*`), back references, and more than two unbounded repeats in one pattern;
what is left costs at most the square of a line's length, and lines are cut (`LINE_LIMIT`).
"""

import re

from fleet.errors import InvalidInputError

LINE_LIMIT = 4096
"""Characters of one line that a pattern may see. A bound on work, far above every known message."""

MAX_UNBOUNDED = 2
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
    """Why the pattern may take exponential time, or an empty text."""
    groups: list[bool] = []  # for each open group: does it hold a repeat or an alternative
    closed = False  # does the item just before hold one
    unbounded = 0
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
        if text.startswith("(?P=", at):
            return "a back reference"
        found = _REPEAT.match(text, at)
        if char == "(":
            groups.append(False)
            closed, at = False, _start_of_group(text, at)
        elif char == ")":
            closed = groups.pop() if groups else False
            at += 1
        elif found:
            many, endless = _size(found)
            if closed and many:
                return "a repeat inside a repeat"
            unbounded += endless
            groups[:] = [True for _ in groups] if many else groups
            at = found.end()
            at += text[at : at + 1] in {"?", "+"}  # lazy and possessive forms
        else:
            if char == "|":
                groups[:] = [*groups[:-1], True] if groups else groups
            closed, at = False, at + 1
    return f"{unbounded} unbounded repeats" if unbounded > MAX_UNBOUNDED else ""


def _size(found: re.Match[str]) -> tuple[bool, bool]:
    """(may match more than once, has no upper bound)."""
    if found.group(0) in {"*", "+"}:
        return True, True
    if found.group(0) == "?":
        return False, False
    low, comma, high = found.groups()
    if comma and not high:
        return True, True
    return int(high or low or 0) > 1, False


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
