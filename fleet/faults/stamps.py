"""What stands before the message of a kernel line: who wrote it, where and when, in every layout we know.

`[ 12.345678]` (dmesg), `<4>[ 12.3]`, `kern  :warn  : [..]` (dmesg -x), `[Thu Jan  2 03:04:05 2025]` (dmesg -T), an
ISO or syslog stamp with host and tag, and the `level,seq,usec,-;` header of /dev/kmsg.
"""

import re
from datetime import UTC, datetime, timezone

from fleet.model import Value

HEAD = 300
"""Characters in which a prefix must stand; a bound on work, three times the longest seen."""

_KMSG = re.compile(r"^\d{1,4},\d{1,19},(\d{1,19}),[^;]{0,40};")
_LEVEL = re.compile(r"^(?:<\d{1,3}>|[a-z]{3,8} {0,4}:[a-z]{3,7} {0,4}: ?)")
_BOOT = re.compile(r"^\s{0,12}\[\s{0,12}(\d{1,12}\.\d{1,9})\]\s?")
_WALL = re.compile(r"^\[([A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\]\s?")
_ISO = re.compile(r"^(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?\s")
_SYSLOG = re.compile(r"^([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d:\d\d:\d\d)(?:\.\d{1,9})?\s")
_HOST_TAG = re.compile(r"^([^\s:]{1,255}) ([\w./@-]{1,64})(?:\[\d{1,10}\])?: ?")
_TAG = "kernel: "


class Prefix(Value):
    """What the prefix says; `message` is the rest of the line."""

    message: str
    host: str | None = None
    tag: str | None = None
    """Program that wrote the line, `kernel` for the kernel's own; None where the layout has none."""
    stamp: float | None = None
    """Seconds by a clock that compares only within this log."""
    happened_at: float | None = None
    """Seconds since the epoch, only where the stamp names its zone; a guessed zone would be hours off."""


def read_prefix(line: str) -> Prefix:
    """Never raises; a prefix of an unknown layout stays part of the message."""
    rest = line.lstrip("\ufeff")
    if found := _KMSG.match(rest):
        return Prefix(message=rest[found.end() :], tag="kernel", stamp=int(found.group(1)) / 1e6)
    stamp: float | None = None
    happened: float | None = None
    host = tag = None
    if found := _ISO.match(rest):
        stamp, happened = _iso(*found.groups())
        rest = rest[found.end() :]
    elif found := _SYSLOG.match(rest):
        stamp = _syslog(*found.groups())
        rest = rest[found.end() :]
    if stamp is not None and (found := _HOST_TAG.match(rest)):
        host, tag = found.groups()
        rest = rest[found.end() :]
    elif stamp is None and rest.startswith(_TAG):  # a journal that was exported without stamp and host
        tag, rest = "kernel", rest[len(_TAG) :]
    if found := _LEVEL.match(rest):
        rest = rest[found.end() :]
    if found := _WALL.match(rest):
        stamp = _wall(found.group(1))
        rest = rest[found.end() :]
    elif found := _BOOT.match(rest):
        stamp = float(found.group(1))
        rest = rest[found.end() :]
    return Prefix(message=rest, host=host, tag=tag, stamp=stamp, happened_at=happened)


def _iso(day: str, clock: str, fraction: str | None, zone: str | None) -> tuple[float | None, float | None]:
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}").replace(tzinfo=UTC)
        part = float(f"0.{fraction}") if fraction else 0.0
        if zone is None:
            return moment.timestamp() + part, None
        known = moment.replace(tzinfo=UTC if zone == "Z" else _zone(zone))
        return known.timestamp() + part, known.timestamp() + part
    except (ValueError, OverflowError):
        return None, None


def _zone(text: str) -> timezone:
    found = datetime.strptime(text.replace(":", ""), "%z").tzinfo
    return found if isinstance(found, timezone) else UTC


def _syslog(month: str, day: str, clock: str) -> float | None:
    """Year and zone are missing; a leap year stands in, for only differences count."""
    try:
        return datetime.strptime(f"2024 {month} {day} {clock} +0000", "%Y %b %d %H:%M:%S %z").timestamp()
    except ValueError:
        return None


def _wall(text: str) -> float | None:
    try:
        return datetime.strptime(f"{text} +0000", "%a %b %d %H:%M:%S %Y %z").timestamp()
    except ValueError:
        return None
