"""How a job's end in its cluster's record becomes evidence."""

from typing import Any

import pytest

from fleet.faults.exits import exit_evidence
from fleet.model import NativeJob, Phase
from tests.faults.making import NOW, judge


def native(phase: Phase, **fields: Any) -> NativeJob:
    return NativeJob(cluster="alpha", native_id="7", name="train", phase=phase, **fields)


@pytest.mark.parametrize(
    ("job", "codes"),
    [
        (native(Phase.FAILED, exit_code=1, exit_signal=0, reason="NonZeroExitCode"), ["1"]),
        (native(Phase.FAILED, exit_code=0, exit_signal=9, reason="RaisedSignal:9(Killed)"), ["SIGKILL"]),
        (native(Phase.FAILED, exit_code=0, exit_signal=15), ["SIGTERM"]),
        (native(Phase.FAILED, exit_code=0, exit_signal=64), ["SIGRTMAX"]),
        (native(Phase.FAILED, exit_code=0, exit_signal=99), ["227"]),
        (native(Phase.FAILED, exit_code=0, exit_signal=125, reason="OutOfMemory"), ["OutOfMemory", "OUT_OF_MEMORY"]),
        (native(Phase.FAILED, exit_code=139, reason="Error"), ["139"]),
        (native(Phase.FAILED, exit_code=137, reason="OOMKilled"), ["OOMKilled", "137"]),
        (native(Phase.FAILED, reason="None"), ["FAILED"]),
        (native(Phase.FAILED, exit_code=0, exit_signal=0, reason="BootFail"), ["BootFail", "FAILED"]),
        (native(Phase.NODE_LOST, exit_code=0, exit_signal=15, reason="NodeDown"), ["NODE_FAIL"]),
        (native(Phase.TIMED_OUT, exit_code=0, exit_signal=15, reason="TimeLimit"), ["TIMEOUT"]),
        (native(Phase.CANCELLED, exit_code=0, exit_signal=15), ["CANCELLED"]),
        (native(Phase.PENDING, held=True, reason="launch failed requeued held"), ["launch failed requeued held"]),
        (native(Phase.PENDING, held=True, reason="JobHeldAdmin"), []),
        (native(Phase.PENDING, reason="BeginTime"), []),
        (native(Phase.RUNNING), []),
        (native(Phase.STOPPING), []),
        (native(Phase.SUCCEEDED, exit_code=0), []),
        (native(Phase.ABSENT), []),
    ],
)
def test_each_end_gives_its_codes(job: NativeJob, codes: list[str]) -> None:
    assert [e.code for e in exit_evidence(job, "train-7", NOW)] == codes


def test_the_node_is_named_only_when_there_is_one() -> None:
    (single,) = exit_evidence(native(Phase.NODE_LOST, nodes=("alpha2",)), "j", NOW)
    (multi,) = exit_evidence(native(Phase.NODE_LOST, nodes=("alpha1", "alpha2")), "j", NOW)
    assert (single.node, multi.node) == ("alpha2", None)
    assert "alpha1,alpha2" in multi.detail


def test_two_readings_of_one_end_are_one_piece_and_two_attempts_are_two() -> None:
    first = exit_evidence(native(Phase.FAILED, exit_code=1), "j", NOW)[0]
    again = exit_evidence(native(Phase.FAILED, exit_code=1), "j", NOW + 5)[0]
    later = exit_evidence(native(Phase.FAILED, exit_code=1, restarts=1), "j", NOW + 5)[0]
    assert first.key == again.key != later.key


@pytest.mark.parametrize(
    ("job", "rule"),
    [
        (native(Phase.FAILED, exit_code=139, reason="BackoffLimitExceeded"), "exit:139"),
        (native(Phase.FAILED, exit_code=137, reason="OOMKilled"), "reason:OOMKilled"),
        (native(Phase.FAILED, exit_code=1, reason="Evicted"), "reason:Evicted"),
        (native(Phase.FAILED, exit_code=127, reason="PodFailurePolicy"), "exit:127"),
    ],
)
def test_of_a_reason_and_a_code_the_one_that_says_more_decides(job: NativeJob, rule: str) -> None:
    assert judge(*exit_evidence(job, "train-7", NOW)).rule == rule
