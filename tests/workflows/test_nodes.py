"""A node in trouble: its repair, what belongs to others on it, and how many may be out at once."""

import asyncio

import pytest

from clients.nodes import ordered_verdict
from fleet.faults.evidence import Evidence, Kind, Source
from fleet.model import NodeState, Phase
from fleet.people import Choice
from fleet.runbooks import HealInput, HealRequestNote, Runbook, Signal
from tests.workflows.conftest import Opener
from tests.workflows.stage import WIDE, Stage

XID_79 = "NVRM: Xid (PCI:0000:ab:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


async def test_what_a_check_says_decides_whether_a_node_returns(wide_stage: Stage) -> None:
    stage = wide_stage
    await asyncio.gather(_check_passes_at_last(stage, "alpha1"), _gpu_stays_dead(stage, "alpha2"))


async def _check_passes_at_last(stage: Stage, node: str) -> None:
    stage.faults.fail_check(node, "DIAG_MEMORY: 3 errors")
    await stage.heal(node, stage.faults.gpu_lost(node))
    question = await stage.question(f"node/alpha/{node}")
    assert "DIAG_MEMORY" in question.why
    assert (await stage.node(node)).isolated_by_us
    stage.faults.pass_check(node)
    await stage.answer(question, Choice.RETRY)
    assert "back at work" in await stage.result(f"node/alpha/{node}")
    assert stage.ops(target=node) == ["isolate", "reboot", "check", "check", "release"]


async def _gpu_stays_dead(stage: Stage, node: str) -> None:
    await stage.heal(node, stage.faults.gpu_dead(node))
    question = await stage.question(f"node/alpha/{node}")
    assert "7 of 8 GPUs" in question.why
    await stage.answer(question, Choice.TAKE_OVER)
    result = await stage.result(f"node/alpha/{node}")
    assert "left to grace" in result
    assert f"`runbook release alpha/{node}`" in result
    assert (await stage.node(node)).isolated_by_us
    assert "release" not in stage.ops(target=node)


async def test_somebody_elses_drain_is_asked_about_and_stays_theirs(wide_stage: Stage) -> None:
    stage = wide_stage
    for node in ("alpha1", "alpha2", "alpha3"):
        stage.faults.gpu_lost(node)
        stage.faults.person_drain(node, "bob: swapping the riser")
    stage.faults.person_undrain("alpha3")
    stage.faults.health_drain("alpha3", "XID 79 on GPU 3")
    await stage.heal("alpha1", XID_79)
    await stage.heal("alpha2", XID_79)
    denied, approved, checked = [await stage.question(f"node/alpha/alpha{n}") for n in (1, 2, 3)]
    assert "riser" in denied.why
    assert "XID 79" in checked.why
    for question, choice in ((denied, Choice.DENY), (approved, Choice.APPROVE), (checked, Choice.DENY)):
        await stage.answer(question, choice)
    assert "left alone" in await stage.result("node/alpha/alpha1")
    assert "it stays drained by its owner" in await stage.result("node/alpha/alpha2")
    assert "left alone" in await stage.result("node/alpha/alpha3")
    for node in ("alpha1", "alpha2"):
        facts = await stage.node(node)
        assert (facts.foreign_drain, facts.reason) == (True, "bob: swapping the riser")
    assert (await stage.node("alpha3")).reason == "healthcheck: XID 79 on GPU 3"
    assert stage.ops(target="alpha1") == stage.ops(target="alpha3") == []
    assert "release" not in stage.ops(target="alpha2")
    assert (await stage.node("alpha2")).gpus == 8


