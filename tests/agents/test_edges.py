"""Which readings of a GPU are news."""

from agents.edges import REARM, RETELL, Bursts, Edges
from fleet.faults.tables import load_tables

GPU = "GPU-1"


def edges() -> Edges:
    return Edges(load_tables().fields)


def told(found: Edges, now: float = 0.0, **fields: float) -> list[tuple[str, float]]:
    return [(news.row.field, news.value) for news in found.look(GPU, fields, now)]


def test_what_is_well_is_no_news() -> None:
    assert told(edges(), recovery_action=0, ecc_uncorrectable=0, pcie_width_lost=0) == []


def test_what_the_driver_latches_is_told_once() -> None:
    found = edges()

    assert told(found, recovery_action=4) == [("recovery_action", 4)]
    assert told(found, recovery_action=4) == []


def test_another_recovery_action_is_news_in_both_directions() -> None:
    found = edges()
    told(found, recovery_action=4)

    assert told(found, recovery_action=1) == [("recovery_action", 1)]


def test_a_latched_field_that_was_well_in_between_is_told_again() -> None:
    found = edges()
    told(found, row_remap_failed=1)
    told(found, row_remap_failed=0)

    assert told(found, row_remap_failed=1) == [("row_remap_failed", 1)]


def test_a_gauge_must_be_bad_twice_in_a_row() -> None:
    found = edges()

    assert told(found, pcie_width_lost=8) == []
    assert told(found, pcie_width_lost=0) == []
    assert told(found, pcie_width_lost=8) == []
    assert told(found, pcie_width_lost=8) == [("pcie_width_lost", 8)]


def test_a_gauge_that_flaps_is_told_once_until_it_was_well_for_long() -> None:
    found = edges()
    seen = [told(found, float(round_), clocks_hw_thermal=64.0 * (round_ % 3 > 0)) for round_ in range(30)]

    assert sum(map(len, seen)) == 1
    told(found, 100.0, clocks_hw_thermal=0)
    told(found, 100.0 + REARM, clocks_hw_thermal=0)
    told(found, 101.0 + REARM, clocks_hw_thermal=64)
    assert told(found, 102.0 + REARM, clocks_hw_thermal=64) == [("clocks_hw_thermal", 64)]


def test_a_narrower_link_is_worse_and_told() -> None:
    found = edges()
    told(found, pcie_width_lost=8)
    told(found, pcie_width_lost=8)

    assert told(found, pcie_width_lost=12) == [("pcie_width_lost", 12)]


def test_a_counter_is_told_a_handful_of_times_whatever_comes() -> None:
    found = edges()
    seen = [told(found, ecc_uncorrectable=count) for count in range(1, 1001)]

    assert [pieces[0][1] for pieces in seen if pieces] == [2.0**power for power in range(10)]


def test_a_counter_that_begins_anew_counts_anew() -> None:
    found = edges()
    told(found, ecc_uncorrectable=50)

    assert told(found, ecc_uncorrectable=1) == [("ecc_uncorrectable", 1)]


def test_the_limit_is_the_catalogues() -> None:
    row = load_tables().fields["ecc_correctable"]
    limit = float(row.bad[1:])
    found = edges()

    assert told(found, ecc_correctable=limit) == []
    assert told(found, ecc_correctable=limit + 1) == [("ecc_correctable", limit + 1)]


def test_what_was_told_before_a_restart_is_not_told_again() -> None:
    first = edges()
    told(first, recovery_action=2, ecc_uncorrectable=3)

    second = Edges(load_tables().fields, told=dict(first.told))

    assert told(second, recovery_action=2, ecc_uncorrectable=3) == []


def test_a_gpu_that_went_away_is_forgotten() -> None:
    found = edges()
    told(found, recovery_action=2)
    found.forget(GPU)

    assert told(found, recovery_action=2) == [("recovery_action", 2)]


def test_a_burst_that_does_not_end_is_told_once_an_hour() -> None:
    bursts = Bursts()
    told = [second for second in range(0, 3 * int(RETELL), 60) if bursts.begins("xid 69", float(second))]

    assert told == [0, RETELL + 60, 2 * (RETELL + 60)]


def test_bursts_of_different_things_do_not_hide_each_other() -> None:
    bursts = Bursts()

    assert [bursts.begins(name, 1.0) for name in ("a", "b", "a")] == [True, True, False]
