"""Isolating, rebooting, checking and releasing nodes; whose mark is whose."""

import pytest

from fleet.errors import NotFoundError, RefusedError
from fleet.evacuation import EvacuationOrder, EvacuationState
from fleet.identity import op_of_reason
from fleet.model import NodeState, Phase
from tests.contract.rig import Rig, eventually
from tests.contract.steps import (
    OP,
    OTHER_OP,
    adopted,
    boots,
    free,
    node_state,
    progress,
    ranks,
    rebooted,
    started,
    stopped,
)


async def a_node(rig: Rig) -> str:
    return (await rig.backend.capacity()).free_nodes[0]


async def test_every_node_is_seen_with_its_boot_and_its_gpus(rig: Rig) -> None:
    nodes = await rig.backend.nodes(max_age=0)
    assert len(nodes) >= 6
    for facts in nodes:
        assert facts.state is NodeState.UP
        assert facts.responding
        assert facts.boot
        assert (facts.gpus, facts.gpus_expected) == (8, 8)
        assert not facts.drained
    capacity = await rig.backend.capacity()
    assert capacity.total_nodes == len(nodes)
    assert set(capacity.free_nodes) == {facts.node for facts in nodes}


async def test_an_unknown_node_is_not_found_and_nothing_is_written(rig: Rig) -> None:
    before = await rig.backend.nodes(max_age=0)
    for call in (
        rig.backend.node("nosuchnode"),
        rig.backend.isolate("nosuchnode", OP, "x"),
        rig.backend.reboot("nosuchnode", OP),
        rig.backend.release("nosuchnode", OP),
        rig.backend.holders("nosuchnode"),
    ):
        with pytest.raises(NotFoundError):
            await call
    after = await rig.backend.nodes(max_age=0)
    assert [n.model_copy(update={"read_at": 0}) for n in after] == [
        n.model_copy(update={"read_at": 0}) for n in before
    ]


async def test_isolation_carries_the_op_and_leaves_running_work_alone(rig: Rig) -> None:
    _, job = await started(rig)
    node = job.nodes[0]
    facts = await rig.backend.isolate(node, OP, 'XID 79 "fell off" the bus = gone, é')
    assert facts.drained
    assert facts.op == OP
    assert op_of_reason(facts.reason) == OP
    assert facts.state is NodeState.DRAINING
    assert job.native_id in facts.jobs
    seen = (await rig.backend.progress(job.native_id, 0)).step or 0
    await progress(rig, job.native_id, 0, lambda p: (p.step or 0) > seen)
    await ranks(rig, job.native_id, 2)
    assert not await free(rig, node)


async def test_an_evacuation_of_the_rest_leaves_supervised_jobs_to_their_runbooks(rig: Rig) -> None:
    _, job = await started(rig)
    node = job.nodes[0]
    await rig.backend.isolate(node, OP, "sick")
    assert await rig.backend.evacuate(node, EvacuationOrder(op=OP, evict=True, others=True)) == EvacuationState()
    seen = (await rig.backend.progress(job.native_id, 0)).step or 0
    await progress(rig, job.native_id, 0, lambda p: (p.step or 0) > seen)
    await ranks(rig, job.native_id, 2)
    assert await rig.backend.evacuate(await a_node(rig), EvacuationOrder(op=OP, evict=True)) == EvacuationState()


async def test_an_isolated_idle_node_is_drained_and_isolating_twice_is_once(rig: Rig) -> None:
    node = await a_node(rig)
    first = await rig.backend.isolate(node, OP, "sick")
    second = await rig.backend.isolate(node, OP, "sick again")
    assert first.state is NodeState.DRAINED
    assert second.op == OP
    assert second.isolated_by_us
    assert not await free(rig, node)


async def test_a_foreign_drain_is_left_as_it_is(rig: Rig) -> None:
    node = await a_node(rig)
    await rig.person_drain(node, "maintenance by ops")
    facts = await rig.backend.isolate(node, OP, "sick")
    assert facts.foreign_drain
    assert "maintenance by ops" in facts.reason
    with pytest.raises(RefusedError):
        await rig.backend.release(node, OP)
    after = await rig.backend.node(node)
    assert after.drained
    assert "maintenance by ops" in after.reason


