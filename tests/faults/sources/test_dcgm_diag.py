"""`dcgmi diag -j` of DCGM 3 and 4: any failure is a failure, and a checker's own trouble is none."""

import json
from typing import Any

import pytest

from fleet.faults.classify import classify
from fleet.faults.evidence import FaultClass, Kind, Verdict
from fleet.faults.sources.dcgm_diag import read_dcgm_diag
from fleet.faults.texts import Origin, Parsed
from tests.faults.making import NOW, TABLES, UUID

ORIGIN = Origin(cluster="alpha", node="alpha2", seen_at=NOW, boot="boot-2")
Json = dict[str, Any]


def result(status: str, gpu: int = 3, *errors: tuple[int, int, str]) -> Json:
    """A result as DCGM 4 writes it: severities inside the warnings."""
    warnings = [{"warning": w, "error_id": i, "error_category": 10, "error_severity": s} for i, s, w in errors]
    return {"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu, "status": status, "warnings": warnings}


def report(*results: Json, name: str = "memory", summary: str = "") -> Json:
    status = summary or ("Fail" if any(r["status"] == "Fail" for r in results) else "Pass")
    test = {"name": name, "results": list(results), "test_summary": {"status": status}}
    return {"test_categories": [{"category": "Hardware", "tests": [test]}]}


def four(*results: Json, **more: Any) -> Json:
    groups = [{"entity_group": "GPU", "entity_group_id": 1, "entities": [{"entity_id": 3, "serial_num": "16500"}]}]
    return {"DCGM Diagnostic": report(*results), "entity_groups": groups, "metadata": {"version": "4.6.0"}} | more


def read(document: Json) -> Parsed:
    return read_dcgm_diag(json.dumps(document), ORIGIN, gpus={3: UUID})


def judge(document: Json) -> Verdict:
    return classify(read(document).evidence, tables=TABLES, boot="boot-2", now=NOW)


DBE = (4, 2, "Detected 3 volatile double-bit ECC error(s) in GPU 3.")


@pytest.mark.parametrize(
    ("error", "fault", "rung"),
    [
        (DBE, FaultClass.HARDWARE, "reset"),
        ((95, 2, "EUD test failed"), FaultClass.HARDWARE, "person"),
        ((120, 2, "GPU has fallen off the bus"), FaultClass.HARDWARE, "reboot"),
        ((80, 6, "Row remapping failed"), FaultClass.HARDWARE, "person"),
        ((85, 6, "Row remapping pending"), FaultClass.INFORMATIONAL, "none"),
        ((126, 2, "Node requires reboot"), FaultClass.HARDWARE, "reboot"),
        ((131, 1, "contained error"), FaultClass.TRANSIENT, "none"),
        ((46, 5, "PCIe width is too low"), FaultClass.UNKNOWN, "person"),
        ((10, 1, "thermal"), FaultClass.INFORMATIONAL, "none"),
        ((4711, 2, "an error of a newer DCGM"), FaultClass.HARDWARE, "person"),
        ((4711, 6, "an error of a newer DCGM"), FaultClass.HARDWARE, "reset"),
    ],
)
def test_the_nested_severity_picks_the_remedy(error: tuple[int, int, str], fault: FaultClass, rung: str) -> None:
    found = read(four(result("Fail", 3, error)))
    (e,) = found.evidence
    assert (e.kind, e.gpu, e.node, e.boot) == (Kind.DCGM_ERROR, UUID, "alpha2", "boot-2")
    assert "memory, GPU 3 (serial 16500), fail: " in e.detail
    verdict = judge(four(result("Fail", 3, error)))
    assert (verdict.fault, verdict.first_rung) == (fault, rung)


def test_a_failed_test_is_a_failed_test_whatever_its_severity() -> None:
    for severity in range(7):
        assert read(four(result("Fail", 3, (4711, severity, "x")))).evidence


def test_each_error_and_each_gpu_is_a_piece_of_its_own() -> None:
    found = read(four(result("Fail", 3, DBE, (95, 2, "EUD")), result("Fail", 4, DBE), result("Pass", 5)))
    assert [(e.code, e.gpu) for e in found.evidence] == [("4", UUID), ("95", UUID), ("4", None)]
    assert found.dropped == {"a test passed": 1}


def test_a_passed_and_a_skipped_test_are_counted_and_no_evidence() -> None:
    found = read(four(result("Pass", 0), result("Skip", 1)))
    assert found.evidence == ()
    assert found.dropped == {"a test passed": 1, "a test was skipped": 1}


def test_a_warning_is_no_pass() -> None:
    assert read(four(result("Warn", 3, (10, 1, "hot")))).evidence[0].code == "10"
    bare = four({"entity_group": "GPU", "entity_id": 3, "status": "Warn", "warnings": []})
    assert judge(bare).fault is FaultClass.UNKNOWN


def test_a_failed_summary_without_a_failed_result_is_told() -> None:
    document = {"DCGM Diagnostic": report(result("Pass", 0), summary="Fail")}
    (e,) = read(document).evidence
    assert (e.kind, e.code) == (Kind.CHECK_FAILED, "dcgm memory")


def three(*results: Json) -> Json:
    return {"DCGM GPU Diagnostic": report(*results, name="Memory Bandwidth") | {"version": "3.3.9"}}


def test_the_report_of_dcgm_3_is_read() -> None:
    found = read(
        three(
            {"gpu_ids": "0,1,2,3", "status": "PASS"},
            {"gpu_id": "3", "status": "FAIL", "warnings": ["Max stress level of 3.0 did not reach 9.0"]},
            {"gpu_id": "3", "status": "Fail", "warnings": [{"warning": "DBE", "error_id": 4}]},
            {"gpu_id": "3", "status": "SKIPPED"},
        )
    )
    assert [(e.kind, e.code, e.gpu) for e in found.evidence] == [
        (Kind.CHECK_FAILED, "dcgm Memory Bandwidth", UUID),
        (Kind.DCGM_ERROR, "4", UUID),
    ]
    assert found.dropped == {"a test passed": 1, "a test was skipped": 1}


@pytest.mark.parametrize("root", ["DCGM Diagnostic", "DCGM GPU Diagnostic"])
@pytest.mark.parametrize("inside", [True, False])
def test_each_iteration_is_read(root: str, *, inside: bool) -> None:
    runs = [{root: report(result("Pass"))}, {root: report(result("Fail", 3, DBE))}]
    whole = {root: {"iterations": runs}} if inside else {"iterations": runs, "Overall Result": "Fail"}
    assert [e.code for e in read(whole).evidence] == ["4"]


@pytest.mark.parametrize(
    "document",
    [
        {"DCGM Diagnostic": {"runtime_error": "Cannot start: nv-hostengine is not running"}},
        {"DCGM GPU Diagnostic": {"runtime_error": "busy"}},
        {"runtime_error": "the host engine does not answer"},
        {"iterations": [{"runtime_error": "timed out"}]},
    ],
)
def test_a_checker_that_could_not_run_says_nothing_about_the_node(document: Json) -> None:
    found = read(document)
    (e,) = found.evidence
    assert (e.kind, e.code) == (Kind.UNREADABLE, "a DCGM diagnostic that could not run")
    assert judge(document).fault is FaultClass.UNKNOWN


def test_a_runtime_error_beside_a_failure_leaves_the_failure() -> None:
    document = four(result("Fail", 3, DBE))
    document["DCGM Diagnostic"]["runtime_error"] = "one test broke off"
    assert [e.kind for e in read(document).evidence] == [Kind.DCGM_ERROR, Kind.UNREADABLE]


@pytest.mark.parametrize(
    "document",
    [
        {"DCGM Diagnostic": {"test_categories": []}},
        {"DCGM Diagnostic": {}},
        {"DCGM Diagnostic": report(result("Skip"))},
        {"DCGM Diagnostic": report(result("Perhaps"))},
        {"DCGM Diagnostic": report({"entity_group": "GPU", "entity_id": 1, "status": "x"})},
        {"something": "else"},
        {},
    ],
)
def test_a_report_without_one_test_that_ran_is_never_well(document: Json) -> None:
    assert {e.kind for e in read(document).evidence} == {Kind.UNREADABLE}


@pytest.mark.parametrize(
    "raw", ["", "{", "no json", json.dumps(four(result("Fail", 3, DBE)))[:200], b"\xff\xfe", "{" * 90_000 + "}"]
)
def test_a_cut_report_is_unreadable(raw: str | bytes) -> None:
    found = read_dcgm_diag(raw, ORIGIN)
    assert [e.kind for e in found.evidence] == [Kind.UNREADABLE]


def test_words_of_the_tool_before_its_report_do_no_harm() -> None:
    text = "WARNING: running as root\n" + json.dumps(four(result("Fail", 3, DBE))) + "\nDone\n"
    assert [e.code for e in read_dcgm_diag(text, ORIGIN).evidence] == ["4"]


def test_keys_of_any_type_raise_nothing() -> None:
    odd = {
        "DCGM Diagnostic": {"test_categories": [7, {"tests": [8, {"results": [9, {"status": 1, "warnings": 2}]}]}]}
    }
    assert {e.kind for e in read(odd).evidence} == {Kind.UNREADABLE}
