"""The parent's side on real child processes whose pyslurm is a stub: faults end a child and never a read."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from activities.backends.slurm.commands import Commands
from activities.backends.slurm.normalise import JobRecord
from activities.backends.slurm.pyslurm_reads import (
    CHILD,
    ChildFault,
    ChosenReads,
    PyslurmChild,
    PyslurmReads,
    pyslurm_version,
)
from activities.backends.slurm.settings import SlurmSettings
from fleet.errors import PermanentError, TemporaryError
from fleet.model import NativeJob, Phase
from tests.slurm.pyslurm_doubles import STUB, ReadsInMemory, python_with_stub

Make = Callable[[str], PyslurmChild]


def commands(folder: Path, name: str, behaviour: str = "") -> Commands:
    conf = folder / f"{name}.conf"
    conf.write_text(behaviour)
    made = Commands(SlurmSettings(conf=str(conf)))
    made.limit = 5.0
    return made


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """A child whose pyslurm behaves as told: crash, hang, silent, odd."""
    python = python_with_stub(tmp_path)
    made: list[PyslurmChild] = []

    def one(behaviour: str = "") -> PyslurmChild:
        made.append(PyslurmChild(commands(tmp_path, f"c{len(made)}", behaviour), python))
        return made[-1]

    yield one
    for child in made:
        await child.close()


def is_alive(pid: int | None) -> bool:
    assert pid is not None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def record(job_id: str, code: int | None, restarts: int = 0) -> JobRecord:
    job = NativeJob(
        cluster="gold",
        native_id=job_id,
        name="train",
        phase=Phase.FAILED,
        exit_code=code,
        restarts=restarts,
        started_at=5.0,
    )
    return JobRecord(job=job, job_id=job_id, base="FAILED")


async def test_one_child_answers_many_calls_and_what_a_library_prints_is_no_answer(make: Make) -> None:
    child = make("")
    assert await pyslurm_version(child) == "25.11.2"
    for _ in range(3):
        assert await child.call("jobs") == {"jobs": []}
    assert child.starts == 1


async def test_calls_at_once_get_their_own_answers(make: Make) -> None:
    child = make("")
    answers = await asyncio.gather(*(child.call(name) for name in ("jobs", "nodes", "reservations") * 5))
    assert [next(iter(answer)) for answer in answers] == ["jobs", "nodes", "reservations"] * 5
    assert child.starts == 1


@pytest.mark.parametrize("behaviour", ["crash", "odd"])
async def test_a_read_that_meets_a_fault_goes_by_the_commands(make: Make, behaviour: str) -> None:
    cli = ReadsInMemory((record("7", 3),))
    reads = PyslurmReads("gold", cli, make(behaviour))
    assert [one.job_id for one in await reads.list_jobs()] == ["7"]
    assert await reads.list_nodes() == ()
    assert await reads.list_reservations() == ()
    assert cli.asked == ["jobs", "nodes", "reservations"]


async def test_a_crash_is_told_and_the_next_call_starts_a_new_child(make: Make) -> None:
    child = make("crash")
    for starts in (1, 2):
        with pytest.raises(ChildFault, match=r"ended \(-11\).*library's own words"):
            await child.call("jobs")
        assert child.starts == starts
        assert child.pid is None


async def test_a_hanging_child_is_killed_at_its_limit_while_another_cluster_is_served(make: Make) -> None:
    alpha, beta = make("hang"), make("")
    alpha.commands.limit = 0.5
    await alpha.call("hello")
    hanging = alpha.pid
    call = asyncio.create_task(alpha.call("jobs"))
    served = 0
    while not call.done():
        await beta.call("jobs")
        served += 1
    with pytest.raises(ChildFault, match="no answer within"):
        await call
    assert served > 3
    assert not is_alive(hanging)
    assert (await alpha.call("hello"))["version"] == "25.11.2"


async def test_a_frozen_child_is_killed_and_replaced(make: Make) -> None:
    child = make("")
    await child.call("jobs")
    frozen = child.pid
    assert frozen is not None
    os.kill(frozen, signal.SIGSTOP)
    child.commands.limit = 0.5
    reads = PyslurmReads("gold", ReadsInMemory((record("7", 3),)), child)
    assert [one.job_id for one in await reads.list_jobs()] == ["7"]
    assert not is_alive(frozen)
    child.commands.limit = 5.0
    assert await reads.list_jobs() == ()
    assert child.starts == 2


async def test_a_child_that_was_killed_between_two_calls_is_replaced(make: Make) -> None:
    child = make("")
    await child.call("jobs")
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    reads = PyslurmReads("gold", ReadsInMemory(), child)
    await reads.list_jobs()
    await reads.list_jobs()
    assert child.starts == 2


async def test_a_cancelled_call_leaves_no_child_and_no_stale_answer(make: Make) -> None:
    child = make("hang")
    await child.call("hello")
    pid = child.pid
    call = asyncio.create_task(child.call("jobs"))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not is_alive(pid)
    assert "version" in await child.call("hello")


async def test_a_silent_controller_is_a_temporary_error_and_not_asked_again_by_the_commands(make: Make) -> None:
    cli = ReadsInMemory()
    reads = PyslurmReads("gold", cli, make("silent"))
    with pytest.raises(TemporaryError, match="Socket timed out"):
        await reads.list_jobs()
    assert cli.asked == []


async def test_a_missing_configuration_is_told_at_once(make: Make) -> None:
    child = make("")
    os.unlink(child.commands.settings.conf)  # noqa: PTH108
    began = time.monotonic()
    with pytest.raises(PermanentError, match=r"fleet\.yaml"):
        await child.call("jobs")
    assert time.monotonic() - began < 1.0
    assert child.starts == 0


async def test_close_leaves_no_process(make: Make) -> None:
    cli = ReadsInMemory()
    child = make("")
    await child.call("jobs")
    pid = child.pid
    await PyslurmReads("gold", cli, child).close()
    assert not is_alive(pid)
    assert cli.asked == ["close"]


async def test_exit_codes_that_pyslurm_cannot_tell_come_from_the_commands_once(tmp_path: Path) -> None:
    job = """