async def test_a_health_checks_drain_moves_the_job_and_stays_the_checks(stage: Stage) -> None:
    native_id = await stage.supervise()
    sick = (await stage.nodes_of())[0]
    stage.faults.health_drain(sick, "XID 79 on GPU 3")
    view = await stage.trains_again("train", native_id, 2)
    assert view.ledger
    assert view.ledger.attempts[0].verdict
    assert view.ledger.attempts[0].verdict.rule == "xid:79"
    assert sick not in await stage.nodes_of()
    facts = await stage.node(sick)
    assert (facts.foreign_drain, facts.reason) == (True, "healthcheck: XID 79 on GPU 3")
    assert "drained by somebody else" in (await stage.question(f"node/alpha/{sick}")).plan.title


async def test_a_persons_drain_moves_no_job_and_wakes_nobody(stage: Stage) -> None:
    """A drain is gentle: what runs there goes on, and the node is its owner's."""
    native_id = await stage.supervise()
    node = (await stage.nodes_of())[0]
    stage.faults.person_drain(node, "bob: fan swap after the run")
    await stage.until(lambda: _told(stage, "watch/alpha", f"{node}: "), "the drain is judged")
    await stage.stays(lambda: len(stage.attempts(native_id)) == 1, "the job runs on")
    assert stage.ops(target=native_id) == ["attempt", "adopt"]
    assert stage.ops(target=node) == []
    assert not await stage.runs(f"node/alpha/{node}")
    assert (await stage.node(node)).foreign_drain


async def test_a_node_that_an_earlier_runbook_left_isolated_is_left_alone_until_it_is_given_back(
    stage: Stage,
) -> None:
    gate = stage.gates.set("node/alpha/alpha1", "reboot_node", "before")
    line = stage.faults.gpu_lost("alpha1")
    await stage.heal("alpha1", line)
    await gate.wait()
    await stage.handle("node/alpha/alpha1").cancel()
    gate.open()
    await stage.ended("node/alpha/alpha1")
    done = stage.ops(target="alpha1")
    await stage.heal("alpha1", line)
    assert "`runbook release alpha/alpha1` gives it back" in await stage.result("node/alpha/alpha1")
    assert stage.ops(target="alpha1") == done
    waiting = HealInput(cluster="alpha", node="alpha1", request=HealRequestNote(fence_for="late", by="job/late"))
    await stage.client.start_workflow(Runbook.HEAL, waiting, id="node/alpha/alpha1", task_queue="runbooks")
    question = await stage.question("node/alpha/alpha1")
    assert "late waits for its fence" in question.plan.title
    await stage.alpha.give_back_all()
    await stage.answer(question, Choice.RETRY)
    assert "back at work" in await stage.result("node/alpha/alpha1")


async def test_a_persons_order_takes_up_the_repair_that_an_earlier_runbook_left(stage: Stage) -> None:
    gate = stage.gates.set("node/alpha/alpha1", "evacuate_node", "before")
    await stage.heal("alpha1", stage.faults.gpu_lost("alpha1"))
    await gate.wait()
    await stage.handle("node/alpha/alpha1").cancel()
    gate.open()
    await stage.ended("node/alpha/alpha1")
    mark = (await stage.node("alpha1")).op
    order = HealRequestNote(verdict=ordered_verdict("alpha1", "ada", "go on"), by="ada")
    again = HealInput(cluster="alpha", node="alpha1", request=order)
    await stage.client.start_workflow(Runbook.HEAL, again, id="node/alpha/alpha1", task_queue="runbooks")
    assert "back at work" in await stage.result("node/alpha/alpha1")
    view = await stage.view("node/alpha/alpha1")
    assert any(f"isolated before with mark gpu-runbooks:{mark}" in line for line in view.story)
    assert stage.ops(target="alpha1") == ["isolate", "reboot", "check", "release"]
    facts = await stage.node("alpha1")
    assert (facts.op, facts.drained) == (None, False)


