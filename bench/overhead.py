"""`overhead`: what it costs that a step is durable, and what it costs to wait.

Each figure stands beside another way in the same run: the bare call of the backend, the same server with Temporal's
own settings, the limits of a history, the worker with nothing to watch, and a plain asyncio loop.
"""

import argparse
import asyncio

from temporalio.client import Client

from bench.parked import Parked, park
from bench.recovery import supervised
from bench.sides import OURS, SimSide
from bench.stand import Stand, say, stand
from bench.step_cost import (
    StepTimes,
    bare_calls,
    runbooks_per_second,
    steps,
    untuned_server,
    worker_for,
)
from bench.steps import StepsInput
from bench.table import Figure, median, quantile
from fleet.identity import job_workflow_id, node_workflow_id
from fleet.model import Value

SUMMARY = "cost of one runbook step, runbooks per second, histories, and 200 parked runbooks"
STEP_GOAL = 60.0
"""Milliseconds, p50 of one step on the embedded server."""
EVENTS_LIMIT, BYTES_LIMIT = 4096, 4 * 2**20
"""Size of a history at which Temporal suggests that a run goes on as a new one (defaults of server 1.32)."""
BARE, UNTUNED = "the bare call of the backend", "the server with Temporal's own settings"


class StepCost(Value):
    """Milliseconds, and runbooks per second."""

    bare: tuple[float, ...]
    tuned: StepTimes
    untuned: StepTimes
    rate: float
    rate_untuned: float


class History(Value):
    """How much one runbook has written."""

    kind: str
    events: int
    size: int
    """Bytes."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Sizes; smaller ones are for trying it out."""
    parser.add_argument("--steps", type=int, default=300, help="steps that are timed")
    parser.add_argument("--runbooks", type=int, default=150, help="runbooks of one step, 50 at once")
    parser.add_argument("--parked", type=int, default=200, help="runbooks that only wait")


def run(options: argparse.Namespace) -> tuple[tuple[Figure, ...], tuple[str, ...]]:
    """Raises FleetError when the embedded server or the worker does not start."""
    cost, histories, parked = asyncio.run(_measure(options))
    figures = (*step_figures(cost), *history_figures(histories), *parked_figures(parked))
    return figures, notes(options, parked)


async def _measure(options: argparse.Namespace) -> tuple[StepCost, list[History], Parked]:
    async with stand() as place:
        side = SimSide(place.folder)
        await side.open()
        try:
            say("steps and runbooks per second, twice: our settings, then Temporal's own")
            native_id = await side.submit(OURS, "bench-steps", supervised=False)
            inp = StepsInput(cluster=OURS, native_id=native_id, count=max(1, options.steps))
            cost = await _step_cost(place, side, inp, max(1, options.runbooks))
            await side.cancel(OURS, native_id)
            say("one recovery, for the size of its histories")
            async with place.worker(side.fleet, OURS):
                made = await supervised(place, side, 0, "xid79")
                histories = [await _history(place.client, i) for i in _ids(made.node)]
        finally:
            await side.close()
    async with stand() as place:  # a fresh server, so that nothing of before is in the readings
        say(f"{options.parked} parked runbooks; this takes minutes")
        return cost, histories, await park(place, max(1, options.parked))


async def _step_cost(place: Stand, side: SimSide, inp: StepsInput, count: int) -> StepCost:
    async with worker_for(place.client, side.fleet, place.folder, OURS) as runtime:
        bare = await bare_calls(runtime, inp)
        tuned = await steps(place.client, inp)
        rate = await runbooks_per_second(place.client, inp, count, 50)
    async with untuned_server(place.folder) as client, worker_for(client, side.fleet, place.folder, OURS):
        untuned = await steps(client, inp)
        return StepCost(
            bare=bare,
            tuned=tuned,
            untuned=untuned,
            rate=rate,
            rate_untuned=await runbooks_per_second(client, inp, count, 50),
        )


def _ids(node: str) -> tuple[str, ...]:
    """The job's runbook, its failover's and its node's."""
    job = job_workflow_id("bench-0")
    return job, f"{job}/failover/2", node_workflow_id(OURS, node)


