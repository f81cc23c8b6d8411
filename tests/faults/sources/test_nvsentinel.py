"""NVSentinel's events: our own catalogue judges the code; its recommendation is told, not followed."""

import json
from typing import Any

import pytest

from fleet.faults.classify import classify
from fleet.faults.evidence import FaultClass, Kind
from fleet.faults.sources.nvsentinel import read_nvsentinel
from fleet.faults.texts import Origin, Parsed
from tests.faults.making import NOW, TABLES, UUID

ORIGIN = Origin(cluster="beta", seen_at=NOW)
Json = dict[str, Any]


def event(code: str = "79", check: str = "SysLogsXIDError", **more: Any) -> Json:
    return {
        "version": 1,
        "agent": "syslog-health-monitor",
        "componentClass": "GPU",
        "checkName": check,
        "isFatal": True,
        "isHealthy": False,
        "message": "said",
        "recommendedAction": 24,
        "errorCode": [code],
        "entitiesImpacted": [
            {"entityType": "PCI", "entityValue": "0000:1B:00"},
            {"entityType": "GPU_UUID", "entityValue": UUID},
        ],
        "generatedTimestamp": {"seconds": int(NOW) - 30, "nanos": 0},
        "nodeName": "gpu-b07",
    } | more


def stored(one: Json) -> Json:
    """As the store keeps it: keys in small letters, in a document."""
    small = {
        key.lower(): [{k.lower(): v for k, v in e.items()} for e in value] if key == "entitiesImpacted" else value
        for key, value in one.items()
    }
    return {"_id": "1", "healthevent": small, "healtheventstatus": {"nodequarantined": "Quarantined"}}


def read(document: Any, origin: Origin = ORIGIN) -> Parsed:
    return read_nvsentinel(json.dumps(document), origin)


@pytest.mark.parametrize(
    "document",
    [
        event(),
        [event()],
        {"events": [event()], "version": 1},
        {"specversion": "1.0", "type": "x", "data": event()},
        {"specversion": "1.0", "data": {"healthEvent": event()}},
        stored(event()),
        {"fullDocument": stored(event())},
    ],
)
def test_every_wrapping_of_an_event_is_read(document: Any) -> None:
    (e,) = read(document).evidence
    assert (e.kind, e.code, e.node, e.gpu, e.pci) == (Kind.XID, "79", "gpu-b07", UUID, "0000:1b:00")
    assert e.happened_at == int(NOW) - 30
    assert "NVSentinel recommends RESTART_BM" in e.detail
    verdict = classify([e], tables=TABLES, now=NOW)
    assert (verdict.rule, verdict.first_rung) == ("xid:79", "reboot")


def test_one_event_a_line_is_read_and_a_broken_line_is_told() -> None:
    text = f"{json.dumps(event())}\n{{broken\n{json.dumps(event('48'))}\n"
    found = read_nvsentinel(text, ORIGIN).evidence
    assert [e.code for e in found if e.kind is Kind.XID] == ["79", "48"]
    assert found[-1].kind is Kind.UNREADABLE


@pytest.mark.parametrize(
    ("one", "kind", "code", "fault"),
    [
        (event("31"), Kind.XID, "31", FaultClass.USER),
        (event("63", isFatal=False, recommendedAction="NONE"), Kind.XID, "63", FaultClass.INFORMATIONAL),
        (event("20034", "SysLogsSXIDError"), Kind.SXID, "20034", FaultClass.HARDWARE),
        (event("", "SysLogsGPUFallenOff", errorCode=[]), Kind.GPU_LOST, "fallen_off_bus", FaultClass.HARDWARE),
        (event("DCGM_FR_CORRUPT_INFOROM", "GpuInforomWatch"), Kind.DCGM_ERROR, "9", FaultClass.HARDWARE),
        (event("DCGM_FR_OF_THE_FUTURE", "GpuMemWatch"), Kind.DCGM_ERROR, "severity:4", FaultClass.UNKNOWN),
        (event("E1", "NicWatch"), Kind.CHECK_FAILED, "nvsentinel NicWatch E1", FaultClass.HARDWARE),
        (event("E1", "NicWatch", isFatal=False), Kind.NODE_CONDITION, "NicWatch=not fatal", FaultClass.INFORMATIONAL),
    ],
)
def test_the_code_is_judged_by_our_own_catalogue(one: Json, kind: Kind, code: str, fault: FaultClass) -> None:
    (e,) = read(one).evidence
    assert (e.kind, e.code) == (kind, code)
    assert classify([e], tables=TABLES, now=NOW).fault is fault


OTHER = "GPU-5f0c1d2e-0001-4abc-9def-000000000002"


@pytest.mark.parametrize(
    ("entities", "gpus"),
    [
        ([("GPU_UUID", UUID), ("GPU_UUID", OTHER)], [(UUID, None), (OTHER, None)]),
        (
            [("PCI", "0000:1B:00"), ("GPU_UUID", UUID), ("PCI", "0000:1C:00"), ("GPU_UUID", OTHER)],
            [(UUID, "0000:1b:00"), (OTHER, "0000:1c:00")],
        ),
        (
            [("PCI", "0000:1B:00"), ("PCI", "0000:1C:00")],
            [("0000:1b:00", "0000:1b:00"), ("0000:1c:00", "0000:1c:00")],
        ),
        ([("GPU", "3")], [(None, None)]),
        ([], [(None, None)]),
    ],
)
def test_every_gpu_that_an_event_names_is_told(entities: list[tuple[str, str]], gpus: list[Any]) -> None:
    said = [{"entityType": kind, "entityValue": value} for kind, value in entities]
    assert [(e.gpu, e.pci) for e in read(event(entitiesImpacted=said)).evidence] == gpus


def test_a_uuid_of_the_metadata_is_taken_where_no_entity_has_one() -> None:
    (e,) = read(event(entitiesImpacted=[], metadata={"gpu_uuid": UUID})).evidence
    assert e.gpu == UUID


def test_a_healthy_event_clears_nothing_and_is_counted() -> None:
    found = read([event(isHealthy=True), event()])
    assert [e.code for e in found.evidence] == ["79"]
    assert found.dropped == {"an event that says all is well": 1}


def test_another_nodes_event_is_dropped_and_counted() -> None:
    found = read(event(), Origin(cluster="beta", node="gpu-b08", seen_at=NOW))
    assert (found.evidence, found.dropped) == ((), {"another node's event": 1})


@pytest.mark.parametrize(
    "raw",
    ["", "{", "7", "{}", "[]", '{"data": {}}', '{"errorCode": 7}' * 2, b"\xff\x00", "[" * 90_000, "hello\nworld"],
)
def test_what_is_no_event_says_so(raw: str | bytes) -> None:
    assert {e.kind for e in read_nvsentinel(raw, ORIGIN).evidence} == {Kind.UNREADABLE}
