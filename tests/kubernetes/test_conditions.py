"""Conditions that node agents write: some are bad when True, some when False, some are nobody's word any more
(trouble case PC-K12)."""

import time
from typing import Any

import pytest

from activities.backends.kubernetes.marks import Isolation
from activities.backends.kubernetes.nodeview import REBOOT_WITHIN, SILENT_AFTER, BootTimes, LastFacts, node_facts
from activities.backends.kubernetes.records import NodeRecord, node_record
from activities.nodes import node_evidence
from fleet.faults.classify import classify
from fleet.faults.evidence import Evidence, FaultClass, Kind, Verdict
from fleet.faults.tables import load_tables
from fleet.model import NodeFacts, NodeState
from tests.kubernetes.making import RESOURCE

NOW = time.time()


def stamp(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def node(*conditions: tuple[str, str, str], ready_since: float = NOW - 900, quiet: float = 60) -> NodeRecord:
    """A Ready node with these conditions (type, status, reason), 300 s old and last written `quiet` s ago."""
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
    return node_record(raw, RESOURCE)


def evidence(*conditions: tuple[str, str, str], ready_since: float = NOW - 900, quiet: float = 60) -> list[Evidence]:
    """What such a node gives."""
    record = node(*conditions, ready_since=ready_since, quiet=quiet)
    return list(node_evidence(node_facts("gamma", record, (), BootTimes(), NOW), NOW))


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


def test_a_node_that_did_not_change_is_shown_as_the_same_value_until_it_changes_by_itself() -> None:
    last, boots = LastFacts(), BootTimes()
    record = node(("KernelDeadlock", "True", "DockerHung"))
    silent = NOW - 60 + SILENT_AFTER

    def at(seconds: float, jobs: tuple[str, ...] = (), seen: NodeRecord = record) -> NodeFacts:
        return last.of("gamma", seen, jobs, boots, seconds)

    first = at(NOW)
    assert first == node_facts("gamma", record, (), boots, NOW).model_copy(update={"read_at": 0.0})
    assert at(silent - 2) is first
    assert [c.status for c in at(silent + 2).conditions] == ["Unknown"]
    assert at(silent + 3, ("job/default/llm",)).jobs == ("job/default/llm",)
    assert at(silent + 4, seen=node()).conditions == ()


def test_a_reboot_that_is_not_seen_stops_colouring_a_node_that_is_not_written_any_more() -> None:
    last, boots = LastFacts(), BootTimes()
    mark = Isolation(op="opaaaaa", boot="b1", at=NOW, cordoned=True, reboot_from="b1", reboot_at=NOW)
    record = node().model_copy(update={"isolation": mark, "cordoned": True})
    states = [last.of("gamma", record, (), boots, NOW + s).state for s in (1, REBOOT_WITHIN - 1, REBOOT_WITHIN + 1)]
    assert states == [NodeState.REBOOTING, NodeState.REBOOTING, NodeState.DRAINED]
