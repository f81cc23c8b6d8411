"""The judgement, case by case: what a naive reader would say, and what must be said (fault taxonomy 3.2 and 11)."""

import itertools
import json
import random

import pytest

from fleet.faults.classify import classify, explain
from fleet.faults.evidence import EARLIER_BOOT, Evidence, FaultClass, Kind, Source, Verdict
from fleet.faults.parse import parse_kernel_log
from fleet.policy_overrides import Override
from tests.faults.making import GPU, NOW, TABLES, UUID, ended, judge, kernel, log, seen, traceback, xid

H, T, U, N, I = (  # noqa: E741 - one letter a column, as the tables below need
    FaultClass.HARDWARE,
    FaultClass.TRANSIENT,
    FaultClass.USER,
    FaultClass.UNKNOWN,
    FaultClass.INFORMATIONAL,
)
KEY_ERROR = log(*traceback("KeyError: 'x'", rank=3))
OFF = "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
NCCL = log("[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1")
LOST = seen(Kind.GPU_LOST, Source.KERNEL, node="alpha2", gpu=GPU)
DOWN = seen(Kind.NODE_DOWN, Source.SCHEDULER, node="alpha2", detail="Not responding")
STALLED = seen(Kind.JOB_STALLED, Source.JOB, job="train-7")
BAD_RESUME = seen(Kind.BAD_RESUME, Source.JOB, job="train-7", detail="ranks disagree on the step")
LINK = "149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x{:08x} 0x00000000 0x0 0x0 0x0 0x0)"


def check_failed(text: str) -> Evidence:
    return seen(Kind.CHECK_FAILED, Source.HEALTH_CHECK, node="alpha2", detail=text)


def drained(text: str, source: Source = Source.SCHEDULER) -> Evidence:
    return seen(Kind.NODE_DRAINED, source, node="alpha2", detail=text)


