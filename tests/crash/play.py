"""One recovery on the embedded fleet from submit to end, with one fault on the way, and what is left afterwards."""

import asyncio
import re
import time
from pathlib import Path

from activities.backends.sim import ClusterShape, SimBackend, SimSettings, create_world
from activities.backends.sim.faults import Faults
from activities.backends.sim.world import set_time_scale
from fleet.faults.parse import parse_any
from fleet.identity import RUNBOOKS_QUEUE, TOKEN_PREFIX, job_workflow_id, node_workflow_id, watch_workflow_id
from fleet.model import Phase, Value
from fleet.orders import JobSpec
from fleet.runbooks import EvidenceBatch, Runbook, Signal, SuperviseInput
from tests.crash.boundary import Case
from tests.crash.crew import Crew, crew
from tests.crash.nursery import Nursery
from workers.fleets import ALL_AUTO

CLUSTER = "alpha"
JOB = "train-7"
STEPS = 600
EVERY = 5
"""Steps between two periodic checkpoints."""
XID = "NVRM: Xid (PCI:0000:ab:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
FAILOVER = f"{job_workflow_id(JOB)}/failover/2"
ONCE = (
    "submit",
    "stop",
    "start_attempt",
    "attempt",
    "isolate",
    "reboot",
    "release",
    "power_off",
    "power_on",
    "cancel",
)
"""Mutations that may happen once only. Holds and adoptions are states, a signal asks for a save."""
SPEC = JobSpec(
    job=JOB,
    name="train",
    comment=" ".join(
        TOKEN_PREFIX + word
        for word in (
            "supervise",
            f"job={JOB}",
            "checkpoint-signal=USR1",
            f"total-steps={STEPS}",
            "generation-check=yes",
        )
    ),
    script=(
        f"#!/bin/sh\n#SIM nodes=2 gpus=8 steps={STEPS} step_time=0.2 checkpoint_every={EVERY} save_time=0.05 "
        "load_time=0.2\n"
    ),
)
SHAPE = ClusterShape(nodes=4, gpus=8, reboot_seconds=0.5, kill_wait=1.0, term_takes=0.2)


class Ending(Value):
    """The state of the cluster and of the runbooks when all is over. Equal for a disturbed and an undisturbed run."""

    job: dict[str, object]
    nodes: dict[str, str]
    effects: tuple[str, ...]
    """Sorted: kind, target and detail of every mutation that happens once."""
    most_attempts: int
    most_ranks: int
    late_writes: int
    attempts: tuple[str, ...]
    """The ledger: generation, rung, restarts, nodes, cause."""
    results: dict[str, str]
    runbooks: dict[str, str]
    steps: tuple[str, ...]
    """Activities of the failover."""


class Played(Value):
    """An ending and what may differ between two runs."""

    ending: Ending
    hit: bool
    signals: int
    newest_checkpoint: int
    """Of the first attempt."""
    resumed: int | None
    attempt_lines: tuple[str, ...]
    """What the second attempt printed of its steps."""
    failed_tasks: tuple[str, ...]
    servers: int
    workers: int
    seconds: float


async def play(folder: Path, case: Case, nursery: Nursery) -> Played:
    """Runs the case in `folder`."""
    began = time.monotonic()
    world = create_world(folder / "world.sqlite", {CLUSTER: SHAPE})
    fleet = f"version: 1\nclusters:\n  {CLUSTER}: {{kind: sim, path: world.sqlite}}\n"
    (folder / "fleet.yaml").write_text(fleet + ALL_AUTO)
    backend, faults = SimBackend(CLUSTER, SimSettings(path=world)), Faults(world, CLUSTER)
    try:
        async with crew(folder, case, nursery) as made:
            node = await _break(made, backend)
            await made.until(lambda: made.is_over(FAILOVER), "the end of the failover")
            await made.recovery_is_over()
            await asyncio.to_thread(set_time_scale, world, 200.0)
            await made.until(lambda: made.is_over(job_workflow_id(JOB)), "the end of the job")
            await made.until(lambda: made.is_over(node_workflow_id(CLUSTER, node)), "the node's return")
            return await _look(made, backend, faults, node, began)
    finally:
        faults.close()
        await backend.close()


