"""People act beside us, and jobs end when they like: nothing of theirs is overruled, nothing is revived."""

import re

import pytest

from fleet.model import Phase
from fleet.people import Choice
from fleet.runbooks import RecoveryEnd
from tests.clients.stage import XID_79
from tests.runbooks_slurm.disturbing import before
from tests.runbooks_slurm.scenario import scenario
from tests.runbooks_slurm.stage import Stage

REASON = "ada: a cable is loose"


@scenario()
async def test_a_job_that_ends_by_itself_during_its_failover_is_done_and_not_revived(stage: Stage) -> None:
    native_id = await stage.train()
    sick = (await stage.nodes_of("train"))[1]

    async def it_ends() -> None:
        stage.hurry()
        await stage.phase(native_id, Phase.SUCCEEDED)

    stage.disturb = before("scancel", it_ends)
    await stage.lose_gpu(sick)
    assert "done" in await stage.result("job/train")
    assert (await stage.view("job/train/failover/2")).step == RecoveryEnd.JOB_ENDED
    assert "back at work" in await stage.result(f"node/alpha/{sick}")
    assert_never_started_again(stage, native_id)
    native = await stage.native(native_id)
    assert (native.phase, native.restarts, native.exit_code) == (Phase.SUCCEEDED, 0, 0)


@pytest.mark.parametrize("moment", ["scancel --full", "ExcNodeList=", "scontrol release"])
@scenario()
async def test_a_persons_scancel_during_the_failover_is_the_jobs_end(stage: Stage, moment: str) -> None:
    native_id = await stage.train()
    sick = (await stage.nodes_of("train"))[1]

    async def a_person_cancels() -> None:
        await stage.lab.slurm("scancel", native_id)

    stage.disturb = before(moment, a_person_cancels)
    await stage.lose_gpu(sick)
    assert "cancelled in the cluster by a person" in await stage.result("job/train")
    assert "back at work" in await stage.result(f"node/alpha/{sick}")
    assert (await stage.phase(native_id, Phase.CANCELLED)).phase is Phase.CANCELLED
    assert_never_started_again(stage, native_id)
    assert not [name for name in await stage.runbooks() if "/ask/" in name]


def assert_never_started_again(stage: Stage, native_id: str) -> None:
    """One start in Slurm's log, one prolog on each of its two nodes."""
    assert len(re.findall(rf"(?:Allocate|Started) JobId={native_id} ", stage.log("slurmctld.log"))) == 1
    assert len(re.findall(rf"prolog  node=\S+ job={native_id} ", stage.log("hooks.log"))) == 2


@pytest.mark.parametrize("choice", [Choice.DENY, Choice.APPROVE])
@scenario()
async def test_a_node_that_a_person_drained_before_us_keeps_its_reason_and_is_asked_about(
    stage: Stage, choice: Choice
) -> None:
    await stage.train()
    sick = (await stage.nodes_of("train"))[1]
    boot = (await stage.node(sick)).booted_at
    await stage.scontrol("update", f"NodeName={sick}", "State=DRAIN", f"Reason={REASON}")
    await stage.lose_gpu(sick)
    question = await stage.question(f"node/alpha/{sick}")
    assert REASON in question.why
    await stage.trains("train", 2)
    assert sick not in await stage.nodes_of("train")
    facts = await stage.node(sick)
    assert (facts.reason, facts.op, facts.booted_at) == (REASON, None, boot)
    assert not [argv for argv in stage.written if f"NodeName={sick}" in argv]
    await stage.answer(question, choice)
    result = await stage.result(f"node/alpha/{sick}")
    assert f"'{REASON}'" in result
    facts = await stage.node(sick)
    assert (facts.drained, facts.reason, facts.op, facts.reserved_by) == (True, REASON, None, None)
    assert (facts.booted_at > boot + 2) is (choice is Choice.APPROVE), result


UNKNOWN = (
    ("evidence", "nowhere/alpha1", "-"),
    ("evidence", "alpha/alpha99", "-"),
    ("evidence", "", "-"),
    ("start", "heal", "alpha/alpha99", "--reason", "x"),
    ("start", "failover", "nobody", "--reason", "x"),
    ("start", "failover", "alpha/999", "--reason", "x"),
    ("start", "restart", "", "--reason", "x"),
    ("release", "alpha/nobody", "--reason", "x"),
    ("submit", "nowhere", "job.sh"),
)


@scenario()
async def test_unknown_clusters_nodes_jobs_and_empty_words_are_usage_errors_and_change_nothing(stage: Stage) -> None:
    (stage.folder / "job.sh").write_text("#!/bin/sh\nsleep 60\n")
    await stage.cli("list")
    runbooks, written, shown = await stage.runbooks(), list(stage.written), await pictured(stage)
    for argv in UNKNOWN:
        ran = await stage.cli(*argv, stdin=XID_79)
        assert (ran.code, ran.out) == (2, ""), (argv, ran)
        assert ran.err.startswith("error: "), argv
    assert await stage.runbooks() == runbooks
    assert stage.written == written
    assert await pictured(stage) == shown


async def pictured(stage: Stage) -> str:
    """Jobs, nodes and reservations as Slurm shows them, without its clocks (those of a start waver by a second)."""
    shown = [await stage.scontrol("--oneliner", "show", what) for what in ("jobs", "nodes", "reservations")]
    return re.sub(r"(CPULoad|FreeMem|LastBusyTime|BootTime|SlurmdStartTime)=\S+", "", "\n".join(shown))


@scenario()
async def test_a_job_that_did_not_opt_in_runs_on_untouched_and_its_node_waits_for_it(stage: Stage) -> None:
    native_id = await stage.sbatch(stage.spec("theirs", tokens=""))
    await stage.until(lambda: len(stage.output("theirs")) > 3, "it trains")
    before_us = await stage.native(native_id)
    sick = before_us.nodes[1]
    await stage.lose_gpu(sick)
    view = await stage.at_step(f"node/alpha/{sick}", "evacuate")
    assert (await stage.node(sick)).isolated_by_us
    steps = len(stage.output("theirs"))

    async def untouched() -> bool:
        now = await stage.native(native_id)
        return now == before_us and (await stage.node(sick)).boot == str(int((await stage.node(sick)).booted_at))

    await stage.stays(untouched, "running, not held, not marked", 4)
    assert len(stage.output("theirs")) > steps
    view = await stage.view(f"node/alpha/{sick}")
    assert native_id in view.waits_for
    assert not [argv for argv in stage.written if argv[-1] == native_id or f"JobId={native_id}" in argv]
    assert "job/theirs" not in await stage.runbooks()
    stage.hurry("theirs")
    await stage.phase(native_id, Phase.SUCCEEDED)
    assert await stage.result(f"node/alpha/{sick}") == "repaired, checked and back at work"
    assert (await stage.native(native_id)).restarts == 0