async def _history(client: Client, workflow_id: str) -> History:
    seen = await client.get_workflow_handle(workflow_id).describe()
    return History(
        kind=seen.workflow_type,
        events=seen.history_length,
        size=seen.raw_description.workflow_execution_info.history_size_bytes,
    )


# -- the figures


def step_figures(cost: StepCost) -> tuple[Figure, ...]:
    """The goal holds for the median step."""
    told = [
        Figure(
            name="one step, p50",
            value=median(cost.tuned.whole),
            unit="ms",
            other=BARE,
            other_value=median(cost.bare),
            at_most=STEP_GOAL,
        ),
        Figure(
            name="one step, p99",
            value=quantile(cost.tuned.whole, 0.99),
            unit="ms",
            other=BARE,
            other_value=quantile(cost.bare, 0.99),
        ),
    ]
    parts = ("whole", "wait", "work", "decide")
    names = (
        "one step on our server, p50",
        "until a worker has it, p50",
        "until its result is kept, p50",
        "until the next, p50",
    )
    for part, name in zip(parts, names, strict=True):
        tuned, untuned = getattr(cost.tuned, part), getattr(cost.untuned, part)
        told.append(Figure(name=name, value=median(tuned), unit="ms", other=UNTUNED, other_value=median(untuned)))
    told.append(
        Figure(
            name="runbooks of one step",
            value=cost.rate,
            unit="per s",
            other=UNTUNED,
            other_value=cost.rate_untuned,
        )
    )
    return tuple(told)


def history_figures(histories: list[History]) -> tuple[Figure, ...]:
    """Beside the size at which a run goes on as a new one."""
    limit = "Temporal's hint to continue as new"
    return tuple(
        figure
        for h in histories
        for figure in (
            Figure(
                name=f"history of {h.kind}, events",
                value=h.events,
                unit="events",
                other=limit,
                other_value=EVENTS_LIMIT,
            ),
            Figure(
                name=f"history of {h.kind}, size",
                value=h.size / 1024,
                unit="KiB",
                other=limit,
                other_value=BYTES_LIMIT / 1024,
            ),
        )
    )


def parked_figures(p: Parked) -> tuple[Figure, ...]:
    """Processor time in percent of one core."""
    none, loop = "the same with none parked", "a plain asyncio loop with the same reads"
    each = (p.worker_mib - p.worker_mib_empty) / p.count * 1024
    rows = (
        (f"worker memory, {p.count} parked", p.worker_mib, "MiB", none, p.worker_mib_empty),
        ("worker memory for each parked runbook", each, "KiB", "", None),
        (f"worker CPU, {p.count} parked", p.worker_cpu * 100, "% of a core", loop, p.loop_cpu * 100),
        (f"worker CPU, {p.count} parked or none", p.worker_cpu * 100, "% of a core", none, p.worker_cpu_empty * 100),
        (f"server CPU, {p.count} parked", p.server_cpu * 100, "% of a core", none, p.server_cpu_empty * 100),
        (f"server memory, {p.count} parked", p.server_mib, "MiB", "", None),
        (f"{p.count} jobs adopted", p.adopted_in, "s", "", None),
        ("worker CPU for each job adopted", p.adopted_cpu / p.count * 1000, "ms", "", None),
    )
    return tuple(
        Figure(name=name, value=value, unit=unit, other=other, other_value=other_value)
        for name, value, unit, other, other_value in rows
    )


def notes(options: argparse.Namespace, parked: Parked) -> tuple[str, ...]:
    """How to read the figures."""
    return (
        f"{options.steps} steps one after the other by the server's clock: scheduled, with a worker, result kept, "
        "next one scheduled. The backend is the embedded fleet; worker and server share the cores with the bench.",
        "Histories are of one recovery (XID 79) on the embedded fleet; the job was cancelled when it trained again.",
        f"Processor time over {parked.seconds:.0f} s, in which each runbook looks once at its job by itself; "
        "the worker also watches the cluster. A plain loop survives no crash and asks nobody.",
    )
