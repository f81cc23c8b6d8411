"""Kubernetes objects: the reason of an end, the node's own word, and who is not to blame."""

import json
from typing import Any

import pytest

from fleet.faults.classify import classify
from fleet.faults.evidence import FaultClass, Kind
from fleet.faults.sources.kubernetes_status import read_kubernetes_status
from fleet.faults.sources.node_problems import read_node_problems
from fleet.faults.texts import Origin, Parsed
from tests.faults.making import NOW, TABLES

ORIGIN = Origin(cluster="beta", job="train-7", seen_at=NOW)
Json = dict[str, Any]
AT = "2026-01-02T03:04:05Z"


def pod(phase: str = "Failed", *, reason: str = "", containers: tuple[Json, ...] = (), **status: Any) -> Json:
    return {
        "kind": "Pod",
        "metadata": {
            "namespace": "ml",
            "name": "train-7-3",
            "annotations": {"batch.kubernetes.io/job-completion-index": "3"},
        },
        "spec": {"nodeName": "gpu-b07"},
        "status": {"phase": phase, "containerStatuses": list(containers), **({"reason": reason} if reason else {})}
        | status,
    }


def ended(code: int, reason: str = "Error", *, last: bool = False) -> Json:
    state = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": AT}}
    return (
        {"name": "main", "lastState": state, "state": {"running": {}}} if last else {"name": "main", "state": state}
    )


def waits(reason: str) -> Json:
    return {"name": "main", "state": {"waiting": {"reason": reason, "message": "no such image"}}}


def disrupted(reason: str) -> Json:
    return {"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": AT}


def node(ready: str = "True", *conditions: Json, **spec: Any) -> Json:
    return {
        "kind": "Node",
        "metadata": {"name": "gpu-b07"},
        "spec": spec,
        "status": {
            "conditions": [{"type": "Ready", "status": ready, "message": "kubelet"}, *conditions],
            "nodeInfo": {"bootID": "boot-9"},
        },
    }


def job(*conditions: tuple[str, str]) -> Json:
    said = [
        {"type": t, "status": "True", "reason": r, "message": "said", "lastTransitionTime": AT} for t, r in conditions
    ]
    return {"kind": "Job", "metadata": {"namespace": "ml", "name": "train"}, "status": {"conditions": said}}


def read(document: Any, origin: Origin = ORIGIN) -> Parsed:
    return read_kubernetes_status(json.dumps(document), origin)


@pytest.mark.parametrize(
    ("document", "codes", "fault"),
    [
        (pod(containers=(ended(137, "OOMKilled"),)), ["OOMKilled"], FaultClass.USER),
        (pod(containers=(ended(137),)), ["137"], FaultClass.UNKNOWN),
        (pod(containers=(ended(1),)), ["1"], FaultClass.UNKNOWN),
        (pod(containers=(ended(127),)), ["127"], FaultClass.USER),
        (pod(containers=(ended(128, "StartError"),)), ["StartError"], FaultClass.UNKNOWN),
        (pod("Running", containers=(ended(1, last=True),)), ["1"], FaultClass.UNKNOWN),
        (pod(reason="Evicted"), ["Evicted"], FaultClass.TRANSIENT),
        (pod(reason="UnexpectedAdmissionError"), ["UnexpectedAdmissionError"], FaultClass.TRANSIENT),
        (pod(reason="NodeLost"), ["NodeLost"], FaultClass.HARDWARE),
        (pod(conditions=[disrupted("PreemptionByScheduler")]), ["PreemptionByScheduler"], FaultClass.TRANSIENT),
        (pod(conditions=[disrupted("DeletionByTaintManager")]), ["DeletionByTaintManager"], FaultClass.HARDWARE),
        (pod("Pending", containers=(waits("ImagePullBackOff"),)), ["ImagePullBackOff"], FaultClass.USER),
        (pod(), ["FAILED"], FaultClass.UNKNOWN),
        (job(("Failed", "BackoffLimitExceeded")), ["BackoffLimitExceeded"], FaultClass.UNKNOWN),
        (job(("Failed", "DeadlineExceeded")), ["DeadlineExceeded"], FaultClass.USER),
    ],
)
def test_an_end_is_told_by_its_reason_and_else_by_its_code(
    document: Json, codes: list[str], fault: FaultClass
) -> None:
    found = read(document)
    assert [e.code for e in found.evidence] == codes
    assert {(e.kind, e.job) for e in found.evidence} == {(Kind.JOB_EXIT, "train-7")}
    assert classify(found.evidence, tables=TABLES, now=NOW).fault is fault


def test_a_pod_names_its_node_its_rank_and_its_time() -> None:
    (e,) = read(pod(containers=(ended(1),))).evidence
    assert (e.node, e.rank, e.happened_at) == ("gpu-b07", 3, 1767323045.0)
    assert "pod ml/train-7-3 on gpu-b07, container main" in e.detail


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (pod("Running"), "a pod that has not ended"),
        (pod("Pending", containers=(waits("ContainerCreating"),)), "a pod that has not ended"),
        (pod("Succeeded", containers=(ended(0, "Completed"),)), "a pod that ended well"),
        (job(), "a Job that has not ended"),
        (job(("Complete", "")), "a Job that ended well"),
    ],
)
def test_what_runs_or_ended_well_is_counted(document: Json, why: str) -> None:
    found = read(document)
    assert (found.evidence, found.dropped) == ((), {why: 1})


@pytest.mark.parametrize(
    ("document", "told", "fault"),
    [
        (node("Unknown"), [(Kind.NODE_DOWN, "down")], FaultClass.HARDWARE),
        (node("False"), [(Kind.NODE_DOWN, "down")], FaultClass.HARDWARE),
        (node(unschedulable=True), [(Kind.NODE_DRAINED, "drained")], FaultClass.INFORMATIONAL),
        (
            node("True", {"type": "MemoryPressure", "status": "True", "message": "low"}),
            [(Kind.NODE_CONDITION, "MemoryPressure=True")],
            FaultClass.INFORMATIONAL,
        ),
        (
            node("True", {"type": "GpuMemWatch", "status": "True", "message": "ErrorCode:DCGM_FR_X GPU:0"}),
            [(Kind.NODE_CONDITION, "GpuMemWatch=True")],
            FaultClass.HARDWARE,
        ),
        (
            node("True", {"type": "KernelReady", "status": "False", "message": "XID 79 seen"}),
            [(Kind.NODE_CONDITION, "KernelReady=False")],
            FaultClass.HARDWARE,
        ),
    ],
)
def test_a_node_is_told_by_its_own_status(document: Json, told: list[Any], fault: FaultClass) -> None:
    found = read(document, Origin(cluster="beta", seen_at=NOW))
    assert [(e.kind, e.code) for e in found.evidence] == told
    assert {(e.node, e.boot) for e in found.evidence} <= {("gpu-b07", "boot-9"), ("gpu-b07", None)}
    assert classify(found.evidence, tables=TABLES, now=NOW).fault is fault


def test_a_node_that_is_well_and_another_nodes_status_are_counted() -> None:
    well = node("True", {"type": "KernelDeadlock", "status": "False"}, {"type": "DiskPressure", "status": "False"})
    assert read(well).evidence == ()
    assert read(well).dropped["a node that is well"] == 1
    other = read(node("Unknown"), Origin(cluster="beta", node="gpu-b08", seen_at=NOW))
    assert (other.evidence, other.dropped) == ((), {"another node's status": 1})


def test_a_list_is_read_object_by_object() -> None:
    found = read({"kind": "List", "items": [pod(containers=(ended(1),)), node("Unknown"), job(), {"kind": "Pod"}]})
    assert [e.kind for e in found.evidence] == [Kind.JOB_EXIT, Kind.NODE_DOWN, Kind.UNREADABLE]
    assert found.lines == 4


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"kind": "Secret", "status": {}}',
        '{"kind": "Node", "status": {}}',
        '{"kind": "Node", "metadata": {"name": "a"}, "status": {"conditions": 7}}',
        '{"kind": "Pod", "status": {}}',
        '{"kind": "Pod", "status": {"phase": "Frobbed"}}',
        '{"items": ' * 50_000,
        b"\xff",
    ],
)
def test_what_cannot_be_read_says_so(raw: str | bytes) -> None:
    found = read_kubernetes_status(raw, ORIGIN)
    assert {e.kind for e in found.evidence} == {Kind.UNREADABLE}