CASES: list[tuple[str, list[Evidence], FaultClass, str, str]] = [
    # one XID alone
    ("19: 79 is no case for a reset", kernel(OFF), H, "xid:79", "reboot"),
    ("17: fallen off without an XID", [LOST], H, "gpu_lost", "reboot"),
    ("48 alone", kernel("48, pid=1, DBE"), H, "xid:48", "reset"),
    ("8: 64 is not like 63", kernel("64, Row Remapper Error"), H, "xid:64", "reset"),
    ("7: 63 alone keeps the job", kernel("63, Row Remapper: New row marked"), I, "xid:63", "none"),
    ("9: 94 with RST No", kernel("94, Contained: SM (0x1). RST: No, D-RST: No"), T, "xid:94", "none"),
    ("94 of an old driver", kernel("94, pid=1, name=x, Ch 8"), T, "xid:94", "none"),
    ("10: 94 with RST Yes", kernel("94, Contained: PMU (0x1). RST: Yes, D-RST: No"), H, "xid:94", "reset"),
    ("94 with D-RST Yes", kernel("94, CBC (0x1) physAddr: 0x1 RST: No, D-RST: Yes"), H, "xid:94", "reset"),
    ("95", kernel("95, Uncontained: L2"), H, "xid:95", "reset"),
    ("95 with RST No", kernel("95, LTC (0x1, 0x2). RST: No, D-RST: No"), T, "xid:95", "none"),
    (
        "20: 109 is not the app's",
        kernel("109, pid=1, name=x, Ch 1, errorString CTX SWITCH TIMEOUT"),
        H,
        "xid:109",
        "reset",
    ),
    ("119", kernel("119, Timeout after 45s of waiting for RPC response"), H, "xid:119", "reset"),
    ("121 is corrected", kernel("121, x"), I, "xid:121", "none"),
    ("54 needs hands", kernel("54, x"), H, "xid:54", "person"),
    ("31 alone is the program", kernel("31, Ch 1"), U, "xid:31", "none"),
    ("13 alone is the program", kernel("13, (GPC 1, TPC 3, SM 0)"), U, "xid:13", "none"),
    ("a code nobody knows", kernel("999, surprise"), N, "xid:999", "person"),
    ("a code not used any more", kernel("15, x"), H, "xid:15", "person"),
    ("13: 149 blames the peer", kernel(LINK.format(0x23 << 20)), H, "xid:149", "person"),
    ("149 of signal integrity", kernel(LINK.format(0x0A << 20)), H, "xid:149", "reset"),
    ("149 asked for", kernel(LINK.format(0x28 << 20)), I, "xid:149", "none"),
    ("149 by software", kernel(LINK.format(0x0F << 20)), T, "xid:149", "none"),
    # companions
    ("6: 45 follows 79", kernel(OFF, "45, pid=1, Ch 1"), H, "xid:79", "reboot"),
    ("6: 45 follows 94", kernel("45, pid=1", "94, Ch 8"), T, "xid:94", "none"),
    ("6: 45 alone", kernel("45, pid=1", "45, pid=2"), I, "secondary_only", "none"),
    ("6: 45 after SIGKILL", [*kernel("45, pid=1"), ended("SIGKILL")], N, "secondary_only", "none"),
    ("45 names its cause", kernel("45, pid=1, Ch 1, caused by Xid 48"), H, "xid:48", "reset"),
    ("45 names what is seen", kernel("45, pid=1, Ch 1, caused by Xid 64", "64, x"), H, "xid:64", "reset"),
    ("45 names a program's fault", kernel("45, pid=1, Ch 1, caused by Xid 31"), I, "secondary_only", "none"),
    ("43 is never a root", kernel("43, pid=1, Ch 1"), I, "secondary_only", "none"),
    ("43 follows the program", [*kernel("43, Ch 1"), *KEY_ERROR], U, "text:python_deterministic", "none"),
    ("48 with 63", kernel("48, x", "63, y"), H, "xid:48", "reset"),
    ("48 and its detail lines", kernel("171, x", "48, x", "172, y"), H, "xid:48", "reset"),
    ("63 with 94", kernel("63, x", "94, Ch 8"), T, "xid:94", "none"),
    (
        "31 raised by 154",
        kernel("31, Ch 1", "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset)"),
        H,
        "recovery:1",
        "reset",
    ),
    (
        "64 raised by 154",
        kernel("64, x", "154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot)"),
        H,
        "xid:64",
        "reboot",
    ),
    (
        "154 never lowers",
        kernel(OFF, "154, GPU recovery action changed from 0x1 (GPU Reset) to 0x0 (None)"),
        H,
        "xid:79",
        "reboot",
    ),
    (
        "15: 154 to Drain P2P alone",
        kernel("154, GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)"),
        H,
        "recovery:3",
        "person",
    ),
    (
        "154 to None alone",
        kernel("154, GPU recovery action changed from 0x1 (GPU Reset) to 0x0 (None)"),
        I,
        "xid:154",
        "none",
    ),
    (
        "154 of a new kind",
        kernel("154, GPU recovery action changed from 0x0 (None) to 0x9 (Replace)"),
        H,
        "recovery:9",
        "person",
    ),
    (
        "12: the switch before the link",
        [*kernel("74, NVLink: fatal error"), seen(Kind.SXID, Source.KERNEL, node="alpha2", code="12020")],
        H,
        "sxid:12020",
        "reboot",
    ),
    (
        "a corrected switch error",
        [seen(Kind.SXID, Source.KERNEL, node="alpha2", code="28006", detail="28006, Non-fatal, Link 46")],
        I,
        "sxid:28006",
        "none",
    ),
    (
        "a switch error nobody knows",
        [seen(Kind.SXID, Source.KERNEL, node="alpha2", code="28006", detail="28006, Fatal")],
        N,
        "sxid:28006",
        "person",
    ),
    # the job's side
    ("a traceback alone", KEY_ERROR, U, "text:python_deterministic", "none"),
    ("a traceback and exit 1", [*KEY_ERROR, ended("1")], U, "text:python_deterministic", "none"),
    ("a traceback and 79", [*KEY_ERROR, *kernel(OFF)], H, "xid:79", "reboot"),
    ("a traceback and a lost node", [*KEY_ERROR, DOWN], H, "node_down", "reboot"),
    ("a traceback and an unknown XID", [*KEY_ERROR, *kernel("999, x")], N, "xid:999", "person"),
    ("a traceback and a line that cannot be read", [*KEY_ERROR, *kernel("none")], N, "unreadable", "none"),
    (
        "39: illegal access moves with the job",
        log(*traceback("RuntimeError: CUDA error: an illegal memory access was encountered")),
        U,
        "text:cuda_illegal_access",
        "none",
    ),
    (
        "23: a KeyError behind the NCCL timeout",
        [*NCCL, *KEY_ERROR, ended("SIGABRT")],
        U,
        "text:python_deterministic",
        "none",
    ),
    ("NCCL timeout alone", [*NCCL, ended("SIGABRT")], N, "text:nccl_watchdog_timeout", "none"),
    (
        "24: a port flap before the timeout",
        [*NCCL, *log("NET/IB : Got async event : port error")],
        T,
        "text:ib_port_error",
        "none",
    ),
    ("29: connections lost everywhere", [*log("Connection reset by peer"), ended("1")], N, "exit:1", "none"),
    ("only connections lost", log("Connection reset by peer"), N, "secondary_only", "none"),
    (
        "30: another process holds the memory",
        log(
            *traceback(
                "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB. Process 9 has 40 GiB memory in use."
            )
        ),
        T,
        "text:torch_oom_other_process",
        "none",
    ),
    (
        "31: out of memory",
        log(*traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")),
        U,
        "text:torch_oom",
        "none",
    ),
    (
        "37: a missing file",
        [*log(*traceback("FileNotFoundError: /data/x")), ended("1")],
        N,
        "text:file_not_found",
        "none",
    ),
    ("35: abort says nothing", [ended("134")], N, "exit:134", "none"),
    ("exit 1 alone", [ended("1")], N, "exit:1", "none"),
    ("exit 2", [ended("2")], U, "exit:2", "none"),
    ("exit 77", [ended("77")], N, "exit:unlisted", "none"),
    ("137 alone", [ended("137")], N, "secondary_only", "none"),
    ("143 alone", [ended("SIGTERM")], N, "secondary_only", "none"),
    ("33: 137 with a preemption", [ended("137"), ended("PREEMPTED")], T, "reason:PREEMPTED", "none"),
    (
        "preempted by its log",
        log("slurmstepd: error: *** JOB 7 ON a CANCELLED AT 2026 DUE TO PREEMPTION ***"),
        T,
        "text:slurm_preemption",
        "none",
    ),
    ("the time limit is no fault", [ended("TIMEOUT"), ended("SIGTERM")], U, "reason:TIMEOUT", "none"),
    ("out of host memory", [ended("OUT_OF_MEMORY"), ended("SIGKILL")], U, "reason:OUT_OF_MEMORY", "none"),
    ("a lost node by the job's end", [ended("NODE_FAIL")], H, "reason:NODE_FAIL", "reboot"),
    (
        "a prolog that fails",
        [ended("launch failed requeued held", node="alpha2")],
        H,
        "reason:launch_failed_requeued_held",
        "reboot",
    ),
    ("cancelled", [ended("CANCELLED")], I, "reason:CANCELLED", "none"),
    (
        "requeued by the scheduler",
        [seen(Kind.JOB_REQUEUED, Source.SCHEDULER, job="train-7", code="requeue")],
        N,
        "exit:unlisted",
        "none",
    ),
    (
        "requeued by a person",
        [seen(Kind.JOB_REQUEUED, Source.PERSON, job="train-7")],
        I,
        "requeued_by_person",
        "none",
    ),
    ("stalled", [STALLED], N, "job_stalled", "none"),
    ("stalled with 79", [STALLED, *kernel(OFF)], H, "xid:79", "reboot"),
    ("a bad resume is not the user's", [BAD_RESUME, *KEY_ERROR], N, "bad_resume", "none"),
    ("a late writer", log("refusing to write: generation 3 > 2"), N, "secondary_only", "none"),
    ("a text nobody knows", [seen(Kind.LOG_TEXT, Source.JOB, job="train-7", code="odd")], N, "text:unlisted", "none"),
    # trouble cases
    (
        "PC-F06: NVML in the container",
        log("Failed to initialize NVML: Unknown Error"),
        T,
        "text:nvml_container",
        "none",
    ),
    (
        "PC-F08: the path, not the flood",
        log(
            "NET/IB : Got completion from peer x with status=5 o",
            "NET/IB : Got completion from peer x with status=12 o",
        ),
        T,
        "text:ib_retry_exceeded",
        "none",
    ),
    (
        "PC-F10: error 802 is never the user's",
        log(
            *traceback(
                "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"
            )
        ),
        H,
        "text:cuda_fabric_not_ready",
        "reboot",
    ),
    (
        "PC-F12: shared memory",
        [
            *log(
                "RuntimeError: DataLoader worker (pid 5) is killed by signal: Bus error. It",
                "OSError: [Errno 28] No space left on device",
            ),
            ended("135"),
        ],
        U,
        "text:dataloader_shm",
        "none",
    ),
    (
        "PC-F14: the ECC text is never the user's",
        log(*traceback("RuntimeError: CUDA error: uncorrectable ECC error encountered")),
        H,
        "text:cuda_ecc",
        "reset",
    ),
    (
        "the ECC text of a contained error",
        [
            *kernel("94, x RST: No, D-RST: No"),
            *log(*traceback("RuntimeError: CUDA error: uncorrectable ECC error encountered")),
        ],
        T,
        "xid:94",
        "none",
    ),
    (
        "the ECC text of an uncontained error",
        [*kernel("95, x"), *log(*traceback("RuntimeError: CUDA error: uncorrectable ECC error encountered"))],
        H,
        "xid:95",
        "reset",
    ),
    # nodes
    ("node down", [DOWN], H, "node_down", "reboot"),
    ("node down with an XID", [DOWN, *kernel(OFF)], H, "xid:79", "reboot"),
    ("node down by a person", [seen(Kind.NODE_DOWN, Source.PERSON, node="alpha2")], I, "node_down_by_person", "none"),
    (
        "PC-S10: too little memory",
        [seen(Kind.NODE_DOWN, Source.SCHEDULER, node="alpha2", detail="Low RealMemory")],
        N,
        "reason:Low RealMemory",
        "person",
    ),
    (
        "did not come back",
        [seen(Kind.NODE_DOWN, Source.SCHEDULER, node="alpha2", detail="ResumeTimeout reached")],
        H,
        "node_down",
        "power_cycle",
    ),
    ("a failed check", [check_failed("7 of 8 GPUs")], H, "check_failed", "reboot"),
    ("42: a check that did not run", [check_failed("health script timed out")], N, "check_failed_not_run", "none"),
    ("a health check's drain with an XID", [drained("healthcheck: XID 79 GPU lost")], H, "xid:79", "reboot"),
    ("a health check's drain with xid=48", [drained("NHC: xid=48")], H, "xid:48", "reset"),
    ("a health check's drain without", [drained("NHC: check_hw_ib failed")], H, "health_check_drain", "reboot"),
    ("a drain by a failed prolog", [drained("Prolog error")], H, "reason:Prolog error", "reboot"),
    ("a person's drain", [drained("swap the DIMM on Monday")], I, "drained_by_person", "none"),
    (
        "a person's drain that names an XID",
        [drained("XID 79 again, ticket 5", Source.PERSON)],
        I,
        "drained_by_person",
        "none",
    ),
    ("a person's drain and 79", [drained("mine", Source.PERSON), *kernel(OFF)], H, "xid:79", "reboot"),
    ("our own drain", [drained("gpu-runbooks:abcdefg: XID 79 on alpha2")], N, "no_evidence", "none"),
    ("nothing at all", [], N, "no_evidence", "none"),
]


@pytest.mark.parametrize(("name", "evidence", "fault", "rule", "rung"), CASES, ids=[case[0] for case in CASES])
def test_each_case_gets_its_verdict_in_any_order(
    name: str, evidence: list[Evidence], fault: FaultClass, rule: str, rung: str
) -> None:
    verdict = judge(*evidence)
    assert (verdict.fault, verdict.rule, verdict.first_rung) == (fault, rule, rung)
    assert verdict.catalogue == TABLES.version
    orders = itertools.islice(itertools.permutations(evidence), 24)
    assert {judge(*order).model_dump_json() for order in orders} == {verdict.model_dump_json()}
    assert judge(*evidence, *evidence) == verdict


STRONGEST_FIRST: list[tuple[Evidence, str]] = [
    (xid(79), "xid:79"),
    (LOST, "gpu_lost"),
    (xid(95), "xid:95"),
    (seen(Kind.SXID, Source.KERNEL, node="alpha2", code="12020"), "sxid:12020"),
    (xid(74), "xid:74"),
    (xid(119), "xid:119"),
    (xid(54), "xid:54"),
    (check_failed("7 of 8 GPUs"), "check_failed"),
    (DOWN, "node_down"),
    (log("Error 802: system not yet initialized")[0], "text:cuda_fabric_not_ready"),
    (xid(94), "xid:94"),
    (xid(999), "xid:999"),
    (ended("PREEMPTED"), "reason:PREEMPTED"),
    (ended("OUT_OF_MEMORY"), "reason:OUT_OF_MEMORY"),
    (BAD_RESUME, "bad_resume"),
    (KEY_ERROR[0], "text:python_deterministic"),
    (xid(31), "xid:31"),
    (NCCL[0], "text:nccl_watchdog_timeout"),
    (ended("1"), "exit:1"),
    (ended("SIGKILL"), "secondary_only"),
    (xid(63), "xid:63"),
]


@pytest.mark.parametrize(("stronger", "weaker"), list(itertools.combinations(range(len(STRONGEST_FIRST)), 2)))
def test_the_stronger_evidence_decides(stronger: int, weaker: int) -> None:
    (first, rule), (second, other) = STRONGEST_FIRST[stronger], STRONGEST_FIRST[weaker]
    verdict = judge(second, first)
    assert verdict.rule == rule != other
    said = " ".join((*verdict.companions, *verdict.refused))
    assert said


def test_the_title_tells_a_tired_person_what_and_where_and_what_next() -> None:
    assert judge(*kernel(OFF)).title == (
        "XID 79 on alpha2 (GPU 0000:ab:00): the GPU has fallen off the bus; hardware, reboot the node"
    )
    assert judge(*KEY_ERROR).title == (
        "job train-7: the program raised an exception: KeyError: 'x' at train.py:12 (rank 3);"
        " user, its owner must look, no relocation"
    )
    mig = f"[ 1.0] NVRM: Xid (PCI:{GPU} GPU-I:05 GPU-CI:00): 94, Ch 8"
    (e,) = parse_kernel_log(mig, cluster="alpha", node="alpha2", seen_at=NOW, boot="boot-2")
    assert "MIG instance 05" in judge(e).title


def test_the_culprit_of_a_fallen_gpu_is_node_and_gpu() -> None:
    culprit = judge(*kernel(OFF), ended("1")).culprit
    assert (culprit.node, culprit.gpu, culprit.job) == ("alpha2", GPU, None)


def test_the_culprit_of_a_users_fault_is_the_job_alone() -> None:
    culprit = judge(*KEY_ERROR, *kernel("43, Ch 1")).culprit
    assert (culprit.node, culprit.gpu, culprit.job) == (None, None, "train-7")


def test_a_link_that_its_peer_broke_blames_no_gpu_here() -> None:
    culprit = judge(*kernel(LINK.format(0x21 << 20))).culprit
    assert (culprit.node, culprit.gpu) == (None, None)


def test_a_refused_user_fault_says_why() -> None:
    verdict = judge(*KEY_ERROR, *kernel(OFF, "45, pid=1"))
    assert any("user" in line and "XID 79 on alpha2" in line and "window" in line for line in verdict.refused)
    assert any(line.startswith("XID 45") for line in verdict.companions)


def test_43_on_all_gpus_after_a_rank_threw_blames_no_gpu() -> None:  # case 5
    floods = [xid(43, gpu=f"0000:{n:02x}:00") for n in range(8)]
    verdict = judge(*floods, *KEY_ERROR)
    assert verdict.fault is U
    assert len([line for line in verdict.companions if line.startswith("XID 43")]) == 8


@pytest.mark.parametrize(("ago", "fault"), [(30, H), (640, H), (3 * 3600, U)])
def test_hardware_counts_against_a_traceback_only_in_its_window(ago: float, fault: FaultClass) -> None:
    verdict = judge(*KEY_ERROR, xid(64, ago=ago))
    assert verdict.fault is fault
    assert any("outside its window" in line for line in verdict.refused) is (fault is U)


def test_hardware_of_an_unknown_time_counts_against_a_traceback() -> None:
    assert judge(*KEY_ERROR, *kernel("64, x", at=NOW - 5 * 3600)).fault is H


# -- repeats


def test_31_by_two_jobs_on_one_gpu_within_a_day_suspects_the_gpu() -> None:  # case 1, PC-F04
    before = xid(31, ago=40 * 60, job="job-a")
    verdict = judge(xid(31, job="job-b"), history=(before,))
    assert (verdict.fault, verdict.rule, verdict.culprit.gpu) == (H, "repeat:31", GPU)
    assert any(line.startswith("user:") for line in verdict.refused)


@pytest.mark.parametrize(
    ("why", "before"),
    [
        ("another GPU", xid(31, ago=2400, gpu="0000:1b:00")),
        ("another node", xid(31, ago=2400, node="alpha3")),
        ("more than a day ago", xid(31, ago=25 * 3600)),
        ("one burst", xid(31, ago=120)),
        ("another code", xid(13, ago=2400, detail="(GPC 1, TPC 3, SM 0)")),
        ("the same event, told again", xid(31)),
    ],
)
def test_31_is_no_repeat_when_it_is(why: str, before: Evidence) -> None:
    assert judge(xid(31), history=(before,)).fault is U


def test_31_on_many_gpus_of_one_job_is_the_program() -> None:  # case 2
    now = [xid(31, gpu=f"0000:{n:02x}:00") for n in range(8)]
    before = [xid(31, ago=3600, gpu=f"0000:{n:02x}:00") for n in range(8)]
    verdict = judge(*now, history=tuple(before))
    assert (verdict.fault, verdict.rule) == (U, "xid:31")


def test_31_that_follows_one_job_to_another_gpu_is_the_program() -> None:
    history = (xid(31, ago=7200, job="j"), xid(31, ago=3600, job="j", node="alpha3", gpu="0000:1b:00"))
    assert judge(xid(31, job="j"), history=history).fault is U
    assert judge(xid(31, job="j"), history=history[:1]).fault is H


def test_a_gpu_is_one_by_its_address_and_by_its_uuid() -> None:
    by_uuid = xid(31, ago=3600, gpu=UUID).model_copy(update={"pci": GPU})
    assert judge(xid(31), history=(by_uuid,)).rule == "repeat:31"


@pytest.mark.parametrize(
    ("before", "now", "fault"),
    [
        ("(GPC 1, TPC 3, SM 0)", "(GPC 1, TPC 3, SM 1)", H),  # case 3
        ("(GPC 1, TPC 3, SM 0)", "(GPC 1, TPC 4, SM 0)", U),
        ("(GPC 1, TPC 3, SM 0)", "Graphics Exception: ESR 0x50=0x1", U),
    ],
)
def test_13_repeats_only_at_one_place(before: str, now: str, fault: FaultClass) -> None:
    assert judge(xid(13, detail=now), history=(xid(13, ago=3600, detail=before),)).fault is fault


def test_repeats_in_one_log_count_by_the_kernels_own_clock() -> None:
    line = "[ {}.0] NVRM: Xid (PCI:0000:ab:00): 31, pid={}, Ch 1\n"
    far = parse_kernel_log(line.format(100, 1) + line.format(2500, 2), cluster="a", node="n", seen_at=NOW)
    near = parse_kernel_log(line.format(100, 1) + line.format(160, 2), cluster="a", node="n", seen_at=NOW)
    assert (judge(*far).fault, judge(*near).fault) == (H, U)


def test_a_second_fragmented_out_of_memory_is_the_owners() -> None:  # case 32
    line = "CUDA out of memory. Tried to allocate 2.00 GiB. 9.00 GiB is reserved by PyTorch but unallocated."
    first, second = log(line, at=NOW - 7200, attempt=1), log(line, attempt=2)
    assert judge(*second).fault is T
    assert judge(*second, history=tuple(first)).fault is U
    assert judge(*second, history=tuple(e.model_copy(update={"job": "other"}) for e in first)).fault is T
    assert judge(*second, history=tuple(log(line, at=NOW - 90_000, attempt=1))).fault is T


def test_the_newest_recovery_action_counts() -> None:
    asked = "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset)"
    done = "154, GPU recovery action changed from 0x1 (GPU Reset) to 0x0 (None)"
    assert judge(*kernel("31, Ch 1", asked, done)).fault is U
    assert judge(*kernel("31, Ch 1", done, asked)).rule == "recovery:1"


def test_a_recovery_action_raises_its_own_gpu_only() -> None:
    wish = xid(154, gpu="0000:1b:00", detail="changed from 0x0 (None) to 0x2 (Node Reboot)")
    verdict = judge(xid(64), wish)
    assert (verdict.rule, verdict.culprit.gpu) == ("recovery:2", "0000:1b:00")


def test_a_double_bit_error_with_a_remap_is_drained_first() -> None:
    assert "with XID 63: drain, then reset" in judge(*kernel("48, x", "63, y")).companions
    assert not any("drain" in line for line in judge(*kernel("48, x")).companions)


# -- boots and clocks


@pytest.mark.parametrize("boot", ["boot-1", EARLIER_BOOT])
def test_evidence_from_before_the_boot_is_void_and_said(boot: str) -> None:  # case 43
    verdict = judge(*kernel(OFF, boot=boot))
    assert verdict.rule == "no_evidence"
    assert verdict.refused == ("void: xid 79 on alpha2 (GPU 0000:ab:00) is from before the present boot",)
    assert judge(*kernel(OFF, boot=boot), *kernel("63, x")).rule == "xid:63"


def test_a_log_that_shows_the_boot_needs_no_other_word_of_it() -> None:
    assert judge(*kernel(OFF, boot=EARLIER_BOOT), boot=None).rule == "no_evidence"


def test_what_is_void_is_said_in_one_order() -> None:
    old = [xid(code, boot="boot-1", ago=ago) for code, ago in ((64, 50), (48, 40), (79, 60))]
    said = {judge(*order).refused for order in itertools.permutations(old)}
    assert len(said) == 1
    assert [line.split()[2] for line in said.pop()] == ["79", "64", "48"]


def test_each_node_has_its_own_boot() -> None:
    two = [xid(64, node="alpha2", boot="b2"), xid(48, node="alpha3", boot="old")]
    verdict = classify(two, tables=TABLES, boot={"alpha2": "b2", "alpha3": "b3"}, now=NOW)
    assert verdict.culprit.node == "alpha2"
    assert len(verdict.refused) == 1


def test_old_evidence_is_void_only_when_its_boot_is_unknown() -> None:
    old = xid(79, ago=48 * 3600)
    assert judge(old).rule == "xid:79"
    assert judge(old, boot=None).rule == "no_evidence"
    assert judge(old.model_copy(update={"boot": None})).rule == "no_evidence"


def test_a_clock_five_minutes_ahead_changes_nothing() -> None:
    assert judge(xid(79, ago=-300)).rule == "xid:79"


# -- tables


def test_a_fleets_own_row_decides_and_is_named() -> None:
    override = {"xid": 31, "class": "hardware", "first_rung": "reboot", "why": "our program never does that"}
    tables = TABLES.with_overrides([Override.model_validate_json(json.dumps(override))])
    verdict = classify([xid(31)], tables=tables, boot="boot-2", now=NOW)
    assert (verdict.fault, verdict.first_rung, verdict.catalogue) == (H, "reboot", tables.version)
    assert "this fleet's own row: our program never does that" in verdict.companions


def test_every_xid_of_the_catalogue_has_a_verdict_that_agrees_with_its_row() -> None:
    for code, row in TABLES.xid.items():
        verdict = judge(xid(code))
        wanted = I if code in {43, 45} else row.fault
        assert (verdict.fault, verdict.first_rung) == (wanted, row.first_rung), code
        assert verdict.confidence > 0


# -- what a person reads


def test_the_explanation_is_a_paragraph_and_then_the_evidence() -> None:
    evidence = [*KEY_ERROR, *kernel(OFF)]
    verdict = judge(*evidence)
    head, _, rest = explain(verdict, evidence).partition("\n\n")
    assert head.startswith(verdict.title)
    assert "\n" not in head
    assert "Rule xid:79" in head
    assert "Refused: user" in head
    lines = rest.splitlines()
    assert len(lines) == 2
    assert "xid 79 on alpha2" in lines[0]


def test_a_thousand_reports_of_one_thing_are_one() -> None:
    many = [xid(31).model_copy(update={"seen_at": NOW - n}) for n in range(1000)]
    verdict = judge(*many)
    assert verdict.fault is U
    assert len(verdict.evidence) == 1
    assert len(verdict.evidence_text) == 1
    assert "xid 31 on alpha2" in verdict.evidence_text[0]


def test_a_verdict_stays_readable_when_everything_burns() -> None:
    fire = [xid(code, gpu=f"0000:{gpu:02x}:00") for code in (31, 48, 64, 79, 119) for gpu in range(16)]
    verdict = judge(*fire)
    assert verdict.rule == "xid:79"
    assert len(verdict.companions) <= 21
    assert len(verdict.evidence) <= 20
    assert len(verdict.evidence_text) == 7
    assert "xid 79" in verdict.evidence_text[0]
    assert verdict.evidence_text[-1].endswith(" more")


def test_order_never_matters_in_large_mixed_evidence() -> None:
    chance = random.Random(7)
    pool = [piece for case in CASES for piece in case[1]]
    for _ in range(60):
        some = chance.sample(pool, 12)
        past = chance.sample(pool, 6)
        first = classify(some, history=past, tables=TABLES, boot="boot-2", now=NOW)
        chance.shuffle(some)
        chance.shuffle(past)
        assert classify(some, history=past, tables=TABLES, boot="boot-2", now=NOW) == first


def test_a_verdict_survives_its_own_json() -> None:
    verdict = judge(*KEY_ERROR, *kernel(OFF))
    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict
