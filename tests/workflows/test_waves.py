"""Many nodes fail at once: one wave, within its limit, isolated together and repaired one after another."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import WorkflowExecutionStatus

from activities import wave_api
from clients.giving_back import release_all, release_node
from fleet.model import NodeState
from fleet.people import Choice
from fleet.policy_file import parse_policy
from fleet.runbooks import Runbook, Update, View
from fleet.waves import WaveCount
from tests.workflows.conftest import Opener
from tests.workflows.stage import Stage

REPOSITORY = Path(__file__).resolve().parents[2]
GUARD = "guard/alpha"
RUNBOOK = (sys.executable, "-c", "from workers.main import main; main()")


async def opened(open_stage: Opener, nodes: int = 12, *, modes: dict[str, str] | None = None, **limits: str) -> Stage:
    """A stage whose waves begin with three nodes and may isolate all, two of which are repaired at a time."""
    stage = await open_stage(nodes=nodes)
    stage.write_policy(limits=wide(**limits), modes=modes)
    return stage


def wide(**limits: str) -> dict[str, str]:
    all_of_them = {"wave_from": "3", "nodes_isolated": "1000", "nodes_isolated_percent": '"100%"'}
    return all_of_them | {"nodes_out": "2", "nodes_out_percent": '"100%"'} | limits


async def fail(stage: Stage, *nodes: str) -> None:
    """XID 79 on all of them, told at once."""
    lines = {node: await asyncio.to_thread(stage.faults.gpu_lost, node) for node in nodes}
    await stage.tell(*(e for node, line in lines.items() for e in stage.parsed(node, line)))


def names(first: int, last: int) -> tuple[str, ...]:
    return tuple(f"alpha{n}" for n in range(first, last + 1))


async def counted(stage: Stage, **wanted: int) -> WaveCount:
    """Waits until the guard's page says these numbers."""

    async def there() -> WaveCount | None:
        count = (await stage.view(GUARD)).wave
        return count if count and all(getattr(count, key) == value for key, value in wanted.items()) else None

    found: WaveCount = await stage.until(there, f"the wave has {wanted}")
    return found


def isolated(stage: Stage) -> list[str]:
    return [e.target for e in stage.faults.effects("isolate")]


async def test_a_wave_is_isolated_at_once_and_repaired_at_the_budgets_rate(open_stage: Opener) -> None:
    stage = await opened(open_stage)
    await stage.start_worker()
    heals = stage.gates.set(GUARD, "request_heals", "before")
    nodes = names(1, 5)
    await fail(stage, *nodes)
    await heals.wait()
    assert isolated(stage) == list(nodes)
    marks = {node: (await stage.node(node)).op for node in nodes}
    assert len(set(marks.values())) == 5
    assert (await stage.view(GUARD)).wave == WaveCount(nodes=5, isolated=5, requested=5)
    assert "5 nodes: 5 isolated, 5 repairs requested" in await stage.page(GUARD)
    heals.open()
    first = await stage.at_step("node/alpha/alpha1", "evacuate", "reboot", "check", "return", "over")
    assert first.op == marks["alpha1"]
    assert any("isolated before" in line and "by a wave" in line for line in first.story)
    for node in nodes:
        assert "back at work" in await stage.result(f"node/alpha/{node}")
        assert stage.ops(target=node) == ["isolate", "reboot", "check", "release"]
        assert (await stage.node(node)).state is NodeState.UP
    await counted(stage, nodes=5, isolated=5, done=5, healing=0, left=0)
    assert most_between(stage, "reboot") <= 2
    turns = [e.target for e in stage.faults.effects("reboot")]
    assert sorted(turns[:2]) == ["alpha1", "alpha2"]
    assert (await stage.view(GUARD)).leases == ()
    await stage.record(GUARD, "guard-wave")
    await stage.record("node/alpha/alpha3", "heal-in-a-wave")


def most_between(stage: Stage, begin: str) -> int:
    """The most nodes between that effect and their release together."""
    most = now = 0
    for effect in stage.faults.effects():
        now += {begin: 1, "release": -1}.get(effect.op, 0)
        most = max(most, now)
    return most


