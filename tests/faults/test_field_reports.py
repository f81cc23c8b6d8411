"""Every fault case of the field reports (trouble cases F), each way round."""

import pytest

from fleet.faults.evidence import Evidence, Fact
from tests.faults.case import (
    DAY,
    HOUR,
    OFF,
    Case,
    H,
    N,
    T,
    U,
    every,
    fact,
    field,
    holds,
    lines,
    raised,
    words,
)
from tests.faults.making import UUID, ended, xid

KEY_ERROR = raised("KeyError: 'x'", rank=3)
PAIR = ("alpha1", "alpha2")
NO_FABRIC = "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
SHM = "RuntimeError: DataLoader worker (pid 56811) is killed by signal: Bus error. It is possible that dataloader's"
CONTAINER = "Failed to initialize NVML: Unknown Error"
NO_HANDLE = (
    "Unable to determine the device handle for GPU {}:AB:00.0: GPU is lost.  Reboot the system to recover this GPU"
)
PATH = (
    "gpu:1:2 [0] p.c:1615 NCCL WARN NET/IB : Got completion from peer 192.0.2.36<44206> with status={} "
    "localGid {} remoteGids{}"
)
LEFT, RIGHT, THIRD = "::ffff:198.51.100.21", "::ffff:198.51.100.182", "::ffff:198.51.100.40"


def path(host: str, local: str, remote: str, *, ago: float = 10.0, job: str = "train-7") -> list[Evidence]:
    line = PATH.format("12 opcode=1 len=0 vendor err 129 (Send)", local, remote).replace("gpu:", f"{host}:", 1)
    flood = [PATH.format("5 opcode=32656 len=32659 vendor err 249 (Recv)", local, remote)] * 40
    return words(line, *flood, ago=ago, job=job, nodes=("alpha1", "alpha2", "alpha3"))