# -- node-problem-detector


def event(reason: str, message: str, **more: Any) -> Json:
    about = {"kind": "Node", "name": "gpu-b07"}
    return {"kind": "Event", "type": "Warning", "reason": reason, "message": message, "involvedObject": about} | more


def problems(document: Any, origin: Origin | None = None) -> Parsed:
    return read_node_problems(json.dumps(document), origin or Origin(cluster="beta", seen_at=NOW))


@pytest.mark.parametrize(
    ("condition", "code", "fault"),
    [
        ({"type": "KernelDeadlock", "status": "True", "message": "x"}, "KernelDeadlock=True", FaultClass.HARDWARE),
        ({"type": "XfsShutdown", "status": "True"}, "XfsShutdown=True", FaultClass.HARDWARE),
        (
            {"type": "FrequentKubeletRestart", "status": "True"},
            "FrequentKubeletRestart=True",
            FaultClass.INFORMATIONAL,
        ),
        ({"type": "KernelReady", "status": "Unknown"}, "KernelReady=Unknown", FaultClass.INFORMATIONAL),
        ({"type": "OurOwnThing", "status": "True"}, "OurOwnThing=True", FaultClass.INFORMATIONAL),
    ],
)
def test_a_condition_is_bad_by_its_own_row(condition: Json, code: str, fault: FaultClass) -> None:
    for shape in (condition, [condition], {"conditions": [condition]}, node("True", condition)):
        (e,) = problems(shape, Origin(cluster="beta", node="gpu-b07", seen_at=NOW)).evidence
        assert (e.kind, e.code, e.node) == (Kind.NODE_CONDITION, code, "gpu-b07")
        assert classify([e], tables=TABLES, now=NOW).fault is fault


def test_the_xid_that_nvsentinel_writes_into_a_condition_is_judged_by_our_own_row() -> None:
    said = {"type": "SysLogsXIDError", "status": "True", "message": "ErrorCode:94 PCI:0000:1b:00 GPU:0 said"}
    (e,) = problems(node("True", said)).evidence
    verdict = classify([e], tables=TABLES, now=NOW)
    assert (verdict.rule, verdict.fault) == ("xid:94", FaultClass.TRANSIENT)


def test_conditions_whose_good_value_differs_are_told_apart() -> None:
    good = [{"type": "KernelDeadlock", "status": "False"}, {"type": "KernelReady", "status": "True"}]
    found = problems(good)
    assert (found.evidence, found.dropped) == ((), {"a condition that is well": 2})


@pytest.mark.parametrize(
    ("message", "kind", "code"),
    [
        ("task python3:4711 blocked for more than 120 seconds.", Kind.KERNEL_TEXT, "hung_task"),
        ("Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB", Kind.KERNEL_TEXT, "oom_job"),
        ("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.", Kind.XID, "79"),
        ("something that no row knows", Kind.NODE_CONDITION, "TaskHung=event"),
    ],
)
def test_an_events_kernel_line_is_judged_as_such(message: str, kind: Kind, code: str) -> None:
    (e,) = problems(event("TaskHung", message, lastTimestamp=AT, count=7)).evidence
    assert (e.kind, e.code, e.node, e.happened_at, e.count) == (kind, code, "gpu-b07", 1767323045.0, 7)


def test_events_about_pods_and_events_that_warn_of_nothing_are_counted() -> None:
    other = event("Killing", "x") | {"involvedObject": {"kind": "Pod", "name": "p"}}
    found = problems([other, event("NodeReady", "x", type="Normal")])
    assert found.evidence == ()
    assert sum(found.dropped.values()) == 2


@pytest.mark.parametrize("raw", ["", "{", "7", "{}", '[{"type": ""}]', '{"conditions": [7]}', b"\x00"])
def test_what_is_no_condition_says_so(raw: str | bytes) -> None:
    found = read_node_problems(raw, ORIGIN)
    assert {e.kind for e in found.evidence} == {Kind.UNREADABLE}