async def test_other_peoples_work_is_waited_for_and_never_stopped(wide_stage: Stage) -> None:
    stage = wide_stage
    stage.write_policy(limits={"drain_deadline": "1s", "nodes_out": "40", "nodes_out_percent": '"100%"'})
    ids = [stage.faults.person_submit(stage.spec(f"other{n}", tokens="-", nodes=1)) for n in range(2)]
    nodes = [(await stage.native(i)).nodes[0] for i in ids]
    for node in nodes:
        await stage.heal(node, stage.faults.gpu_lost(node))
    waited, taken = [await stage.question(f"node/alpha/{node}") for node in nodes]
    assert "not ours to stop" in waited.why
    stage.write_policy(limits=WIDE)
    await stage.answer(waited, Choice.RETRY)
    page = await stage.at_step(f"node/alpha/{nodes[0]}", "evacuate")
    assert "a person is asked at" in page.waits_for
    await stage.answer(taken, Choice.TAKE_OVER)
    assert "taken over by grace" in await stage.result(f"node/alpha/{nodes[1]}")
    assert (await stage.native(ids[1])).phase is Phase.RUNNING
    stage.faults.person_cancel(ids[0])
    assert "back at work" in await stage.result(f"node/alpha/{nodes[0]}")
    assert "stop" not in stage.ops()


async def test_a_dead_node_is_not_powered_off_under_other_peoples_work_unasked(open_stage: Opener) -> None:
    stage = await open_stage(node_down_after=600)
    await stage.start_worker()
    other = stage.faults.person_submit(stage.spec("other", tokens="-", nodes=1))
    node = (await stage.native(other)).nodes[0]
    stage.faults.crash_node(node)
    await stage.heal(node, XID_79)
    question = await stage.question(f"node/alpha/{node}")
    assert "under work that is not ours" in question.plan.title
    await stage.answer(question, Choice.DENY)
    assert "are not ours" in await stage.result(f"node/alpha/{node}")
    assert stage.faults.power_status(node) == "on"


async def test_two_nodes_that_crash_at_once_are_out_one_after_the_other(stage: Stage) -> None:
    native_id = await stage.supervise()
    nodes = await stage.nodes_of()
    for node in nodes:
        stage.faults.crash_node(node)
    await stage.trains_again("train", native_id, 2)
    assert not set(nodes) & set(await stage.nodes_of())
    for node in nodes:
        assert "back at work" in await stage.result(f"node/alpha/{node}")
    turns = [(e.op, e.target) for e in stage.faults.effects() if e.op in {"isolate", "release"}]
    first, second = turns[0][1], turns[2][1]
    assert turns == [("isolate", first), ("release", first), ("isolate", second), ("release", second)]
    assert stage.faults.most_attempts_alive(native_id) == 1
    assert (await stage.view("guard/alpha")).leases == ()


async def test_the_lease_of_a_terminated_runbook_is_freed_for_the_next_node(stage: Stage) -> None:
    other = stage.faults.person_submit(stage.spec("other", tokens="-", nodes=1))
    busy = (await stage.native(other)).nodes[0]
    await stage.heal(busy, stage.faults.gpu_lost(busy))
    await stage.at_step(f"node/alpha/{busy}", "evacuate")
    await stage.heal("alpha3", stage.faults.gpu_lost("alpha3"))
    await stage.at_step("node/alpha/alpha3", "lease")
    await stage.stays(lambda: not stage.ops(target="alpha3"), "it waits for the lease")
    assert "1 of at most 1" in "".join((await stage.view("node/alpha/alpha3")).story)
    await stage.handle(f"node/alpha/{busy}").terminate()
    assert "back at work" in await stage.result("node/alpha/alpha3")
    assert stage.ops(target="alpha3") == ["isolate", "reboot", "check", "release"]
    assert (await stage.node(busy)).isolated_by_us


async def test_a_node_that_somebody_else_boots_meanwhile_is_checked_and_not_rebooted_again(stage: Stage) -> None:
    """S07, as far as a simulated node has an identity: a boot that is not ours supersedes our rung."""
    other = stage.faults.person_submit(stage.spec("other", tokens="-", nodes=1))
    node = (await stage.native(other)).nodes[0]
    await stage.heal(node, stage.faults.gpu_lost(node))
    await stage.at_step(f"node/alpha/{node}", "evacuate")
    await _boot_by_somebody_else(stage, node)
    assert "back at work" in await stage.result(f"node/alpha/{node}")
    assert stage.ops(target=node) == ["isolate", "power_on", "check", "release"]
    assert any("superseded" in line for line in (await stage.view(f"node/alpha/{node}")).story)


async def test_the_boot_that_returns_is_the_boot_that_was_checked(stage: Stage) -> None:
    gate = stage.gates.set("node/alpha/alpha1", "check_node", "after")
    await stage.heal("alpha1", stage.faults.gpu_lost("alpha1"))
    await gate.wait()
    stage.faults.jump(5)  # a boot counts as another one only when it is clearly newer
    await _boot_by_somebody_else(stage, "alpha1")
    gate.open()
    assert "back at work" in await stage.result("node/alpha/alpha1")
    assert stage.ops(target="alpha1") == ["isolate", "reboot", "check", "power_on", "check", "release"]


async def _boot_by_somebody_else(stage: Stage, node: str) -> None:
    boot = stage.faults.boot(node)
    stage.faults.crash_node(node)
    await stage.alpha.power_on(node, "aaaaaaa")
    await stage.until(lambda: stage.faults.boot(node) != boot, f"{node} booted")


async def test_evidence_about_a_node_that_does_not_exist_holds_up_no_other(stage: Stage) -> None:
    def about(node: str) -> Evidence:
        return Evidence(
            source=Source.KERNEL, kind=Kind.XID, code="79", cluster="alpha", node=node, seen_at=0, raw_hash=node
        )

    await stage.tell(about("aaa-typo"), about("alpha1"))
    assert "back at work" in await stage.result("node/alpha/alpha1")
    story = (await stage.view("watch/alpha")).story
    assert any("aaa-typo" in line and "dropped" in line for line in story)
    assert not await stage.runs("node/alpha/aaa-typo")


async def test_an_undated_line_counts_once_per_boot(stage: Stage) -> None:
    """Typed in again it is the same thing, until the node was booted: then its GPU is lost anew."""
    line = stage.faults.gpu_lost("alpha1")
    gate = stage.gates.set("node/alpha/alpha1", "reboot_node", "before")
    await stage.report("alpha1", line)
    await gate.wait()
    await stage.report("alpha1", line)
    await stage.until(lambda: _told(stage, "watch/alpha", "known already"), "the second one is looked at")
    gate.open()
    assert "back at work" in await stage.result("node/alpha/alpha1")
    assert (await stage.view("watch/alpha")).result == "1 pieces of evidence routed"
    stage.faults.jump(5)  # a boot counts as another one only when it is clearly newer
    stage.faults.gpu_lost("alpha1")
    await stage.report("alpha1", line)
    await stage.until(lambda: stage.ops(target="alpha1").count("release") == 2, "repaired again")
    assert stage.ops(target="alpha1") == ["isolate", "reboot", "check", "release"] * 2


async def test_evidence_of_an_earlier_boot_repairs_nothing(stage: Stage) -> None:
    old = stage.parsed("alpha1", XID_79)[0].model_copy(update={"boot": "alpha1#0"})
    await stage.heal("alpha1", evidence=(old,))
    assert "nothing to repair" in await stage.result("node/alpha/alpha1")
    assert stage.ops() == []


async def test_a_fence_that_is_asked_for_after_the_node_was_proven_gets_the_same_receipt(stage: Stage) -> None:
    """A second job asks while the node is being checked: it is served at once, and nothing is powered again."""
    native_id = await stage.supervise(spec=stage.spec(signal=False))
    sick = (await stage.nodes_of())[0]
    check = stage.gates.set(f"node/alpha/{sick}", "check_node", "before")
    stage.faults.crash_node(sick)
    await stage.trains_again("train", native_id, 2)
    await check.wait()
    await stage.handle(f"node/alpha/{sick}").signal(Signal.REQUEST, HealRequestNote(fence_for="late", by="job/late"))
    await stage.until(lambda: _told(stage, f"node/alpha/{sick}", "gave late its receipt"), "late is served")
    check.open()
    assert "back at work" in await stage.result(f"node/alpha/{sick}")
    assert stage.ops(target=sick).count("power_off") == 1


