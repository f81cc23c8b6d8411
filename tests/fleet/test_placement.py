"""Which cluster a job goes to: who is out and why, what decides between the others, and that nothing else does."""

import random

import pytest

from fleet.capacity import NodeRoom, grouped, same_model
from fleet.model import NodeGroup, Quota, Room
from fleet.placement import (
    CRITERIA,
    SIZES,
    Candidate,
    CriterionName,
    Offer,
    Placement,
    Request,
    Stock,
    place,
)

HERE, FAR, NEAR = Stock(there=True), Stock(there=False, seconds=720.0), Stock(there=False, seconds=60.0)


def room(
    cluster: str,
    *free: int,
    total: int = 16,
    model: str = "NVIDIA-H100-80GB-HBM3",
    gpus: int = 8,
    domains: bool = True,
    waiting: tuple[int, ...] = (),
    quotas: tuple[Quota, ...] = (),
) -> Room:
    """One domain of `total` nodes for each number of free ones."""
    groups = tuple(
        NodeGroup(gpu_model=model, gpus=gpus, domain=f"leaf{place}" if domains else "", free=count, total=total)
        for place, count in enumerate(free)
    )
    return Room(
        cluster=cluster,
        groups=groups,
        waiting=waiting,
        quotas=quotas,
    )


def offer(there: Room, **more: object) -> Offer:
    return Offer.model_validate({"cluster": there.cluster, "room": there, **more})


def wants(nodes: int = 2, **more: object) -> Request:
    return Request.model_validate(
        {"job": "train", "nodes": nodes, "gpus_per_node": 8, "gpu_models": ("H100",), **more}
    )


def told(found: Placement, cluster: str) -> Candidate:
    return next(c for c in found.candidates if c.cluster == cluster)


# -- who is out


@pytest.mark.parametrize(
    ("lacking", "why"),
    [
        (offer(room("b", 16, model="A100-SXM4-80GB")), "no node with 8 H100; its nodes have 8 x A100-SXM4-80GB"),
        (offer(room("b", 16, model="")), "no node with 8 H100; its nodes have 8 x a GPU whose model it does not say"),
        (offer(room("b", 16, gpus=4)), "no node with 8 H100; its nodes have 4 x NVIDIA-H100-80GB-HBM3"),
        (offer(room("b", 1)), "1 of its 16 nodes with 8 H100 are free, 2 are wanted"),
        (offer(room("b", 1, total=1)), "2 nodes with 8 H100 are wanted, it has 1"),
        (
            offer(room("b", 16, quotas=(Quota(name="quota ml/gpus", gpus_left=15),))),
            "quota ml/gpus leaves 15 GPUs, 16 are wanted",
        ),
        (
            offer(room("b", 16, quotas=(Quota(name="account ml", scope="ml", nodes_left=-1),)), scope="ml"),
            "account ml leaves 0 nodes, 2 are wanted",
        ),
        (
            offer(room("b", 16), lacks=("no template for slurm", "no partition h100")),
            "no template for slurm; no part",
        ),
        (offer(room("b", 16), excluded="tried: not running within 15m"), "tried: not running within 15m"),
        (
            Offer(cluster="b", room=None, unreadable="connection refused"),
            "it cannot be asked: connection refused",
        ),
        (
            offer(room("b", 16), checkpoint=Stock(there=False)),
            "the newest complete checkpoint is not there, and no way to bring it is known",
        ),
        (
            offer(room("b", 16), dataset=Stock(there=False)),
            "the dataset is not there, and no way to bring it is known",
        ),
    ],
)
def test_a_cluster_that_lacks_something_is_out_and_says_what(lacking: Offer, why: str) -> None:
    found = place(wants(), [lacking, offer(room("z", 2))])

    assert found.choice == "z"
    assert why in told(found, "b").why
    assert told(found, "b").rank is None


def test_every_reason_is_told_at_once() -> None:
    bad = offer(room("b", 1, quotas=(Quota(name="q", nodes_left=0),)), lacks=("no namespace ml",))

    why = told(place(wants(), [bad]), "b").why

    assert [word in why for word in ("1 of its 16", "q leaves 0 nodes", "no namespace ml")] == [True] * 3


