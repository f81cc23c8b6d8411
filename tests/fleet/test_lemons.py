"""Which nodes and GPUs are lemons, and which trouble makes none."""

import random
from collections.abc import Iterable, Sequence

import pytest

from fleet.lemons import BAR, DAY, WINDOW, Lemon, Signal, find_lemons
from fleet.strikes import Inventory, Run, Strike, StrikeKind

NOW = 100 * DAY
FLEET = [("alpha", f"a{n}") for n in range(100)]
OLD, NEW = "GPU-0a", "GPU-0b"


def strike(
    kind: StrikeKind,
    days_ago: float,
    node: str = "a3",
    *,
    gpu: str | None = None,
    pci: str | None = None,
    code: str = "79",
) -> Strike:
    at = NOW - days_ago * DAY
    source = f"{kind} {days_ago} {code}"
    return Strike(kind=kind, cluster="alpha", node=node, gpu=gpu, pci=pci, code=code, at=at, source=source)


def strikes(kind: StrikeKind, *days_ago: float, node: str = "a3", gpu: str | None = None) -> list[Strike]:
    return [strike(kind, days, node, gpu=gpu) for days in days_ago]


def holding(days_ago: float, *gpus: str, node: str = "a3") -> Inventory:
    return Inventory(cluster="alpha", node=node, gpus=gpus, at=NOW - days_ago * DAY)


def found(
    told: Iterable[Strike],
    runs: Sequence[Run] = (),
    inventories: Sequence[Inventory] = (),
    *,
    fleet: Sequence[tuple[str, str]] = FLEET,
    quantile: float = 0.99,
    harmless: frozenset[str] = frozenset(),
) -> tuple[Lemon, ...]:
    return find_lemons(
        told,
        runs,
        inventories,
        nodes=fleet,
        gpus=8 * len(fleet),
        now=NOW,
        quantile=quantile,
        harmless=harmless,
    )


def subjects(lemons: Iterable[Lemon]) -> list[str]:
    return [lemon.subject for lemon in lemons]


REPEATED = [
    strikes(StrikeKind.SINGLE_NODE_FAIL, 1, 5),
    strikes(StrikeKind.MULTI_NODE_FAIL, 1, 2, 3, 3.2, 3.4, 3.6),  # six jobs in three days
    strikes(StrikeKind.REPAIR, 2, 9, 20),
    [strike(StrikeKind.XID, 2, code="48"), strike(StrikeKind.XID, 9, code="74"), *strikes(StrikeKind.REPAIR, 2, 9)],
    strikes(StrikeKind.TAKEN_OUT, 1, 4, 9) + strikes(StrikeKind.MULTI_NODE_FAIL, 4, 9),
]


@pytest.mark.parametrize("told", REPEATED)
def test_a_node_that_comes_back_with_trouble_is_a_lemon(told: list[Strike]) -> None:
    (lemon,) = found(told)
    assert (lemon.subject, lemon.gpu) == ("alpha/a3", None)
    assert lemon.score >= BAR
    assert lemon.last_at == max(s.at for s in told)


@pytest.mark.parametrize("told", REPEATED)
def test_what_lies_longer_back_than_four_weeks_is_forgiven(told: list[Strike]) -> None:
    aged = [s.model_copy(update={"at": s.at - WINDOW}) for s in told]
    assert found(aged) == ()


@pytest.mark.parametrize("told", REPEATED)
def test_one_bad_night_is_an_incident_and_no_lemon(told: list[Strike]) -> None:
    night = [s.model_copy(update={"at": NOW - 2 * DAY + n * 60}) for n, s in enumerate(told)]
    assert found(night) == ()


@pytest.mark.parametrize(
    "told",
    [
        strikes(StrikeKind.TAKEN_OUT, 1, 9),  # two maintenances
        [strike(StrikeKind.EXCLUDED, n, code=f"user{n}") for n in range(1, 9)],  # weak by itself
        strikes(StrikeKind.REPAIR, 2, 9),
        strikes(StrikeKind.SINGLE_NODE_FAIL, 2),
        [strike(StrikeKind.XID, n, code="79") for n in range(1, 9)],  # one code is one
    ],
)
def test_too_little_is_no_lemon(told: list[Strike]) -> None:
    assert found(told) == ()


