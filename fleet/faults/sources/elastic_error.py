"""torchelastic's error file of one rank (`TORCHELASTIC_ERROR_FILE`, `torch/distributed/elastic`).

`message` is an object with the exception and its call stack, or (a signal, a launcher's words) a bare text with the
time beside it. torchelastic calls every failure of a worker the user's: that says nothing about whose fault it is.
"""

import re
from collections.abc import Mapping

from fleet.faults.evidence import Kind, Source
from fleet.faults.job_log import parse_job_log
from fleet.faults.tables import Tables, load_tables
from fleet.faults.texts import (
    BROKEN,
    DETAIL,
    Findings,
    Origin,
    Parsed,
    clean,
    decoded,
    digest,
    load_json,
    number,
    table,
    word,
)

MAX_STACK = 400
"""Lines of a call stack that are read: its end, where the exception is."""

_SIGNAL = re.compile(r"Signal (\d{1,3}) \((SIG[A-Z0-9]{1,10})\)")
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]{0,200}(?::|$)")


def read_elastic_error(raw: str | bytes, origin: Origin, tables: Tables | None = None) -> Parsed:
    """Evidence of one rank's failure. `happened_at` is the file's own time, which has a resolution of one second;
    a signal's is the time of its detection, so it may stand after what it caused."""
    found = Findings(Source.JOB, origin, lines=1)
    document = load_json(decoded(raw))
    message = document.get("message") if isinstance(document, dict) else None
    if document is BROKEN:
        found.cannot_read("a torchelastic error file that is no JSON, or cut off", decoded(raw)[:200])
    elif isinstance(message, str):
        _bare(found, message, number(table(document).get("timestamp")), tables or load_tables())
    elif isinstance(message, dict):
        extra = table(message.get("extraInfo"))
        happened = number(extra.get("timestamp")) or number(table(document).get("timestamp"))
        _exception(found, message, extra, happened, tables or load_tables())
    else:
        found.cannot_read("a torchelastic error file without a message", str(document)[:200])
    return found.parsed()


def _bare(found: Findings, message: str, happened: float | None, tables: Tables) -> None:
    signal = _SIGNAL.search(message[:2000])
    if signal is not None:
        found.tell(Kind.JOB_EXIT, signal.group(2), message[:DETAIL], happened_at=happened)
    elif not message.strip():
        found.cannot_read("a torchelastic error file with an empty message")
    else:
        _by_text(found, message[:20_000].split("\n"), clean(message[:DETAIL]), happened, tables)


def _exception(
    found: Findings, message: Mapping[str, object], extra: Mapping[str, object], at: float | None, tables: Tables
) -> None:
    stack = extra.get("py_callstack")
    said = word(message.get("message"), DETAIL)
    lines = stack.split("\n")[-MAX_STACK:] if isinstance(stack, str) else []
    if not said and not any(line.strip() for line in lines):
        found.cannot_read("a torchelastic error file with an empty message")
        return
    if not any(line.startswith("Traceback (most recent call last)") for line in lines):
        whole = next((at for at, line in enumerate(lines) if line.startswith(" ")), 0)
        lines = [
            "Traceback (most recent call last):",
            *lines[whole:],
        ]  # a cut stack: its last line tells all the same
    if not any(_EXCEPTION.match(line) for line in lines[1:]):
        lines.append(said)
    _by_text(found, lines, said, at, tables)


def _by_text(found: Findings, lines: list[str], said: str, at: float | None, tables: Tables) -> None:
    o = found.origin
    told = parse_job_log(lines, cluster=o.cluster, job=o.job or "", seen_at=o.seen_at, tables=tables)
    for one in told:
        if one.kind is not Kind.LOG_TEXT:
            continue
        about = digest(f"{o.rank}|{one.code}|{one.detail}")
        found.evidence.append(
            one.model_copy(
                update={
                    "job": o.job,
                    "node": o.node,
                    "boot": o.boot,
                    "rank": o.rank,
                    "happened_at": at,
                    "stamp": None,
                    "raw_hash": about,
                }
            )
        )
    if not found.evidence:
        found.tell(Kind.LOG_TEXT, "unlisted", said or clean(" ".join(lines))[:DETAIL], happened_at=at)
