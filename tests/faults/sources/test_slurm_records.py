"""Slurm's records: how jobs ended, which nodes are lost or drained, and nothing made up."""

import json
from typing import Any

import pytest

from fleet.faults.classify import classify
from fleet.faults.evidence import FaultClass, Kind
from fleet.faults.sources.slurm_records import read_slurm_records
from fleet.faults.texts import Origin, Parsed
from fleet.identity import reason_text
from tests.faults.making import NOW, TABLES

ORIGIN = Origin(cluster="alpha", job="train-7", seen_at=NOW)
JOB = """JobId=4711 JobName=train 7 (final)
   UserId=ann(1001) GroupId=ann(1001) MCS_label=N/A
   Priority=4294901757 Nice=0 Account=(null) QOS=(null)
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode={exit}
   RunTime=00:01:00 TimeLimit=02:00:00 TimeMin=N/A
   NodeList={nodes}
   BatchHost=alpha2
   Command=/home/ann/run me.sh --x=1
   WorkDir=/home/ann
"""
NODE = """NodeName=alpha2 Arch=x86_64 CoresPerSocket=64
   CPUAlloc=0 CPUTot=128 CPULoad=0.10
   Gres=gpu:h100:8
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   BootTime=2026-01-02T03:04:05 SlurmdStartTime=2026-01-02T03:05:05
   {reason}
"""


def read(text: str | bytes, origin: Origin = ORIGIN) -> Parsed:
    return read_slurm_records(text, origin)


def job(state: str, reason: str = "None", status: str = "0:0", nodes: str = "alpha[2-3]") -> str:
    return JOB.format(state=state, reason=reason, exit=status, nodes=nodes)


@pytest.mark.parametrize(
    ("text", "codes", "fault"),
    [
        (job("FAILED", "NonZeroExitCode", "1:0"), ["1"], FaultClass.UNKNOWN),
        (job("FAILED", "RaisedSignal:9(Killed)", "0:9"), ["SIGKILL"], FaultClass.UNKNOWN),
        (job("FAILED", "RaisedSignal:53(Real-time_signal_19)", "0:53"), ["181"], FaultClass.UNKNOWN),
        (job("FAILED", "OutOfMemory", "0:125"), ["OutOfMemory", "OUT_OF_MEMORY"], FaultClass.USER),
        (job("OUT_OF_MEMORY", "OutOfMemory", "0:125"), ["OUT_OF_MEMORY", "OutOfMemory"], FaultClass.USER),
        (job("NODE_FAIL", "NodeDown", "0:0"), ["NODE_FAIL", "NodeDown"], FaultClass.HARDWARE),
        (job("TIMEOUT", "TimeLimit", "0:15"), ["TIMEOUT", "TimeLimit"], FaultClass.USER),
        (job("PREEMPTED", "None", "0:15"), ["PREEMPTED"], FaultClass.TRANSIENT),
        (job("CANCELLED by 1001", "None", "0:15"), ["CANCELLED"], FaultClass.INFORMATIONAL),
        (job("BOOT_FAIL"), ["BOOT_FAIL"], FaultClass.HARDWARE),
    ],
)
def test_a_job_that_ended_badly_is_told_by_state_reason_and_exit(
    text: str, codes: list[str], fault: FaultClass
) -> None:
    found = read(text)
    wanted = ["117"] if codes == ["181"] else codes
    assert [e.code for e in found.evidence if e.code not in {"RaisedSignal"}][: len(wanted)] in (wanted, codes)
    assert {e.kind for e in found.evidence} == {Kind.JOB_EXIT}
    assert {(e.job, e.node) for e in found.evidence} == {("train-7", None)}
    assert classify(found.evidence, tables=TABLES, now=NOW).fault is fault


def test_a_job_of_one_node_names_it() -> None:
    assert read(job("FAILED", "NonZeroExitCode", "1:0", "alpha2")).evidence[0].node == "alpha2"


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("COMPLETED", "a job that ended well"),
        ("RUNNING", "a job that has not ended"),
        ("PENDING", "a job that has not ended"),
        ("COMPLETING", "a job that has not ended"),
    ],
)
def test_a_job_that_runs_or_ended_well_is_counted(state: str, why: str) -> None:
    found = read(job(state))
    assert (found.evidence, found.dropped) == ((), {why: 1})


@pytest.mark.parametrize("text", [job("FROBBED"), "JobId=7 JobName=x\n", "NodeName=alpha2 Arch=x86_64\n"])
def test_a_record_whose_state_cannot_be_known_is_unreadable(text: str) -> None:
    assert [e.kind for e in read(text).evidence] == [Kind.UNREADABLE]


