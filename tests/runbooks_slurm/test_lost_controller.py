"""slurmctld is frozen or dead exactly when the failover wants to write: it ends as if nothing had been."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fleet.ledger import Rung
from fleet.model import NativeJob, NodeState, Phase
from fleet.people import Choice
from tests.runbooks_slurm.disturbing import all_of, at_write, without_controller
from tests.runbooks_slurm.scenario import scenario
from tests.runbooks_slurm.stage import Stage
from tests.runbooks_slurm.training import complete_of, resumed, steps_of, undisturbed
from tests.runbooks_slurm.watching import attempts_alive, watching

STEPS = 1000
WRITES = (
    ("scancel --full", "State=DRAIN"),
    ("requeuehold", "scontrol create reservation"),
    ("ExcNodeList=", "scontrol reboot"),
    ("scontrol release", "State=RESUME"),
    ("Priority=", "srun "),
    ("StartTime=", "scontrol delete"),
    ("scontrol hold", "State=UNDRAIN"),
)
"""Each write of the job's failover, and with it one of the node's repair, in their order."""
IMPATIENT: dict[str, Any] = {"lab": ("MessageTimeout=10",), "ours": ("MessageTimeout=3",)}
"""The controller is away for as long as our command waits for it. The job's own `srun`, which may want to be heard in
the same moment, waits longer, as by Slurm's default, so that only our command goes unanswered."""


ids = [pair[0].replace(" ", "_") for pair in WRITES]


@pytest.mark.parametrize("writes", WRITES, ids=ids)
@scenario(**IMPATIENT)
async def test_a_write_that_a_frozen_controller_does_not_answer_is_made_once(
    stage: Stage, writes: tuple[str, str]
) -> None:
    native_id = await stage.train(steps=STEPS)
    await queue_another(stage)
    sick = (await stage.nodes_of("train"))[1]
    before = await stage.node(sick)
    disturbances = [at_write(stage, words, "frozen") for words in writes]
    async with watching(stage.lab, native_id) as seen:
        stage.disturb = all_of(*disturbances)
        await stage.lose_gpu(sick)
        view = await stage.trains("train", 2)
        stage.hurry()
        assert "done" in await stage.result("job/train")
        assert await stage.result(f"node/alpha/{sick}") == "repaired, checked and back at work"
    assert [bool(d.met) for d in disturbances] == [True, True]  # type: ignore[attr-defined]
    assert seen.never_two_at_once()
    native = await stage.native(native_id)
    assert (native.phase, native.restarts, native.excluded) == (Phase.SUCCEEDED, 1, (sick,))
    assert view.ledger is not None
    attempts = [(a.generation, a.restarts, a.rung) for a in view.ledger.attempts]
    assert attempts == [(1, 0, Rung.FIRST), (2, 1, Rung.IN_CLUSTER)]
    hooks = re.findall(rf"^\S+ (prolog|epilog)  node=\S+ job={native_id} ", stage.log("hooks.log"), re.MULTILINE)
    assert hooks == ["prolog"] * 2 + ["epilog"] * 2 + ["prolog"] * 2 + ["epilog"] * 2
    assert len(re.findall(rf" reboot  node={sick} ", stage.log("hooks.log"))) == 1
    lines = stage.output("train")
    last = complete_of(stage.folder_of("train"), "0.0")[-1]
    assert resumed(lines, "0.1") == last
    assert [s for s, _, g in steps_of(lines) if g == "0.1"] == list(range(last + 1, STEPS + 1))
    after = await stage.node(sick)
    assert after.booted_at > before.booted_at + 2
    assert (after.state, after.drained, after.op, after.reserved_by) == (NodeState.UP, False, None, None)
    assert "No reservations" in await stage.scontrol("show", "reservations")
    assert not [name for name in await stage.runbooks() if "/ask/" in name]


