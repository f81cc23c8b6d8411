"""One move to another cluster on the embedded fleet, with one fault on the way, and what is left afterwards."""

import asyncio
import contextlib
import getpass
import re
from collections.abc import Callable
from pathlib import Path

from activities.backends.port import ClusterBackend
from activities.backends.sim import SimBackend, SimSettings, create_world
from activities.backends.sim.faults import Faults
from activities.backends.sim.world import set_time_scale
from clients.questions import make_answer
from fleet.decision import Action
from fleet.identity import RUNBOOKS_QUEUE, TOKEN_PREFIX, job_workflow_id
from fleet.model import Phase, Value
from fleet.orders import JobSpec
from fleet.people import Choice, Question
from fleet.placing import PlaceWish
from fleet.runbooks import Order, Runbook, SuperviseInput, Update
from tests.crash.around import mend, own_storage
from tests.crash.boundary import SURROUNDINGS, Case, Fault
from tests.crash.crew import FREEZE, Crew, crew
from tests.crash.nursery import Nursery
from tests.crash.play import ONCE, SHAPE
from workers.fleets import ALL_AUTO

JOB = "train-8"
STEPS = 300
MOVE = f"{job_workflow_id(JOB)}/transfer/2"
CLUSTERS = ("alpha", "beta")


class Ending(Value):
    """What is left, equal for a disturbed and an undisturbed run."""

    jobs: dict[str, tuple[str, ...]]
    """Cluster -> phase, epoch and restarts of each native object."""
    effects: dict[str, tuple[str, ...]]
    """Cluster -> kind and target of every mutation that happens once."""
    attempts: tuple[str, ...]
    result: str
    runbooks: dict[str, str]
    steps: tuple[str, ...]


class Played(Value):
    ending: Ending
    hit: bool
    newest: int
    """Step of the first attempt's newest complete checkpoint on its own storage."""
    resumed: int | None
    most_attempts: int
    published: int
    """Checkpoints of which the target has our receipt."""
    failed_tasks: tuple[str, ...]
    servers: int
    workers: int
    asked: tuple[str, ...] = ()
    """Title and reason of each question that a fault of the storage led to."""


def spec(folder: Path) -> JobSpec:
    """A job that may move; its script says nothing of a cluster."""
    root = folder / "east" / "train"
    root.mkdir(parents=True)
    (folder / "west").mkdir()
    words = ["supervise", "transfer", f"job={JOB}", "checkpoint-signal=USR1", f"total-steps={STEPS}"]
    words += ["generation-check=yes", f"checkpoint={root}"]
    return JobSpec(
        job=JOB,
        name="train",
        comment=" ".join(TOKEN_PREFIX + word for word in words),
        script=(
            f"#!/bin/sh\n#SIM nodes=2 gpus=8 steps={STEPS} step_time=0.2 checkpoint_every=5 save_time=0.05 "
            "load_time=0.2\n"
        ),
        user=getpass.getuser(),
    )


async def play_transfer(folder: Path, case: Case, nursery: Nursery) -> Played:
    """Runs the case in `folder`."""
    world = create_world(folder / "world.sqlite", dict.fromkeys(CLUSTERS, SHAPE))
    rows = ["version: 1", "clusters:"]
    rows += [f"  {c}: {{kind: sim, path: world.sqlite, site: at-{c}}}" for c in CLUSTERS]
    rows += [
        "sites:",
        *(f"  at-{c}: {{mount: {folder / s}}}" for c, s in zip(CLUSTERS, ("east", "west"), strict=True)),
    ]
    (folder / "fleet.yaml").write_text("\n".join(rows) + "\n" + ALL_AUTO)
    backends = {c: SimBackend(c, SimSettings(path=world)) for c in CLUSTERS}
    faults = {c: Faults(world, c) for c in CLUSTERS}
    job = spec(folder)
    try:
        async with contextlib.AsyncExitStack() as around:
            around.enter_context(own_storage(folder, case.fault))
            made = await around.enter_async_context(crew(folder, case, nursery))
            await order_move(made, backends["alpha"], job)
            person = Person(made)
            if case.fault is not None and case.fault in SURROUNDINGS:
                await end_fault(made, folder, case.fault, person, lambda: made.hit() > 0)
            await made.until(person.sees_the_end, "the end of the move")
            await made.recovery_is_over()
            await asyncio.to_thread(set_time_scale, world, 200.0)
            await made.until(lambda: made.is_over(job_workflow_id(JOB)), "the end of the job")
            return (await _look(made, backends, faults, folder)).model_copy(update={"asked": tuple(person.asked)})
    finally:
        for one in faults.values():
            one.close()
        await asyncio.gather(*(backend.close() for backend in backends.values()))