async def test_a_fence_that_is_not_needed_any_more_leaves_its_node_in_service(open_stage: Opener) -> None:
    """Its daemon was away while the job left, and proved the ranks gone before the node's turn came."""
    stage, native_id, well = await waits_for_a_fence(open_stage)
    stage.faults.start_daemon(well)
    await stage.trains_again("train", native_id, 2)
    assert "nothing to repair" in await stage.result(f"node/alpha/{well}")
    await untouched(stage, well)


async def test_the_fence_of_a_cancelled_recovery_leaves_its_node_in_service(open_stage: Opener) -> None:
    stage, _, well = await waits_for_a_fence(open_stage)
    await stage.handle("job/train").cancel()
    assert "nothing to repair" in await stage.result(f"node/alpha/{well}")
    await untouched(stage, well)


async def waits_for_a_fence(open_stage: Opener) -> tuple[Stage, str, str]:
    """A job leaves two nodes: one is sick, the other's daemon is away. Both wait for the lease, which a third has."""
    stage = await open_stage(nodes=5, node_down_after=600)
    await stage.start_worker()
    busy = (await stage.native(stage.faults.person_submit(stage.spec("other", tokens="-", nodes=1)))).nodes[0]
    await stage.heal(busy, stage.faults.gpu_lost(busy))
    await stage.at_step(f"node/alpha/{busy}", "evacuate")
    native_id = await stage.supervise(spec=stage.spec(signal=False))
    sick, well = await stage.nodes_of()
    proof = stage.gates.set("job/train/failover/2", "prove_stopped", "before")
    await stage.lose_gpu(sick)
    await proof.wait()
    stage.faults.kill_daemon(well)
    proof.open()
    await stage.at_step(f"node/alpha/{well}", "lease")
    return stage, native_id, well


async def untouched(stage: Stage, node: str) -> None:
    assert stage.ops(target=node) == []
    assert not (await stage.node(node)).drained


async def _told(stage: Stage, workflow_id: str, words: str) -> bool:
    return any(words in line for line in (await stage.view(workflow_id)).story)


@pytest.mark.parametrize("step", ["isolate", "reboot", "check", "return"])
async def test_a_step_happens_only_as_its_mode_says(wide_stage: Stage, step: str) -> None:
    """observe: never; propose: after a yes; denied: never, and what is left is said."""
    stage = wide_stage
    limits = {"nodes_out": "40", "nodes_out_percent": '"100%"'}
    op = {"return": "release"}.get(step, step)
    stage.write_policy(modes={step: "observe"}, limits=limits)
    await stage.heal("alpha1", stage.faults.gpu_lost("alpha1"))
    assert f"{'isolation' if step == 'isolate' else step} not allowed" in await stage.result("node/alpha/alpha1")
    stage.write_policy(modes={step: "propose"}, limits=limits)
    for node in ("alpha2", "alpha3"):
        await stage.heal(node, stage.faults.gpu_lost(node))
    no, yes = [await stage.question(f"node/alpha/{node}") for node in ("alpha2", "alpha3")]
    assert op not in stage.ops()
    await stage.answer(no, Choice.DENY)
    await stage.answer(yes, Choice.APPROVE)
    assert "not allowed" in await stage.result("node/alpha/alpha2")
    assert "back at work" in await stage.result("node/alpha/alpha3")
    assert [e.target for e in stage.faults.effects(op)] == ["alpha3"]
    for node in ("alpha1", "alpha2"):
        facts = await stage.node(node)
        assert facts.isolated_by_us is (step != "isolate")
        assert facts.state is (NodeState.UP if step == "isolate" else NodeState.DRAINED)
