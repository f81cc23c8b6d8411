"""Conditions that node agents write: some are bad when True, some when False, some are nobody's word any more
(trouble case PC-K12)."""

import time
from typing import Any

import pytest

from activities.backends.kubernetes.nodeview import SILENT_AFTER, BootTimes, node_facts
from activities.backends.kubernetes.records import node_record
from activities.nodes import node_evidence
from fleet.faults.classify import classify
from fleet.faults.evidence import Evidence, FaultClass, Kind, Verdict
from fleet.faults.tables import load_tables
from tests.kubernetes.making import RESOURCE

NOW = time.time()


def stamp(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def evidence(*conditions: tuple[str, str, str], ready_since: float = NOW - 900, quiet: float = 60) -> list[Evidence]:
    """What a Ready node with these conditions (type, status, reason), 300 s old, gives."""
    written = [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": f"{kind} by its agent",
            "lastTransitionTime": stamp(NOW - 300),
            "lastHeartbeatTime": stamp(NOW - quiet),
        }
        for kind, status, reason in conditions
    ]
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": stamp(ready_since)}
    raw: dict[str, Any] = {
        "metadata": {"name": "n1", "uid": "u", "creationTimestamp": stamp(NOW - 9000)},
        "spec": {},
        "status": {
            "conditions": [ready, {"type": "MemoryPressure", "status": "False"}, *written],
            "nodeInfo": {"bootID": "b1"},
            "capacity": {RESOURCE: "8"},
            "allocatable": {RESOURCE: "8"},
        },
    }
    facts = node_facts("gamma", node_record(raw, RESOURCE), (), BootTimes(), NOW)
    return list(node_evidence(facts, NOW))


def judged(found: list[Evidence]) -> Verdict:
    return classify(found, tables=load_tables(), boot="b1", now=NOW)


def test_a_type_that_is_good_when_true_and_one_that_is_bad_when_true() -> None:
    found = evidence(("KernelDeadlock", "False", "ok"), ("AcceleratedHardwareReady", "False", "NvidiaXID79Error"))
    assert [e.code for e in found] == ["AcceleratedHardwareReady=False"]
    verdict = judged(found)
    assert (verdict.fault, verdict.culprit.node) == (FaultClass.HARDWARE, "n1")
    assert "NvidiaXID79Error" in verdict.evidence_text[0]


@pytest.mark.parametrize("kind", ["KernelDeadlock", "ReadonlyFilesystem"])
def test_a_node_that_is_ready_and_sick_is_sick(kind: str) -> None:
    verdict = judged(evidence((kind, "True", "DockerHung")))
    assert (verdict.fault, verdict.first_rung, verdict.rule) == (FaultClass.HARDWARE, "reboot", f"condition:{kind}")


def test_an_agent_that_is_silent_proves_nothing() -> None:
    verdict = judged(evidence(("AcceleratedHardwareReady", "False", "x"), quiet=SILENT_AFTER + 60))
    assert verdict.fault is FaultClass.INFORMATIONAL
    assert "run a check" in verdict.title
    assert judged(evidence(("KernelReady", "Unknown", "x"))).fault is FaultClass.INFORMATIONAL


@pytest.mark.parametrize("status", ["True", "False"])
def test_a_type_that_nobody_mapped_is_recorded_and_followed_by_no_action(status: str) -> None:
    found = evidence(("GpuFrobnication", status, "Odd"))
    assert [e.kind for e in found] == [Kind.NODE_CONDITION]
    verdict = judged(found)
    assert (verdict.fault, verdict.rule) == (FaultClass.INFORMATIONAL, "condition:unmapped")


def test_what_stood_before_the_present_boot_asks_for_no_other_repair() -> None:
    assert evidence(("KernelDeadlock", "True", "DockerHung"), ready_since=NOW - 100) == []


def test_a_restarting_runtime_alone_moves_no_job() -> None:
    verdict = judged(evidence(("FrequentContainerdRestart", "True", "x")))
    assert (verdict.fault, verdict.rule) == (FaultClass.INFORMATIONAL, "condition:FrequentContainerdRestart")