async def go(done: int) -> None:
    """Lets every write of a bulk call pass."""


async def test_many_nodes_are_isolated_each_with_its_own_mark_and_twice_is_once(rig: Rig) -> None:
    _, job = await started(rig)
    idle = [await a_node(rig)]
    ops = {job.nodes[0]: OP, idle[0]: OTHER_OP}
    first = await rig.backend.isolate_many(ops, "XID 79: many at once", go)
    assert (set(first.marked), dict(first.left)) == (set(ops), {})
    asked: list[int] = []

    async def count(done: int) -> None:
        asked.append(done)

    again = await rig.backend.isolate_many(ops, "again", count)
    assert set(again.marked) == set(ops)
    for node, op in ops.items():
        facts = await rig.backend.node(node)
        assert (facts.drained, facts.op) == (True, op)
        assert "many at once" in facts.reason
        assert not await free(rig, node)
    await ranks(rig, job.native_id, 2)


async def test_what_is_not_ours_among_many_is_left_and_holds_up_no_other(rig: Rig) -> None:
    drained, theirs, ours = (await rig.backend.capacity()).free_nodes[:3]
    await rig.person_drain(drained, "maintenance by ops")
    await rig.backend.isolate(theirs, OTHER_OP, "theirs")
    ops = dict.fromkeys((drained, theirs, "nosuchnode", ours), OP)
    found = await rig.backend.isolate_many(ops, "sick", go)
    assert found.marked == (ours,)
    assert set(found.left) == {drained, theirs, "nosuchnode"}
    assert "maintenance by ops" in found.left[drained]
    assert OTHER_OP in found.left[theirs]
    facts = {node: await rig.backend.node(node) for node in (drained, theirs, ours)}
    assert (facts[drained].foreign_drain, facts[theirs].op, facts[ours].op) == (True, OTHER_OP, OP)


async def test_a_bulk_isolation_that_is_stopped_ends_before_its_next_write(rig: Rig) -> None:
    nodes = (await rig.backend.capacity()).free_nodes[:3]

    async def stop_at_once(done: int) -> None:
        raise RefusedError("frozen")

    with pytest.raises(RefusedError, match="frozen"):
        await rig.backend.isolate_many(dict.fromkeys(nodes, OP), "sick", stop_at_once)
    assert [n.node for n in await rig.backend.nodes(max_age=0) if n.drained] == []


async def test_the_mark_of_another_runbook_is_not_released(rig: Rig) -> None:
    node = await a_node(rig)
    await rig.backend.isolate(node, OTHER_OP, "theirs")
    with pytest.raises(RefusedError):
        await rig.backend.release(node, OP)
    assert (await rig.backend.node(node)).op == OTHER_OP


async def test_release_brings_the_node_back_to_work_and_twice_is_once(rig: Rig) -> None:
    node = await a_node(rig)
    await rig.backend.isolate(node, OP, "sick")
    await rig.backend.release(node, OP)
    await node_state(rig, node, lambda n: n.state is NodeState.UP and not n.drained and n.op is None)
    await eventually(rig, lambda: free(rig, node), bool, 30, "free again")
    again = await rig.backend.release(node, OP)
    assert not again.drained


async def test_a_reboot_gives_a_newer_boot_and_leaves_the_node_isolated(rig: Rig) -> None:
    node = await a_node(rig)
    await rig.backend.isolate(node, OP, "sick")
    others = await boots(rig, tuple(n.node for n in await rig.backend.nodes() if n.node != node))
    facts = await rebooted(rig, node)
    assert facts.op == OP
    assert facts.state is not NodeState.UP
    assert not await free(rig, node)
    assert await boots(rig, tuple(others)) == others


async def test_a_reboot_asked_twice_is_one_reboot(rig: Rig) -> None:
    node = await a_node(rig)
    await rig.backend.isolate(node, OP, "sick")
    before = (await rig.backend.node(node)).boot
    await rig.backend.reboot(node, OP)
    await rig.backend.reboot(node, OP)
    timeout = (await rig.backend.probe()).reboot_timeout
    first = await node_state(rig, node, lambda n: n.boot != before and n.responding, timeout)
    ready = await node_state(rig, node, lambda n: n.state is not NodeState.REBOOTING, 30)
    assert ready.boot == first.boot


