"""Where the time of a job went (buckets that sum to the wall clock) and what share of it was training (ETTR).

ETTR = productive runtime / available wall clock, time in the queue included (Kokolis et al., arXiv 2410.21680).
Productive is the time of training steps that were kept; steps done after the checkpoint that a later attempt
resumed from are rework. The closed forms at the end are the planning side of the same measure.
"""

import heapq
import math
from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple, overload

from fleet.ledger import Attempt, Ledger, Stage

_TICKS = 1 << 20
"""Ticks in a second. Epoch seconds need 31 bits, so a time in ticks of 2^-20 s fits a float exactly, and so does
every sum and difference of such times: the buckets sum to the wall clock without a rest."""
_DAY = 86400.0


class Bucket(StrEnum):
    """Where a second of wall clock went."""

    PRODUCTIVE = "productive"
    REWORK = "rework"  # steps that were done and thrown away
    QUEUE = "queue"
    DETECT = "detect"
    DECIDE = "decide"
    PERSON = "person"
    ISOLATE = "isolate"
    FENCE = "fence"
    STOP = "stop"
    COPY = "copy"
    START = "start"
    LOAD = "load"
    OTHER = "other"


BUCKET_OF: Mapping[Stage, Bucket] = {
    Stage.DETECT: Bucket.DETECT,
    Stage.DECIDE: Bucket.DECIDE,
    Stage.PERSON: Bucket.PERSON,
    Stage.ISOLATE: Bucket.ISOLATE,
    Stage.FENCE: Bucket.FENCE,
    Stage.STOP: Bucket.STOP,
    Stage.COPY: Bucket.COPY,
    Stage.REQUEUE: Bucket.QUEUE,
    Stage.START: Bucket.START,
    Stage.LOAD: Bucket.LOAD,
    Stage.FIRST_STEP: Bucket.LOAD,
}
"""The one mapping between what a recovery does and where the time goes. The first new step ends the load."""


class _Claim(NamedTuple):
    """Bucket `bucket` claims [start, end); the highest rank wins, then the later start, then the later attempt."""

    rank: int
    start: int
    generation: int
    end: int
    bucket: Bucket


_BASE, _SPAN, _STEPS = range(3)
"""Steps seen are facts and beat a stage that ran beside them (a person was asked while the job trained on); a stage
beats what is only inferred from an attempt's own times."""


def wall_clock(ledger: Ledger, now: float, since: float | None = None) -> float:
    """Seconds from the submit (or `since`, if later) to the end of the job or `now`; to 2^-20 s. Never negative."""
    start, end = _window(ledger, now, since)
    return (end - start) / _TICKS


def buckets(ledger: Ledger, now: float, since: float | None = None) -> dict[Bucket, float]:
    """Seconds in each bucket; their sum is exactly `wall_clock` whatever times the ledger holds or lacks."""
    start, end = _window(ledger, now, since)
    ticks = dict.fromkeys(Bucket, 0)
    for length, bucket in _segments(list(_claims(ledger, end)), start, end):
        ticks[bucket] += length
    return {bucket: count / _TICKS for bucket, count in ticks.items()}


def ettr(ledger: Ledger, now: float, since: float | None = None) -> float:
    """Productive share of the wall clock, 0 to 1 (0 before any time passed).

    With `since=now - 3600` it is the sliding ETTR of ByteRobust (arXiv 2509.16293).
    """
    whole = wall_clock(ledger, now, since)
    return buckets(ledger, now, since)[Bucket.PRODUCTIVE] / whole if whole else 0.0


def steps_lost(ledger: Ledger) -> int:
    """Training steps that were done and thrown away, over all attempts."""
    lost = 0
    for attempt, kept in zip(ledger.attempts, _kept(ledger), strict=True):
        step, resumed = attempt.progress.step, _resumed(attempt)
        if step is not None and resumed is not None and kept is not None:
            lost += max(0, step - max(kept, resumed))
    return lost