def test_a_quota_of_another_namespace_or_an_unlimited_one_binds_nobody() -> None:
    quotas = (Quota(name="theirs", scope="vision", gpus_left=0), Quota(name="open"))

    assert place(wants(), [offer(room("a", 2, quotas=quotas), scope="ml")]).choice == "a"


def test_a_job_that_must_stay_under_one_switch_is_not_spread() -> None:
    found = place(wants(4, max_domains=1), [offer(room("a", 3, 3)), offer(room("b", 4, 0))])

    assert found.choice == "b"
    assert told(found, "a").why == "its free nodes are spread over 2 domains at best, at most 1 may be used"


def test_nodes_whose_switch_is_not_known_are_not_taken_for_neighbours() -> None:
    found = place(wants(2, max_domains=1), [offer(room("a", 16, domains=False))])

    assert found.choice is None
    assert "does not say which nodes share a switch" in found.why
    assert place(wants(1, max_domains=1), [offer(room("a", 16, domains=False))]).choice == "a"


def test_a_job_gets_nodes_of_one_model() -> None:
    mixed = room("a", 1).groups + room("a", 1, model="H100-PCIe").groups
    there = room("a", 1).model_copy(update={"groups": mixed})

    assert "1 of its 16 nodes" in place(wants(2), [offer(there)]).why


def test_without_any_cluster_the_answer_says_so_for_each() -> None:
    assert "no cluster to choose from" in place(wants(), []).why
    found = place(wants(), [offer(room("a", 0)), offer(room("b", 1))])
    assert found.choice is None
    assert found.order == ()
    assert "a: 0 of its 16" in found.why
    assert "b: 1 of its 16" in found.why


def test_a_cluster_is_offered_once() -> None:
    with pytest.raises(ValueError, match="offered twice: a"):
        place(wants(), [offer(room("a", 2)), offer(room("a", 3))])


# -- what decides


def busy_and_empty() -> tuple[Room, Room]:
    """`busy` has two free nodes under a switch, `empty` has all."""
    return room("busy", 2, 0), room("empty", 16, 16)


@pytest.mark.parametrize(
    ("first", "second", "by", "why"),
    [
        (  # the checkpoint beats everything below it
            offer(room("b", 1, 1), checkpoint=HERE, dataset=FAR),
            offer(room("a", 2), checkpoint=NEAR, dataset=HERE),
            CriterionName.CHECKPOINT,
            "1m to bring it, b there",
        ),
        (
            offer(room("b", 2), checkpoint=NEAR),
            offer(room("a", 2), checkpoint=FAR),
            CriterionName.CHECKPOINT,
            "12m to bring it, b 1m to bring it",
        ),
        (
            offer(room("b", 1, 1), dataset=HERE),
            offer(room("a", 2), dataset=NEAR),
            CriterionName.DATASET,
            "1m to bring it, b there",
        ),
        (offer(room("b", 2, 16)), offer(room("a", 1, 1)), CriterionName.SWITCHES, "2 domains, b 1 domain"),
        (
            offer(room("b", 2)),
            offer(room("a", 16, domains=False)),
            CriterionName.SWITCHES,
            "not known which nodes share a switch, b 1 domain",
        ),
        (
            offer(busy_and_empty()[0]),
            offer(busy_and_empty()[1]),
            CriterionName.FRAGMENTATION,
            "32 of 32 nodes free",
        ),
        (offer(room("a", 2)), offer(room("b", 2)), CriterionName.NAME, "else they are equal"),
    ],
)
def test_the_first_criterion_that_differs_decides(first: Offer, second: Offer, by: CriterionName, why: str) -> None:
    found = place(wants(2), [second, first])

    assert found.order == (first.cluster, second.cluster)
    assert f"before {second.cluster} by {by}" in found.why
    assert f"after {first.cluster} by {by}: " in told(found, second.cluster).why
    assert why in told(found, second.cluster).why


def test_small_jobs_fill_busy_clusters_and_large_ones_get_the_emptiest() -> None:
    busy, empty = (offer(c) for c in (room("busy", 9, 0), room("empty", 16, 16)))

    assert place(wants(1), [busy, empty]).choice == "busy"
    assert place(wants(8), [busy, empty]).choice == "empty"


