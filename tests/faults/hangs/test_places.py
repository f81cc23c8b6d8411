"""Rank -> node -> GPU: from NCCL's own lines, from a person's table, or from the usual order."""

import pytest

from fleet.errors import InvalidInputError
from fleet.faults.hangs.places import Place, by_blocks, from_log, one_node, parse_table, pci
from fleet.faults.hangs.words import listed, numbers

INIT = (
    "3: alpha2:4711:4790 [3] NCCL INFO ncclCommInitRank comm 0x55d0 rank 11 nranks 16 cudaDev 3 nvmlDev 3"
    " busId 1b000 commId 0x1f2e - Init COMPLETE"
)


def test_nccls_own_line_gives_node_and_gpu() -> None:
    found = from_log(["loading", INIT, INIT.replace("rank 11 nranks 16", "rank 1 nranks 2")], 16)
    assert found == {11: Place(node="alpha2", gpu="0000:1b:00", local=3)}


def test_of_two_starts_in_one_log_the_newer_one_counts() -> None:
    assert from_log([INIT, INIT.replace("alpha2", "alpha5")], 16)[11].node == "alpha5"


@pytest.mark.parametrize(
    ("bus_id", "address"), [(0x4000, "0000:04:00"), (0x1B000, "0000:1b:00"), (0x100AB010, "0100:ab:01")]
)
def test_a_bus_id_is_written_as_the_kernel_writes_it(bus_id: int, address: str) -> None:
    assert pci(bus_id) == address


def test_ranks_lie_in_blocks_over_the_nodes_and_the_place_is_called_assumed() -> None:
    found = by_blocks(("a", "b"), 4)
    assert [(p.node, p.local, p.assumed) for p in found.values()] == [
        ("a", 0, True),
        ("a", 1, True),
        ("b", 0, True),
        ("b", 1, True),
    ]


@pytest.mark.parametrize(("nodes", "ranks"), [((), 4), (("a", "b", "c"), 4), (("a", "b"), 1)])
def test_ranks_that_do_not_fit_the_nodes_have_no_place(nodes: tuple[str, ...], ranks: int) -> None:
    assert by_blocks(nodes, ranks) == {}


def test_a_table_names_ranks_nodes_and_gpus() -> None:
    found = parse_table("# mine\n0 alpha1 GPU-1\n\n1 alpha2   # its node\n")
    assert found == {0: Place(node="alpha1", gpu="GPU-1"), 1: Place(node="alpha2")}
    assert (one_node(found, [0]), one_node(found, [0, 1]), one_node(found, [0, 7])) == ("alpha1", None, None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no line"),
        ("0 a\n1", "line 2 is not RANK NODE"),
        ("x a", "line 1 is not"),
        ("0 a/b c", "line 1 is not"),
        ("0 a\n0 b", "rank 0 a second time"),
    ],
)
def test_a_table_that_cannot_be_read_says_which_line(text: str, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        parse_table(text)


def test_ranks_are_written_in_runs_and_long_lists_are_counted() -> None:
    assert (listed([3]), listed([8, 0, 1, 2])) == ("rank 3", "ranks 0-2, 8")
    assert numbers(range(0, 100, 2)).endswith("22 and 38 more runs")