REPORTS = [
    Case(
        "F02",
        "+",
        "79 although its uuid cannot be had",
        lines(
            f"NVRM: Xid (PCI:0000:ab:00): 79, {OFF}",
            NO_HANDLE.format("0000"),
        ),
        H,
        "xid:79",
        "reboot",
        node="alpha2",
        says="a lost GPU",
    ),
    Case(
        "F02",
        "+",
        "the failed look-up alone",
        lines(NO_HANDLE.format("00000000")),
        H,
        "gpu_lost",
        "reboot",
        node="alpha2",
    ),
    Case("F02", "-", "a look-up that does not fail", lines(f"NVRM: GPU at PCI:0000:ab:00: {UUID}"), N, "no_evidence"),
    Case(
        "F04",
        "+",
        "a gauge is no second event",
        [xid(31), field("xid_gauge", 31)],
        U,
        "xid:31",
        before=[field("xid_gauge", 31, ago=HOUR)],
    ),
    Case(
        "F04",
        "+",
        "the same value after the reboot",
        [field("xid_gauge", 79).model_copy(update={"boot": "boot-1"})],
        N,
        "no_evidence",
    ),
    Case("F04", "-", "two lines of the log are", [xid(31)], H, "repeat:31", "reset", every(31, 2400), node="alpha2"),
    Case("F06", "+", "a container that lost its devices", words(CONTAINER, nodes=PAIR), T, "text:nvml_container"),
    Case(
        "F06",
        "+",
        "two jobs at one instant are one incident",
        words(CONTAINER, nodes=PAIR),
        T,
        "text:nvml_container",
        before=words(CONTAINER, nodes=PAIR, job="other", ago=12),
    ),
    Case(
        "F06",
        "+",
        "it comes again: a person",
        words(CONTAINER, nodes=PAIR),
        N,
        "text:nvml_container",
        "person",
        words(CONTAINER, nodes=PAIR, job="other", ago=DAY),
    ),
    Case("F06", "-", "a GPU that is lost", [*words(CONTAINER, nodes=PAIR), xid(79)], H, "xid:79", "reboot"),
    Case(
        "F08",
        "+",
        "a path, once: both ends are suspects",
        path("alpha1", LEFT, RIGHT),
        T,
        "text:ib_retry_exceeded",
        says="both ends",
    ),
    Case(
        "F08",
        "+",
        "the end that fails with another one, too",
        path("alpha3", RIGHT, THIRD),
        H,
        "repeat:ib_retry_exceeded",
        "reboot",
        [*path("alpha1", LEFT, RIGHT, ago=HOUR), *path("alpha3", RIGHT, LEFT, ago=HOUR)],
        node="alpha3",
    ),
    Case(
        "F08",
        "-",
        "the same pair again",
        path("alpha1", LEFT, RIGHT),
        T,
        "text:ib_retry_exceeded",
        before=path("alpha1", LEFT, RIGHT, ago=HOUR),
    ),
    Case(
        "F08",
        "-",
        "only the flood",
        words(*[PATH.format("5 opcode=1 len=0 vendor err 249", LEFT, RIGHT)] * 400),
        N,
        "secondary_only",
    ),
    Case(
        "F10",
        "+",
        "40 s after the boot",
        [*raised(NO_FABRIC, nodes=("alpha2",)), fact(Fact.BOOTED, node="alpha2", ago=50)],
        T,
        "fabric_starting",
    ),
    Case(
        "F10",
        "+",
        "40 min after the boot",
        [*raised(NO_FABRIC, nodes=("alpha2",)), fact(Fact.BOOTED, node="alpha2", ago=2400)],
        H,
        "text:cuda_fabric_not_ready",
        "reboot",
    ),
    Case(
        "F10",
        "+",
        "a fabric in progress long after a boot",
        [field("fabric_in_progress", 2), fact(Fact.BOOTED, node="alpha2", ago=2400)],
        H,
        "fabric_not_ready",
        "reboot",
        node="alpha2",
    ),
    Case(
        "F10",
        "-",
        "a fabric in progress right after it",
        [field("fabric_in_progress", 2), fact(Fact.BOOTED, node="alpha2", ago=70)],
        T,
        "fabric_starting",
    ),
    Case(
        "F10",
        "-",
        "an exception of the program as early",
        [*KEY_ERROR, fact(Fact.BOOTED, node="alpha2", ago=50)],
        U,
        "text:python_deterministic",
    ),
    Case(
        "F12",
        "+",
        "shared memory on three nodes",
        [
            *words(SHM, "OSError: [Errno 28] No space left on device", nodes=("alpha1", "alpha2", "alpha3")),
            ended("135"),
        ],
        U,
        "text:dataloader_shm",
    ),
    Case(
        "F12",
        "-",
        "full of what a dead job left on one",
        [*words(SHM, nodes=PAIR), fact(Fact.SHM_USED, node="alpha2", value=200.0), ended("135")],
        T,
        "leftover_shm",
        node="alpha2",
    ),
    Case(
        "F14",
        "+",
        "hardware from the first job on",
        raised(ECC, ranks=("beta13",), nodes=("beta13", "alpha1")),
        H,
        "text:cuda_ecc",
        "reset",
        node="beta13",
    ),
    Case(
        "F14",
        "+",
        "what the nodes of several jobs have in common, whoever spoke first",
        raised(ECC, ranks=("alpha1",), nodes=("beta13", "alpha1")),
        H,
        "text:cuda_ecc",
        "reset",
        raised(ECC, job="b", ago=DAY, ranks=("beta13",), nodes=("beta13", "alpha2")),
        node="beta13",
        says="all 2 jobs",
    ),
    Case(
        "F14",
        "-",
        "jobs with no node in common",
        raised(ECC, ranks=("alpha1",), nodes=("alpha1",)),
        H,
        "text:cuda_ecc",
        "reset",
        raised(ECC, job="b", ago=DAY, ranks=("beta13",), nodes=("beta13",)),
        node="alpha1",
    ),
]


@pytest.mark.parametrize("case", REPORTS, ids=[case.id for case in REPORTS])
def test_a_field_report_gets_the_right_verdict(case: Case) -> None:
    holds(case)


@pytest.mark.parametrize("of", sorted({case.of for case in REPORTS}))
def test_each_is_shown_each_way_round(of: str) -> None:
    assert {case.shows for case in REPORTS if case.of == of} == {"+", "-"}


def test_every_fault_case_is_here() -> None:
    assert {case.of for case in REPORTS} == {"F02", "F04", "F06", "F08", "F10", "F12", "F14"}