async def test_few_nodes_go_their_own_way(open_stage: Opener) -> None:
    stage = await opened(open_stage)
    await stage.start_worker()
    await fail(stage, *names(1, 2))
    for node in names(1, 2):
        assert "back at work" in await stage.result(f"node/alpha/{node}")
    assert (await stage.view(GUARD)).wave is None


async def test_a_supervised_job_on_the_nodes_of_a_wave_moves_once_to_nodes_that_are_not_of_it(
    open_stage: Opener,
) -> None:
    stage = await opened(open_stage, nodes_out="0")
    await stage.start_worker()
    native_id = await stage.supervise()
    held = await stage.nodes_of()
    others = [node for node in names(1, 12) if node not in held][:3]  # the next ones that the scheduler would take
    isolating = stage.gates.set(GUARD, "isolate_nodes", "before")
    await fail(stage, *others, *held)
    await isolating.wait()
    await stage.stays(lambda: len(stage.attempts(native_id)) == 1, "the job stays while the wave isolates")
    isolating.open()
    await stage.trains_again("train", native_id, 2)
    assert not {*held, *others} & set(await stage.nodes_of())
    await counted(stage, nodes=5, isolated=5)
    assert len(stage.attempts(native_id)) == 2
    assert stage.faults.most_attempts_alive(native_id) == 1


async def test_beyond_the_limit_nothing_is_isolated_and_one_person_is_asked_once(open_stage: Opener) -> None:
    stage = await opened(open_stage, nodes_isolated="2", nodes_out="1")
    await stage.start_worker()
    heals = stage.gates.set(GUARD, "request_heals", "before")
    await fail(stage, *names(1, 5))
    await heals.wait()
    question = await stage.question(GUARD)
    assert "Isolate 3 more nodes of alpha" in question.plan.title
    assert "alpha[3-5]" in " ".join(question.plan.steps)
    assert "2 of 12 nodes are isolated" in question.why
    await stage.stays(lambda: isolated(stage) == list(names(1, 2)), "nothing more is isolated")
    assert await asked(stage) == 1
    await stage.answer(question, Choice.RETRY)
    heals.open()
    await counted(stage, nodes=5, isolated=5, done=5)
    assert await asked(stage) == 1
    assert most_between(stage, "isolate") <= 2


async def asked(stage: Stage) -> int:
    return len([row async for row in stage.client.list_workflows(f"WorkflowType = '{Runbook.ASK}'")])


async def test_a_person_may_let_the_rest_be_isolated_or_leave_it(open_stage: Opener) -> None:
    stage = await opened(open_stage, nodes_isolated="2", nodes_out="0")
    await stage.start_worker()
    await fail(stage, *names(1, 5))
    yes = await stage.question(GUARD)
    await stage.answer(yes, Choice.APPROVE)
    await counted(stage, nodes=5, isolated=5, requested=5)
    await fail(stage, *names(6, 9))
    no = await stage.question(GUARD)
    assert "Isolate 4 more nodes" in no.plan.title
    await stage.answer(no, Choice.ABORT)
    await counted(stage, nodes=9, isolated=5, left=4)
    assert isolated(stage) == list(names(1, 5))
    assert any("grace said so" in line for line in (await stage.view(GUARD)).story)


async def test_the_mode_asks_once_for_the_whole_wave_and_observe_leaves_it(open_stage: Opener) -> None:
    stage = await opened(open_stage, modes={"isolate": "propose"}, nodes_out="0")
    await stage.start_worker()
    await fail(stage, *names(1, 6))
    question = await stage.question(GUARD)
    assert isolated(stage) == []
    await stage.answer(question, Choice.APPROVE)
    await counted(stage, isolated=6, requested=6)
    assert await asked(stage) == 1
    stage.write_policy(limits=wide(nodes_out="0"), modes={"isolate": "observe"})
    await fail(stage, *names(7, 10))
    await counted(stage, nodes=10, left=4)
    assert isolated(stage) == list(names(1, 6))


