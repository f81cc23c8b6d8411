"""What all parsers of outside text share: where it came from, what was made of it, and what could not be read."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet.faults.evidence import Evidence, Kind, Source
from fleet.model import Value

DETAIL = 400
"""Characters of one piece's detail that come from a text."""
MAX_PIECES = 10_000
"""Pieces of evidence taken from one text; a bound on work, the rest is counted and said."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
_HALF = re.compile("[\ud800-\udfff]")


class Parsed(Value):
    """What a parser made of a text: evidence, and for every line that gave none, why."""

    evidence: tuple[Evidence, ...] = ()
    lines: int = 0
    dropped: Mapping[str, int] = {}

    def __str__(self) -> str:
        why = "; ".join(f"{count} dropped: {reason}" for reason, count in sorted(self.dropped.items()))
        return f"{self.lines} lines, {len(self.evidence)} pieces of evidence" + (f"; {why}" if why else "")


@dataclass(frozen=True)
class Origin:
    """What the caller knows of a text: whose it is, and when it was seen (seconds since the epoch)."""

    cluster: str
    seen_at: float
    node: str | None = None
    job: str | None = None
    boot: str | None = None
    rank: int | None = None
    nodes: tuple[str, ...] = ()
    """All nodes of the job's attempt, where known."""


@dataclass
class Findings:
    """What one parser has made of one text so far."""

    source: Source
    origin: Origin
    lines: int = 0
    evidence: list[Evidence] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    unreadable: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def tell(self, kind: Kind, code: str, detail: str, **more: Any) -> None:
        """One piece; `more` are further fields of `Evidence`, and change what the origin says."""
        if len(self.evidence) >= MAX_PIECES:
            self.cannot_read(f"over the limit of {MAX_PIECES} pieces", detail)
            return
        o = self.origin
        known = {"node": o.node, "job": o.job, "boot": o.boot, "rank": o.rank, "nodes": o.nodes} | more
        text = clean(detail)[:DETAIL]
        about = (kind, code, known.get("node"), known.get("gpu"), known.get("rank"), text)
        known.setdefault("raw_hash", digest("|".join(map(str, about))))
        self.evidence.append(
            Evidence(
                source=known.pop("source", self.source),
                kind=kind,
                cluster=o.cluster,
                code=clean(code)[:120],
                seen_at=o.seen_at,
                detail=text,
                **known,
            )
        )

    def drop(self, why: str, count: int = 1) -> None:
        """Counts what is well, or of no concern."""
        if count:
            self.dropped[why] += count

    def cannot_read(self, why: str, example: str = "") -> None:
        """Counts what was there and could not be read; it is told as evidence too."""
        self.unreadable[why] += 1
        self.examples.setdefault(why, clean(example)[:120])

    def parsed(self) -> Parsed:
        """All of it. Where something could not be read, a piece of evidence says so: never taken for "all well"."""
        told = list(self.evidence)
        for why, count in sorted(self.unreadable.items()):
            o = self.origin
            detail = f"{count} x {why}" + (f": {self.examples[why]}" if self.examples[why] else "")
            one = unreadable(o.cluster, o.node, o.seen_at, o.boot, why=why, detail=detail)
            told.append(one.model_copy(update={"source": self.source, "job": o.job, "rank": o.rank}))
        return Parsed(evidence=tuple(told), lines=self.lines, dropped=dict(self.dropped + self.unreadable))


def unreadable(
    cluster: str, node: str | None, seen_at: float, boot: str | None, *, why: str, detail: str
) -> Evidence:
    """Evidence that something was there and could not be read: never taken for "all well"."""
    return Evidence(
        source=Source.KERNEL,
        kind=Kind.UNREADABLE,
        cluster=cluster,
        node=node,
        code=why,
        boot=boot,
        seen_at=seen_at,
        detail=detail[:DETAIL],
        raw_hash=digest(detail),
    )


def decoded(text: str | bytes) -> str:
    """Text of it; bytes that are no UTF-8, and halves of characters, become replacement marks."""
    plain = text.decode("utf-8", errors="replace") if isinstance(text, bytes) else text
    return plain if plain.isascii() else _HALF.sub("\ufffd", plain)


def junk(text: str) -> str:
    """Why this is no text at all, or an empty text. Looks at the first 64 KiB."""
    head = text[:65536]
    odd = sum(head.count(mark) for mark in ("\x00", "\ufffd"))
    return "not a text: binary data" if odd > 8 and odd * 10 > len(head) else ""


def clean(line: str) -> str:
    """One line without control characters and halves of characters, safe to print, to log and to send."""
    plain = _CONTROL.sub(" ", line).strip()
    return plain if plain.isascii() else _HALF.sub("\ufffd", plain)


def digest(line: str) -> str:
    return hashlib.sha256(line.encode("utf-8", errors="replace")).hexdigest()[:16]


# -- loose documents: JSON of other programs, of which no key can be trusted to be there


BROKEN = object()
"""What `load_json` gives for a text that is no JSON."""


def load_json(text: str) -> Any:
    """The document, or `BROKEN`: truncated, nested too deep, a number too long."""
    try:
        return json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError):
        return BROKEN


def table(value: Any) -> Mapping[str, Any]:
    """It, if it is an object; else an empty one."""
    return value if isinstance(value, dict) else {}


def rows(value: Any) -> list[Any]:
    """It, if it is a list; else an empty one."""
    return list(value) if isinstance(value, list | tuple) else []


def word(value: Any, limit: int = 200) -> str:
    """A text or a plain number of it in one line; empty for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    if isinstance(value, int) and abs(value) > 10**30:
        return ""
    return clean(str(value)[: limit * 4])[:limit]


def whole(value: Any) -> int | None:
    """A whole number below 2**63, also from a text of digits; None for anything else."""
    if isinstance(value, str) and re.fullmatch(r"\s{0,9}-?[0-9]{1,19}\s{0,9}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
        return None
    return value


def number(value: Any) -> float | None:
    """A finite number, also from a text; None for anything else."""
    if isinstance(value, str) and len(value) <= 40:
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        return None
    return float(value) if value == value else None
