"""`recovery`: from a node fault to the next training step, beside the same job left to its scheduler.

Two equal clusters with the scheduler's default requeue delay. On `alpha` our worker supervises the job; XID 79 of one
of its nodes comes in as evidence. On `beta` nobody does, and at the same moment the scheduler is told that the node
is dead, which is the best case for it: left to itself it does nothing at all about an XID, and notices a dead node
only after SlurmdTimeout.
"""

import argparse
import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.sides import ALONE, OURS, Side, SimSide, SlurmSide, xid_79
from bench.stand import Stand, say, stand, until
from bench.table import Figure, median
from fleet.errors import TemporaryError
from fleet.faults.parse import parse_any
from fleet.identity import job_workflow_id, node_workflow_id, watch_workflow_id
from fleet.ledger import Attempt, Ledger, Stage
from fleet.model import Progress, Value
from fleet.runbooks import EvidenceBatch, Signal

SUMMARY = "node fault -> the same job trains elsewhere, beside the scheduler's own requeue"
RUNNING_GOAL, STEP_GOAL = 3.0, 10.0
"""Seconds after the fence receipt until the job is RUNNING and until its first new step."""
STEPS_FIRST = 12
"""Steps before the fault, so that a checkpoint exists."""
PATIENCE = 420.0
"""Seconds for a recovery: Slurm's default waits 121 s, Kubernetes' 300 s, and a dead node is noticed late."""
BACKENDS = ("slurm", "kubernetes", "sim")

SETTLED = 16.0
"""Seconds between two runs: a node that was silent a moment ago is proven clean only after 15 s of steady answers,
and the node of the run before has just booted."""