def test_what_the_whole_fleet_has_is_no_nodes_fault() -> None:
    rolled_out = [s for _, node in FLEET for s in strikes(StrikeKind.TAKEN_OUT, 2, 9, 16, node=node)]
    rolled_out += [s for _, node in FLEET for s in strikes(StrikeKind.REPAIR, 2, 9, 16, node=node)]
    assert found(rolled_out) == ()
    more = strikes(StrikeKind.REPAIR, 3, 10, 17, 20, 21, 22, 23)
    assert subjects(found([*rolled_out, *more, *strikes(StrikeKind.TAKEN_OUT, 3, 10)])) == ["alpha/a3"]


def test_chance_alone_makes_few_lemons_and_the_planted_one_is_the_first() -> None:
    chance = random.Random(4)
    kinds = (StrikeKind.REPAIR, StrikeKind.TAKEN_OUT, StrikeKind.MULTI_NODE_FAIL, StrikeKind.XID)
    told = [
        strike(
            chance.choice(kinds), chance.uniform(0, 28), chance.choice(FLEET)[1], code=str(chance.randrange(40, 60))
        )
        for _ in range(100)
    ]
    lemons = found(told)
    assert len(lemons) <= len(FLEET) // 50
    planted = strikes(StrikeKind.SINGLE_NODE_FAIL, 2, 8, 11) + strikes(StrikeKind.REPAIR, 2, 8, 11, 20)
    assert subjects(found([*told, *planted]))[0] == "alpha/a3"
    assert found(reversed(told)) == lemons


def test_in_a_small_fleet_a_lemon_is_measured_by_the_others() -> None:
    fleet = FLEET[:4]
    bad = strikes(StrikeKind.SINGLE_NODE_FAIL, 1, 5)
    assert subjects(found(bad, fleet=fleet)) == ["alpha/a3"]
    shared = [s for _, node in fleet[:3] for s in strikes(StrikeKind.SINGLE_NODE_FAIL, 1, 5, node=node)]
    assert found([*bad, *shared], fleet=fleet) == ()
    assert subjects(found(bad, fleet=[("alpha", "a3")])) == ["alpha/a3"]


def test_a_node_that_is_gone_is_not_proposed() -> None:
    assert found(strikes(StrikeKind.SINGLE_NODE_FAIL, 1, 5, node="removed")) == ()


def test_a_fleet_may_be_stricter() -> None:
    told = [s for n in range(5) for s in strikes(StrikeKind.SINGLE_NODE_FAIL, 1, 5, node=f"a{n}")]
    assert found(told, quantile=0.99) == ()
    assert len(found(told, quantile=0.90)) == 5


def test_the_failure_rate_is_of_the_runs_and_a_busy_node_may_fail_more() -> None:
    def runs(node: str, count: int) -> list[Run]:
        return [Run(cluster="alpha", node=node, source=str(n), at=NOW - DAY) for n in range(count)]

    told = [s for node in ("a1", "a3") for s in strikes(StrikeKind.SINGLE_NODE_FAIL, 1, 5, node=node)]
    ran = [*runs("a1", 5), *runs("a3", 5000)]
    by_node = {lemon.node: lemon for lemon in found(told, ran, quantile=0.5)}
    rates = {
        n: [r.value for r in lemon.readings if r.signal is Signal.SINGLE_NODE_RATE] for n, lemon in by_node.items()
    }
    assert rates["a3"] == []
    assert rates["a1"][0] > 2 / 15


def test_harmless_xids_do_not_count() -> None:
    told = [strike(StrikeKind.XID, day, code=code) for day, code in ((1, "13"), (5, "31"), (9, "43"))]
    assert len(found(told)) == 1
    assert found(told, harmless=frozenset({"13", "31", "43"})) == ()


def test_one_time_out_told_by_three_is_one() -> None:
    outs = [strike(StrikeKind.TAKEN_OUT, days + n / 288) for days in (1, 9) for n in range(3)]  # five minutes apart
    (lemon,) = found([*outs, *strikes(StrikeKind.SINGLE_NODE_FAIL, 1, 9)])
    assert [r.value for r in lemon.readings if r.signal is Signal.TAKEN_OUT] == [2.0]


# -- machines and parts change


BAD_GPU = [
    s
    for days in (20, 15, 12)
    for s in (
        strike(StrikeKind.XID, days, gpu=OLD),
        strike(StrikeKind.REPAIR, days - 0.01),
        strike(StrikeKind.SINGLE_NODE_FAIL, days - 0.01),
    )
]
"""Three XIDs of one GPU, each with its repair and a lost job a quarter of an hour later."""


