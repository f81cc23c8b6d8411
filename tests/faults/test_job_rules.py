"""Every rule about a job's own words and end: first cause, who killed it, one node or all, silent errors."""

import json

import pytest

from fleet.faults.evidence import Evidence, Fact, Kind, Source
from fleet.faults.sources.elastic_error import read_elastic_error
from fleet.faults.texts import Origin
from tests.faults.case import (
    HOUR,
    Case,
    H,
    N,
    T,
    U,
    fact,
    holds,
    kernel_text,
    raised,
    words,
)
from tests.faults.making import NOW, ended, seen, traceback

KEY_ERROR = raised("KeyError: 'x'", rank=3)
MISSING = "FileNotFoundError: [Errno 2] No such file or directory: '/data/x'"
PAIR = ("alpha1", "alpha2")
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def rank_error(error: str, rank: int, node: str, ago: float) -> list[Evidence]:
    """Evidence of torchelastic's error file of one rank."""
    stack = "\n".join(line.partition(": ")[2] for line in traceback(error, rank=rank))
    extra = {"py_callstack": stack, "timestamp": str(int(NOW - ago))}
    raw = json.dumps({"message": {"message": error, "extraInfo": extra}})
    return list(read_elastic_error(raw, Origin("alpha", NOW, node=node, job="train-7", rank=rank)).evidence)


RULES = [
    # ranks
    Case(
        "first",
        "+",
        "the earliest cause of all ranks",
        [*words(*traceback(MISSING, rank=5), *traceback("KeyError: 'x'", rank=2))],
        N,
        "text:file_not_found",
    ),
    Case(
        "first",
        "-",
        "the other way round",
        [*words(*traceback("KeyError: 'x'", rank=2), *traceback(MISSING, rank=5))],
        U,
        "text:python_deterministic",
    ),
    Case(
        "first",
        "+",
        "by the clocks of error files",
        [*rank_error(MISSING, 1, "alpha1", 60), *rank_error("KeyError: 'x'", 2, "alpha2", 40)],
        N,
        "text:file_not_found",
    ),
    Case(
        "first",
        "-",
        "clocks that say no more than the same second",
        [*rank_error(MISSING, 1, "alpha1", 41), *rank_error("KeyError: 'x'", 2, "alpha2", 40)],
        U,
        "text:python_deterministic",
    ),
    # killed
    Case(
        "killed",
        "+",
        "by its own limit",
        [ended("SIGKILL", node="alpha2")],
        U,
        "killed:oom_job",
        around=[kernel_text("oom_job", "alpha2", ago=15)],
    ),
    Case(
        "killed",
        "+",
        "for a node without memory",
        [ended("137", node="alpha2")],
        T,
        "killed:oom_node",
        around=[kernel_text("oom_node", "alpha2", ago=15)],
        node="alpha2",
    ),
    Case(
        "killed",
        "+",
        "the shell's own word",
        words("Killed", nodes=("alpha2",)),
        U,
        "killed:oom_job",
        around=[kernel_text("oom_job", "alpha2", ago=15)],
    ),
    Case(
        "killed",
        "+",
        "its node does not answer",
        [ended("137"), seen(Kind.NODE_DOWN, Source.SCHEDULER, node="alpha2")],
        H,
        "node_down",
        "reboot",
    ),
    Case("killed", "+", "by the limit of its container", [ended("OOMKilled"), ended("137")], U, "reason:OOMKilled"),
    Case(
        "killed",
        "-",
        "on another node",
        [ended("SIGKILL", node="alpha2")],
        N,
        "secondary_only",
        around=[kernel_text("oom_job", "alpha3", ago=15)],
    ),
    Case(
        "killed",
        "-",
        "an hour before",
        [ended("SIGKILL", node="alpha2")],
        N,
        "secondary_only",
        around=[kernel_text("oom_job", "alpha2", ago=HOUR)],
    ),
    Case(
        "killed",
        "-",
        "after a first failure",
        [ended("SIGKILL", node="alpha2"), *KEY_ERROR],
        U,
        "text:python_deterministic",
    ),
    Case(
        "segfault",
        "+",
        "inside NCCL",
        [ended("139", node="alpha2")],
        N,
        "segfault_nccl",
        around=[kernel_text("segfault_nccl", "alpha2", ago=15)],
        node="alpha2",
    ),
    Case(
        "segfault",
        "+",
        "of two jobs on one node",
        [ended("139", node="alpha2")],
        H,
        "repeat:139",
        "reboot",
        [ended("139", job="other", node="alpha2")],
    ),
    Case("segfault", "-", "of one", [ended("139", node="alpha2")], N, "exit:139"),
    # one node
    Case(
        "one node",
        "+",
        "a module that one node lacks after steps",
        words("0: step 40 loss 2.0", *traceback("ImportError: no", rank=1), nodes=PAIR, ranks=PAIR),
        N,
        "one_node",
        node="alpha2",
        elsewhere=True,
    ),
    Case(
        "one node",
        "-",
        "a module that was never there",
        words(*traceback("ImportError: no", rank=1), nodes=PAIR, ranks=PAIR),
        U,
        "text:import_error",
    ),
    Case(
        "one node",
        "+",
        "127 of a program that ran before",
        [ended("127", node="alpha2").model_copy(update={"nodes": PAIR}), fact(Fact.KNOWN_GOOD, job="train-7")],
        N,
        "one_node",
        node="alpha2",
        elsewhere=True,
    ),
    Case(
        "one node",
        "-",
        "127 of a new program",
        [ended("127", node="alpha2").model_copy(update={"nodes": PAIR})],
        U,
        "exit:127",
    ),
    # silent errors
    Case(
        "loss",
        "+",
        "a jump",
        words(*(f"step {n} loss {2.0 + n / 100}" for n in range(20)), "step 20 loss 61.25"),
        N,
        "text:loss_jump",
        says="on other nodes",
        elsewhere=True,
    ),
    Case(
        "loss",
        "-",
        "no jump",
        [*words(*(f"step {n} loss {2.0 + n / 100}" for n in range(20))), ended("1")],
        N,
        "exit:1",
    ),
    Case(
        "loss",
        "+",
        "the program's own word about it",
        words("step 7 loss nan", *traceback("FloatingPointError: loss is not finite")),
        N,
        "text:loss_nan",
        elsewhere=True,
    ),
]


@pytest.mark.parametrize("case", RULES, ids=[case.id for case in RULES])
def test_a_rule_fires_where_it_must_and_nowhere_else(case: Case) -> None:
    holds(case)


@pytest.mark.parametrize("of", sorted({case.of for case in RULES}))
def test_each_is_shown_each_way_round(of: str) -> None:
    assert {case.shows for case in RULES if case.of == of} == {"+", "-"}