class Person:
    """Whoever is asked by the move: says `retry` to every question of it, each once."""

    def __init__(self, made: Crew) -> None:
        self.made = made
        self.asked: list[str] = []
        """Title and reason of each question."""
        self._answered: set[str] = set()

    async def answers(self, question: Question) -> None:
        if question.id not in self._answered:
            self._answered.add(question.id)
            self.asked.append(f"{question.plan.title}: {question.why}")
            said = make_answer(question, Choice.RETRY, "grace", "mended")
            await self.made.client.get_workflow_handle(question.id).execute_update(Update.ANSWER, said)

    async def sees_the_end(self) -> bool:
        """Whether the move is over."""
        question = await _question(self.made)
        if question is not None:
            await self.answers(question)
        return await self.made.is_over(MOVE)


async def end_fault(
    made: Crew, folder: Path, fault: Fault, person: Person, happened: Callable[[], bool], seconds: float = 180.0
) -> None:
    """Waits for the fault, and ends it once the move has asked a person about it, or has waited or gone on
    without."""
    await made.until(lambda: asyncio.to_thread(happened), "the boundary", seconds)
    question = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FREEZE):
            question = await made.until(lambda: _question(made), "a question")
    mend(folder, fault)
    if question is not None:
        await person.answers(question)


async def _question(made: Crew) -> Question | None:
    """What the move waits for a person to answer."""
    view = await made.view(MOVE)
    found = re.search(r"an answer to `([^`]+)`", view.waits_for) if view is not None else None
    asking = await made.view(found[1]) if found is not None else None
    return asking.question if asking is not None else None


async def order_move(
    made: Crew, alpha: ClusterBackend, job: JobSpec, home: PlaceWish | None = None, to: str = ""
) -> str:
    """Submits to alpha, waits for a checkpoint of the supervised job, orders the move; the job's native id."""
    handle = await made.client.start_workflow(
        Runbook.SUPERVISE,
        SuperviseInput(job=job.job, cluster="alpha", spec=job, home=home, by="ada"),
        id=job_workflow_id(job.job),
        task_queue=RUNBOOKS_QUEUE,
    )

    async def ready() -> str | None:
        view = await made.view(job_workflow_id(job.job))
        last = view.ledger.last if view is not None and view.ledger is not None else None
        if view is None or last is None or view.step != "watching":
            return None
        native = await alpha.job(last.native_id)
        saved = (await alpha.progress(last.native_id, 0)).saved
        return last.native_id if native.phase is Phase.RUNNING and native.held and saved is not None else None

    native_id = await made.until(ready, "a first attempt with a checkpoint")
    order = Order(want=Action.FAILOVER_ACROSS_CLUSTERS, by="ada", reason="rack works", to=to)
    await handle.execute_update(Update.ORDER, order)
    return native_id


def _complete(root: Path, generation: str) -> list[int]:
    found = (re.match(r"step_(\d+)", m.parent.name) for m in root.glob(f"train/step_*.g{generation}/COMPLETE"))
    return sorted(int(match[1]) for match in found if match)


async def _look(made: Crew, backends: dict[str, SimBackend], faults: dict[str, Faults], folder: Path) -> Played:
    view = await made.until(lambda: made.view(job_workflow_id(JOB)), "the view of the job")
    assert view.ledger is not None
    jobs = {c: sorted(await backend.jobs(0), key=lambda j: j.native_id) for c, backend in backends.items()}
    last = view.ledger.attempts[-1]
    ending = Ending(
        jobs={c: tuple(f"{j.phase} {j.tokens.epoch} {j.restarts}" for j in found) for c, found in jobs.items()},
        effects={
            c: tuple(sorted(f"{e.op} {e.target}" for e in one.effects() if e.op in ONCE)) for c, one in faults.items()
        },
        attempts=tuple(f"{a.generation} {a.cluster} {a.rung} {a.restarts}" for a in view.ledger.attempts),
        result=view.result,
        runbooks=await made.runbooks(),
        steps=await made.steps_of(MOVE),
    )
    return Played(
        ending=ending,
        hit=made.hit() > 0,
        newest=_complete(folder / "east", "0.0")[-1],
        resumed=(await backends["beta"].progress(last.native_id, last.restarts)).resumed_from,
        most_attempts=max(one.most_attempts_alive(j.native_id) for c, one in faults.items() for j in jobs[c]),
        published=len(list((folder / "west" / "train" / ".gpu-runbooks" / "receipts").glob("*.json"))),
        failed_tasks=await made.failed_tasks(),
        servers=made.started["server"],
        workers=made.started["worker"],
    )