def test_a_gpu_and_its_node_are_both_named_while_they_are_together() -> None:
    lemons = found(BAD_GPU)
    assert subjects(lemons) == [OLD, "alpha/a3"] or subjects(lemons) == ["alpha/a3", OLD]
    assert {(lemon.cluster, lemon.node) for lemon in lemons} == {("alpha", "a3")}


def test_a_gpu_keeps_its_record_on_another_node_and_leaves_the_old_one_clean() -> None:
    (lemon,) = found(BAD_GPU, inventories=[holding(25, OLD), holding(10, OLD, "GPU-1c", node="a7"), holding(9, NEW)])
    assert (lemon.subject, lemon.node) == (OLD, "a7")
    assert f"{OLD} in alpha/a7" in lemon.text


def test_a_gpu_that_was_taken_out_and_not_seen_since_is_not_proposed() -> None:
    assert found(BAD_GPU, inventories=[holding(25, OLD, "GPU-1c"), holding(10, NEW, "GPU-1c")]) == ()


def test_a_node_with_a_new_gpu_says_what_is_not_counted_any_more() -> None:
    own = strikes(StrikeKind.SINGLE_NODE_FAIL, 26, 24)
    (lemon,) = found([*BAD_GPU, *own], inventories=[holding(27, OLD, "GPU-1c"), holding(10, NEW, "GPU-1c")])
    assert lemon.subject == "alpha/a3"
    assert "9 strikes of GPUs that have left not counted" in lemon.text


def test_a_fault_that_comes_back_after_the_part_was_replaced_is_the_nodes() -> None:
    again = strike(StrikeKind.XID, 3, gpu=NEW)
    lemons = found([*BAD_GPU, again], inventories=[holding(25, OLD, "GPU-1c"), holding(10, NEW, "GPU-1c")])
    assert subjects(lemons) == ["alpha/a3"]


def test_another_machine_under_the_nodes_name_begins_anew() -> None:
    own = strikes(StrikeKind.SINGLE_NODE_FAIL, 26, 24, 22)
    before = holding(27, OLD, "GPU-1c")
    assert subjects(found(own, inventories=[before])) == ["alpha/a3"]
    assert found(own, inventories=[before, holding(10, NEW, "GPU-2d")]) == ()
    since = strikes(StrikeKind.SINGLE_NODE_FAIL, 8, 4)
    (lemon,) = found([*own, *since], inventories=[before, holding(10, NEW, "GPU-2d")])
    assert [r.value for r in lemon.readings if r.signal is Signal.SINGLE_NODE_FAILS] == [2.0]
    assert "3 strikes of the machine before not counted" in lemon.text


def test_a_strike_that_knows_only_an_address_is_of_the_gpu_that_was_there_then() -> None:
    slot = "0000:3b:00"
    told = [
        strike(StrikeKind.XID, 20, gpu=OLD, pci=slot, code="48"),
        strike(StrikeKind.XID, 18, pci=slot, code="74"),
        strike(StrikeKind.XID, 16, pci=slot, code="79"),
        strike(StrikeKind.XID, 3, gpu=NEW, pci=slot, code="95"),
        strike(StrikeKind.XID, 2, pci=slot, code="79"),
    ]
    moved = [holding(10, OLD, node="a7")]
    by_gpu = {lemon.gpu: lemon for lemon in found(told, inventories=moved) if lemon.gpu}
    assert by_gpu[OLD].node == "a7"
    assert [(r.signal, r.value) for r in by_gpu[OLD].readings] == [(Signal.DISTINCT_XIDS, 3.0)]


def test_the_result_explains_itself() -> None:
    ran = [Run(cluster="alpha", node=node, source=str(n), at=NOW - DAY) for _, node in FLEET for n in range(10)]
    (lemon,) = found(strikes(StrikeKind.SINGLE_NODE_FAIL, 1, 5), ran)
    assert lemon.text.startswith(
        "alpha/a3: single-node jobs ended 2 (fleet 0); single-node failure rate 10% (fleet 0%)"
    )
    assert lemon.text.endswith(f"; {lemon.score:g} points")
    assert sum(r.points for r in lemon.readings) == lemon.score