# -- what is kept


def _resumed(attempt: Attempt) -> int | None:
    """The step that the attempt went on from; None when it never said or did one.

    A first step at or below the one it claims to have resumed from does that work again, so the earlier attempt's
    copy of it is lost.
    """
    progress = attempt.progress
    first = None if progress.first_step is None else progress.first_step - 1
    return min((s for s in (progress.resumed_from, first) if s is not None), default=None)


def _kept(ledger: Ledger) -> list[int | None]:
    """For each attempt the last step of it that survives; None = all, as far as is known.

    Each later attempt cuts at where it resumed. After a last attempt that ended badly the newest complete checkpoint
    is what can be resumed.
    """
    cut: int | None = None
    last = ledger.last
    if last is not None and last.ended_at is not None and ledger.done_at is None:
        cut = ledger.complete_checkpoint if ledger.complete_checkpoint is not None else last.progress.saved
    kept: list[int | None] = []
    for attempt in reversed(ledger.attempts):
        kept.append(cut)
        resumed = _resumed(attempt)
        if resumed is not None:
            cut = resumed if cut is None else min(cut, resumed)
    return kept[::-1]


# -- who claims which time


def _claims(ledger: Ledger, end: int) -> Iterator[_Claim]:
    before = _tick(ledger.submitted_at)
    for place, (attempt, kept) in enumerate(zip(ledger.attempts, _kept(ledger), strict=True)):
        following = ledger.attempts[place + 1 : place + 2]
        ends = [_tick(attempt.ended_at), *(_tick(f.ordered_at) for f in following if f.ordered_at), end]
        until = min(t for t in ends if t is not None)
        yield from _own_claims(attempt, kept, before, until, done=ledger.done_at is not None and not following)
        yield from _span_claims(attempt, end)
        before = until


def _own_claims(attempt: Attempt, kept: int | None, before: int, until: int, *, done: bool) -> Iterator[_Claim]:
    """Queue, load, steps kept and lost, and what follows the last step seen."""
    progress, generation = attempt.progress, attempt.generation
    ordered = _tick(attempt.ordered_at) if attempt.ordered_at else before
    running = _tick(attempt.running_at)
    first = _tick(progress.first_step_at)
    yield _Claim(_BASE, ordered, generation, until if running is None else running, Bucket.QUEUE)
    if running is None and first is None:
        return
    if running is not None:
        yield _Claim(_BASE, running, generation, until if first is None else first, Bucket.LOAD)
    if first is None:
        return
    seen = max(first, _tick(progress.seen_at) or first)
    split = _split(attempt, kept, first, seen)
    yield _Claim(_STEPS, first, generation, split, Bucket.PRODUCTIVE)
    yield _Claim(_STEPS, split, generation, seen, Bucket.REWORK)
    alive = attempt.ended_at is None or done
    yield _Claim(_BASE, seen, generation, until, Bucket.PRODUCTIVE if alive else Bucket.DETECT)


def _split(attempt: Attempt, kept: int | None, first: int, seen: int) -> int:
    """When the last kept step was finished; steps are taken as equally long between the first and the last."""
    low, high = attempt.progress.first_step, attempt.progress.step
    if kept is None or low is None or high is None or kept >= high:
        return seen
    if kept <= low or high <= low:
        return first
    return first + (seen - first) * (kept - low) // (high - low)


def _span_claims(attempt: Attempt, end: int) -> Iterator[_Claim]:
    """Stages of the recovery that led to `attempt`. An open one lasts until the attempt trains, ends, or now."""
    closes = (attempt.progress.first_step_at, attempt.ended_at)
    for span in attempt.spans:
        close = next((t for t in (span.end, *closes) if t is not None and t >= span.start), None)
        until = end if close is None else _tick(close)
        yield _Claim(_SPAN, _tick(span.start), attempt.generation, until, BUCKET_OF[span.stage])


