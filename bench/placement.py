"""`placement`: one decision over 10,000 nodes in 40 clusters, from each node's state to the choice with its reasons.

Beside it, in the same run and over the same nodes: a plain greedy loop, which takes the first cluster with enough
free nodes of the model and knows neither switches, quotas, data nor fragmentation, and gives no reason.
"""

import argparse
import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence

from bench.table import Figure, median, quantile
from fleet.capacity import NodeRoom, grouped, same_model
from fleet.errors import InvalidInputError
from fleet.model import Quota, Room
from fleet.placement import Offer, Placement, Request, Stock, place

SUMMARY = "one placement decision over 10,000 nodes in 40 clusters, beside a plain greedy loop"
GOAL = 50.0
"""Milliseconds, p50 of one decision by the clock on the wall."""
GREEDY = "a plain greedy loop, no reasons"
PER_DOMAIN = 16
"""Nodes under one switch."""
MODELS = ("NVIDIA-H100-80GB-HBM3", "h100", "NVIDIA-A100-SXM4-80GB", "h200")

Fleet = Mapping[str, Sequence[NodeRoom]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Sizes; the goal is for those of the defaults."""
    parser.add_argument("--nodes", type=int, default=10_000, help="nodes of all clusters")
    parser.add_argument("--clusters", type=int, default=40, help="clusters")
    parser.add_argument("--runs", type=int, default=200, help="decisions that are timed")
    parser.add_argument("--seed", type=int, default=1, help="which fleet and which jobs")


def run(options: argparse.Namespace) -> tuple[tuple[Figure, ...], tuple[str, ...]]:
    """Raises InvalidInputError for sizes that give no fleet."""
    if options.clusters < 1 or options.nodes < options.clusters or options.runs < 1:
        raise InvalidInputError("give at least one cluster, one run, and as many nodes as clusters")
    rng = random.Random(options.seed)  # noqa: S311 - a made fleet, no secret
    fleet = made_fleet(rng, options.clusters, options.nodes)
    jobs = [made_job(rng, number) for number in range(options.runs)]
    gc.collect()
    plain = timed(jobs, lambda job: greedy(job, fleet))
    ours = timed(jobs, lambda job: decide(job, fleet))
    summed = {name: room(name, nodes) for name, nodes in fleet.items()}
    ready = timed(jobs, lambda job: place(job, offers(summed)))
    return figures(ours, ready, plain), notes(jobs, fleet)


def made_fleet(rng: random.Random, clusters: int, nodes: int) -> Fleet:
    """Clusters of about equal size, one GPU model each, between nearly empty and nearly full."""
    made: dict[str, tuple[NodeRoom, ...]] = {}
    for number in range(clusters):
        size = nodes * (number + 1) // clusters - nodes * number // clusters
        busy, model = rng.uniform(0.3, 1.0), MODELS[number % len(MODELS)]
        made[f"cluster{number:02}"] = tuple(
            NodeRoom(rng.random() > busy, 8, model, f"leaf{place // PER_DOMAIN}") for place in range(size)
        )
    return made


def made_job(rng: random.Random, number: int) -> Request:
    """Of 1 to 32 nodes; every other one must stay under one switch if it can."""
    nodes = rng.choice((1, 1, 2, 4, 8, 16, 32))
    close = 1 if number % 2 and nodes <= PER_DOMAIN else None
    return Request(job=f"job{number}", nodes=nodes, gpus_per_node=8, gpu_models=("H100",), max_domains=close)


def room(cluster: str, nodes: Sequence[NodeRoom]) -> Room:
    """As an adapter gives it."""
    return Room(
        cluster=cluster,
        groups=grouped(nodes),
        quotas=(Quota(name="quota", gpus_left=512),),
        waiting=(16,),
    )


def offers(rooms: Mapping[str, Room]) -> list[Offer]:
    """Every third cluster has the checkpoint, every fourth the dataset."""
    away = Stock(there=False, seconds=600.0)
    return [
        Offer(
            cluster=name,
            room=there,
            checkpoint=away if place % 3 else Stock(there=True),
            dataset=away if place % 4 else Stock(there=True),
        )
        for place, (name, there) in enumerate(rooms.items())
    ]


def decide(job: Request, fleet: Fleet) -> Placement:
    """All of it: from the state of each node to the choice and why no other."""
    return place(job, offers({name: room(name, nodes) for name, nodes in fleet.items()}))


def greedy(job: Request, fleet: Fleet) -> str | None:
    """The first cluster with enough free nodes of the model."""
    for name, nodes in fleet.items():
        left = job.nodes
        for node in nodes:
            if node.free and node.gpus >= job.gpus_per_node and same_model(job.gpu_models[0], node.gpu_model):
                left -= 1
                if not left:
                    return name
    return None


def timed(jobs: Sequence[Request], decision: Callable[[Request], object]) -> tuple[float, ...]:
    """Milliseconds of each decision."""
    taken = []
    for job in jobs:
        begun = time.perf_counter()
        decision(job)
        taken.append((time.perf_counter() - begun) * 1000)
    return tuple(taken)


def figures(ours: Sequence[float], ready: Sequence[float], plain: Sequence[float]) -> tuple[Figure, ...]:
    """The goal holds for the median decision: it only computes, so the slowest ones waited for a processor."""
    rows = (
        ("one decision from every node's state, p50", median(ours), median(plain), GOAL),
        ("one decision from every node's state, p99", quantile(ours, 0.99), quantile(plain, 0.99), None),
        ("one decision, nodes counted together before, p50", median(ready), median(plain), None),
    )
    return tuple(
        Figure(name=name, value=value, unit="ms", other=GREEDY, other_value=other, at_most=goal)
        for name, value, other, goal in rows
    )


def notes(jobs: Sequence[Request], fleet: Fleet) -> tuple[str, ...]:
    """What the two ways give for the same jobs."""
    chosen = [(decide(job, fleet).choice, greedy(job, fleet)) for job in jobs]
    placed, first = (sum(pair[way] is not None for pair in chosen) for way in (0, 1))
    same = sum(ours == plain for ours, plain in chosen)
    return (
        f"{sum(map(len, fleet.values())):,} nodes in {len(fleet)} clusters, {PER_DOMAIN} nodes under one switch, "
        f"{len(jobs)} jobs of 1 to 32 nodes on the same fleet",
        f"ours places {placed} of them and gives a reason for each cluster; the loop finds {first}, some of which "
        f"break a quota or are spread over switches; both choose the same for {same}",
    )
