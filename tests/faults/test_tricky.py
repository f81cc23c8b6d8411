"""Every tricky case of the reference's list (fault taxonomy, section 11), each way round. Those of GPUs and nodes are
in `tricky_gpus`, those of jobs here."""

import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from fleet.faults.evidence import Evidence, Fact
from tests.faults.case import HOUR, Case, H, N, T, U, fact, holds, kernel_text, raised, words
from tests.faults.making import ended
from tests.faults.test_field_reports import REPORTS
from tests.faults.test_job_rules import RULES as OF_JOBS
from tests.faults.test_rules import RULES as OF_GPUS
from tests.faults.tricky_gpus import GPU_CASES

WATCHDOG = "[rank0]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, Timeout(ms)=600000) ran for"
KEY_ERROR = raised("KeyError: 'x'", rank=77)
ACCESS = "RuntimeError: CUDA error: an illegal memory access was encountered"
MISSING = "FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-3'"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB"
NON_TORCH = "Including non-PyTorch memory, this process has"
FRAGMENTS = f"{OOM} 60.0 GiB is allocated by PyTorch, and 9.00 GiB is reserved by PyTorch but unallocated."
NAN = ["step {} loss 2.1", "step {} loss nan"]
PAIR = ("alpha1", "alpha2")


def nan(step: int, **more: object) -> list[Evidence]:
    return words(f"step {step} loss nan", **more)  # type: ignore[arg-type]


