"""Output of nccl-tests (`all_reduce_perf` and its siblings), the text and the JSON form (`-J`).

Wrong results are a suspicion of the hardware, never a slow node. A bandwidth is a figure: there is no universal
number, and the average over all sizes says nothing, so the largest size counts.
"""

import re
from typing import Any, NamedTuple

from fleet.faults.evidence import Kind, Source
from fleet.faults.texts import BROKEN, Findings, Origin, Parsed, decoded, junk, load_json, number, rows, table, whole

MAX_LINES = 100_000

_BOUNDS = re.compile(r"^# Out of bounds values : (\d{1,12}) (OK|FAILED)")
_TRAILER = re.compile(r"^# Avg bus bandwidth\s{1,8}: ([0-9.]{1,20})")
_STARTED = re.compile(r"^# Collective test (?:starting|concluded): (\w{1,40})")
_BROKEN = re.compile(r"Test (?:NCCL|CUDA) failure|unhandled (?:system|cuda) error")
_LAUNCHER = re.compile(r"^(?:\d{1,6}:|\[\d{1,6},\d{1,6}\]<std(?:out|err)>:)\s?")
"""What `srun -l` and mpirun write before each line of a rank."""
_COLUMNS = 13


class Row(NamedTuple):
    """One size: bytes, bus bandwidth in GB/s out of place and in place, wrong values (None: not checked)."""

    size: int
    out_of_place: float | None
    in_place: float | None
    wrong: int | None


def read_nccl_tests(raw: str | bytes, origin: Origin) -> Parsed:
    """A figure for the bus bandwidth at the largest size (`measured`, GB/s in `value`), and a failed check where
    values were wrong. An output without a row or without its end is unreadable: the test broke off."""
    found = Findings(Source.HEALTH_CHECK, origin)
    text = decoded(raw)
    if why := junk(text):
        found.cannot_read(why)
        return found.parsed()
    if text.lstrip().startswith("{"):
        document = load_json(text)
        if document is BROKEN:
            found.cannot_read("a JSON report of nccl-tests that is cut off", text[:200])
            return found.parsed()
        found_rows, name, bounds, ended = _from_json(found, document)
    else:
        found_rows, name, bounds, ended = _from_text(found, text)
    found.lines += len(found_rows)
    _judge(found, found_rows, name, bounds, ended=ended)
    return found.parsed()


def _judge(found: Findings, sizes: list[Row], name: str, bounds: int | None, *, ended: bool) -> None:
    if not sizes:
        found.cannot_read("an nccl-tests output without one row of results")
        return
    if not ended:
        found.cannot_read("an nccl-tests output that ends before its summary: the test broke off")
    wrong = sum(row.wrong or 0 for row in sizes)
    unchecked = sum(row.wrong is None for row in sizes)
    found.drop("a size whose results were not checked", unchecked)
    if wrong or bounds:
        worst = max(sizes, key=lambda row: row.wrong or 0)
        detail = f"{name}: {max(wrong, bounds or 0)} values came out wrong, most of them at {worst.size} bytes"
        found.tell(Kind.CHECK_FAILED, "nccl wrong results", detail, value=float(max(wrong, bounds or 0)))
    largest = max(sizes, key=lambda row: row.size)
    best = [value for value in (largest.out_of_place, largest.in_place) if value is not None]
    if best:
        shown = " and ".join(f"{value:g}" for value in best)
        detail = f"{name}: bus bandwidth {shown} GB/s at {largest.size} bytes (out of place, in place)"
        found.tell(Kind.MEASURED, "nccl.busbw", detail, value=min(best))
    else:
        found.cannot_read("an nccl-tests row without a bandwidth")


def _from_text(found: Findings, text: str) -> tuple[list[Row], str, int | None, bool]:
    sizes: list[Row] = []
    name, bounds, ended = "nccl-tests", None, False
    for raw in text.split("\n")[:MAX_LINES]:
        line = _LAUNCHER.sub("", raw[:2000].strip()).strip()
        if line.startswith("#"):
            if at := _STARTED.match(line):
                name = at.group(1)
            elif at := _BOUNDS.match(line):
                bounds = int(at.group(1)) if at.group(2) == "FAILED" else bounds
            ended = ended or _TRAILER.match(line) is not None
            continue
        if row := _row(line.split()):
            sizes.append(row)
        elif line and _BROKEN.search(line):
            found.cannot_read("an nccl-tests output with an error of NCCL or CUDA", line)
        elif line:
            found.drop("no row of results")
    return sizes, name, bounds, ended


def _row(words: list[str]) -> Row | None:
    """A row of the table; some collectives leave out the operation and the root."""
    if not _COLUMNS - 2 <= len(words) <= _COLUMNS or not words[0].isdigit() or len(words[0]) > 18:
        return None
    out, back = words[-8:-4], words[-4:]
    if number(out[0]) is None:
        return None
    wrong = [whole(column[3]) for column in (out, back)]
    counted = [count for count in wrong if count is not None]
    return Row(int(words[0]), number(out[2]), number(back[2]), sum(counted) if counted else None)


def _from_json(found: Findings, document: Any) -> tuple[list[Row], str, int | None, bool]:
    top = table(document)
    sizes: list[Row] = []
    for result in rows(top.get("results"))[:MAX_LINES]:
        one = table(result)
        out, back = table(one.get("out_of_place")), table(one.get("in_place"))
        size = whole(one.get("size"))
        if size is None:
            found.cannot_read("an nccl-tests row without a size", str(result)[:100])
            continue
        wrong = [count for side in (out, back) if (count := whole(side.get("nwrong"))) is not None]
        sizes.append(Row(size, number(out.get("bus_bw")), number(back.get("bus_bw")), sum(wrong) if wrong else None))
    bounds = whole(table(top.get("out_of_bounds")).get("out_of_bounds"))
    ended = any(key in top for key in ("average_bus_bandwidth", "average_bandwidth", "out_of_bounds", "end_time"))
    return sizes, "nccl-tests", bounds, ended