def _segments(claims: list[_Claim], start: int, end: int) -> Iterator[tuple[int, Bucket]]:
    """Cuts [start, end) at every edge and gives each piece to its highest claim, or to OTHER."""
    waiting = sorted((c for c in claims if c.start < c.end and c.end > start), key=lambda c: c.start)
    edges = sorted({start, end, *(t for c in waiting for t in (c.start, c.end) if start < t < end)})
    open_claims: list[tuple[int, int, int, _Claim]] = []
    place = 0
    for left, right in pairwise(edges):
        while place < len(waiting) and waiting[place].start <= left:
            claim = waiting[place]
            heapq.heappush(open_claims, (-claim.rank, -claim.start, -claim.generation, claim))
            place += 1
        while open_claims and open_claims[0][3].end <= left:
            heapq.heappop(open_claims)
        yield right - left, open_claims[0][3].bucket if open_claims else Bucket.OTHER


def _window(ledger: Ledger, now: float, since: float | None) -> tuple[int, int]:
    end = _tick(now if ledger.done_at is None else min(now, ledger.done_at))
    start = _tick(ledger.submitted_at if since is None else max(ledger.submitted_at, since))
    return min(start, end), end


@overload
def _tick(seconds: float) -> int: ...


@overload
def _tick(seconds: float | None) -> int | None: ...


def _tick(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * _TICKS)


# -- closed forms (arXiv 2410.21680 v2 unless noted); every time in seconds, rates per node and day


def mean_time_to_failure(nodes: int, failures_per_node_day: float) -> float:
    """Seconds between failures of a job on `nodes` nodes; infinite when nothing fails."""
    rate = nodes * failures_per_node_day / _DAY
    return 1 / rate if rate else math.inf


def expected_ettr(
    nodes: int,
    failures_per_node_day: float,
    *,
    restart: float,
    interval: float,
    write: float = 0.0,
    queue: float = 0.0,
    runtime: float = math.inf,
) -> float:
    """Expected ETTR, 0 to 1.

    `restart` from failure to first new step, `interval` between checkpoints, `write` that a save blocks, `queue` for
    each attempt, `runtime` productive seconds of the whole job. 0 where the form is no longer valid (a failure is
    expected before the work since the last checkpoint is made good): simulate there.
    """
    rate = nodes * failures_per_node_day / _DAY
    useful = 1 - rate * (restart + interval / 2)
    cost = 1 + write / interval + rate * queue + (restart + queue) / runtime
    return min(1.0, max(0.0, useful / cost))


def best_interval(write: float, mttf: float) -> float:
    """Young's checkpoint interval."""
    return math.sqrt(2 * write * mttf)


def best_interval_daly(write: float, mttf: float) -> float:
    """Daly's higher order; coefficients as commonly quoted, not confirmed in the paper."""
    if write >= 2 * mttf:
        return mttf
    part = write / (2 * mttf)
    return math.sqrt(2 * write * mttf) * (1 + math.sqrt(part) / 3 + part / 9) - write


def best_period(write: float, mttf: float, recovery: float) -> float:
    """Period, save included, that keeps the most time available (arXiv 2410.18124)."""
    return write + math.sqrt(2 * (mttf + recovery) * write + write * write)


def waste(write: float, interval: float, mttf: float, restart: float) -> float:
    """Share of time lost, first order: saving, redoing and restarting."""
    return write / interval + interval / (2 * mttf) + restart / mttf


def copy_time(
    size: float,
    bits_per_second: float,
    *,
    efficiency: float = 1.0,
    files: int = 0,
    per_file: float = 0.0,
    streams: int = 1,
) -> float:
    """Seconds that a copy of `size` bytes takes over a line: the bytes, then the `per_file` seconds of each file, of
    which `streams` pass at a time. The line is used to the share `efficiency`."""
    return size * 8 / (bits_per_second * efficiency) + files * per_file / streams
