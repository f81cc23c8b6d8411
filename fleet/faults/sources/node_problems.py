"""node-problem-detector and its like: conditions in a node's status, and events about a node.

A condition is bad when True or when False, by its row; what a row does not know is recorded. An event of the
kernel monitor carries the kernel's own line, which is judged as such.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from fleet.faults.evidence import Kind, Source
from fleet.faults.kernel_log import read_kernel_log
from fleet.faults.tables import Tables, load_tables
from fleet.faults.texts import BROKEN, DETAIL, Findings, Origin, Parsed, decoded, load_json, rows, table, whole, word

MAX_ITEMS = 10_000
KUBELETS_OWN = frozenset({"Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"})
"""Conditions that no agent writes."""


def read_node_problems(raw: str | bytes, origin: Origin, tables: Tables | None = None) -> Parsed:
    """Evidence of a node's status, of a list of conditions, or of events about a node (one, or a list)."""
    found = Findings(Source.NODE_AGENT, origin)
    document = load_json(decoded(raw))
    if document is BROKEN:
        found.cannot_read("conditions or events that are no JSON, or cut off", decoded(raw)[:200])
        return found.parsed()
    top = table(document)
    items = rows(document) or rows(top.get("items")) or rows(top.get("conditions")) or [document]
    for item in items[:MAX_ITEMS]:
        one = table(item)
        found.lines += 1
        status = table(one.get("status"))
        if "conditions" in status:
            node_conditions(found, rows(status.get("conditions")), _name(one), tables or load_tables())
        elif word(one.get("kind")) == "Event" or "involvedObject" in one:
            _event(found, one, tables or load_tables())
        elif "type" in one and "status" in one:
            node_conditions(found, [one], None, tables or load_tables())
        else:
            found.cannot_read("neither a condition nor an event", str(item)[:120])
    return found.parsed()


def node_conditions(found: Findings, conditions: list[Any], node: str | None, tables: Tables) -> None:
    """One piece for each condition that is bad, silent, or of a type that the catalogue does not know."""
    for condition in map(table, conditions[:MAX_ITEMS]):
        name, status = word(condition.get("type"), 100), word(condition.get("status"), 20)
        if name in KUBELETS_OWN:
            found.drop("a condition of the kubelet's own")
            continue
        if not name or not status:
            found.cannot_read("a condition without a type or a status", str(dict(condition))[:120])
            continue
        row = tables.conditions.get(name)
        if row is not None and status in {"True", "False"} and status != row.bad:
            found.drop("a condition that is well")
            continue
        said = word(condition.get("message"), DETAIL) or word(condition.get("reason"), DETAIL)
        found.tell(
            Kind.NODE_CONDITION,
            f"{name}={status}",
            said,
            node=found.origin.node or node,
            happened_at=seconds(condition.get("lastTransitionTime") or condition.get("transition")),
        )


def _event(found: Findings, event: Mapping[str, Any], tables: Tables) -> None:
    about = table(event.get("involvedObject")) or table(event.get("regarding"))
    if word(about.get("kind")) not in {"Node", ""}:
        found.drop("an event about something else than a node")
        return
    node = found.origin.node or word(about.get("name"), 200) or None
    happened = seconds(event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp"))
    count = max(whole(event.get("count")) or 1, 1)
    message, reason = word(event.get("message") or event.get("note"), 1500), word(event.get("reason"), 100)
    if word(event.get("type")) == "Normal":
        found.drop("an event that warns of nothing")
        return
    o = found.origin
    told = read_kernel_log(
        message, cluster=o.cluster, node=node or "", seen_at=o.seen_at, boot=o.boot, tables=tables
    ).evidence
    for one in told:
        found.evidence.append(
            one.model_copy(
                update={"node": node, "happened_at": happened, "count": count, "source": Source.NODE_AGENT}
            )
        )
    if not told and reason:
        found.tell(Kind.NODE_CONDITION, f"{reason}=event", message, node=node, happened_at=happened, count=count)
    elif not told:
        found.cannot_read("an event without a reason", str(dict(event))[:120])


def _name(node: Mapping[str, Any]) -> str | None:
    return word(table(node.get("metadata")).get("name"), 200) or None


def seconds(value: Any) -> float | None:
    """Seconds since the epoch of a Kubernetes time; None for another text, and without a zone."""
    if not isinstance(value, str) or len(value) > 40:
        return None
    try:
        moment = datetime.fromisoformat(value)
        return moment.timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
