"""Baselines: what a node or a GPU has measured before, and what its fleet measures. Pure.

There is no universal figure: vendors' floors for one GPU differ by a sixth, and bad is what falls 5% below the
fleet's own (Microsoft SuperBench). So a figure is compared with its own past and with the others'.
"""

from collections import defaultdict
from collections.abc import Iterable
from statistics import median

from fleet.model import Value
from fleet.strikes import Sample

BELOW = 0.95
"""Part of the fleet's median below which a figure is low (SuperBench: more than 5% off is bad)."""

Subject = tuple[str, str, str]
"""Measure, cluster and node; for a GPU that moves its uuid stands for both."""


class Baseline(Value):
    """One figure of a node or one of its GPUs."""

    measure: str
    cluster: str
    node: str
    """Where the newest one was measured."""
    gpu: str | None = None
    last: float
    """The newest one."""
    last_at: float
    count: int
    """Measurements, the newest included."""
    own: float
    """Median of all its measurements."""
    fleet: float | None = None
    """Median of what the others have as their own; None without others."""

    @property
    def low(self) -> bool:
        """The newest is clearly below its own past or the fleet. Right for figures of which more is better."""
        return self.last < BELOW * max(self.own, self.fleet if self.fleet is not None else self.own)


def baselines(samples: Iterable[Sample]) -> tuple[Baseline, ...]:
    """One for each measure of each node and GPU. A GPU's figures follow its uuid to another node."""
    by_subject: dict[Subject, list[Sample]] = defaultdict(list)
    for sample in samples:
        place = (sample.gpu, "") if sample.gpu is not None else (sample.cluster, sample.node)
        by_subject[sample.measure, *place].append(sample)
    own = {subject: median(s.value for s in told) for subject, told in by_subject.items()}
    return tuple(_baseline(subject, told, own) for subject, told in sorted(by_subject.items()))


def _baseline(subject: Subject, told: list[Sample], own: dict[Subject, float]) -> Baseline:
    newest = max(told, key=lambda s: (s.at, s.key))
    same_kind = [key for key in own if key[0] == subject[0] and (key[2] == "") == (subject[2] == "")]
    others = [own[key] for key in same_kind if key != subject]
    return Baseline(
        measure=newest.measure,
        cluster=newest.cluster,
        node=newest.node,
        gpu=newest.gpu,
        last=newest.value,
        last_at=newest.at,
        count=len(told),
        own=own[subject],
        fleet=median(others) if others else None,
    )
