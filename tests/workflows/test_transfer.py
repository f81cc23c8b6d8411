"""A job moves to another cluster with its checkpoint: real files, real rclone, embedded clusters."""

import getpass
import json
import re
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

import workflows.attempts
import workflows.base
import workflows.moving
from activities.backends.sim import SimBackend, SimSettings
from activities.copying.finish import Finishing
from fleet.decision import Action
from fleet.errors import PermanentError
from fleet.identity import RUNBOOKS_QUEUE, job_workflow_id
from fleet.ledger import Rung
from fleet.ledger import Stage as Timed
from fleet.model import NativeJob, Phase, ReceiptGrade
from fleet.orders import JobSpec
from fleet.people import Choice
from fleet.placement import Request
from fleet.placing import PlaceWish
from fleet.runbooks import Runbook, SuperviseInput
from tests.workflows.conftest import Opener
from tests.workflows.stage import Stage

JOB = job_workflow_id("train")
MOVE = "job/train/transfer/2"
STEPS = 100_000


class Pair:
    """Two clusters with a storage each, and a job on alpha."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.stage = stage
        self.east, self.west = folder / "east", folder / "west"
        self.beta = SimBackend("beta", SimSettings(path=stage.world))

    def policy(self, **more: object) -> None:
        self.stage.write_policy(sites={"alpha": self.east, "beta": self.west}, **more)  # type: ignore[arg-type]

    def spec(self, tokens: str = "gpu-runbooks.io/transfer", **directives: int | float | str) -> JobSpec:
        root = f"gpu-runbooks.io/checkpoint={self.east / 'jobs' / 'train'} gpu-runbooks.io/generation-check=yes"
        spec = self.stage.spec(tokens=f"{root} {tokens}".strip(), steps=STEPS, **directives)
        return spec.model_copy(update={"user": getpass.getuser()})

    async def on_beta(self) -> list[NativeJob]:
        return [j for j in await self.beta.jobs(max_age=0) if j.key == "train"]

    def saved(self, root: Path) -> list[int]:
        """Steps of the complete checkpoints in a storage."""
        return sorted(
            int(found[1])
            for marker in root.glob("jobs/train/step_*/COMPLETE")
            if (found := re.match(r"step_(\d+)", marker.parent.name))
        )


@pytest.fixture
async def pair(open_stage: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setattr(workflows.attempts, "LOOK_EVERY", timedelta(seconds=0.5))
    monkeypatch.setattr(workflows.attempts, "LOOK_BRIEFLY", timedelta(seconds=1))
    monkeypatch.setattr(workflows.moving, "ASK_BRIEFLY", timedelta(seconds=2))
    monkeypatch.setattr(workflows.base, "ASK_BRIEFLY", timedelta(seconds=2))
    stage = await open_stage()
    found = Pair(stage, tmp_path)
    for site in (found.east, found.west):
        (site / "jobs" / "train").mkdir(parents=True)
    found.policy()
    await stage.start_worker("alpha", "beta", sites=("at-alpha", "at-beta"))
    return found


async def test_a_cluster_without_room_is_left_with_the_newest_checkpoint(pair: Pair) -> None:
    stage = pair.stage
    native_id = await stage.supervise(spec=pair.spec())
    for node in ("alpha3", "alpha4"):
        stage.faults.person_drain(node, "rack works")
    sick = (await stage.nodes_of())[0]

    await stage.lose_gpu(sick)
    view = await stage.runs_in("train", 2)

    assert view.ledger is not None
    first, second = view.ledger.attempts
    assert (second.cluster, second.rung, second.restarts) == ("beta", Rung.ACROSS_CLUSTERS, 0)
    assert first.receipt is not None
    assert {r.node for r in first.receipt.nodes} == set(first.nodes)
    assert second.progress.resumed_from == max(pair.saved(pair.east))
    assert second.progress.step is not None
    assert second.progress.step > second.progress.resumed_from
    stages = [span.stage for span in second.spans]
    assert [s for s in stages if s in {Timed.FENCE, Timed.COPY, Timed.REQUEUE, Timed.FIRST_STEP}] == [
        Timed.FENCE,
        Timed.COPY,
        Timed.REQUEUE,
        Timed.FIRST_STEP,
    ]
    [there] = await pair.on_beta()
    assert (there.phase, there.tokens.epoch, there.held) == (Phase.RUNNING, 1, True)
    await stage.until(lambda: stage.faults.effects("cancel", native_id), "what it left is ended")
    assert (await stage.native(native_id)).phase is Phase.CANCELLED
    receipt = next((pair.west / "jobs" / "train" / ".gpu-runbooks" / "receipts").glob("*.json"))
    assert json.loads(receipt.read_text())
    assert stage.faults.most_attempts_alive(native_id) == 1
    await stage.record(MOVE, "transfer-no-room")


async def test_a_person_orders_it_and_the_researcher_did_not_opt_in(pair: Pair) -> None:
    stage = pair.stage
    native_id = await stage.supervise(spec=pair.spec(tokens=""))

    await stage.order("train", Action.FAILOVER_ACROSS_CLUSTERS)
    question = await stage.question(MOVE)
    assert (await stage.native(native_id)).phase is Phase.RUNNING
    assert any("copy the newest complete checkpoint" in step for step in question.plan.steps)
    await stage.answer(question, Choice.DENY)
    await stage.result(MOVE)
    assert await pair.on_beta() == []
    assert (await stage.native(native_id)).phase is Phase.RUNNING

    await stage.at_step(JOB, "watching")
    await stage.order("train", Action.FAILOVER_ACROSS_CLUSTERS)
    await stage.answer(await stage.question(MOVE), Choice.APPROVE)
    view = await stage.runs_in("train", 2)
    assert view.ledger is not None
    assert view.ledger.attempts[-1].cluster == "beta"


async def test_it_goes_on_in_the_root_that_it_names_there_and_comes_back_to_the_common_one(pair: Pair) -> None:
    stage, spec = pair.stage, pair.spec()
    pair.policy(limits={"across_tries": "2"})
    wish = PlaceWish(
        request=Request(job="train", nodes=2, gpus_per_node=8),
        name="train",
        templates={"sim": spec.script},
        comment=spec.comment,
        user=spec.user,
        roots={"beta": str(pair.west / "mine")},
    )
    await stage.client.start_workflow(
        Runbook.SUPERVISE,
        SuperviseInput(job="train", cluster="", wish=wish, by="ada"),
        id=JOB,
        task_queue=RUNBOOKS_QUEUE,
    )
    await stage.runs_in("train", 1)
    mine = pair.west / "mine"
    await stage.until(lambda: list(mine.glob("step_*/COMPLETE")), "a checkpoint")
    [first] = await pair.on_beta()
    assert first.tokens.checkpoint == str(mine)
    await stage.at_step(JOB, "watching")

    await stage.order("train", Action.FAILOVER_ACROSS_CLUSTERS)
    view = await stage.runs_in("train", 2)
    assert view.ledger is not None
    away = view.ledger.attempts[-1]
    assert away.cluster == "alpha"
    assert (await stage.native(away.native_id)).tokens.checkpoint == str(pair.east / "jobs" / "train")
    assert pair.saved(pair.east)

    await stage.at_step(JOB, "watching")
    await stage.order("train", Action.FAILOVER_ACROSS_CLUSTERS)
    await stage.runs_in("train", 3)
    [_, back] = sorted(await pair.on_beta(), key=lambda job: int(job.native_id))
    assert back.tokens.checkpoint == str(mine)
    resumed = (await pair.beta.progress(back.native_id, back.restarts)).resumed_from
    assert resumed is not None
    assert (mine / ".gpu-runbooks" / "receipts").is_dir()
    assert resumed >= min(pair.saved(pair.east))


async def test_a_copy_above_the_limit_is_asked_about_before_anything_is_stopped(pair: Pair) -> None:
    stage = pair.stage
    pair.policy(limits={"across_size": "0MB"})
    native_id = await stage.supervise(spec=pair.spec())

    await stage.order("train", Action.FAILOVER_ACROSS_CLUSTERS)
    question = await stage.question(MOVE)
    assert question.plan.title.startswith("Copy ")
    assert (await stage.native(native_id)).phase is Phase.RUNNING
    await stage.answer(question, Choice.DENY)

    assert "the job was not touched" in (await stage.result(MOVE))["text"]
    assert (await stage.native(native_id)).phase is Phase.RUNNING
    assert pair.saved(pair.west) == []


async def test_a_lost_cluster_is_left_on_a_named_persons_word_and_what_comes_back_is_ended(pair: Pair) -> None:
    stage = pair.stage
    pair.policy(limits={"cluster_lost_after": "1s"})
    native_id = await stage.supervise(spec=pair.spec())
    first = await stage.nodes_of()
    stage.faults.controller_kill()

    question = await stage.question(MOVE)
    assert Choice.ATTEST in question.options
    assert all(node in question.why for node in first)
    assert await pair.on_beta() == []
    for node in first:
        stage.faults.crash_node(node)
    await stage.answer(question, Choice.ATTEST)
    view = await stage.runs_in("train", 2)

    assert view.ledger is not None
    old, new = view.ledger.attempts
    assert old.receipt is not None
    assert old.receipt.grade() is ReceiptGrade.ATTESTED
    assert "grace" in old.receipt.nodes[0].detail
    assert (new.cluster, new.rung) == ("beta", Rung.ACROSS_CLUSTERS)
    stage.faults.controller_start()
    await stage.until(lambda: stage.faults.effects("cancel", native_id), "what it left is ended when it is back")
    assert [j.phase for j in await pair.on_beta()] == [Phase.RUNNING]
    assert len(stage.attempts(native_id)) == 1


async def test_a_cluster_that_answers_again_is_not_left(pair: Pair) -> None:
    stage = pair.stage
    pair.policy(limits={"cluster_lost_after": "1s"})
    native_id = await stage.supervise(spec=pair.spec(tokens=""))
    stage.faults.controller_kill()
    question = await stage.question(MOVE)

    stage.faults.controller_start()
    await stage.answer(question, Choice.APPROVE)
    await stage.runs_in("train", 2)

    assert len(stage.attempts(native_id)) == 1
    view = await stage.view(JOB)
    assert view.ledger is not None
    receipt = view.ledger.attempts[0].receipt
    assert receipt is not None
    assert receipt.grade() is not ReceiptGrade.ATTESTED, "the cluster itself was asked"


async def test_a_storage_that_is_lost_with_its_cluster_is_made_good_by_what_was_copied_in_advance(pair: Pair) -> None:
    stage = pair.stage
    pair.policy(limits={"cluster_lost_after": "1s"})
    await stage.supervise(spec=pair.spec())
    await stage.until(lambda: pair.saved(pair.east), "a checkpoint")
    [name, *_] = sorted(marker.parent.name for marker in pair.east.glob("jobs/train/step_*/COMPLETE"))
    shutil.copytree(pair.east / "jobs" / "train" / name, pair.west / "jobs" / "train" / name)
    nodes = await stage.nodes_of()
    stage.faults.controller_kill()
    for node in nodes:
        stage.faults.crash_node(node)
    pair.east.rename(pair.east.with_name("lost"))

    await stage.answer(await stage.question(MOVE), Choice.ATTEST)
    await stage.runs_in("train", 2)

    [there] = await pair.on_beta()
    resumed = (await pair.beta.progress(there.native_id, there.restarts)).resumed_from
    assert resumed == pair.saved(pair.west)[0]


async def test_a_copy_that_meets_what_others_wrote_is_a_question_and_goes_on_once_that_is_away(pair: Pair) -> None:
    stage = pair.stage
    native_id = await stage.supervise(spec=pair.spec())
    gate = stage.gates.set(MOVE, "copy_files", "before")
    await stage.order("train", Action.FAILOVER_ACROSS_CLUSTERS)
    await gate.reached.wait()
    newest = sorted(marker.parent.name for marker in pair.east.glob("jobs/train/step_*/COMPLETE"))[-1]
    strange = pair.west / "jobs" / "train" / newest
    strange.mkdir()
    (strange / "notes.txt").write_text("somebody's")
    gate.open()

    question = await stage.question(MOVE)
    assert "could not be brought to beta" in question.plan.title
    assert "runbook release train" in question.why
    assert str(strange) in question.why
    assert (await stage.native(native_id)).phase is Phase.PENDING
    assert (strange / "notes.txt").read_text() == "somebody's"
    shutil.rmtree(strange)
    await stage.answer(question, Choice.RETRY)
    await stage.runs_in("train", 2)
    assert len(await pair.on_beta()) == 1


async def test_a_copy_that_was_published_counts_although_its_staging_could_not_be_taken_away(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuses(self: Finishing) -> None:
        raise PermanentError("the folder is read-only")

    monkeypatch.setattr(Finishing, "drop", refuses)
    stage = pair.stage
    await stage.supervise(spec=pair.spec())
    await stage.order("train", Action.FAILOVER_ACROSS_CLUSTERS)
    await stage.runs_in("train", 2)
    assert any("is left there" in line and "read-only" in line for line in (await stage.view(MOVE)).story)


async def test_a_move_that_finds_no_checkpoint_touches_nothing(pair: Pair) -> None:
    stage = pair.stage
    native_id = await stage.supervise(spec=pair.spec())
    stage.faults.freeze_node((await stage.nodes_of())[0])  # so that it saves no more
    for marker in pair.east.glob("jobs/train/step_*/COMPLETE"):
        marker.unlink()

    await stage.order("train", Action.FAILOVER_ACROSS_CLUSTERS)
    told = (await stage.result(MOVE))["text"]

    assert "nothing to go on from" in told
    assert "the job was not touched" in told
    assert await pair.on_beta() == []
    assert not stage.faults.effects("stop", native_id)


async def test_cancelled_between_stop_and_submit_it_stays_held_and_says_so(pair: Pair) -> None:
    stage = pair.stage
    native_id = await stage.supervise(spec=pair.spec())
    gate = stage.gates.set(MOVE, "copy_files", "before")

    await stage.order("train", Action.FAILOVER_ACROSS_CLUSTERS)
    await gate.reached.wait()
    await stage.handle(MOVE).cancel()
    await stage.ended(MOVE)

    native = await stage.native(native_id)
    assert (native.phase, native.held) == (Phase.PENDING, True)
    assert await pair.on_beta() == []
    view = await stage.at_step(JOB, "watching")
    assert any("runbook release train" in line for line in view.story)