JOB_CASES = [
    Case(
        "23",
        "+",
        "a KeyError behind 511 time-outs",
        [*words(*(WATCHDOG.replace("rank0", f"rank{n}") for n in range(511))), *KEY_ERROR, ended("SIGABRT")],
        U,
        "text:python_deterministic",
    ),
    Case("23", "-", "time-outs alone", [*words(WATCHDOG), ended("SIGABRT")], N, "text:nccl_watchdog_timeout"),
    Case(
        "24",
        "+",
        "one flap before the time-out",
        [*words(WATCHDOG), kernel_text("nic_link_down", "alpha2", pci="0000:1a:00")],
        T,
        "kernel:nic_link_down",
    ),
    Case(
        "24",
        "+",
        "the third flap of a port within an hour",
        [*words(WATCHDOG), kernel_text("nic_link_down", "alpha2", pci="0000:1a:00")],
        H,
        "repeat:nic_link_down",
        "reboot",
        [kernel_text("nic_link_down", "alpha2", ago=ago, pci="0000:1a:00") for ago in (1200, 2400)],
        node="alpha2",
    ),
    Case(
        "24",
        "-",
        "flaps of three ports",
        [*words(WATCHDOG), kernel_text("nic_link_down", "alpha2", pci="0000:1a:00")],
        T,
        "kernel:nic_link_down",
        before=[kernel_text("nic_link_down", "alpha2", ago=1200, pci=f"0000:{n}a:00") for n in (2, 3)],
    ),
    Case(
        "29",
        "+",
        "connections lost after a first death",
        [*words("Connection reset by peer"), *KEY_ERROR],
        U,
        "text:python_deterministic",
    ),
    Case("29", "-", "connections lost and nothing else", words("Connection reset by peer"), N, "secondary_only"),
    Case(
        "30",
        "+",
        "another process holds the memory",
        raised(f"{OOM} Process 9 has 40.00 GiB memory in use."),
        T,
        "text:torch_oom_other_process",
    ),
    Case(
        "30",
        "+",
        "nobody that is named holds it",
        raised(f"{OOM} of which 1.00 GiB is free. {NON_TORCH} 30.00 GiB memory in use."),
        T,
        "text:torch_oom_other_process",
    ),
    Case("30", "-", "its own memory", raised(f"{OOM} of which 1.00 GiB is free."), U, "text:torch_oom"),
    Case("31", "+", "out of memory again", raised(OOM), U, "text:torch_oom", before=raised(OOM, ago=HOUR, attempt=1)),
    Case(
        "31",
        "-",
        "out of memory on the one smaller GPU",
        [*words(*(f"0: {x}" for x in (OOM, OOM)), *(f"5: {OOM.replace('79.1', '39.5')}" for _ in range(1)))],
        H,
        "text:torch_oom_small_gpu",
        "person",
    ),
    Case("32", "+", "fragments once", raised(FRAGMENTS), T, "text:torch_oom_fragmented"),
    Case(
        "32",
        "-",
        "fragments twice",
        raised(FRAGMENTS),
        U,
        "text:torch_oom_fragmented",
        before=raised(FRAGMENTS, ago=HOUR, attempt=1),
    ),
    Case("33", "+", "137 of a job that was preempted", [ended("137"), ended("PREEMPTED")], T, "reason:PREEMPTED"),
    Case("33", "-", "137 and no record", [ended("137")], N, "secondary_only"),
    Case("35", "+", "134 on many ranks", [ended("134"), *words(WATCHDOG)], N, "text:nccl_watchdog_timeout"),
    Case(
        "35",
        "-",
        "134 after an exception",
        [ended("134"), *words(WATCHDOG), *KEY_ERROR],
        U,
        "text:python_deterministic",
    ),
    Case(
        "37",
        "+",
        "a file that one node lacks",
        raised(MISSING, rank=1, nodes=PAIR, ranks=PAIR),
        N,
        "one_node",
        node="alpha2",
        elsewhere=True,
    ),
    Case(
        "37",
        "-",
        "a file that no node has",
        [*raised(MISSING, rank=0, nodes=PAIR, ranks=PAIR), *raised(MISSING, rank=1, nodes=PAIR, ranks=PAIR)],
        U,
        "all_nodes",
    ),
    Case("37", "-", "a missing file, nodes unknown", raised(MISSING), N, "text:file_not_found"),
    Case(
        "39",
        "+",
        "an illegal access that moves with the job",
        raised(ACCESS, ranks=("alpha2",)),
        U,
        "text:cuda_illegal_access",
        before=raised(ACCESS, ranks=("alpha3",), ago=HOUR, attempt=1),
    ),
    Case(
        "39",
        "-",
        "illegal accesses of other jobs on the same node",
        raised(ACCESS, ranks=("alpha2",)),
        H,
        "repeat:cuda_illegal_access",
        "reboot",
        raised(ACCESS, ranks=("alpha2",), ago=HOUR, job="other"),
        node="alpha2",
    ),
    Case("41", "+", "a loss that is no number", nan(100), N, "text:loss_nan", says="on other nodes", elsewhere=True),
    Case(
        "41",
        "+",
        "gone on other nodes",
        [*nan(100, nodes=("alpha2",)), fact(Fact.REPLAY_CLEAN, job="train-7", value=100)],
        H,
        "replay_clean",
        "person",
        node="alpha2",
    ),
    Case(
        "41",
        "-",
        "the same on other nodes",
        [*nan(100), fact(Fact.REPLAY_SAME, job="train-7", value=100)],
        U,
        "replay_same",
    ),
    Case(
        "41",
        "-",
        "at the same step on other nodes before",
        nan(100, nodes=("alpha2",)),
        U,
        "replay_same",
        before=nan(100, nodes=("alpha3",), ago=HOUR, attempt=1),
    ),
    Case(
        "41",
        "-",
        "a replay of another step",
        [*nan(100), fact(Fact.REPLAY_CLEAN, job="train-7", value=90)],
        N,
        "text:loss_nan",
        elsewhere=True,
    ),
]
CASES = [*GPU_CASES, *JOB_CASES]
ELSEWHERE = {
    "27": "tests/faults/hangs/test_diagnose.py::test_everybody_in_the_same_place_leaves_it_to_the_step_watchdog",
    "31": "tests/fleet/test_ladder.py::test_the_same_failure_at_the_same_step_on_other_nodes_is_the_jobs_own",
    "47": "tests/faults/sources/test_dcgm_metrics.py::test_a_narrow_pcie_link_is_seen_from_two_metrics",
}
"""Cases that another part decides, and the test that shows it."""
_NUMBERS = "1 2 3 5 6 7 8 9 10 12 13 15 17 18 19 20 21 23 24 27 29 30 31 32 33 35 37 39 41 42 43 45 47 49"
ALL = set(map(int, _NUMBERS.split()))
"""Numbers of the reference's list."""


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_a_tricky_case_gets_the_right_verdict(case: Case) -> None:
    holds(case)


def test_no_mix_of_all_cases_depends_on_its_order() -> None:
    chance = random.Random(11)
    cases = [*CASES, *OF_GPUS, *OF_JOBS, *REPORTS]
    pools = [[e for case in cases for e in pool(case)] for pool in (_now, _before, _around)]
    for _ in range(60):
        mix = [chance.sample(pool, 10) for pool in pools]
        first = cases[0].judged(*mix)
        for pool in mix:
            chance.shuffle(pool)
        assert cases[0].judged(*mix) == first


def _now(case: Case) -> Sequence[Evidence]:
    return case.now


def _before(case: Case) -> Sequence[Evidence]:
    return case.before


def _around(case: Case) -> Sequence[Evidence]:
    return case.around


def test_every_case_of_the_list_is_here_each_way_round_or_shown_elsewhere() -> None:
    here = {(int(c.of), c.shows) for c in CASES}
    assert {number for number in ALL if not {(number, "+"), (number, "-")} <= here} == {27}
    assert {number for number, _ in here} <= ALL


@pytest.mark.parametrize("shown", sorted(ELSEWHERE.values()))
def test_what_is_shown_elsewhere_is_there(shown: str) -> None:
    file, _, name = shown.partition("::")
    assert re.search(rf"^(?:async )?def {name}\(", (Path(__file__).parents[2] / file).read_text(), re.MULTILINE)
