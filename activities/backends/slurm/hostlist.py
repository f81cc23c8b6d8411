"""Slurm's hostlists, in Python: `scontrol show hostnames` needs a configuration and refuses some lists."""

import re
from itertools import product

from fleet.errors import UnreadableError

_PART = re.compile(r"\[([^\]]*)\]")
LIMIT = 65536
"""Most names that one list may stand for (Slurm's own MAX_RANGE)."""


def expand(text: str) -> tuple[str, ...]:
    """`a[1-2,4],b-[08-09]-x` -> names in order. Raises UnreadableError for what is no hostlist; never "empty"."""
    names: list[str] = []
    for part in _split(text.strip()):
        names.extend(_expand_one(part))
        if len(names) > LIMIT:
            raise UnreadableError(f"the hostlist {text[:80]!r} stands for more than {LIMIT} names")
    return tuple(names)


def compress(names: tuple[str, ...]) -> str:
    """Names as Slurm takes them in an argument: joined by commas, in order, each once."""
    return ",".join(dict.fromkeys(names))


def _split(text: str) -> list[str]:
    """Splits at commas outside brackets."""
    if text in {"", "(null)", "None assigned", "N/A"}:
        return []
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += {"[": 1, "]": -1}.get(char, 0)
        if depth not in {0, 1}:
            raise UnreadableError(f"{text!r} is no hostlist")
        if char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    if depth:
        raise UnreadableError(f"{text!r} is no hostlist")
    return [*parts, text[start:]]


def _expand_one(part: str) -> list[str]:
    if not part or re.search(r"[\s()]", part):
        raise UnreadableError(f"{part!r} is no host name")
    pieces = _PART.split(part)
    choices = [[piece] if at % 2 == 0 else _ranges(piece, part) for at, piece in enumerate(pieces)]
    return ["".join(choice) for choice in product(*choices)]


def _ranges(text: str, whole: str) -> list[str]:
    values: list[str] = []
    for piece in text.split(","):
        low, dash, high = piece.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise UnreadableError(f"{whole!r} is no hostlist: {piece!r}")
        last = int(high) if dash else int(low)
        if last < int(low) or last - int(low) >= LIMIT:
            raise UnreadableError(f"{whole!r} is no hostlist: {piece!r}")
        values.extend(str(number).zfill(len(low)) for number in range(int(low), last + 1))
    return values
