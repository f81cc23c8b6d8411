"""Which rank a job waits for: each rule of docs/hangs.md, with what is named and what is refused."""

import random
from collections.abc import Callable, Mapping

import pytest

from fleet.faults.classify import classify
from fleet.faults.evidence import FaultClass
from fleet.faults.hangs.diagnose import HangReport, diagnose
from fleet.faults.hangs.places import by_blocks
from fleet.faults.sources.flight_recorder import Dump
from tests.faults.hangs.making import call, job, transfer, upto
from tests.faults.making import NOW, TABLES, xid
from tests.faults.sources.dumps import FRAME

EVERYONE = {"0": range(8)}
NODES = ("alpha1", "alpha2")


def judged(dumps: Mapping[int, Dump], ranks: int = 8) -> HangReport:
    return diagnose(dumps, places=by_blocks(NODES, ranks), ranks=ranks, job="train-7")


def blamed(report: HangReport) -> list[int]:
    return [s.rank for s in report.suspects]


def test_a_rank_that_has_not_come_is_named_with_its_node_and_what_all_others_wait_for() -> None:
    found = judged(
        job(EVERYONE, {r: upto("0", 11 if r == 5 else 12, "completed" if r == 5 else "started") for r in range(8)})
    )
    assert (found.verdict.rule, found.verdict.fault) == ("hang:missing_rank", FaultClass.UNKNOWN)
    assert (found.verdict.culprit.node, blamed(found)) == ("alpha2", [5])
    assert (
        "rank 5 has not come to all_reduce 12 of group desc_0 (0), where ranks 0-4, 6-7 wait" in found.verdict.title
    )
    assert "train.py:87" in found.verdict.title
    (wait,) = found.waits
    assert (wait.waiting, wait.missing, wait.seq, wait.first) == ((0, 1, 2, 3, 4, 6, 7), (5,), 12, True)
    assert any("mismatch" in text for text in found.verdict.refused)
    assert any("usual order" in text for text in found.verdict.companions)


