"""Health events of NVSentinel, as JSON: bare, in a CloudEvent, or as its store keeps them (keys in small letters).

Its recommended action is told and not followed: the code is judged by our own catalogue, and a drain that follows is
NVSentinel's.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fleet.faults.evidence import Kind, Source
from fleet.faults.sources.node_problems import seconds
from fleet.faults.tables import Tables, load_tables
from fleet.faults.texts import BROKEN, Findings, Origin, Parsed, decoded, load_json, number, rows, table, whole, word
from fleet.faults.xid_text import pci_address

MAX_EVENTS = 10_000
MAX_ENTITIES = 100
MAX_XID = 9999
"""Numbers of the NVSwitch have five digits."""
ACTIONS = {
    0: "NONE",
    2: "COMPONENT_RESET",
    5: "CONTACT_SUPPORT",
    6: "RUN_FIELDDIAG",
    15: "RESTART_VM",
    24: "RESTART_BM",
    25: "REPLACE_VM",
    99: "UNKNOWN",
}
"""NVSentinel's `RecommendedAction` (data-models, protobuf), for events that carry the number."""


def read_nvsentinel(raw: str | bytes, origin: Origin, tables: Tables | None = None) -> Parsed:
    """Evidence of each unhealthy event: an XID, an SXid, an error of DCGM, or a failed check by its name.

    A healthy event is counted: that NVSentinel thinks a node well again clears nothing here.
    """
    found = Findings(Source.NODE_AGENT, origin)
    text = decoded(raw)
    document = load_json(text)
    if document is BROKEN:
        lines = [load_json(line) for line in text.split("\n")[:MAX_EVENTS] if line.strip()]
        if not lines or all(line is BROKEN for line in lines):
            found.cannot_read("an event of NVSentinel that is no JSON, or cut off", text[:200])
            return found.parsed()
        document = lines
    for event in _events(document):
        found.lines += 1
        if event is BROKEN or not table(event):
            found.cannot_read("an event of NVSentinel that is no JSON, or cut off")
        else:
            _read_event(found, _small(event), tables or load_tables())
    if not found.lines:
        found.cannot_read("no event of NVSentinel in it", text[:200])
    return found.parsed()


def _events(document: Any) -> Iterator[Any]:
    top = table(document)
    items = rows(document) or rows(top.get("events")) or rows(top.get("healthEvents")) or [document]
    for item in items[:MAX_EVENTS]:
        one = table(item)
        for key in ("data", "healthEvent", "healthevent", "fullDocument"):
            one = table(one.get(key)) or one
        yield table(one.get("healthevent")) or one or item


def _small(event: Mapping[str, Any]) -> dict[str, Any]:
    """Keys in small letters, as the store writes them."""
    return {str(key).lower(): value for key, value in list(event.items())[:200]}


def _read_event(found: Findings, event: Mapping[str, Any], tables: Tables) -> None:
    check = word(event.get("checkname"), 80)
    if not check and "errorcode" not in event:
        found.cannot_read("an event without a check's name and without a code", str(dict(event))[:120])
        return
    if event.get("ishealthy") is True:
        found.drop("an event that says all is well")
        return
    node = word(event.get("nodename"), 200)
    if found.origin.node and node and node != found.origin.node:
        found.drop("another node's event")
        return
    entities = [_small(table(entity)) for entity in rows(event.get("entitiesimpacted"))[:MAX_ENTITIES]]
    named = [(word(e.get("entitytype")).upper(), word(e.get("entityvalue"), 80)) for e in entities]
    fatal = event.get("isfatal") is True
    about = " ".join(f"{kind} {value}" for kind, value in named)
    said = f"{check} {about}: {word(event.get('message'), 250)} ({_action(event)}, {'' if fatal else 'not '}fatal)"
    where = {"node": node or found.origin.node, "happened_at": _time(event.get("generatedtimestamp"))}
    for code in [word(c, 60) for c in rows(event.get("errorcode"))[:20]] or [""]:
        kind, name = _kind(check, code, fatal=fatal, tables=tables)
        for uuid, pci in _gpus(named, word(table(event.get("metadata")).get("gpu_uuid"), 80)):
            found.tell(kind, name, said, gpu=uuid or pci, pci=pci, **where)


def _gpus(named: list[tuple[str, str]], known: str) -> list[tuple[str | None, str | None]]:
    """(uuid, PCI address) of each GPU that an event names, one of them unknown where it names only the other."""
    uuids: list[str | None] = [value for kind, value in named if kind == "GPU_UUID" and value.startswith("GPU-")]
    if not uuids and known.startswith("GPU-"):
        uuids = [known]
    addresses = [pci_address(value) for kind, value in named if kind == "PCI"]
    if len(uuids) == len(addresses):
        return list(zip(uuids, addresses, strict=True)) or [(None, None)]
    pairs: list[tuple[str | None, str | None]] = [(uuid, None) for uuid in uuids]
    return pairs or [(None, pci) for pci in addresses]


def _kind(check: str, code: str, *, fatal: bool, tables: Tables) -> tuple[Kind, str]:
    """What the code means, by the name of the check and its own shape."""
    if re.fullmatch(r"[0-9]{1,6}", code):
        if "SysLogsSXID" in check or int(code) > MAX_XID:
            return Kind.SXID, str(int(code))
        if "xid" in check.lower() or "syslog" in check.lower() or int(code) in tables.xid:
            return Kind.XID, str(int(code))
    if "falleno" in check.lower():
        return Kind.GPU_LOST, "fallen_off_bus"
    if code.startswith("DCGM_FR_"):
        row = next((row for row in tables.dcgm.values() if row.name == code.removeprefix("DCGM_FR_")), None)
        return Kind.DCGM_ERROR, row.error if row else "severity:4"
    if fatal:
        return Kind.CHECK_FAILED, f"nvsentinel {check} {code}".strip()
    return Kind.NODE_CONDITION, f"{check}=not fatal"


def _action(event: Mapping[str, Any]) -> str:
    given = event.get("recommendedaction")
    code = whole(given)
    name = ACTIONS.get(code) if code is not None else word(given, 40)
    return f"NVSentinel recommends {name or 'nothing'}"


def _time(value: Any) -> float | None:
    """A protobuf timestamp as an object, or a text."""
    if isinstance(value, dict):
        return number(_small(value).get("seconds"))
    return seconds(value)