async def _break(made: Crew, backend: SimBackend) -> str:
    """Submits, waits for a checkpoint of the supervised job, reports an XID 79; returns the node."""
    await made.client.start_workflow(
        Runbook.SUPERVISE,
        SuperviseInput(job=JOB, cluster=CLUSTER, spec=SPEC, by="ada"),
        id=job_workflow_id(JOB),
        task_queue=RUNBOOKS_QUEUE,
    )

    async def first_node() -> str | None:
        native = await backend.job("1")
        saved = (await backend.progress("1", 0)).saved if native.phase is Phase.RUNNING else None
        view = await made.view(job_workflow_id(JOB)) if native.held and saved else None
        return view.ledger.last.nodes[1] if view and view.ledger and view.ledger.last else None

    node = await made.until(first_node, "a first attempt with a checkpoint")
    parsed = parse_any(XID, cluster=CLUSTER, node=node, seen_at=time.time())
    watch = made.client.get_workflow_handle(watch_workflow_id(CLUSTER))
    await watch.signal(Signal.EVIDENCE, EvidenceBatch(evidence=parsed.evidence))
    return node


async def _look(made: Crew, backend: SimBackend, faults: Faults, node: str, began: float) -> Played:
    native = await backend.job("1")
    progress = [await backend.progress("1", restarts) for restarts in (0, 1)]
    effects = faults.effects()
    saved = [step for restarts, step in faults.checkpoints("1") if restarts == 0]
    lines = await backend.log_tail("1", 3 * STEPS)
    ids = (job_workflow_id(JOB), node_workflow_id(CLUSTER, node))
    views = {i: await made.until(lambda i=i: made.view(i), f"the view of {i}") for i in ids}  # type: ignore[misc]
    ledger = views[ids[0]].ledger
    assert ledger is not None
    ending = Ending(
        job={
            **native.model_dump(
                include={"phase", "held", "restarts", "excluded", "required", "adopted", "exit_code", "key"}
            ),
            "step": progress[1].step,
            "saved": progress[1].saved,
            "done": progress[1].done,
        },
        nodes={
            n.node: f"{n.state} {n.boot} {n.gpus} {n.reason} {n.op} {n.drained} {n.jobs}"
            for n in await backend.nodes(0)
        },
        effects=tuple(sorted(_plain(f"{e.op} {e.target} {e.detail}") for e in effects if e.op in ONCE)),
        most_attempts=faults.most_attempts_alive("1"),
        most_ranks=faults.most_ranks_alive("1"),
        late_writes=len(faults.late_writes("1")),
        attempts=tuple(f"{a.generation} {a.rung} {a.restarts} {a.nodes} {a.cause}" for a in ledger.attempts),
        results={i: view.result for i, view in views.items()},
        runbooks=await made.runbooks(),
        steps=await made.steps_of(FAILOVER),
    )
    return Played(
        ending=ending,
        hit=made.hit() > 0,
        signals=sum(e.op == "signal" for e in effects),
        newest_checkpoint=max(saved),
        resumed=progress[1].resumed_from,
        attempt_lines=tuple(line for line in lines if line.startswith("step ") and "gen=0.1" in line),
        failed_tasks=await made.failed_tasks(),
        servers=made.started["server"],
        workers=made.started["worker"],
        seconds=time.monotonic() - began,
    )


def _plain(text: str) -> str:
    """Without op ids, which are of the run."""
    return re.sub(r"\b[a-z2-7]{7}$", "OP", text) if text.split(" ")[0] in {"isolate", "reboot", "release"} else text