def test_of_groups_that_hang_in_a_chain_only_the_last_one_names_its_rank() -> None:
    """Rank 3 stands still: its pair waits in `tp1`, so rank 2 never comes to `dp0`, and ranks 0 and 1 hang there."""
    groups = {"tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 2), "dp1": (1, 3)}
    found = judged(
        job(
            groups,
            {
                0: [*upto("tp0", 4, "completed"), *upto("dp0", 2)],
                1: [*upto("tp0", 4, "completed"), *upto("dp1", 2)],
                2: [*upto("dp0", 1, "completed"), *upto("tp1", 4)],
                3: [*upto("dp1", 1, "completed"), *upto("tp1", 3, "completed")],
            },
        ),
        ranks=4,
    )
    assert (found.verdict.rule, blamed(found)) == ("hang:missing_rank", [3])
    assert [(w.group, w.first) for w in found.waits] == [("dp1", True), ("tp1", True), ("dp0", False)]
    assert any("all_reduce 2 of group desc_dp0" in t and "rank 2 waits elsewhere" in t for t in found.verdict.refused)


def test_a_rank_without_a_dump_is_the_suspect_when_others_wait_for_it() -> None:
    found = judged(job(EVERYONE, {r: upto("0", 12) for r in range(8) if r != 2}))
    assert (found.verdict.rule, found.verdict.culprit.node, blamed(found)) == ("hang:no_dump", "alpha1", [2])
    assert (found.dumped, found.ranks) == (7, 8)
    assert "rank 2 left no dump, and ranks 0-1, 3-7 wait in all_reduce 12" in found.verdict.title


def test_all_ranks_of_a_node_without_dumps_name_the_node() -> None:
    found = judged(job(EVERYONE, {r: upto("0", 12) for r in range(4)} | {4: upto("0", 12)}), ranks=8)
    assert (blamed(found), found.verdict.culprit.node) == ([5, 6, 7], "alpha2")


def test_suspects_on_several_nodes_blame_none() -> None:
    found = judged(job(EVERYONE, {r: upto("0", 12) for r in range(8) if r not in (0, 7)}))
    assert (blamed(found), found.verdict.culprit.node) == ([0, 7], None)
    assert "(on alpha1, alpha2)" in found.verdict.title


def test_dumps_of_fewer_than_half_of_the_ranks_name_nobody() -> None:
    found = judged(job(EVERYONE, {r: upto("0", 12) for r in (0, 1, 2)}))
    assert (found.verdict.rule, blamed(found)) == ("hang:too_few_dumps", [])
    assert "3 of 8" in found.verdict.title


def test_another_operation_under_the_same_number_is_the_programs_fault() -> None:
    found = judged(job(EVERYONE, {r: upto("0", 5, op="broadcast" if r == 3 else "all_reduce") for r in range(8)}))
    assert (found.verdict.rule, found.verdict.fault) == ("hang:mismatch", FaultClass.USER)
    assert (blamed(found), found.verdict.culprit.job, found.verdict.culprit.node) == ([3], "train-7", None)
    assert "rank 3: broadcast; the other 7: all_reduce" in found.verdict.title


def test_where_most_ranks_differ_from_the_first_it_is_the_first_that_is_wrong() -> None:
    found = judged(job(EVERYONE, {r: upto("0", 5, op="broadcast" if r == 0 else "all_reduce") for r in range(8)}))
    assert blamed(found) == [0]


def test_without_a_majority_a_mismatch_blames_no_rank() -> None:
    found = judged(job(EVERYONE, {r: upto("0", 5, op="broadcast" if r % 2 else "all_reduce") for r in range(8)}))
    assert (found.verdict.rule, blamed(found)) == ("hang:mismatch", [])
    assert "ranks 0, 2, 4, 6: all_reduce; ranks 1, 3, 5, 7: broadcast" in found.verdict.title


def test_two_operations_in_the_other_order_are_told_as_an_order() -> None:
    usual = [
        *upto("0", 4, "completed"),
        call("0", 5, "started", "all_gather"),
        call("0", 6, "scheduled", "broadcast"),
    ]
    turned = [
        *upto("0", 4, "completed"),
        call("0", 5, "started", "broadcast"),
        call("0", 6, "scheduled", "all_gather"),
    ]
    found = judged(job(EVERYONE, {r: turned if r == 6 else usual for r in range(8)}))
    assert (found.mismatches[0].kind, found.mismatches[0].ranks) == ("order", (6,))


@pytest.mark.parametrize(
    ("more", "kind"),
    [({"input_sizes": [[3]], "output_sizes": [[3]]}, "sizes"), ({"input_dtypes": ["Half"]}, "types")],
)
def test_other_sizes_or_types_are_the_programs_fault(more: dict[str, object], kind: str) -> None:
    found = judged(job(EVERYONE, {r: upto("0", 5, **(more if r == 1 else {})) for r in range(8)}))
    assert (found.verdict.fault, found.mismatches[0].kind, blamed(found)) == (FaultClass.USER, kind, [1])


def test_an_all_to_all_whose_elements_do_not_add_up_blames_no_rank() -> None:
    entries = {r: upto("0", 5, op="all_to_all", input_sizes=[[8 + (r == 1)]], output_sizes=[[8]]) for r in range(8)}
    found = judged(job(EVERYONE, entries))
    assert (found.verdict.rule, blamed(found)) == ("hang:mismatch", [])
    assert "give 65 elements and expect 64" in found.verdict.title


@pytest.mark.parametrize(
    ("op", "sizes"),
    [
        ("all_to_all", lambda r: {"input_sizes": [[8 + r]], "output_sizes": [[15 - r]]}),
        ("scatter", lambda r: {"input_sizes": [[4]] * 8 if r == 0 else []}),
        ("gather", lambda r: {"output_sizes": [[4]] * 8 if r == 0 else []}),
        ("all_gather", lambda r: {"input_sizes": [[4 + r]]}),
    ],
)
def test_sizes_that_may_differ_are_no_mismatch(op: str, sizes: Callable[[int], dict[str, object]]) -> None:
    found = judged(job(EVERYONE, {r: upto("0", 5, op=op, **sizes(r)) for r in range(8)}))
    assert found.mismatches == ()


def test_a_receiver_that_has_not_come_is_missing_and_ends_are_counted_in_the_group() -> None:
    groups = {"0": range(4), "pp": (1, 3)}
    entries = {
        0: upto("0", 3),
        1: [*upto("0", 2, "completed"), transfer("pp", 1, "send 0->1")],
        2: upto("0", 3),
        3: upto("0", 2, "completed"),
    }
    found = judged(job(groups, entries), ranks=4)
    assert (found.verdict.rule, blamed(found)) == ("hang:missing_rank", [3])
    assert any("transfer from rank 1 to rank 3 in group desc_pp" in w.what for w in found.waits)


def test_transfers_match_by_their_ends_although_their_numbers_differ() -> None:
    entries = {
        0: [transfer("pp", 7, "send 0->1")],
        1: [transfer("pp", 2, "recv 1<-0", input_sizes=[[5]], output_sizes=[[5]])],
    }
    found = diagnose(job({"pp": (0, 1)}, entries))
    assert (found.verdict.rule, found.mismatches[0].kind) == ("hang:mismatch", "sizes")
    assert found.waits[0].missing == ()


def test_the_parts_of_a_batch_have_the_state_of_the_record_that_closes_it() -> None:
    batch = [
        transfer("pp", 3, "send 0->1", "scheduled"),
        transfer("pp", 3, "recv 0<-1", "scheduled"),
        transfer("pp", 3, "coalesced", "completed"),
    ]
    found = diagnose(job({"pp": (0, 1)}, {0: batch, 1: batch}))
    assert (found.verdict.rule, found.waits) == ("hang:no_collective", ())


def test_ranks_that_wait_for_each_other_crosswise_are_the_programs_fault() -> None:
    groups = {"a": (0, 1), "b": (0, 1)}
    found = diagnose(job(groups, {0: upto("a", 3), 1: upto("b", 3)}), job="train-7")
    assert (found.verdict.rule, found.verdict.fault) == ("hang:crosswise", FaultClass.USER)
    assert "crosswise" in found.verdict.title


def test_a_rank_that_is_held_inside_while_others_came_out_is_the_suspect() -> None:
    found = judged(job(EVERYONE, {r: upto("0", 9, "started" if r == 4 else "completed") for r in range(8)}))
    assert (found.verdict.rule, blamed(found)) == ("hang:straggler", [4])


def test_a_rank_whose_stream_has_not_begun_what_all_others_began_is_the_suspect() -> None:
    found = judged(job(EVERYONE, {r: upto("0", 9, "scheduled" if r == 4 else "started") for r in range(8)}))
    assert (found.verdict.rule, blamed(found)) == ("hang:not_started", [4])


def test_where_no_rank_records_starts_nothing_follows_from_their_absence() -> None:
    found = judged(job(EVERYONE, {r: upto("0", 9, "scheduled") for r in range(8)}))
    assert (found.verdict.rule, blamed(found)) == ("hang:same_place", [])


def test_a_stream_that_is_held_by_an_earlier_collective_follows_from_that_one() -> None:
    groups = {"0": range(4), "tp": (0, 1)}
    held = [*upto("tp", 3), call("0", 1, "scheduled")]
    found = diagnose(job(groups, {0: held, 1: held, 2: upto("0", 1), 3: upto("0", 1)}))
    assert (found.verdict.rule, [w.group for w in found.waits if w.first]) == ("hang:same_place", ["tp"])
    assert any("all_reduce 1 of group desc_0" in t and "an earlier collective" in t for t in found.verdict.refused)


def test_everybody_in_the_same_place_leaves_it_to_the_step_watchdog() -> None:
    found = judged(job(EVERYONE, {r: upto("0", 9) for r in range(8)}))
    assert (found.verdict.rule, found.verdict.culprit.node, blamed(found)) == ("hang:same_place", None, [])
    assert "only the missing progress tells" in found.verdict.title
    assert found.verdict.fault is FaultClass.UNKNOWN


def test_no_open_collective_says_that_the_ranks_wait_elsewhere() -> None:
    found = judged(job(EVERYONE, {r: upto("0", 9, "completed") for r in range(8)}))
    assert (found.verdict.rule, blamed(found)) == ("hang:no_collective", [])


def test_one_rank_alone_in_a_collective_is_not_held_against_all_others() -> None:
    found = judged(
        job(EVERYONE, {r: upto("0", 9 if r == 0 else 8, "started" if r == 0 else "completed") for r in range(8)})
    )
    assert (found.verdict.rule, blamed(found)) == ("hang:few_came", [])
    assert "only rank 0 came" in found.verdict.title


def test_what_has_left_the_ring_buffer_counts_as_passed() -> None:
    """Rank 2 hangs in number 3; the others' buffers begin at 900, far beyond it."""
    late = [call("0", seq) for seq in range(900, 960)]
    dumps = job(EVERYONE, {r: upto("0", 3) if r == 2 else late for r in range(8)})
    found = judged(dumps)
    assert (found.verdict.rule, blamed(found)) == ("hang:straggler", [2])


def test_a_rank_that_left_a_collective_out_is_told_by_the_line_that_it_came_from() -> None:
    elsewhere = [FRAME | {"line": 140}]
    short = [*upto("0", 7, "completed"), call("0", 8, frames=elsewhere)]
    found = judged(job(EVERYONE, {r: short if r == 3 else upto("0", 9) for r in range(8)}))
    assert blamed(found) == [3]
    assert any("train.py:140" in text and "train.py:87" in text for text in found.verdict.companions)


def test_two_groups_of_one_name_with_other_ranks_are_two_groups() -> None:
    dumps = job({"5": (0, 1)}, {0: upto("5", 4), 1: upto("5", 4)}) | job(
        {"5": (2, 3)}, {2: upto("5", 2), 3: upto("5", 1, "completed")}
    )
    found = diagnose(dumps)
    assert (found.verdict.rule, blamed(found)) == ("hang:missing_rank", [3])


def test_dumps_of_different_versions_are_told() -> None:
    dumps = job(EVERYONE, {r: upto("0", 9) for r in range(8)})
    dumps[3] = dumps[3].model_copy(update={"version": "2.9"})
    assert any("different versions (2.4, 2.9)" in text for text in judged(dumps).verdict.companions)


def test_no_dumps_is_no_verdict_and_never_all_is_well() -> None:
    found = diagnose({}, ranks=8)
    assert (found.verdict.rule, found.verdict.fault) == ("hang:no_dumps", FaultClass.UNKNOWN)


def test_the_same_dumps_in_any_order_give_the_same_report() -> None:
    dumps = job(EVERYONE, {r: upto("0", 11 if r in (5, 6) else 12, "started") for r in range(8)})
    whole = judged(dumps)
    for seed in range(20):
        order = list(dumps)
        random.Random(seed).shuffle(order)
        assert judged({rank: dumps[rank] for rank in order}) == whole


def test_among_other_evidence_a_hang_names_the_node_and_gives_way_to_a_broken_gpu() -> None:
    report = judged(job(EVERYONE, {r: upto("0", 12) for r in range(8) if r != 5}))
    hang = report.evidence(cluster="alpha", job="train-7", seen_at=NOW)
    alone = classify([hang], tables=TABLES, now=NOW)
    assert (alone.rule, alone.fault, alone.culprit.node) == ("hang:no_dump", FaultClass.UNKNOWN, "alpha2")
    broken = classify([hang, xid(79, node="alpha1")], tables=TABLES, now=NOW)
    assert (broken.rule, broken.culprit.node) == ("xid:79", "alpha1")


def test_a_mismatch_among_other_evidence_is_the_jobs_own_fault() -> None:
    report = judged(job(EVERYONE, {r: upto("0", 5, op="broadcast" if r == 3 else "all_reduce") for r in range(8)}))
    verdict = classify([report.evidence(cluster="alpha", job="train-7", seen_at=NOW)], tables=TABLES, now=NOW)
    assert (verdict.fault, verdict.rule, verdict.culprit.job) == (FaultClass.USER, "hang:mismatch", "train-7")