def test_a_small_job_leaves_the_room_for_which_a_large_one_waits() -> None:
    """Without the one that waits, the last odd node is the right place."""
    odd, whole = room("odd", 9), room("whole", 16)
    kept = odd.model_copy(update={"waiting": (9,)})

    assert place(wants(1), [offer(odd), offer(whole)]).choice == "odd"
    found = place(wants(1), [offer(kept), offer(whole)])
    assert found.choice == "whole"
    assert "kept for a large job" in told(found, "odd").why
    assert place(wants(1), [offer(kept)]).choice == "odd", "kept room is a preference and no refusal"


def test_a_small_job_that_waits_keeps_no_room() -> None:
    small = room("odd", 9, waiting=(2,))

    assert place(wants(1), [offer(small), offer(room("whole", 16))]).choice == "odd"


def test_within_a_cluster_the_fullest_switch_that_fits_is_taken() -> None:
    """Leaving the empty one whole costs other sizes nothing; what is told proves it."""
    found = place(wants(2), [offer(room("a", 16, 2))])

    lost = sum(min(2, 2 // size * size) for size in SIZES) / len(SIZES)
    assert f"takes {lost:.1f} nodes of room" in found.candidates[0].facts[CriterionName.FRAGMENTATION]


def test_the_choice_names_what_it_was_compared_by() -> None:
    found = place(wants(2), [offer(room("a", 2), checkpoint=HERE, dataset=FAR)])

    assert found.why == "a: 2 of 2 free nodes with 8 H100; no other cluster can take it"
    assert list(found.candidates[0].facts) == [criterion.name for criterion in CRITERIA] == list(CriterionName)
    assert found.candidates[0].facts[CriterionName.CHECKPOINT] == "there"
    assert found.candidates[0].facts[CriterionName.DATASET] == "12m to bring it"


# -- any fleet


def some_offer(rng: random.Random, cluster: str) -> Offer:
    groups = tuple(
        NodeGroup(
            gpu_model=rng.choice(["H100", "NVIDIA-H100-80GB-HBM3", "A100", ""]),
            gpus=rng.choice([4, 8]),
            domain=rng.choice(["", "leaf1", "leaf2", "leaf3"]),
            free=rng.randint(0, 9),
            total=9,
        )
        for _ in range(rng.randint(0, 6))
    )
    quotas = tuple(
        Quota(
            name="q",
            scope=rng.choice(["", "ml", "vision"]),
            gpus_left=rng.choice([None, rng.randint(0, 60)]),
            nodes_left=rng.choice([None, rng.randint(0, 9)]),
        )
        for _ in range(rng.randint(0, 2))
    )
    there = Room(
        cluster=cluster,
        groups=groups,
        quotas=quotas,
        waiting=tuple(rng.randint(1, 20) for _ in range(rng.randint(0, 2))),
    )
    stock = [None, HERE, NEAR, FAR, Stock(there=False)]
    return Offer(
        cluster=cluster,
        room=rng.choice([there, there, there, None]),
        scope=rng.choice(["", "ml"]),
        lacks=rng.choice([(), (), ("a secret",)]),
        excluded=rng.choice(["", "", "tried before"]),
        checkpoint=rng.choice(stock),
        dataset=rng.choice(stock),
    )


def can_take(request: Request, offered: Offer) -> bool:
    """The same question, asked in another way: is there a model with enough of its nodes, near enough?"""
    there = offered.room
    missing = [s for s in (offered.checkpoint, offered.dataset) if s and not s.there and s.seconds is None]
    if there is None or offered.lacks or offered.excluded or missing:
        return False
    for quota in there.quotas:
        if quota.scope in {"", offered.scope} and (
            (quota.nodes_left is not None and quota.nodes_left < request.nodes)
            or (quota.gpus_left is not None and quota.gpus_left < request.nodes * request.gpus_per_node)
        ):
            return False
    for model in {g.gpu_model for g in there.groups}:
        if request.gpu_models and not any(same_model(w, model) for w in request.gpu_models):
            continue
        fit = [g for g in there.groups if g.gpu_model == model and g.gpus >= request.gpus_per_node]
        by_domain = sorted(
            (sum(g.free for g in fit if g.domain == d) for d in {g.domain for g in fit} - {""}), reverse=True
        )
        switches = [*by_domain, *(1 for g in fit if not g.domain for _ in range(g.free))]
        if sum(switches[: request.max_domains]) >= request.nodes:
            return True
    return False


@pytest.mark.parametrize("seed", range(300))
def test_whatever_the_fleet_only_those_that_can_take_it_are_ranked_and_order_changes_nothing(seed: int) -> None:
    rng = random.Random(seed)
    request = wants(
        rng.randint(1, 12),
        gpus_per_node=rng.choice([0, 4, 8]),
        gpu_models=rng.choice([(), ("H100",), ("H100", "A100")]),
        max_domains=rng.choice([None, 1, 2]),
    )
    offers = [some_offer(rng, f"c{n}") for n in range(rng.randint(0, 8))]

    found = place(request, offers)

    assert set(found.order) == {o.cluster for o in offers if can_take(request, o)}
    assert found.choice == (found.order[0] if found.order else None)
    assert sorted(c.cluster for c in found.candidates) == sorted(o.cluster for o in offers)
    assert all(c.why for c in found.candidates)
    assert place(request, rng.sample(offers, len(offers))) == found
    assert Placement.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize("seed", range(50))
def test_the_choice_does_not_hang_on_those_that_cannot_take_it(seed: int) -> None:
    rng = random.Random(seed)
    request = wants(rng.randint(1, 6))
    offers = [some_offer(rng, f"c{n}") for n in range(6)]
    found = place(request, offers)

    assert place(request, [o for o in offers if o.cluster in found.order]).order == found.order


def growth(there: Room, nodes: int) -> float:
    """Of the reference's fragmentation, at the best domain."""

    def fragmentation(free: dict[str, int]) -> float:
        """Sum over k of popularity(k) * (free - usable(k)), usable(k) = sum over domains of floor(free / k) * k."""
        return sum(sum(free.values()) - sum(n // k * k for n in free.values()) for k in SIZES) / len(SIZES)

    before = {g.domain: g.free for g in there.groups}
    after = [before | {d: before[d] - nodes} for d in before if before[d] >= nodes]
    return min(fragmentation(free) for free in after) - fragmentation(before)


@pytest.mark.parametrize("seed", range(50))
def test_a_small_job_goes_where_it_fragments_least(seed: int) -> None:
    rng = random.Random(seed)
    nodes = rng.randint(1, 4)
    rooms = {n: room(n, nodes, *(rng.randint(0, 16) for _ in range(3))) for n in "abcdef"}

    choice = place(wants(nodes), [offer(c) for c in rooms.values()]).choice

    assert choice is not None
    assert growth(rooms[choice], nodes) == pytest.approx(min(growth(c, nodes) for c in rooms.values()))


# -- room in a cluster


def test_nodes_that_are_alike_are_counted_together() -> None:
    nodes = [
        NodeRoom(True, 8, "h100", "leaf1"),
        NodeRoom(False, 8, "h100", "leaf1"),
        NodeRoom(True, 7, "h100", "leaf1"),
        NodeRoom(True, 8, "h100", "leaf2"),
    ]

    assert grouped(nodes) == (
        NodeGroup(gpu_model="h100", gpus=7, domain="leaf1", free=1, total=1),
        NodeGroup(gpu_model="h100", gpus=8, domain="leaf1", free=1, total=2),
        NodeGroup(gpu_model="h100", gpus=8, domain="leaf2", free=1, total=1),
    )
    assert grouped(reversed(nodes)) == grouped(nodes)


@pytest.mark.parametrize(
    ("wanted", "offered", "same"),
    [
        ("H100", "h100", True),
        ("h100", "NVIDIA-H100-80GB-HBM3", True),
        ("H100-80GB", "NVIDIA-H100-80GB-HBM3", True),
        ("H100-80GB", "h100", False),
        ("H100", "GH1000", False),
        ("H200", "h100", False),
        ("H100", "", False),
        ("", "h100", False),
    ],
)
def test_a_gpu_model_is_told_by_the_words_of_its_name(wanted: str, offered: str, same: bool) -> None:
    assert same_model(wanted, offered) is same
