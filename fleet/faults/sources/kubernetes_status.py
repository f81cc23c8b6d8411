"""Kubernetes objects (`kubectl get -o json`): how pods and Jobs ended, and what a node's status says."""

from collections.abc import Iterator, Mapping
from typing import Any

from fleet.faults.evidence import Kind, Source
from fleet.faults.sources.node_problems import node_conditions, seconds
from fleet.faults.tables import Tables, load_tables, plain
from fleet.faults.texts import BROKEN, Findings, Origin, Parsed, decoded, load_json, rows, table, whole, word

MAX_OBJECTS = 10_000

_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
_SAYS_LITTLE = {"", "error", "completed", "none"}
_INDEX = "batch.kubernetes.io/job-completion-index"


def read_kubernetes_status(raw: str | bytes, origin: Origin, tables: Tables | None = None) -> Parsed:
    """Evidence of each pod, Job and node that is not well, a List included. What runs or ended well is counted."""
    found = Findings(Source.SCHEDULER, origin)
    document = load_json(decoded(raw))
    if document is BROKEN:
        found.cannot_read("an object of Kubernetes that is no JSON, or cut off", decoded(raw)[:200])
        return found.parsed()
    for one in _objects(document):
        found.lines += 1
        kind = word(one.get("kind"), 60)
        if "status" not in one:
            found.cannot_read(f"a {kind or 'document'} without a status", str(dict(one))[:120])
        elif kind == "Pod":
            _read_pod(found, one, tables or load_tables())
        elif kind == "Node":
            _read_node(found, one, tables or load_tables())
        elif kind == "Job":
            _read_job(found, one)
        else:
            found.cannot_read("an object that is neither a pod nor a node nor a Job", kind)
    return found.parsed()


def _objects(document: Any) -> Iterator[Mapping[str, Any]]:
    top = table(document)
    items = rows(document) or (rows(top.get("items")) if "items" in top else [document])
    yield from map(table, items[:MAX_OBJECTS])


def _read_pod(found: Findings, pod: Mapping[str, Any], tables: Tables) -> None:
    status, spec, meta = table(pod["status"]), table(pod.get("spec")), table(pod.get("metadata"))
    node = found.origin.node or word(spec.get("nodeName")) or None
    where = f"pod {word(meta.get('namespace'))}/{word(meta.get('name'))} on {node or 'no node'}"
    phase = word(status.get("phase"), 20)
    notes = {**table(meta.get("annotations")), **table(meta.get("labels"))}
    more = {"node": node, "rank": found.origin.rank if found.origin.rank is not None else whole(notes.get(_INDEX))}
    before = len(found.evidence)
    if (reason := word(status.get("reason"), 100)) and phase in {"Failed", "Unknown"}:
        found.tell(Kind.JOB_EXIT, reason, f"{where}: {word(status.get('message'), 250) or reason}", **more)
    for condition in map(table, rows(status.get("conditions"))):
        if word(condition.get("type")) == "DisruptionTarget" and word(condition.get("status")) == "True":
            at = seconds(condition.get("lastTransitionTime"))
            said = f"{where}: {word(condition.get('message'), 250) or 'is disrupted'}"
            found.tell(
                Kind.JOB_EXIT, word(condition.get("reason"), 100) or "DisruptionTarget", said, happened_at=at, **more
            )
    for container in map(table, [*rows(status.get("initContainerStatuses")), *rows(status.get("containerStatuses"))]):
        _read_container(found, container, where, more, tables)
    if len(found.evidence) > before:
        return
    if phase in {"Running", "Pending", "Succeeded"}:
        found.drop("a pod that ended well" if phase == "Succeeded" else "a pod that has not ended")
    elif phase == "Failed":
        found.tell(Kind.JOB_EXIT, "FAILED", f"{where}: failed, and no container says why", **more)
    else:
        found.cannot_read("a pod of an unknown phase", f"{where}: {phase}")


