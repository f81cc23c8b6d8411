"""A controller that dies loses what it had acknowledged last: a submit, a reboot, or a stop with its start."""

import pytest

import activities.nodes
from activities.backends.sim import SimBackend
from fleet.model import NodeFacts
from fleet.people import Choice
from tests.workflows.stage import Stage


async def test_a_submit_that_the_controller_lost_before_it_ran_is_made_again(stage: Stage) -> None:
    await stage.submit(stage.spec("filler", nodes=4))
    await stage.runs_in("filler", 1)
    await stage.submit(stage.spec("train", nodes=2))

    first = await _native_id(stage)
    with stage.faults._store.begin() as db:
        db.execute("delete from jobs where id = ?", (int(first),))

    async def again() -> bool:
        view = await stage.view("job/train")
        return any("submitted again by its key" in line for line in view.story)

    await stage.until(again, "the lost job is submitted again")
    await stage.until(lambda: stage.faults.native_ids("train"), "it is in the queue again")

    assert len(stage.faults.native_ids("train")) == 1


async def _native_id(stage: Stage) -> str:
    async def there() -> str | None:
        ids = stage.faults.native_ids("train")
        return ids[0] if ids else None

    native_id: str = await stage.until(there, "the job is in the queue")
    return native_id


async def test_a_start_that_the_controller_forgot_is_asked_about_and_never_made_twice(stage: Stage) -> None:
    """It shows the job at the old attempt again. Whether the new ranks live it cannot tell, so a person looks."""
    native_id = await stage.supervise()
    sick = (await stage.nodes_of())[0]
    started = stage.gates.set("job/train/failover/2", "start_attempt", "after")
    await stage.lose_gpu(sick)
    await started.wait()
    with stage.faults._store.begin() as db:
        db.execute("update jobs set restarts = 0 where id = ?", (int(native_id),))
    started.open()
    question = await stage.question("job/train")
    assert "stuck" in question.plan.title
    assert "alpha forgot that train was stopped and started again" in question.why
    await stage.answer(question, Choice.TAKE_OVER)
    await stage.stays(lambda: stage.ops().count("start_attempt") == 1, "not started again")


async def test_a_reboot_that_the_controller_forgot_is_ordered_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[str] = []
    order = SimBackend.reboot

    async def forgets_the_first(backend: SimBackend, node: str, op: str) -> NodeFacts:
        if forgotten:
            return await order(backend, node, op)
        forgotten.append(node)
        return await backend.node(node)

    monkeypatch.setattr(SimBackend, "reboot", forgets_the_first)
    monkeypatch.setattr(activities.nodes, "ASK_AGAIN", 0.5)
    boot = stage.faults.boot("alpha1")
    await stage.heal("alpha1", stage.faults.gpu_lost("alpha1"))
    assert "back at work" in await stage.result("node/alpha/alpha1")
    assert (forgotten, stage.faults.boot("alpha1") != boot) == (["alpha1"], True)
    assert stage.ops(target="alpha1") == ["isolate", "reboot", "check", "release"]
