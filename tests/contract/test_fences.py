"""No receipt, no next attempt: what counts as a proof that the old ranks are gone, and what does not."""

from fleet.model import NodeState, Phase, ReceiptGrade
from fleet.orders import StopProof
from tests.contract.rig import Rig, eventually
from tests.contract.steps import (
    OP,
    START,
    adopted,
    lost_by_scheduler,
    node_state,
    phase,
    power,
    progress,
    query,
    ranks,
    rebooted,
    started,
    stopped,
)


def grades(proof: StopProof) -> dict[str, ReceiptGrade]:
    return {receipt.node: receipt.grade for receipt in proof.receipts}


async def test_a_running_attempt_is_never_proven_stopped(rig: Rig) -> None:
    _, job = await adopted(rig)
    proof = await rig.backend.prove_stopped(await query(rig, job, ordered=True, since=rig.now() - 1000))
    assert proof.receipts == ()
    assert set(proof.unproven) == set(job.nodes)


async def test_an_ordered_stop_is_proven_by_the_daemons(rig: Rig) -> None:
    _, job = await adopted(rig)
    asked = await query(rig, job, ordered=True)
    await stopped(rig, job.native_id)
    proof = await eventually(
        rig, lambda: rig.backend.prove_stopped(asked), lambda p: not p.unproven, START, "proven on every node"
    )
    assert grades(proof) == dict.fromkeys(job.nodes, ReceiptGrade.DAEMON_GONE)
    assert await rig.ranks_alive(job.native_id) == 0


async def test_a_silent_daemon_proves_nothing_even_when_the_rank_is_gone(rig: Rig) -> None:
    _, job = await adopted(rig)
    asked = await query(rig, job, ordered=True, since=rig.now() - 1000)
    await stopped(rig, job.native_id)
    silent = job.nodes[0]
    await rig.kill_daemon(silent)
    down_after = (await rig.backend.probe()).node_down_after
    await node_state(rig, silent, lambda n: not n.responding, down_after + 15)
    proof = await rig.backend.prove_stopped(asked)
    assert silent in proof.unproven
    assert grades(proof) == {job.nodes[1]: ReceiptGrade.DAEMON_GONE}


async def test_an_end_that_nobody_ordered_is_proven_only_after_it_settled(rig: Rig) -> None:
    _, job = await adopted(rig)
    asked = await query(rig, job, ordered=False)
    await stopped(rig, job.native_id)
    early = asked.model_copy(update={"since": rig.now() + 1000})
    assert set((await rig.backend.prove_stopped(early)).unproven) == set(job.nodes)
    settled = asked.model_copy(update={"since": rig.now() - 60})
    proof = await eventually(rig, lambda: rig.backend.prove_stopped(settled), lambda p: not p.unproven, START)
    assert grades(proof) == dict.fromkeys(job.nodes, ReceiptGrade.DAEMON_GONE)


async def test_a_killed_daemon_under_a_writing_rank_proves_nothing_and_starts_nothing(rig: Rig) -> None:
    """The split brain: the scheduler gives the node up and requeues, the old rank lives."""
    _, job = await adopted(rig)
    asked = await query(rig, job, ordered=False, since=rig.now() - 1000)
    lost = job.nodes[0]
    await rig.kill_daemon(lost)
    waiting = await lost_by_scheduler(rig, job)
    assert waiting.held
    assert waiting.restarts == 1
    assert (await node_state(rig, lost, lambda n: n.state is NodeState.DOWN)).responding is False
    await ranks(rig, job.native_id, 1)
    proof = await rig.backend.prove_stopped(asked)
    assert lost in proof.unproven
    assert lost not in grades(proof)
    assert (await rig.backend.job(job.native_id)).phase is Phase.PENDING


async def test_power_off_kills_the_old_rank_and_proves_it(rig: Rig) -> None:
    _, job = await adopted(rig)
    asked = await query(rig, job, ordered=False, since=rig.now() - 1000)
    lost = job.nodes[0]
    await rig.kill_daemon(lost)
    await lost_by_scheduler(rig, job)
    await rig.backend.isolate(lost, OP, "lost")
    receipt = await power(rig).power_off(lost, OP)
    assert receipt.grade is ReceiptGrade.POWER_OFF
    await ranks(rig, job.native_id, 0)
    proof = await rig.backend.prove_stopped(asked)
    assert grades(proof)[lost] is ReceiptGrade.POWER_OFF
    assert (await power(rig).power_off(lost, OP)).grade is ReceiptGrade.POWER_OFF


async def test_power_on_gives_a_newer_boot_that_proves_the_old_attempt_gone(rig: Rig) -> None:
    _, job = await adopted(rig)
    asked = await query(rig, job, ordered=True)
    await stopped(rig, job.native_id)
    node = job.nodes[0]
    await rig.backend.isolate(node, OP, "power cycle")
    await power(rig).power_off(node, OP)
    await power(rig).power_on(node, OP)
    await node_state(rig, node, lambda n: n.boot != asked.boots[node] and n.responding, 60)
    assert grades(await rig.backend.prove_stopped(asked))[node] is ReceiptGrade.BOOT_CHANGED


async def test_a_reboot_proves_the_old_attempt_gone(rig: Rig) -> None:
    _, job = await adopted(rig)
    asked = await query(rig, job, ordered=False, since=rig.now() + 1000)
    await stopped(rig, job.native_id)
    node = job.nodes[0]
    await rig.backend.isolate(node, OP, "sick")
    await rebooted(rig, node)
    proof = await rig.backend.prove_stopped(asked)
    assert grades(proof)[node] is ReceiptGrade.BOOT_CHANGED
    assert job.nodes[1] in proof.unproven


async def test_a_frozen_node_proves_nothing_until_it_is_back_and_its_daemon_cleared_it(rig: Rig) -> None:
    _, job = await adopted(rig)
    asked = await query(rig, job, ordered=False, since=rig.now() - 1000)
    lost = job.nodes[0]
    await rig.freeze_node(lost)
    await lost_by_scheduler(rig, job)
    assert lost in (await rig.backend.prove_stopped(asked)).unproven
    assert await rig.ranks_alive(job.native_id) == 1
    await rig.backend.isolate(lost, OP, "hung")
    await rig.thaw_node(lost)
    proof = await eventually(rig, lambda: rig.backend.prove_stopped(asked), lambda p: lost not in p.unproven, 60)
    assert lost in grades(proof)
    assert await rig.ranks_alive(job.native_id) == 0


async def test_a_daemon_that_was_away_for_a_moment_disturbs_nothing(rig: Rig) -> None:
    _, job = await started(rig)
    await rig.kill_daemon(job.nodes[0])
    await rig.start_daemon(job.nodes[0])
    await node_state(rig, job.nodes[0], lambda n: n.responding)
    seen = (await rig.backend.progress(job.native_id, 0)).step or 0
    await progress(rig, job.native_id, 0, lambda p: (p.step or 0) > seen)
    assert (await phase(rig, job.native_id, Phase.RUNNING)).restarts == 0
    await ranks(rig, job.native_id, 2)