import types
def job(number, code):
    fields = dict.fromkeys("array_id array_task_id array_tasks_waiting heterogeneous_id end_time".split())
    tres = dict(gres_per_node={}, get_resource_layout_per_node=dict, requested_tres=None, num_nodes=1)
    texts = dict.fromkeys("comment admin_comment partition allocated_nodes excluded_nodes required_nodes".split())
    tres |= dict(priority=1, user_id=0, requeue_count=0)
    times = dict(submit_time=4, eligible_time=4, start_time=5, exit_code=code, exit_code_signal=0, id=number)
    rest = dict(name="train", state="FAILED", state_reason="NonZeroExitCode", is_requeueable=True, is_batch_job=True)
    return types.SimpleNamespace(**fields, **tres, **texts, **times, **rest)
Jobs.load = staticmethod(lambda: {1: job(1, 11), 2: job(2, 3), 3: job(3, 0)})
"""
    cli = ReadsInMemory((record("1", 139), record("2", 3, restarts=1)))
    child = PyslurmChild(commands(tmp_path, "gold"), python_with_stub(tmp_path, STUB + job))
    reads = PyslurmReads("gold", cli, child)
    try:
        first = {one.job_id: one.job.exit_code for one in await reads.list_jobs()}
        cli.jobs = (record("1", 1), record("2", 3))
        second = {one.job_id: one.job.exit_code for one in await reads.list_jobs()}
        await reads.list_jobs()
    finally:
        await reads.close()
    assert first == {"1": 139, "2": None, "3": 0}  # attempt 0 of job 2 is gone at the commands: unknown, not a guess
    assert second == {"1": 139, "2": 3, "3": 0}
    assert cli.asked == ["jobs", "jobs", "close"]


@pytest.mark.parametrize(
    ("version", "transport", "chosen"),
    [
        ("25.11.7", "auto", PyslurmReads),
        ("25.11.7", "pyslurm", PyslurmReads),
        ("25.11.7", "cli", ReadsInMemory),
        ("22.05.8", "auto", ReadsInMemory),
        ("25.05.1", "auto", ReadsInMemory),
    ],
)
async def test_the_transport_is_chosen_by_the_controllers_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, transport: str, chosen: type
) -> None:
    monkeypatch.setenv("GPU_RUNBOOKS_PYSLURM_PYTHON", python_with_stub(tmp_path))
    reads = ChosenReads("gold", commands(tmp_path, "gold"), ReadsInMemory(version=version), transport)  # type: ignore[arg-type]
    try:
        await reads.list_nodes()
        assert type(reads.reads) is chosen
    finally:
        await reads.close()


async def test_without_pyslurm_auto_takes_the_commands_and_pyslurm_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "GPU_RUNBOOKS_PYSLURM_PYTHON", python_with_stub(tmp_path, "raise ImportError('no slurm here')")
    )
    cli = ReadsInMemory()
    auto = ChosenReads("gold", commands(tmp_path, "gold"), cli, "auto")
    assert await auto.list_jobs() == ()
    assert auto.reads is cli
    assert cli.asked == ["jobs"]  # the controller's release is of no interest then
    asked = ChosenReads("gold", commands(tmp_path, "gold"), cli, "pyslurm")
    with pytest.raises(PermanentError, match="has no pyslurm; install the pyslurm of the controller's release"):
        await asked.list_jobs()


async def test_no_interpreter_is_no_pyslurm(tmp_path: Path) -> None:
    assert await pyslurm_version(PyslurmChild(commands(tmp_path, "gold"), str(tmp_path / "nothing"))) is None


def test_a_child_ends_when_its_parent_is_gone(tmp_path: Path) -> None:
    child = subprocess.run([python_with_stub(tmp_path), "-I", str(CHILD)], input="", capture_output=True, timeout=30)
    assert (child.returncode, child.stdout) == (0, b"")
