"""Metrics of dcgm-exporter, in Prometheus' text form: the fields that are not as they should be.

A gauge is a hint of unknown age: the last XID stays until the exporter restarts, two equal ones are one, and the
windowed count falls by itself (trouble case PC-F04). None of them is a count of faults.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fleet.faults.evidence import Kind, Source
from fleet.faults.tables import FieldRow, Tables, load_tables
from fleet.faults.texts import Findings, Origin, Parsed, clean, decoded, junk, number
from fleet.faults.xid_text import pci_address

MAX_LINES = 500_000
BLANK = 2147483632.0
"""From here on a value is one of DCGM's blanks (`dcgm_structs.h`): not read, not supported, no permission."""

_SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]{0,200})(?:\{(.{0,3500})\})?\s{1,9}(\S{1,40})(?:\s{1,9}-?\d{1,20})?$")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]{0,100})="((?:[^"\\]|\\.)*)"')


@dataclass
class _Gpu:
    """The fields of one GPU, or of one MIG instance of it."""

    labels: Mapping[str, str]
    values: dict[str, float] = field(default_factory=dict)


def read_dcgm_metrics(raw: str | bytes, origin: Origin, tables: Tables | None = None) -> Parsed:
    """One piece for each field of a GPU that its row calls bad, with its number in `value`."""
    found = Findings(Source.NODE_AGENT, origin)
    text = decoded(raw)
    if why := junk(text):
        found.cannot_read(why)
        return found.parsed()
    gpus: dict[tuple[str, str], _Gpu] = {}
    known = {name for row in (tables or load_tables()).fields.values() for part in _parts(row) for name in part}
    for line in text.split("\n")[:MAX_LINES]:
        _read_line(found, gpus, known, line.strip())
    if not found.lines and not found.unreadable:
        found.cannot_read("no metric of DCGM in it", text[:200])
    for gpu in gpus.values():
        for row in (tables or load_tables()).fields.values():
            _judge(found, gpu, row)
    return found.parsed()


def _read_line(found: Findings, gpus: dict[tuple[str, str], _Gpu], known: set[str], line: str) -> None:
    if not line or line.startswith("#"):
        return
    if not line.startswith("DCGM_"):
        found.drop("no metric of DCGM")
        return
    sample = _SAMPLE.match(line[:4096])
    value = number(sample.group(3)) if sample else None
    if sample is None:
        found.cannot_read("a metric's line without its shape", line)
        return
    found.lines += 1
    name = sample.group(1)
    if name not in known:
        found.drop("a metric without a row in the catalogue")
        return
    if value is None or value >= BLANK:
        found.cannot_read("a field that the exporter could not read", f"{name} {sample.group(3)}")
        return
    labels = {key: clean(text.replace('\\"', '"')) for key, text in _LABEL.findall(sample.group(2) or "")}
    who = (labels.get("UUID") or labels.get("uuid") or labels.get("gpu") or "", labels.get("GPU_I_ID", ""))
    gpu = gpus.setdefault(who, _Gpu(labels))
    gpu.values[name] = max(value, gpu.values.get(name, value))  # one sample a pod or a code: the worst counts


def _parts(row: FieldRow) -> Iterator[tuple[str, ...]]:
    """The names of each spelling: `A`, `A&8` and `A-B`."""
    for spelling in row.names.split():
        yield tuple(re.split(r"[&-]", spelling)[: 1 if "&" in spelling else 2])


def _judge(found: Findings, gpu: _Gpu, row: FieldRow) -> None:
    for spelling in row.names.split():
        value = _value(gpu.values, spelling)
        if value is None:
            continue
        if not row.is_bad(value):
            found.drop("a field is well")
            continue
        labels = gpu.labels
        uuid = labels.get("UUID") or labels.get("uuid")
        pci = pci_address(labels.get("pci_bus_id", ""))
        instance = f" MIG instance {labels['GPU_I_ID']}" if labels.get("GPU_I_ID") else ""
        detail = f"{spelling} = {value:g} on GPU {labels.get('gpu', '?')}{instance}: {row.title}"
        found.tell(
            Kind.GPU_FIELD,
            row.field,
            detail,
            value=value,
            gpu=uuid if uuid and uuid.startswith("GPU-") else pci,
            pci=pci,
            node=found.origin.node or labels.get("Hostname") or None,
        )


def _value(values: Mapping[str, float], spelling: str) -> float | None:
    if "&" in spelling:
        name, mask = spelling.split("&")
        return None if name not in values else float(int(values[name]) & int(mask))
    if "-" in spelling:
        most, now = spelling.split("-")
        return None if most not in values or now not in values else values[most] - values[now]
    return values.get(spelling)
