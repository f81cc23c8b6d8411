"""What a training says in its own log: steps, loss, saves. The lines are those of the lab's training program
(docs/jobs.md), and each names its generation."""

import re
from datetime import datetime

from fleet.model import Progress

_GEN = r"gen=(?P<epoch>\d+)\.(?P<restart>\d+)"
_STEP = re.compile(rf"step (?P<step>\d+)/(?P<total>\d+) loss (?P<loss>\S+)(?: t=(?P<at>\S+))?.*? {_GEN}")
_RESUMED = re.compile(rf"resumed from step (?P<step>\d+) {_GEN}")
_FRESH = re.compile(rf"starting at step 0 {_GEN}")
_SAVED = re.compile(rf"saved step (?P<step>\d+) {_GEN}")
_DONE = re.compile(r"done step (?P<step>\d+)/(?P<total>\d+)")


def parse_progress(text: str, restarts: int | None, epoch: int | None = None) -> Progress:
    """What the attempt with that restart count said, of the submission with that epoch; lines of others do not count.
    None: all lines count, for a log that holds one attempt or one submission only."""
    found = Progress()
    asked = False
    for line in text.splitlines():
        if match := _STEP.match(line) or _RESUMED.match(line) or _FRESH.match(line) or _SAVED.match(line):
            asked = restarts in {None, int(match["restart"])} and epoch in {None, int(match["epoch"])}
            if asked:
                found = found.model_copy(update=_said(match, found))
        elif (match := _DONE.match(line)) and (asked or (restarts is None and epoch is None)):
            found = found.model_copy(update={"done": True, "total": int(match["total"])})
    return found


def _said(match: re.Match[str], found: Progress) -> dict[str, object]:
    if match.re is _FRESH:
        return {"resumed_from": None}
    step = int(match["step"])
    if match.re is _RESUMED:
        return {"resumed_from": step}
    if match.re is _SAVED:
        return {"saved": step}
    at = _time(match["at"])
    said: dict[str, object] = {
        "step": step,
        "total": int(match["total"]),
        "loss": _number(match["loss"]),
        "seen_at": at,
    }
    if found.first_step is None:
        said |= {"first_step": step, "first_step_at": at}
    return said


def keep_first(known: Progress, seen: Progress) -> Progress:
    """What stood at the beginning of the attempt is remembered when the tail does not reach it any more."""
    if known.first_step is None or seen.step is None:
        return seen
    return seen.model_copy(
        update={
            "first_step": known.first_step,
            "first_step_at": known.first_step_at,
            "resumed_from": known.resumed_from,
            "saved": seen.saved if seen.saved is not None else known.saved,
        }
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _time(text: str | None) -> float | None:
    if not text:
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return None
