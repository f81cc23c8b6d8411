"""What is over: evidence from before the present boot of its node, or from before a confirmed reset of its GPU."""

from collections.abc import Mapping, Sequence

from fleet.faults.evidence import EARLIER_BOOT, Evidence, Fact
from fleet.faults.reading import where
from fleet.faults.repeats import event_time, gpu_names, order, same_gpu_name
from fleet.faults.scene import JOB_SIDE

FRESH = 24 * 3600.0
"""Seconds after which evidence of an unknown boot is void."""


def valid(
    evidence: Sequence[Evidence], facts: Sequence[Evidence], boot: str | Mapping[str, str] | None, now: float
) -> tuple[list[Evidence], list[str]]:
    """(evidence that still holds, each piece once and in a fixed order; what was void and why)."""
    kept: dict[tuple[str, str], Evidence] = {}
    refused: list[str] = []
    marks = _Marks(evidence, facts, now)
    for e in sorted(evidence, key=lambda e: order(e, now)):
        present = boot.get(e.node or "") if isinstance(boot, Mapping) else boot
        name = f"{e.kind} {e.code or ''}".strip() + where(e)
        if e.boot == EARLIER_BOOT or (e.boot and present and e.boot != present):
            refused.append(f"void: {name} is from before the present boot")
        elif marks.before_reset(e):
            refused.append(f"void: {name} is from before the reset of its GPU")
        elif not (e.boot and present) and e.happened_at is not None and now - e.happened_at > FRESH:
            refused.append(f"void: {name} is {(now - e.happened_at) / 3600:.0f} h old and of an unknown boot")
        else:
            kept.setdefault((e.key, e.detail), e)
    return list(kept.values()), refused


class _Marks:
    """The resets of each GPU that the facts tell. A reset after a job's end leaves what ended the job as it was, so
    beside a job's evidence only resets count that were surely before its end."""

    def __init__(self, evidence: Sequence[Evidence], facts: Sequence[Evidence], now: float) -> None:
        self._names = gpu_names([*evidence, *facts])
        job_side = [e for e in evidence if e.kind in JOB_SIDE]
        ends = [e.happened_at for e in job_side if e.happened_at is not None]
        self._until = now if not job_side else min(ends, default=0.0)
        self._resets: dict[object, list[Evidence]] = {}
        for fact in facts:
            gpu = same_gpu_name(fact, self._names) if fact.code == Fact.GPU_RESET else None
            if gpu is not None and event_time(fact, now) <= self._until:
                self._resets.setdefault(gpu, []).append(fact)
        self._now = now

    def before_reset(self, e: Evidence) -> bool:
        """By the clock that both have: the epoch's, or that of one log."""
        resets = self._resets.get(same_gpu_name(e, self._names)) if self._resets and e.gpu else None
        return any(self._older(e, reset) for reset in resets or ())

    def _older(self, e: Evidence, reset: Evidence) -> bool:
        if e.happened_at is None and e.stamp is not None and reset.stamp is not None:
            return e.node == reset.node and e.boot == reset.boot and e.stamp < reset.stamp
        at = event_time(reset, self._now)
        return (e.happened_at if e.happened_at is not None else e.seen_at) < at