@pytest.mark.parametrize(
    ("state", "reason", "kinds", "fault"),
    [
        ("DOWN*", "Reason=Not responding [slurm@2026-01-02T03:04:05]", [Kind.NODE_DOWN], FaultClass.HARDWARE),
        ("IDLE*", "", [Kind.NODE_DOWN], FaultClass.HARDWARE),
        ("DOWN", "Reason=Node unexpectedly rebooted", [Kind.NODE_DOWN], FaultClass.HARDWARE),
        ("IDLE+DRAIN", "Reason=NHC: XID 79 GPU lost [root@x]", [Kind.NODE_DRAINED], FaultClass.HARDWARE),
        ("IDLE+DRAIN", "Reason=moved to the lab", [Kind.NODE_DRAINED], FaultClass.INFORMATIONAL),
        ("DOWN*+DRAIN", "Reason=Kill task failed", [Kind.NODE_DOWN, Kind.NODE_DRAINED], FaultClass.HARDWARE),
        ("IDLE+DRAIN", "Reason=Low RealMemory (reported:1 < 2)", [Kind.NODE_DRAINED], FaultClass.UNKNOWN),
    ],
)
def test_a_lost_or_drained_node_is_told_with_its_reason(
    state: str, reason: str, kinds: list[Kind], fault: FaultClass
) -> None:
    found = read(NODE.format(state=state, reason=reason), Origin(cluster="alpha", seen_at=NOW))
    assert [(e.kind, e.node) for e in found.evidence] == [(kind, "alpha2") for kind in kinds]
    assert classify(found.evidence, tables=TABLES, now=NOW).fault is fault


def test_our_own_drain_is_no_evidence() -> None:
    found = read(NODE.format(state="IDLE+DRAIN", reason=f"Reason={reason_text('abcdefg', 'repair')} [root@x]"))
    assert classify(found.evidence, tables=TABLES, now=NOW).rule == "no_evidence"


def test_a_node_that_takes_work_and_another_nodes_record_are_counted() -> None:
    text = NODE.format(state="MIXED", reason="")
    assert read(text).dropped == {"a node that takes work": 1}
    other = read(NODE.format(state="DOWN*", reason=""), Origin(cluster="alpha", node="alpha3", seen_at=NOW))
    assert (other.evidence, other.dropped) == ((), {"another node's record": 1})


def test_jobs_and_nodes_in_one_text_and_one_line_records_are_told_apart() -> None:
    one_line = " ".join(job("FAILED", "NonZeroExitCode", "1:0").split("\n"))
    found = read(f"{one_line}\n\n{NODE.format(state='DOWN*', reason='')}\n{job('COMPLETED')}")
    assert [(e.kind, e.code) for e in found.evidence] == [(Kind.JOB_EXIT, "1"), (Kind.NODE_DOWN, "down")]
    assert found.lines == 3


def json_job(state: Any, code: Any, reason: str = "NonZeroExitCode") -> dict[str, Any]:
    return {"job_id": 4711, "job_state": state, "state_reason": reason, "exit_code": code, "nodes": "alpha2"}


@pytest.mark.parametrize(
    ("record", "codes"),
    [
        (json_job(["FAILED"], {"return_code": {"set": True, "number": 3}, "signal": {"id": {"number": 0}}}), ["3"]),
        (json_job("FAILED", 256 * 3), ["3"]),
        (json_job(["FAILED"], {"return_code": 0, "signal": {"signal_id": 9}}, "None"), ["SIGKILL"]),
        (json_job(["NODE_FAIL"], {}, "None"), ["NODE_FAIL"]),
        (json_job(["RUNNING"], {}), []),
    ],
)
def test_the_json_form_of_old_and_new_releases_is_read(record: dict[str, Any], codes: list[str]) -> None:
    assert [e.code for e in read(json.dumps({"jobs": [record]})).evidence] == codes


def test_a_node_in_json_is_read() -> None:
    node = {"name": "alpha2", "state": ["DOWN", "DRAIN", "NOT_RESPONDING"], "reason": "Not responding"}
    found = read(json.dumps({"nodes": [node]}))
    assert [e.kind for e in found.evidence] == [Kind.NODE_DOWN, Kind.NODE_DRAINED]


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "hello\n",
        '{"jobs": [',
        "{}",
        '{"jobs": [7, {}]}',
        b"\x00\xff" * 500,
        "A=" * 300_000,
        "JobId=" + "x" * 900_000,
    ],
)
def test_what_is_no_record_is_unreadable(raw: str | bytes) -> None:
    found = read(raw)
    assert {e.kind for e in found.evidence} == {Kind.UNREADABLE}
    assert found.dropped
