"""Text from outside -> evidence. One door for every kind of it; nothing here raises for a bad text."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from fleet.faults.evidence import Evidence, Kind, Source
from fleet.faults.exits import exit_evidence
from fleet.faults.job_log import parse_job_log
from fleet.faults.kernel_log import read_kernel_log
from fleet.faults.texts import Parsed, clean, decoded, digest, unreadable

__all__ = ["Parsed", "exit_evidence", "parse_any", "parse_job_log", "parse_kernel_log", "read_kernel_log"]

MAX_PIECES = 10_000
"""Pieces of evidence taken from one JSON text; a bound on work, the rest is counted."""
MAX_TEXT = 256 * 1024 * 1024
"""Characters read of one text."""

BROKEN_JSON = "broken JSON"


def parse_kernel_log(
    text: str | bytes, *, cluster: str, node: str, seen_at: float, boot: str | None = None
) -> tuple[Evidence, ...]:
    """Evidence of a kernel log in any of its layouts; see `read_kernel_log` for what was dropped."""
    return read_kernel_log(text, cluster=cluster, node=node, seen_at=seen_at, boot=boot).evidence


def parse_any(text: str | bytes, *, cluster: str, node: str, seen_at: float, boot: str | None = None) -> Parsed:
    """A kernel log, or evidence as JSON (an object, a list, or one object a line), told apart by how it begins.

    Evidence in JSON may leave out what the caller knows (source, cluster, node, boot, seen_at); a piece that names
    another cluster or node is dropped and counted; an empty `cluster` or `node` takes what the piece says.
    """
    plain = decoded(text[:MAX_TEXT])
    documents = _json_documents(plain)
    if documents is None:
        return read_kernel_log(plain, cluster=cluster, node=node, seen_at=seen_at, boot=boot)
    dropped: Counter[str] = Counter()
    told: list[Evidence] = []
    for document in documents:
        if len(told) >= MAX_PIECES:
            dropped[f"over the limit of {MAX_PIECES} pieces"] += 1
            continue
        one = _piece(document, dropped, cluster=cluster, node=node, seen_at=seen_at, boot=boot)
        if one is not None:
            told.append(one)
    lost = sum(count for why, count in dropped.items() if not why.startswith("names another"))
    if lost:
        why = "; ".join(f"{count} x {why}" for why, count in sorted(dropped.items()))
        piece = unreadable(cluster, node, seen_at, boot, why="unreadable evidence", detail=why)
        told.append(piece.model_copy(update={"source": Source.PERSON}))
    return Parsed(evidence=tuple(told), lines=len(documents), dropped=dict(dropped))


def _json_documents(text: str) -> list[Any] | None:
    """The documents of a JSON text; None for a text of another kind. A broken document stands as BROKEN_JSON."""
    head = text.lstrip("\ufeff \t\r\n")
    if head.startswith("["):
        whole = _load(head)
        if isinstance(whole, list):
            return whole
        return [BROKEN_JSON] if head[1:].lstrip().startswith(("{", "]")) else None
    if not head.startswith("{"):
        return None
    whole = _load(head)
    if whole != BROKEN_JSON:
        return [whole]
    return [_load(line) for line in head.split("\n") if line.strip()]


def _load(text: str) -> Any:
    """BROKEN_JSON for what is none: truncated, nested too deep, a number too long."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return BROKEN_JSON


def _piece(
    document: Any, dropped: Counter[str], *, cluster: str, node: str, seen_at: float, boot: str | None
) -> Evidence | None:
    if document == BROKEN_JSON:
        dropped[BROKEN_JSON] += 1
        return None
    if not isinstance(document, dict):
        dropped["not an object"] += 1
        return None
    given = {"source": Source.PERSON, "cluster": cluster, "node": node, "seen_at": seen_at, "boot": boot}
    filled = given | {key: value for key, value in document.items() if value is not None}
    try:
        one = Evidence.model_validate(filled)
    except (ValidationError, RecursionError) as error:
        dropped[f"not evidence: {_first(error)}"] += 1
        return None
    if not _finite((one.seen_at, one.happened_at, one.stamp)):
        dropped["not evidence: a time that is no number"] += 1
        return None
    if one.cluster != (cluster or one.cluster) or one.node != (node or one.node):
        dropped["names another cluster or node"] += 1
        return None
    if one.kind is Kind.XID and not re.fullmatch(r"[0-9]{1,7}", one.code or ""):
        dropped["not evidence: an xid without its number in `code`"] += 1
        return None
    return one.model_copy(update={"detail": clean(one.detail), "raw_hash": one.raw_hash or digest(one.detail)})


def _first(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return "nested too deep"
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"[:200]


def _finite(numbers: Iterable[float | None]) -> bool:
    return all(number is None or math.isfinite(number) for number in numbers)
