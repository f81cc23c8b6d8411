"""Names of many nodes as a person reads them, marks of a wave, and how many nodes it may isolate."""

import pytest
from pydantic import TypeAdapter

from fleet.model import OpId
from fleet.policy_file import parse_policy
from fleet.waves import LINE, WaveCount, folded, listed, wave_op


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ((), ""),
        (("a1",), "a1"),
        (("gamma-f1", "gamma-f2", "gamma-f3", "gamma-f7"), "gamma-f[1-3,7]"),
        (("b2", "a1", "b1"), "b[1-2], a1"),
        (("n001", "n002", "n099", "n100", "n1"), "n[001-002,099], n[1,100]"),
        (("login", "a1"), "a1, login"),
        (("a1", "a1"), "a1"),
    ],
)
def test_many_names_are_folded(names: tuple[str, ...], shown: str) -> None:
    assert folded(names) == shown


def test_a_list_for_a_person_names_every_node_in_short_lines() -> None:
    nodes = [f"rack{rack}-n{n}" for rack in range(40) for n in (1, 3, 5)]
    lines = listed(nodes)
    assert all(len(line) <= LINE for line in lines)
    text = " ".join(lines)
    assert all(f"rack{rack}-n[1,3,5]" in text.replace(", ", ",") for rack in range(40))


def test_the_mark_of_a_wave_is_an_op_id_and_another_one_for_each_node_and_wave() -> None:
    ops = {wave_op("gamma", f"n{n}", f"run/{wave}") for n in range(50) for wave in (1, 2)}
    assert len(ops) == 100
    assert all(TypeAdapter(OpId).validate_python(op) for op in ops)
    assert wave_op("gamma", "n1", "run/1") == wave_op("gamma", "n1", "run/1")


@pytest.mark.parametrize(
    ("limits", "nodes", "isolated"),
    [
        ("{}", 1000, 10),
        ("{}", 40, 4),
        ("{nodes_isolated: 5000, nodes_isolated_percent: '100%'}", 1000, 1000),
        ("{nodes_isolated: 0}", 1000, 1),  # what may be out may be isolated
        ("{nodes_isolated: 3, nodes_out: 20, nodes_out_percent: '50%'}", 100, 20),
    ],
)
def test_the_smaller_limit_holds_but_never_less_than_may_be_out(limits: str, nodes: int, isolated: int) -> None:
    policy = parse_policy(f"version: 1\nclusters: {{a: {{kind: sim, path: w}}}}\nlimits: {limits}\n", "fleet.yaml")
    assert policy.nodes_isolated(nodes) == isolated


def test_a_count_says_everything_that_is_not_zero() -> None:
    count = WaveCount(nodes=10, isolated=6, requested=6, healing=1, done=2, held=3, left=1)
    assert count.text == (
        "10 nodes: 6 isolated, 6 repairs requested, 1 healing, 2 done, 3 wait for a person, 1 left alone"
    )