async def test_what_others_drained_and_what_is_not_there_is_left_and_told(open_stage: Opener) -> None:
    stage = await opened(open_stage, nodes_out="0")
    await stage.start_worker()
    stage.faults.person_drain("alpha2", "bob: swapping the riser")
    lines = {node: stage.faults.gpu_lost(node) for node in names(1, 4)}
    told = [e for node, line in lines.items() for e in stage.parsed(node, line)]
    await stage.tell(*told, told[0].model_copy(update={"node": "typo"}))
    await counted(stage, nodes=4, isolated=3, left=1)
    facts = await stage.node("alpha2")
    assert (facts.foreign_drain, facts.reason) == (True, "bob: swapping the riser")
    assert any("swapping the riser" in line for line in (await stage.view(GUARD)).story)
    assert any("not in the cluster: typo" in line for line in (await stage.view("watch/alpha")).story)
    assert not await stage.runs("node/alpha/alpha2")


async def test_a_freeze_in_the_middle_of_a_wave_stops_it_over_a_restart_until_the_unfreeze(
    open_stage: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wave_api, "BATCH", 3)
    stage = await opened(open_stage, nodes_out="0")
    await stage.start_worker()
    batch = stage.gates.set(GUARD, "isolate_nodes", "after")
    await fail(stage, *names(1, 9))
    await batch.wait()
    await stage.freeze("alpha")
    batch.open()
    await stage.until(lambda: _waits_for(stage, "an unfreeze"), "the guard says that it is frozen")
    await stage.stop_worker()
    await stage.start_worker()
    await stage.stays(lambda: isolated(stage) == list(names(1, 3)), "nothing more is isolated", seconds=3)
    await stage.freeze("alpha", Update.UNFREEZE)
    await counted(stage, isolated=9)
    assert isolated(stage) == list(names(1, 9))


async def _waits_for(stage: Stage, words: str) -> bool:
    return words in (await stage.view(GUARD)).waits_for


async def test_a_second_wave_joins_the_one_under_way_and_no_node_is_isolated_twice(
    open_stage: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wave_api, "BATCH", 2)
    stage = await opened(open_stage, nodes_out="0")
    await stage.start_worker()
    batch = stage.gates.set(GUARD, "isolate_nodes", "before")
    await fail(stage, *names(1, 6))
    await batch.wait()
    await fail(stage, *names(4, 9))
    await counted(stage, nodes=9)
    batch.open()
    await counted(stage, nodes=9, isolated=9, requested=9)
    assert isolated(stage) == list(names(1, 9))


async def test_a_mark_that_somebody_took_away_while_its_node_waited_is_their_word(open_stage: Opener) -> None:
    stage = await opened(open_stage, nodes_out="1")
    await stage.start_worker()
    heals = stage.gates.set(GUARD, "request_heals", "before")
    await fail(stage, *names(1, 3))
    await heals.wait()
    stage.faults.person_undrain("alpha3")
    heals.open()
    assert "somebody took away the mark" in await stage.result("node/alpha/alpha3")
    assert stage.ops(target="alpha3") == ["isolate"]
    await counted(stage, done=3)
    assert (await stage.node("alpha3")).state is NodeState.UP


async def test_a_node_that_is_released_while_it_waits_is_not_repaired(open_stage: Opener) -> None:
    stage = await opened(open_stage, nodes_out="1")
    await stage.start_worker()
    stage.gates.set("node/alpha/alpha1", "reboot_node", "before")
    await fail(stage, *names(1, 4))
    await counted(stage, isolated=4, healing=1)
    policy = parse_policy(stage.policy_file.read_text(), "fleet.yaml")
    given = await release_node(stage.client, "alpha/alpha3", "ada", "it is fine", policy)
    assert "is gone, unchecked, by your word" in given.lines[-1]
    stage.gates.open_all()
    await counted(stage, nodes=4, done=3, left=1)
    assert stage.ops(target="alpha3") == ["isolate", "release"]
    assert not await stage.runs("node/alpha/alpha3")


async def test_release_all_ends_the_wave_and_gives_every_mark_back(
    open_stage: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wave_api, "BATCH", 4)
    stage = await opened(open_stage)
    await stage.start_worker()
    stage.gates.set("node/alpha/alpha1", "reboot_node", "before")
    second = stage.gates.set(GUARD, "request_heals", "after")
    await fail(stage, *names(1, 9))
    await second.wait()
    releasing = asyncio.create_task(release_all(stage.client, "enough", None))
    second.open()
    given = await releasing
    assert given.failed == ()
    assert any("nodes taken out of its waves" in line for line in given.lines)
    for node in names(1, 9):
        facts = await stage.node(node)
        assert (facts.op, facts.drained) == (None, False)
        assert not await stage.runs(f"node/alpha/{node}")
    await stage.stays(lambda: len(stage.faults.effects("isolate")) == 9, "nothing is isolated any more")
    assert (await stage.view(GUARD)).wave is not None


