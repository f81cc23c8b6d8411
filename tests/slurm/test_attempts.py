"""The order of a start's commands, and the second that must pass since the old attempt ended."""

import asyncio
import time

import pytest

from activities.backends.slurm.attempts import SAME_SECOND, Attempts
from activities.backends.slurm.commands import Commands, Finished
from activities.backends.slurm.jobs import JobOrders
from activities.backends.slurm.marks import JobMarks, read_marks
from activities.backends.slurm.settings import SlurmSettings
from activities.backends.slurm.view import ClusterView
from fleet.errors import AmbiguousError, RefusedError
from fleet.model import Phase
from fleet.orders import StartOrder
from tests.slurm.doubles import Readings, a_node, record


class Obedient(Commands):
    """Carries each command out on the readings, at once, and notes when."""

    def __init__(self, reads: Readings) -> None:
        super().__init__(SlurmSettings(conf="/nowhere", read_back=0.3))
        self.reads = reads
        self.ran: list[tuple[float, str]] = []
        self.answer = Finished(rc=0, out="", err="")
        self.deaf = False
        self.dies_at = ""
        """First word of the command at which the controller dies; it comes back as it was before the stop."""

    async def run(self, program: str, *args: str, **how: object) -> Finished:  # type: ignore[override]
        self.ran.append((time.monotonic(), " ".join(args)))
        if self.deaf:
            return self.answer
        (old,) = self.reads.jobs
        if args[0] == self.dies_at:
            before = old.job.model_copy(update={"phase": Phase.RUNNING, "restarts": 0, "held": False})
            self.reads.jobs = (old.model_copy(update={"job": before}),)
            return self.answer
        changes: dict[str, object] = {}
        if args[0] == "release":
            changes = {"held": False, "priority": 5, "reason": ""}
        for word in args[2:]:
            key, _, value = word.partition("=")
            changes |= {
                "ExcNodeList": {"excluded": tuple(filter(None, value.split(",")))},
                "Priority": {"priority": int(value) if value.isdigit() else 0},
                "StartTime": {"eligible_at": 2.0},
            }.get(key, {})
        told = next((word.partition("=")[2] for word in args[2:] if word.startswith("AdminComment=")), None)
        marks = old.marks if told is None else read_marks(told)
        job = old.job.model_copy(update=changes)
        own = tuple(node for node in job.excluded if node not in marks.excluded)
        job = job.model_copy(update={"own_excluded": own})
        self.reads.jobs = (old.model_copy(update={"job": job, "marks": marks}),)
        return self.answer


def bench() -> tuple[Obedient, Attempts]:
    held = record(Phase.PENDING, nodes=(), restarts=1, held=True, priority=0, reason="JobHeldAdmin", eligible_at=1.0)
    reads = Readings(
        (held.model_copy(update={"marks": JobMarks(since=1.0, held=True)}),),
        tuple(a_node(f"a{n}") for n in range(1, 5)),
    )
    commands = Obedient(reads)
    return commands, Attempts(JobOrders(commands, ClusterView("alpha", reads, 15.0)))


async def test_exclusion_comes_before_release_and_the_start_time_last() -> None:
    commands, attempts = bench()
    await attempts.start(StartOrder(native_id="7", restarts=1, exclude=("a1",)))
    verbs = [text for _, text in commands.ran]
    words = "gpu-runbooks:since=1 gpu-runbooks:held gpu-runbooks:excluded=a1"
    excluding = f"update JobId=7 ExcNodeList=a1 AdminComment={words}"
    assert verbs == [excluding, "release 7", "update JobId=7 StartTime=now"]


async def test_nothing_is_released_in_the_second_in_which_the_old_attempt_ended() -> None:
    commands, attempts = bench()
    first_seen = time.monotonic()
    await attempts.start(StartOrder(native_id="7", restarts=1, exclude=("a1",)))
    released = next(at for at, text in commands.ran if text == "release 7")
    assert released - first_seen >= SAME_SECOND > 1.0


async def test_a_job_that_was_seen_waiting_long_enough_is_released_at_once() -> None:
    _, attempts = bench()
    await attempts.view.live_jobs()
    await asyncio.sleep(SAME_SECOND)
    began = time.monotonic()
    await attempts.start(StartOrder(native_id="7", restarts=1))
    assert time.monotonic() - began < 0.5


async def test_a_write_without_an_answer_and_without_effect_is_ambiguous() -> None:
    commands, attempts = bench()
    commands.deaf, commands.answer = True, Finished(rc=-1, out="", err="", timed_out=True)
    with pytest.raises(AmbiguousError):
        await attempts.start(StartOrder(native_id="7", restarts=1, exclude=("a1",)))


async def test_a_write_without_an_answer_but_with_its_effect_is_done() -> None:
    commands, attempts = bench()
    commands.answer = Finished(rc=-1, out="", err="", timed_out=True)
    job = await attempts.start(StartOrder(native_id="7", restarts=1, exclude=("a1",)))
    assert (job.held, job.excluded) == (False, ("a1",))


async def test_a_node_cannot_be_required_and_excluded() -> None:
    commands, attempts = bench()
    with pytest.raises(RefusedError):
        await attempts.start(StartOrder(native_id="7", restarts=1, exclude=("a1",), require=("a1", "a2")))
    assert commands.ran == []


async def test_a_controller_that_forgot_the_stop_is_told_no_start() -> None:
    """It died at the release: what it shows running has ended, and its requeue delay would be dropped for nothing."""
    commands, attempts = bench()
    commands.dies_at = "release"
    with pytest.raises(RefusedError, match="forgot the stop"):
        await attempts.start(StartOrder(native_id="7", restarts=1))
    assert [text for _, text in commands.ran] == ["release 7"]
