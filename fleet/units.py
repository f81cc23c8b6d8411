"""Durations, percentages, sizes and rates as people write them: `90s`, `15m`, `2h`, `1d`, `10%`, `20GB`, `500MB/s`. A
bare number has no unit."""

import math
import re
from datetime import UTC, datetime

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
"""Seconds in one of each unit."""
LONGEST = 365 * 86400.0
"""A year: longer is taken for a slip (`90d` for `90s` stays legal, `9000d` does not)."""

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(s|m|h|d)", re.ASCII)
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,3})?)%", re.ASCII)
_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)(kB|MB|GB)/s", re.ASCII)
RATE_UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9}
"""Bytes a second in one of each unit a second."""
_SIZE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)(MB|GB|TB)", re.ASCII)
SIZE_UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12}
"""Bytes in one of each unit."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)


def parse_duration(value: object) -> float:
    """Seconds. Raises ValueError that says how to write it."""
    if isinstance(value, str) and (found := _DURATION.fullmatch(value)):
        seconds = float(found[1]) * UNITS[found[2]]
        if seconds > LONGEST:
            raise ValueError(f"{value} is more than a year; write a shorter time")
        return seconds
    if _is_number(value):
        raise ValueError(f"{value} has no unit; say the unit: {value}s")
    raise ValueError(f"{_shown(value)} is no duration; write a number and s, m, h or d: 90s, 15m, 2h, 1d")


def duration_text(seconds: float) -> str:
    """The shortest spelling that `parse_duration` reads back as the same number."""
    for unit in ("d", "h", "m"):
        count, rest = divmod(seconds, UNITS[unit])
        if count and not rest:
            return f"{count:.0f}{unit}"
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"


def clock_text(at: float) -> str:
    """A time of day, `at` in epoch seconds: 03:14 UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%H:%M} UTC"


def parse_percent(value: object) -> float:
    """0 to 100. Raises ValueError that says how to write it."""
    if isinstance(value, str) and (found := _PERCENT.fullmatch(value)):
        percent = float(found[1])
        if percent > 100:
            raise ValueError(f"{value} is more than 100%")
        return percent
    if _is_number(value):
        raise ValueError(f'{value} has no unit; write it as a percentage: "{value}%"')
    raise ValueError(f'{_shown(value)} is no percentage; write "10%"')


def percent_text(percent: float) -> str:
    """The spelling that `parse_percent` reads back."""
    return f"{percent:.3f}".rstrip("0").rstrip(".") + "%"


def parse_rate(value: object) -> float:
    """Bytes a second. Raises ValueError that says how to write it."""
    if isinstance(value, str) and (found := _RATE.fullmatch(value)):
        rate = float(found[1]) * RATE_UNITS[found[2]]
        if rate <= 0:
            raise ValueError("a rate of 0 moves nothing; leave it out for no limit")
        return rate
    if _is_number(value):
        raise ValueError(f"{value} has no unit; say the unit: {value}MB/s")
    raise ValueError(f"{_shown(value)} is no rate; write a number and kB/s, MB/s or GB/s: 500MB/s")


def rate_text(rate: float) -> str:
    """The spelling that `parse_rate` reads back."""
    unit, size = next(((u, s) for u, s in reversed(RATE_UNITS.items()) if rate >= s), ("kB", RATE_UNITS["kB"]))
    return f"{rate / size:.3f}".rstrip("0").rstrip(".") + f"{unit}/s"


def parse_size(value: object) -> float:
    """Bytes. Raises ValueError that says how to write it."""
    if isinstance(value, str) and (found := _SIZE.fullmatch(value)):
        return float(found[1]) * SIZE_UNITS[found[2]]
    if _is_number(value):
        raise ValueError(f"{value} has no unit; say the unit: {value}GB")
    raise ValueError(f"{_shown(value)} is no size; write a number and MB, GB or TB: 500GB")


def size_text(size: float) -> str:
    """The spelling that `parse_size` reads back, to a thousandth of its unit."""
    unit, one = next(((u, s) for u, s in reversed(SIZE_UNITS.items()) if size >= s), ("MB", SIZE_UNITS["MB"]))
    return f"{size / one:.3f}".rstrip("0").rstrip(".") + unit


def share(total: int, percent: float) -> int:
    """`percent` of `total`, rounded down, for it is a limit; but a share that is not zero is at least 1.

    Without that floor a small cluster gets no remediation at all; rounded up instead, 1% of 288 would be 3.
    """
    if total <= 0 or percent <= 0:
        return 0
    return max(1, math.floor(total * percent / 100 + 1e-9))


def _is_number(value: object) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int | float) or (isinstance(value, str) and _NUMBER.fullmatch(value) is not None)


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