class Recovered(Value):
    """One fault, by the wall clock. The scheduler's and the job's own words, except for the receipt."""

    node: str
    """The node that went wrong."""
    fault_at: float
    receipt_at: float = 0.0
    """When the last node of the old attempt was read as clean; 0 without a fence."""
    running_at: float
    step_at: float
    """0: it has made none."""
    lost: int | None
    """Training steps that were done and thrown away; None where nobody knows, for it has made no new one or the last
    words of the old attempt went with its pod before they were read."""
    stages: Mapping[Stage, float] = {}
    """Seconds of each stage, of the report's spans."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """How often and on what."""
    parser.add_argument("--backend", choices=BACKENDS, default="slurm", help="slurm, kubernetes: real labs (root)")
    parser.add_argument("--runs", type=int, default=3, help="supervised recoveries, one after the other")
    parser.add_argument(
        "--fault", choices=("xid79", "crash"), default="xid79", help="crash: power loss on both clusters"
    )


def run(options: argparse.Namespace) -> tuple[tuple[Figure, ...], tuple[str, ...]]:
    """Raises FleetError where the lab cannot run, or when a recovery does not come to its end."""
    crash = options.fault == "crash"
    if options.backend == "kubernetes":
        from bench.k8s_lab import lab
        from bench.k8s_side import NODES, KubernetesSide

        with lab(OURS, ALONE, nodes=NODES) as clusters:
            ours, alone = asyncio.run(_measure(options, lambda folder: KubernetesSide(folder, clusters)))
        name = KubernetesSide.alone_after_crash if crash else KubernetesSide.alone
        return figures(ours, alone, name), kubernetes_notes(options.runs, crash=crash)
    kind = SlurmSide if options.backend == "slurm" else SimSide
    ours, alone = asyncio.run(_measure(options, kind))
    noticed = crash or options.backend == "sim"
    return figures(ours, alone, kind.alone), notes(options.runs, crash=noticed, xid=not crash)


async def _measure(options: argparse.Namespace, make: Callable[[Path], Side]) -> tuple[list[Recovered], Recovered]:
    async with stand() as place:
        side = make(place.folder)
        try:
            await side.open()
            async with place.worker(side.fleet, OURS):
                alone = asyncio.create_task(_left_alone(side, options.fault))
                try:
                    ours = [await supervised(place, side, n, options.fault) for n in range(max(1, options.runs))]
                    return ours, await alone
                finally:
                    alone.cancel()
        finally:
            await side.close()


# -- ours


async def supervised(place: Stand, side: Side, number: int, fault: str) -> Recovered:
    """One job from its submit through the fault and its recovery until its node is back and it is cancelled."""
    job = f"bench-{number}"
    say(f"run {number + 1}: {job} starts on {OURS}")
    native_id = await side.submit(OURS, job, supervised=True)
    await _trains(side, OURS, native_id)
    nodes = await _adopted(place, job)
    fault_at = time.time()
    if fault == "crash":
        await side.crash(OURS, nodes[-1])
    else:
        found = parse_any(xid_79(nodes[-1]), cluster=OURS, node=nodes[-1], seen_at=fault_at)
        watch = place.client.get_workflow_handle(watch_workflow_id(OURS))
        await watch.signal(Signal.EVIDENCE, EvidenceBatch(evidence=found.evidence))
    ledger = await _recovered(place, job)
    old, new = ledger.attempts[-2], ledger.attempts[-1]
    running_at = await _needed_time(side, OURS, native_id, fault_at)
    progress = await side.progress(OURS, native_id, new.restarts)
    before = await side.progress(OURS, native_id, old.restarts)
    made = Recovered(
        node=nodes[-1],
        fault_at=fault_at,
        receipt_at=max((r.at for r in old.receipt.nodes), default=0.0) if old.receipt else 0.0,
        running_at=running_at,
        step_at=progress.first_step_at or 0.0,
        lost=steps_lost(before, progress),
        stages=stage_seconds(new),
    )
    say(f"run {number + 1}: running {running_at - fault_at:.1f} s, training {made.step_at - fault_at:.1f} s after it")
    await side.cancel(OURS, native_id)
    await _over(place, job_workflow_id(job))
    await _over(place, node_workflow_id(OURS, nodes[-1]))
    await asyncio.sleep(SETTLED)
    return made


def steps_lost(before: Progress, after: Progress) -> int | None:
    """From the last step of the old attempt back to where the new one resumed."""
    if after.first_step_at is None or before.step is None:
        return None
    lost = before.step - (after.resumed_from or 0)
    return lost if lost >= 0 else None


async def _adopted(place: Stand, job: str) -> tuple[str, ...]:
    nodes: list[str] = []

    async def look() -> bool:
        view = await place.view(job_workflow_id(job))
        last = view.ledger.last if view and view.ledger else None
        nodes[:] = last.nodes if last else ()
        return bool(nodes)

    await until(look, 60, f"{job} to be adopted")
    return tuple(nodes)


async def _recovered(place: Stand, job: str) -> Ledger:
    kept: list[Ledger] = []

    async def look() -> bool:
        view = await place.view(job_workflow_id(job))
        if view is None or view.ledger is None or len(view.ledger.attempts) < 2:
            return False
        kept[:] = [view.ledger]
        return view.ledger.attempts[-1].progress.step is not None

    await until(look, PATIENCE, f"{job} to train again", every=1.0)
    return kept[0]


async def _over(place: Stand, workflow_id: str) -> None:
    async def look() -> bool:
        view = await place.view(workflow_id)
        return view is None or bool(view.result)

    await until(look, 120, f"{workflow_id} to end", every=1.0)


def stage_seconds(attempt: Attempt) -> dict[Stage, float]:
    """Sum of the spans of each stage of the recovery that led to this attempt."""
    found: dict[Stage, float] = {}
    for span in attempt.spans:
        if span.end is not None:
            found[span.stage] = found.get(span.stage, 0.0) + span.end - span.start
    return found


# -- the scheduler alone


async def _left_alone(side: Side, fault: str) -> Recovered:
    native_id = await side.submit(ALONE, "alone", supervised=False)
    await _trains(side, ALONE, native_id)
    nodes = await side.nodes_of(ALONE, native_id)
    fault_at = time.time()
    await (side.crash if fault == "crash" else side.mark_dead)(ALONE, nodes[-1])
    say(f"{ALONE}: {nodes[-1]} is dead; its scheduler is left alone with that")
    running_at = await _needed_time(side, ALONE, native_id, fault_at)
    say(f"{ALONE}: running again {running_at - fault_at:.1f} s after it")

    async def steps() -> bool:
        return (await side.progress(ALONE, native_id, 1)).first_step_at is not None

    try:
        await until(steps, 60, "the job that was left alone to make a step")
    except TemporaryError as never:
        say(f"{ALONE}: {never}")
    progress, before = await side.progress(ALONE, native_id, 1), await side.progress(ALONE, native_id, 0)
    await side.cancel(ALONE, native_id)
    return Recovered(
        node=nodes[-1],
        fault_at=fault_at,
        running_at=running_at,
        step_at=progress.first_step_at or 0.0,
        lost=steps_lost(before, progress),
    )


async def _trains(side: Side, cluster: str, native_id: str) -> None:
    async def look() -> bool:
        return ((await side.progress(cluster, native_id, 0)).step or 0) >= STEPS_FIRST

    await until(look, 120, f"job {native_id} on {cluster} to train")


async def _needed_time(side: Side, cluster: str, native_id: str, after: float) -> float:
    async def look() -> bool:
        return await side.running_at(cluster, native_id, after) is not None

    await until(look, PATIENCE, f"job {native_id} to run again on {cluster}", every=0.5)
    at = await side.running_at(cluster, native_id, after)
    if at is None:
        raise TemporaryError(f"job {native_id} on {cluster} ran and is gone; run the bench again")
    return at


# -- the figures


def figures(ours: list[Recovered], alone: Recovered, other: str) -> tuple[Figure, ...]:
    """The goals hold for the worst run."""
    running = [r.running_at - r.receipt_at for r in ours]
    step = [r.step_at - r.receipt_at for r in ours]
    default_running = alone.running_at - alone.fault_at
    default_step = alone.step_at - alone.fault_at if alone.step_at else None
    rows = [
        Figure(
            name="fence receipt to RUNNING, worst",
            value=max(running),
            unit="s",
            other=other,
            other_value=default_running,
            at_most=RUNNING_GOAL,
        ),
        Figure(
            name="fence receipt to first new step, worst",
            value=max(step),
            unit="s",
            other=other,
            other_value=default_step,
            at_most=STEP_GOAL,
        ),
    ]
    told = {
        "fence receipt to RUNNING, median": (median(running), default_running),
        "fence receipt to first new step, median": (median(step), default_step),
        "fault to RUNNING, median": (median([r.running_at - r.fault_at for r in ours]), default_running),
        "fault to first new step, median": (median([r.step_at - r.fault_at for r in ours]), default_step),
    }
    rows += [Figure(name=n, value=v, unit="s", other=other, other_value=default) for n, (v, default) in told.items()]
    if lost := [r.lost for r in ours if r.lost is not None]:
        rows.append(
            Figure(
                name="training steps lost, worst", value=max(lost), unit="steps", other=other, other_value=alone.lost
            )
        )
    for stage in Stage:
        spent = [r.stages[stage] for r in ours if stage in r.stages]
        if spent:
            rows.append(Figure(name=f"stage {stage}, median", value=median(spent), unit="s"))
    return tuple(rows)


def notes(runs: int, *, crash: bool, xid: bool) -> tuple[str, ...]:
    """How to read the figures."""
    fault = "XID 79 as evidence" if xid else "power loss of one node"
    other = (
        "power loss of one node, which it notices by itself" if crash else "the node marked DOWN at once by a person"
    )
    return (
        f"{runs} supervised runs ({fault}); the other way once, at the same time, with the default requeue delay "
        f"({other}). The other way has no receipt: its times count from the fault.",
        "RUNNING is the scheduler's own record, the first new step the job's own output; the receipt is the moment "
        "at which the last node of the old attempt was read as clean. Stages are the spans of our report.",
    )


def kubernetes_notes(runs: int, *, crash: bool) -> tuple[str, ...]:
    """The same for Kubernetes."""
    fault = "power loss of one node" if crash else "XID 79 as evidence"
    other = (
        "the same power loss, and nobody there: the pod is replaced once its toleration of 300 s is over. The other "
        "rank waits for a peer that is gone, so it never trains on: no first new step"
        if crash
        else "a person cordons the node and deletes the job's pods in the same second. Without that person nothing "
        "happens at all. New ranks may start while old ones still end: nothing is proven"
    )
    return (
        f"{runs} supervised runs ({fault}); the other way once, at the same time, a Job with Kubernetes' own "
        f"defaults: {other}. It has no receipt: its times count from the fault.",
        "RUNNING is the start of the last rank's process, the first new step the job's own output; the receipt is "
        "when the last node of the old attempt was read as clean. Stages are the spans of our report.",
    )
