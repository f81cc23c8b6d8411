"""A recovery whose writes lose their answers, meet a frozen or dead controller, or are carried out by a late clone
(T08) ends as an undisturbed one does, each effect once."""

import asyncio
from collections import Counter
from collections.abc import Callable

from fleet.model import NodeState, Phase
from tests.workflows.conftest import Opener
from tests.workflows.gates import Gate
from tests.workflows.stage import Stage

ONCE = {
    "submit": 1,
    "adopt": 1,
    "isolate": 1,
    "stop": 1,
    "start_attempt": 1,
    "hold": 1,
    "reboot": 1,
    "release": 1,
    "attempt": 2,
}
"""What an undisturbed recovery does. Checks may be run again, and a checkpoint that may have been asked for is not
asked for twice."""
WRITES = (
    "submit",
    "adopt",
    "request_checkpoint",
    "stop",
    "start_attempt",
    "settle_attempt",
    "isolate",
    "reboot",
    "run_check",
    "release",
)


async def recover(stage: Stage) -> tuple[str, str]:
    """A submitted job loses a GPU; returns its native id and the sick node once all is well again."""
    spec = stage.spec()
    await stage.submit(spec)
    await stage.until(lambda: stage.faults.native_ids("train"), "it is submitted")
    (native_id,) = stage.faults.native_ids("train")
    await stage.until(lambda: stage.faults.checkpoints(native_id), "it has a checkpoint")
    await stage.runs_in("train", 1)
    sick = (await stage.nodes_of())[0]
    await stage.lose_gpu(sick)
    await stage.trains_again("train", native_id, 2)
    assert "back at work" in await stage.result(f"node/alpha/{sick}")
    return native_id, sick


async def assert_as_undisturbed(stage: Stage, native_id: str, sick: str) -> None:
    done = Counter(stage.ops("check", "signal"))
    assert done == ONCE
    assert stage.ops().count("signal") <= 1
    assert "check" in stage.ops()
    assert stage.faults.native_ids("train") == (native_id,)
    native, facts = await stage.native(native_id), await stage.node(sick)
    assert (native.phase, native.held, native.restarts, native.required) == (Phase.RUNNING, True, 1, ())
    assert (facts.state, facts.drained, facts.gpus, facts.boot) == (NodeState.UP, False, 8, f"{sick}#2")
    assert sick not in native.nodes
    assert stage.faults.most_attempts_alive(native_id) == 1
    assert (await stage.view("guard/alpha")).leases == ()


async def test_every_write_may_lose_its_answer_or_meet_a_controller_that_is_away(open_stage: Opener) -> None:
    """Three worlds side by side: answers lost, the controller frozen (every second write happens), and dead."""
    stages = [await open_stage() for _ in range(3)]
    for stage in stages:
        await stage.start_worker()
    await asyncio.gather(_lost(stages[0]), _disturbed(stages[1], "frozen"), _disturbed(stages[2], "dead"))


async def _lost(stage: Stage) -> None:
    for op in WRITES:
        stage.faults.lose_next_answer(op)
    native_id, sick = await recover(stage)
    await assert_as_undisturbed(stage, native_id, sick)
    with stage.faults._store.begin() as db:
        assert db.execute("select op from lost_answers").fetchall() == []  # each was met


async def _disturbed(stage: Stage, how: str) -> None:
    begin, end = {
        "frozen": (stage.faults.controller_freeze, stage.faults.controller_thaw),
        "dead": (stage.faults.controller_kill, stage.faults.controller_start),
    }[how]
    steps = {
        "job/train": ("submit_job", "adopt_job"),
        "job/train/failover/2": ("request_checkpoint", "stop_job", "start_attempt", "wait_running"),
        "node/alpha/alpha1": ("isolate_node", "reboot_node", "check_node", "release_node"),
    }
    gates = [stage.gates.set(w, step, "before") for w, names in steps.items() for step in names]
    turn = asyncio.Lock()
    away = [asyncio.create_task(_away(gate, turn, begin, end)) for gate in gates]
    native_id, sick = await recover(stage)
    assert sick == "alpha1"
    await asyncio.wait_for(asyncio.gather(*away), 10)
    await assert_as_undisturbed(stage, native_id, sick)


async def _away(gate: Gate, turn: asyncio.Lock, begin: Callable[[], None], end: Callable[[], None]) -> None:
    """The controller goes away as the step begins, and is back a moment later."""
    await gate.reached.wait()
    async with turn:
        begin()
        gate.open()
        await asyncio.sleep(0.5)
        end()


async def test_a_late_clone_of_a_step_has_no_effect_of_its_own(wide_stage: Stage) -> None:
    """Each step's first try hangs before its write until the server has given the step to a second try."""
    stage = wide_stage
    jobs = [_clone_of_job_step(stage, step) for step in ("request_checkpoint", "stop_job", "start_attempt")]
    jobs += [_clone_of_job_step(stage, step) for step in ("submit_job", "adopt_job", "wait_running")]
    nodes = [_clone_of_node_step(stage, 30 + n, s) for n, s in enumerate(("isolate_node", "reboot_node"))]
    await asyncio.gather(*jobs, *nodes)


async def _clone_of_job_step(stage: Stage, step: str) -> None:
    job = step.replace("_", "-")
    workflow_id = f"job/{job}" if step in {"submit_job", "adopt_job"} else f"job/{job}/failover/2"
    gate = stage.gates.set(workflow_id, step, "before", deaf=True)
    await stage.submit(stage.spec(job))
    await stage.until(lambda: stage.faults.native_ids(job), f"{job} is submitted")
    (native_id,) = stage.faults.native_ids(job)
    await stage.until(lambda: stage.faults.checkpoints(native_id), f"{job} has a checkpoint")
    await stage.runs_in(job, 1)
    await stage.order(job)
    await stage.trains_again(job, native_id, 2)
    assert gate.reached.is_set()
    assert not gate.passed.is_set()
    before = stage.ops(target=native_id)
    gate.open()
    await asyncio.wait_for(gate.passed.wait(), 10)
    await stage.stays(lambda: stage.ops(target=native_id) == before, f"{step}: {before}")
    assert stage.faults.native_ids(job) == (native_id,)
    wanted = {"submit": 1, "adopt": 1, "signal": 1, "stop": 1, "start_attempt": 1, "hold": 1, "attempt": 2}
    assert Counter(before) == wanted, step
    assert stage.faults.most_attempts_alive(native_id) == 1


async def _clone_of_node_step(stage: Stage, number: int, step: str) -> None:
    node = f"alpha{number}"
    gate = stage.gates.set(f"node/alpha/{node}", step, "before", deaf=True)
    check = stage.gates.set(f"node/alpha/{node}", "check_node", "before")
    await stage.heal(node, stage.faults.gpu_lost(node))
    await check.wait()
    gate.open()
    await asyncio.wait_for(gate.passed.wait(), 10)
    await stage.stays(lambda: stage.faults.boot(node) == f"{node}#2", f"{node} is not rebooted again", seconds=1)
    check.open()
    assert "back at work" in await stage.result(f"node/alpha/{node}")
    assert stage.ops(target=node) == ["isolate", "reboot", "check", "release"]
    assert not (await stage.node(node)).drained