@pytest.mark.parametrize("writes", WRITES, ids=ids)
@scenario(**IMPATIENT)
async def test_a_controller_that_dies_at_a_write_costs_at_most_a_persons_word(
    stage: Stage, writes: tuple[str, str]
) -> None:
    """It loses what it acknowledged in its last two seconds, a start or an end of the job among them; then nobody
    can tell whether ranks live, and a person is asked. What holds in any case: no two attempts meet, no step is
    lost, and what is left of our marks is described."""
    native_id = await stage.train(steps=STEPS)
    await queue_another(stage)
    sick = (await stage.nodes_of("train"))[1]
    calm = await asyncio.to_thread(undisturbed, stage.folder / "calm", STEPS)
    disturbances = [at_write(stage, words, "killed") for words in writes]
    async with watching(stage.lab, native_id) as seen, patient_person(stage, native_id):
        stage.disturb = all_of(*disturbances)
        await stage.lose_gpu(sick)
        await stage.until(lambda: disturbances[0].met, "the controller has died once")  # type: ignore[attr-defined]
        await stage.until(lambda: len(seen.first) > 1, "the next attempt")  # a launch may be lost with its controller
        stage.hurry()
        result = await stage.result("job/train")
        healed = await stage.result(f"node/alpha/{sick}")
    assert "done" in result
    assert all(len(alive) < 2 for alive in seen.together)
    steps = steps_of(stage.output("train"))
    assert {step for step, _, _ in steps} == set(calm)
    assert all(loss == calm[step] for step, loss, _ in steps)
    after = await stage.node(sick)
    if "back at work" in healed:
        assert (after.state, after.drained, after.op, after.reserved_by) == (NodeState.UP, False, None, None)
    else:
        assert f"gpu-runbooks:{after.op}" in healed, "it stays isolated, and its result says how to take it back"


@asynccontextmanager
async def patient_person(stage: Stage, native_id: str) -> AsyncIterator[None]:
    """Somebody who answers every question of the scenario as its text says."""

    async def answering() -> None:
        while True:
            question = await stage.question("", limit=3600)
            if "forgot that" in question.plan.title:
                await stage.until(lambda: not attempts_alive(native_id, stage.lab.settings.conf), "no rank is left")
                await stage.scontrol("release", native_id)
            await stage.answer(question, Choice.RETRY)

    person = asyncio.create_task(answering())
    try:
        yield
    finally:
        person.cancel()
        await asyncio.gather(person, return_exceptions=True)


async def queue_another(stage: Stage) -> None:
    """A job that fits nowhere yet, so that being first in line is a write of its own."""
    await stage.lab.quick_job("waits", "true", "--nodes=4", "--gres=gpu:8", "--exclusive")


@pytest.mark.parametrize("fault", ["frozen", "killed"])
@scenario(**IMPATIENT)
async def test_a_submit_whose_answer_is_lost_makes_one_job(stage: Stage, fault: str) -> None:
    script = stage.folder / "once.sh"
    script.write_text("#!/bin/bash\nsleep 300\n")
    disturbance = at_write(stage, "sbatch", fault)
    stage.disturb = disturbance
    words = ("--job", "once", "--option=--nodes=1", f"--workdir={stage.lab.work}")
    ran = await stage.cli("submit", "alpha", str(script), *words)
    assert ran.code == 0, ran.err

    async def runs() -> bool:
        return [j.phase for j in await jobs(stage)] == [Phase.RUNNING]

    await stage.until(runs, "the one job runs")
    assert disturbance.met  # type: ignore[attr-defined]
    await stage.trains("once", 1)
    (job,) = await jobs(stage)
    assert (job.key, job.restarts, job.held) == ("once", 0, True)
    assert len(re.findall("_slurm_rpc_submit_batch_job: JobId=", stage.log("slurmctld.log"))) == 1
    again = await stage.cli("submit", "alpha", str(script), *words)
    assert (again.code, "under way" in again.err) == (1, True)
    assert len(await jobs(stage)) == 1


async def jobs(stage: Stage) -> tuple[NativeJob, ...]:
    return await stage.lab.backend.jobs(0.0)


@scenario(**IMPATIENT)
async def test_a_submit_through_a_frozen_controller_waits_for_it(stage: Stage) -> None:
    async with without_controller(stage.lab, "frozen"):
        handle = await stage.submit(stage.spec("once"))
        view = await stage.at_step("job/once", "take on")
        assert not view.result
    await stage.trains("once", 1)
    assert len(await jobs(stage)) == 1
    await handle.cancel()