def _read_container(
    found: Findings, container: Mapping[str, Any], where: str, more: Mapping[str, Any], tables: Tables
) -> None:
    """Its end, now or before its last restart, or why it does not start."""
    name = word(container.get("name"), 60)
    state = table(container.get("state"))
    ended = table(state.get("terminated")) or table(table(container.get("lastState")).get("terminated"))
    if ended and not (whole(ended.get("exitCode")) == 0 and word(ended.get("reason")) in {"", "Completed"}):
        reason, code = word(ended.get("reason"), 100), whole(ended.get("exitCode"))
        said = f"{where}, container {name}: {reason} exit {code} signal {whole(ended.get('signal')) or 0}"
        said += f" {word(ended.get('message'), 200)}"
        telling = plain(reason) not in _SAYS_LITTLE
        found.tell(
            Kind.JOB_EXIT,
            reason if telling else str(code) if code is not None else "FAILED",
            said,
            happened_at=seconds(ended.get("finishedAt")),
            **more,
        )
    waiting = word(table(state.get("waiting")).get("reason"), 100)
    row = tables.reason("job", waiting) if waiting else None
    if row is not None and not (ended and waiting == "CrashLoopBackOff"):
        said = f"{where}, container {name}: {word(table(state.get('waiting')).get('message'), 250) or waiting}"
        found.tell(Kind.JOB_EXIT, waiting, said, **more)


def _read_node(found: Findings, node: Mapping[str, Any], tables: Tables) -> None:
    status, spec = table(node["status"]), table(node.get("spec"))
    name = word(table(node.get("metadata")).get("name"), 200)
    if not name:
        found.cannot_read("a node without a name", str(dict(node))[:120])
        return
    if found.origin.node and name != found.origin.node:
        found.drop("another node's status")
        return
    before = len(found.evidence)
    boot = found.origin.boot or word(table(status.get("nodeInfo")).get("bootID"), 80) or None
    conditions = {word(c.get("type")): c for c in map(table, rows(status.get("conditions")))}
    ready = conditions.get("Ready")
    if ready is None:
        found.cannot_read("a node without the condition Ready", name)
    elif word(ready.get("status")) != "True":
        said = f"{name}: Ready is {word(ready.get('status'))}: {word(ready.get('message'), 250)}"
        at = seconds(ready.get("lastTransitionTime"))
        found.tell(Kind.NODE_DOWN, "down", said, node=name, boot=boot, happened_at=at)
    if spec.get("unschedulable") is True:
        found.tell(Kind.NODE_DRAINED, "drained", f"{name} is cordoned", node=name, boot=boot)
    for kind in _PRESSURES:
        if word(table(conditions.get(kind)).get("status")) == "True":
            said = word(table(conditions[kind]).get("message"), 250)
            found.tell(Kind.NODE_CONDITION, f"{kind}=True", said, node=name, boot=boot)
    node_conditions(found, rows(status.get("conditions")), name, tables)
    if len(found.evidence) == before and not found.unreadable:
        found.drop("a node that is well")


def _read_job(found: Findings, job: Mapping[str, Any]) -> None:
    meta = table(job.get("metadata"))
    where = f"Job {word(meta.get('namespace'))}/{word(meta.get('name'))}"
    conditions = [c for c in map(table, rows(table(job["status"]).get("conditions"))) if c.get("status") == "True"]
    failed = next((c for c in conditions if word(c.get("type")) == "Failed"), None)
    if failed is not None:
        reason = word(failed.get("reason"), 100) or "FAILED"
        said = f"{where}: {word(failed.get('message'), 250) or reason}"
        found.tell(Kind.JOB_EXIT, reason, said, happened_at=seconds(failed.get("lastTransitionTime")))
    elif any(word(c.get("type")) == "Complete" for c in conditions):
        found.drop("a Job that ended well")
    else:
        found.drop("a Job that has not ended")
