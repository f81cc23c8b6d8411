"""An old rank lives on unseen by Slurm: no second attempt starts before a receipt, and a late writer loses."""

import asyncio

import pytest

from fleet.model import Phase, ReceiptGrade
from fleet.people import Choice
from tests.runbooks_slurm.scenario import scenario
from tests.runbooks_slurm.stage import Stage
from tests.runbooks_slurm.training import complete_of, newest_checkpoint, resumed, saved
from tests.runbooks_slurm.watching import attempts_alive, watching

HELD = (Phase.PENDING, True, 1)
"""What Slurm's own requeue of an adopted job comes to."""


async def lost(stage: Stage, native_id: str) -> None:
    """Waits until Slurm has given the node up and put the job back into the queue."""

    async def there() -> bool:
        return (await stage.native(native_id)).restarts == 1

    await stage.until(there, "Slurm requeues by itself")


@scenario()
async def test_a_rank_that_writes_on_under_a_dead_slurmd_is_fenced_before_the_next_attempt(stage: Stage) -> None:
    native_id = await stage.train(nodes=1, every=2)
    (node,) = await stage.nodes_of("train")
    async with watching(stage.lab, native_id) as seen:
        await stage.fault("slurmd-kill", node)
        await lost(stage, native_id)
        assert await asyncio.to_thread(attempts_alive, native_id, stage.lab.settings.conf) == {0: 1}
        view = await stage.trains("train", 2)
    assert HELD in seen.states
    assert seen.never_two_at_once()
    first = view.ledger.attempts[0] if view.ledger else None
    assert first is not None
    assert first.receipt is not None
    assert first.receipt.grade() is ReceiptGrade.POWER_OFF
    assert seen.last[0] < first.receipt.nodes[0].at + 1
    assert seen.first[1] > first.receipt.nodes[0].at
    assert node not in await stage.nodes_of("train")
    lines = stage.output("train")
    assert resumed(lines, "0.1") == complete_of(stage.folder_of("train"), "0.0")[-1] >= saved(lines, "0.0")[-1]
    stage.hurry()
    assert "done" in await stage.result("job/train")
    assert await stage.result(f"node/alpha/{node}") == "repaired, checked and back at work"


@scenario(power=False)
async def test_without_a_power_hook_only_an_attestation_starts_it_and_a_late_writer_refuses(stage: Stage) -> None:
    native_id = await stage.train(nodes=1, every=2)
    (node,) = await stage.nodes_of("train")
    async with watching(stage.lab, native_id) as seen:
        await stage.fault("slurmd-kill", node)
        await attested_blindly(stage, native_id, node)
        assert set(seen.first) == {0}
        view = await stage.trains("train", 2)
        await stage.until(lambda: "0 0 75" in stage.ends("train"), "the late writer ends with 75")
    first = view.ledger.attempts[0] if view.ledger else None
    assert first is not None
    assert first.receipt is not None
    assert [(r.grade, r.detail) for r in first.receipt.nodes] == [(ReceiptGrade.ATTESTED, "attested by grace")]
    assert "the node stays isolated until a person repairs it" in await stage.result(f"node/alpha/{node}")
    await ends_whole(stage, late=resumed(stage.output("train"), "0.1"))
    assert newest_checkpoint(stage.folder_of("train")) == ("0.1", 1000)


@scenario(power=False)
async def test_a_writer_that_wakes_up_beside_the_next_attempt_spoils_no_checkpoint(
    stage: Stage,
) -> None:
    """Slurm's own stale messages may end the new attempt (same job, same step id); its checkpoint stays whole."""
    native_id = await stage.train(nodes=1, every=2)
    (node,) = await stage.nodes_of("train")
    await stage.fault("node-freeze", node)
    await attested_blindly(stage, native_id, node)
    await stage.trains("train", 2)
    written = complete_of(stage.folder_of("train"), "0.0")
    await stage.fault("node-thaw", node)

    async def gone() -> bool:
        return 0 not in await asyncio.to_thread(attempts_alive, native_id, stage.lab.settings.conf)

    await stage.until(gone, "the old rank is gone")
    assert complete_of(stage.folder_of("train"), "0.0") == written
    await ends_whole(stage, late=resumed(stage.output("train"), "0.1"))
    generation, step = newest_checkpoint(stage.folder_of("train"))
    assert (generation != "0.0", step) == (True, 1000)


async def attested_blindly(stage: Stage, native_id: str, node: str) -> None:
    """Nothing starts until a person says that the ranks are gone; this one lies, for the rank lives."""
    await lost(stage, native_id)
    question = await stage.question(f"node/alpha/{node}")
    assert set(question.options) == {Choice.ATTEST, Choice.TAKE_OVER}
    assert question.default is Choice.TAKE_OVER

    async def waits() -> bool:
        native = await stage.native(native_id)
        return (native.phase, native.held, native.restarts) == HELD

    await stage.stays(waits, "held, with nobody's word", 3)
    await stage.answer(question, Choice.ATTEST)


async def ends_whole(stage: Stage, late: int | None) -> None:
    """The job comes to its end, and the old attempt saved at most what was under way when the next one began."""
    assert late is not None
    stage.hurry()
    assert "done" in await stage.result("job/train")
    assert max(complete_of(stage.folder_of("train"), "0.0")) <= late + 2


@scenario(power=False)
async def test_a_node_that_thaws_proves_itself_and_needs_nobodys_word(stage: Stage) -> None:
    native_id = await stage.train(every=2)
    sick = (await stage.nodes_of("train"))[1]
    async with watching(stage.lab, native_id) as seen:
        await stage.fault("node-freeze", sick)
        await lost(stage, native_id)
        question = await stage.question(f"node/alpha/{sick}")
        await stage.fault("node-thaw", sick)
        view = await stage.trains("train", 2)
    assert seen.never_two_at_once()
    assert HELD in seen.states
    first = view.ledger.attempts[0] if view.ledger else None
    assert first is not None
    assert first.receipt is not None
    assert {r.grade for r in first.receipt.nodes} == {ReceiptGrade.DAEMON_GONE}
    receipt = max(r.at for r in first.receipt.nodes)
    assert seen.last[0] < receipt < seen.first[1]
    assert (await stage.node(sick)).drained, "it came back into no work"
    await stage.answer(question, Choice.TAKE_OVER)
    assert "left to grace" in await stage.result(f"node/alpha/{sick}")


@pytest.mark.parametrize("checked", [True, False])
@scenario()
async def test_doctor_says_of_a_job_whether_a_late_writer_could_spoil_its_checkpoint(
    stage: Stage, checked: bool
) -> None:
    await stage.train(nodes=1, checked=checked)
    told = await stage.cli("doctor", "train", "-o", "json")
    checks = {check["name"]: check for check in told.json["checks"]}
    assert checks["late writer"]["grade"] == ("ok" if checked else "warn")
    assert ("COULD SPOIL" in checks["late writer"]["text"]) is not checked
    assert checks["hold"]["grade"] == "ok"
