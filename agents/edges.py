"""Which readings of a GPU are news. Pure but for its memory, which the caller keeps over restarts.

A field is told when it becomes bad, and again when it gets worse; not while it stays as it is. What is bad stands in
the catalogue (`fleet/faults/catalogue/gpu_fields.csv`).
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from fleet.faults.repeats import BURST_GAP
from fleet.faults.tables import FieldRow

COUNTERS = frozenset(
    {"ecc_correctable", "ecc_uncorrectable", "row_remap_uncorrectable", "pcie_replays", "nvlink_errors"}
)
"""They only grow until the driver is loaded again. Told again when twice as large: a handful of times at most."""
GAUGES = frozenset(
    {
        "pcie_width_lost",
        "pcie_generation_lost",
        "clocks_hw_slowdown",
        "clocks_hw_thermal",
        "clocks_power_brake",
        "nvlink_inactive",
    }
)
"""They come and go by themselves: bad in one round may be a link that trains or a load that begins."""
CONFIRM = 2
"""Rounds in a row in which a gauge must be bad."""
REARM = 600.0
"""Seconds for which a gauge must be well before it is news again; what the driver latches is so at once."""

RETELL = 3600.0
"""Seconds after which a burst that does not end is told again."""
BURSTS = 1000
"""Bursts remembered at most."""


@dataclass(frozen=True)
class News:
    """A field that became bad, or worse."""

    row: FieldRow
    value: float


@dataclass
class Edges:
    """What is known of every field of every GPU."""

    rows: Mapping[str, FieldRow]
    told: dict[str, float] = field(default_factory=dict)
    """`UUID FIELD` -> the value that was told."""
    _bad_rounds: dict[str, int] = field(default_factory=dict)
    _well_since: dict[str, float] = field(default_factory=dict)

    def look(self, uuid: str, fields: Mapping[str, float], now: float) -> Iterator[News]:
        """News of one round of one GPU; `now` in seconds of any clock that only grows."""
        for name, value in fields.items():
            row = self.rows.get(name)
            if row is None:
                continue
            key = f"{uuid} {name}"
            if not row.is_bad(value):
                self._well(key, name, now)
            elif self._is_news(key, name, value):
                self.told[key] = value
                yield News(row, value)

    def forget(self, uuid: str) -> None:
        """The GPU is not there any more."""
        for memory in (self.told, self._bad_rounds, self._well_since):
            for key in [key for key in memory if key.startswith(f"{uuid} ")]:
                memory.pop(key)

    def _well(self, key: str, name: str, now: float) -> None:
        self._bad_rounds.pop(key, None)
        if key in self.told and now - self._well_since.setdefault(key, now) >= (REARM if name in GAUGES else 0.0):
            del self.told[key], self._well_since[key]

    def _is_news(self, key: str, name: str, value: float) -> bool:
        self._well_since.pop(key, None)
        self._bad_rounds[key] = self._bad_rounds.get(key, 0) + 1
        if name in GAUGES and self._bad_rounds[key] < CONFIRM:
            return False
        before = self.told.get(key)
        if before is None:
            return True
        if name in COUNTERS:
            return value < before or value >= 2 * before  # smaller: the driver was loaded again and counts anew
        return value != before if name == "recovery_action" else value > before


@dataclass
class Bursts:
    """Which of many equal events is the first of a burst: the judge counts bursts, and a flood must reach nobody."""

    _seen: dict[Hashable, tuple[float, float]] = field(default_factory=dict)
    """Event -> when it was seen last, and when it was told last."""

    def begins(self, event: Hashable, at: float) -> bool:
        """True for the first of a burst, and once in `RETELL` while it goes on; `at` in seconds of one clock."""
        seen, told = self._seen.pop(event, (float("-inf"), float("-inf")))
        begins = at - seen > BURST_GAP or at - told > RETELL
        self._seen[event] = (at, at if begins else told)
        while len(self._seen) > BURSTS:
            self._seen.pop(next(iter(self._seen)))
        return begins