async def test_a_reboot_of_a_node_whose_daemon_is_dead_is_refused(rig: Rig) -> None:
    node = await a_node(rig)
    await rig.backend.isolate(node, OP, "sick")
    await rig.kill_daemon(node)
    down_after = (await rig.backend.probe()).node_down_after
    before = await node_state(rig, node, lambda n: not n.responding, down_after + 15)
    with pytest.raises(RefusedError):
        await rig.backend.reboot(node, OP)
    assert (await rig.backend.node(node)).boot == before.boot


async def test_a_passed_check_leaves_the_node_isolated_until_it_is_released(rig: Rig) -> None:
    node = await a_node(rig)
    await rig.backend.isolate(node, OP, "sick")
    await rebooted(rig, node)
    result = await rig.backend.run_check(node, OP, "quick")
    assert (result.node, result.ran, result.passed) == (node, True, True)
    assert result.gpus == 8
    facts = await rig.backend.node(node)
    assert facts.op == OP
    assert facts.state is not NodeState.UP
    assert not await free(rig, node)
    await rig.backend.release(node, OP)
    await eventually(rig, lambda: free(rig, node), bool, 30, "free again")
    assert (await rig.backend.node(node)).reserved_by is None


async def test_a_failed_check_says_so_and_leaves_the_node_isolated(rig: Rig) -> None:
    node = await a_node(rig)
    await rig.backend.isolate(node, OP, "sick")
    await rig.fail_check(node, "gpu 3: 41 remapped rows")
    result = await rig.backend.run_check(node, OP, "quick")
    assert result.ran
    assert not result.passed
    assert "remapped rows" in result.detail
    facts = await rig.backend.node(node)
    assert facts.op == OP
    assert not await free(rig, node)


async def test_no_other_work_lands_on_a_node_under_check(rig: Rig) -> None:
    node = await a_node(rig)
    await rig.backend.isolate(node, OP, "sick")
    total = len(await rig.backend.nodes())
    hungry = await rig.backend.submit(rig.training_spec("hungry", nodes=total))
    await rig.backend.run_check(node, OP, "quick")
    waiting = await rig.backend.job(hungry.native_id)
    assert waiting.phase is Phase.PENDING
    assert node not in waiting.nodes
    if rig.batch_scheduler:
        assert await rig.ranks_alive(hungry.native_id) == 0


async def test_holders_are_the_jobs_on_the_node(rig: Rig) -> None:
    _, job = await started(rig)
    assert [j.native_id for j in await rig.backend.holders(job.nodes[0])] == [job.native_id]
    empty = await a_node(rig)
    assert await rig.backend.holders(empty) == ()


async def test_giving_back_all_returns_every_mark_of_ours_and_nothing_else(rig: Rig) -> None:
    _, job = await adopted(rig)
    _, stopped_job = await adopted(rig, "second")
    await stopped(rig, stopped_job.native_id)
    owners = await rig.backend.submit(rig.training_spec("owners", nodes=6))
    await rig.person_hold(owners.native_id)
    two = await eventually(rig, rig.backend.capacity, lambda c: len(c.free_nodes) >= 2, 30, "two free nodes")
    ours, theirs = two.free_nodes[:2]
    await rig.backend.isolate(ours, OP, "sick")
    await rig.person_drain(theirs, "maintenance by ops")
    lines = await rig.backend.give_back_all()
    assert len(lines) >= 3
    assert any(ours in line for line in lines)
    assert not any(theirs in line for line in lines)
    assert not (await rig.backend.job(job.native_id)).held
    assert not (await rig.backend.job(stopped_job.native_id)).held
    assert (await rig.backend.job(owners.native_id)).held
    await node_state(rig, ours, lambda n: not n.drained and n.state is NodeState.UP)
    assert (await rig.backend.node(theirs)).foreign_drain
    assert await rig.backend.give_back_all() == ()