async def test_a_guard_that_is_cancelled_in_a_wave_says_what_it_leaves(
    open_stage: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wave_api, "BATCH", 2)
    stage = await opened(open_stage)
    await stage.start_worker()
    batch = stage.gates.set(GUARD, "isolate_nodes", "after")
    await fail(stage, *names(1, 6))
    await batch.wait()
    await stage.handle(GUARD).cancel()
    assert await stage.ended(GUARD) is WorkflowExecutionStatus.CANCELED
    view: View = await stage.view(GUARD)
    assert "nothing more is isolated or repaired" in view.story[-1]
    assert isolated(stage) == list(names(1, 2))
    await stage.stays(lambda: len(isolated(stage)) == 2, "nothing more is isolated")


async def test_a_node_whose_own_runbook_waits_for_its_lease_takes_the_waves_mark_over(open_stage: Opener) -> None:
    stage = await opened(open_stage, nodes_out="1")
    await stage.start_worker()
    reboot = stage.gates.set("node/alpha/alpha12", "reboot_node", "before")
    await stage.heal("alpha12", stage.faults.gpu_lost("alpha12"))
    await reboot.wait()
    await stage.heal("alpha1", stage.faults.gpu_lost("alpha1"))
    await stage.at_step("node/alpha/alpha1", "lease")
    await fail(stage, *names(1, 3))
    await counted(stage, isolated=3)
    reboot.open()
    for node in (*names(1, 3), "alpha12"):
        assert "back at work" in await stage.result(f"node/alpha/{node}")
        assert stage.ops(target=node) == ["isolate", "reboot", "check", "release"]
    await counted(stage, nodes=3, done=3)


async def test_a_repair_that_is_terminated_makes_room_for_the_next(
    open_stage: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflows.wave.LOOK_AGAIN", 0.5)
    stage = await opened(open_stage, nodes_out="1")
    await stage.start_worker()
    reboot = stage.gates.set("node/alpha/alpha1", "reboot_node", "before")
    await fail(stage, *names(1, 3))
    await reboot.wait()
    await stage.handle("node/alpha/alpha1").terminate()
    await counted(stage, done=3)
    assert (await stage.node("alpha1")).isolated_by_us


async def test_a_worker_that_is_killed_in_the_middle_of_a_wave_costs_nothing_but_time(open_stage: Opener) -> None:
    stage = await opened(open_stage, nodes=150, nodes_out="0")
    async with worker_process(stage) as pid:
        await stage.until(lambda: stage.runs("watch/alpha"), "the worker works")
        await fail(stage, *names(1, 150))
        await asyncio.to_thread(_first_isolation, stage)
        os.kill(pid, signal.SIGKILL)
    assert 0 < len(isolated(stage)) < 150
    await stage.start_worker()
    await counted(stage, nodes=150, isolated=150, requested=150)
    assert sorted(isolated(stage)) == sorted(names(1, 150))
    assert len({(await stage.node(node)).op for node in names(1, 150)}) == 150


def _first_isolation(stage: Stage) -> None:
    """Looks without a pause, for a batch takes less than a second."""
    deadline = time.monotonic() + 60
    while not isolated(stage):
        assert time.monotonic() < deadline, "no node was isolated"


@contextlib.asynccontextmanager
async def worker_process(stage: Stage) -> AsyncIterator[int]:
    """The product's worker as a process of its own, in the stage's namespace."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TEMPORAL_", "GPU_RUNBOOKS_"))}
    config = stage.client.service_client.config
    process = await asyncio.create_subprocess_exec(
        *(*RUNBOOK, "worker", "--fleet", str(stage.policy_file), "--state", str(stage.folder), "--cluster", "alpha"),
        cwd=REPOSITORY,
        env=kept | {"TEMPORAL_ADDRESS": config.target_host, "TEMPORAL_NAMESPACE": stage.client.namespace},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
