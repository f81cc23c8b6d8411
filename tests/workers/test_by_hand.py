"""The commands of docs/by-hand.md, run as they stand on the page, on a real cluster."""

import asyncio
import os
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fleet.model import Phase
from fleet.orders import StartOrder
from tests.require import missing
from tests.slurm.lab import Cluster, cluster, why_not

PAGE = Path(__file__).parents[2] / "docs" / "by-hand.md"
OP = "abcdefg"


def block(name: str) -> str:
    """One named block of the page, with the page's first line that says where Slurm's configuration is."""
    text = PAGE.read_text(encoding="utf-8")
    found = dict(re.findall(r"^```sh(?: (\w+))?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    return found[""] + found[name]


@pytest.fixture
async def alpha() -> AsyncIterator[Cluster]:
    if (why := why_not()) is not None:
        missing("slurm", why)
    async with cluster("alpha", nodes=4, requeue=120) as made:
        yield made


async def by_hand(made: Cluster, name: str, **variables: str) -> str:
    """Runs the block in a plain shell, as a person would paste it."""
    done = await asyncio.to_thread(
        subprocess.run,
        ["/bin/bash", "-c", block(name)],
        env={"PATH": os.environ["PATH"], "SLURM_CONF": made.settings.conf, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


async def is_running(made: Cluster, native_id: str, restarts: int = 0) -> None:
    async with asyncio.timeout(60):
        while True:
            job = await made.backend.job(native_id)
            if job.phase is Phase.RUNNING and job.restarts == restarts:
                return
            await asyncio.sleep(0.1)


@pytest.mark.slurm
async def test_a_running_job_is_given_back_undisturbed(alpha: Cluster) -> None:
    native_id = await alpha.person_submit(alpha.training_spec("a"))
    await is_running(alpha, native_id)
    async with asyncio.timeout(60):
        while await alpha.ranks_alive(native_id) < 2:  # noqa: ASYNC110 - RUNNING is said before the ranks have begun
            await asyncio.sleep(0.1)
    await alpha.slurm("scontrol", "update", f"JobId={native_id}", "AdminComment=site's own words")
    held = (await alpha.backend.adopt(native_id)).job
    assert (held.adopted, held.held) == (True, True)
    listed = await by_hand(alpha, "list")
    assert re.search(rf"^{native_id} +RUNNING +.*gpu-runbooks:held", listed, re.MULTILINE)
    assert "go to step 3" in await by_hand(alpha, "waiting", JOB=native_id)  # the other block leaves it alone
    assert (await alpha.backend.job(native_id)).held

    await by_hand(alpha, "running", JOB=native_id)
    after = await alpha.backend.job(native_id)
    assert (after.phase, after.restarts, after.held, after.adopted) == (Phase.RUNNING, 0, False, False)
    shown = await alpha.slurm("scontrol", "show", "job", native_id)
    assert re.search(r"AdminComment=(.*)", shown)[1].rstrip() == "site's own words"  # type: ignore[index]
    assert await alpha.ranks_alive(native_id) == 2
    assert "no job of ours" in await by_hand(alpha, "list")


@pytest.mark.slurm
async def test_a_waiting_job_is_given_back_with_its_pin_and_starts_again(alpha: Cluster) -> None:
    native_id = await alpha.person_submit(alpha.training_spec("a"))
    await is_running(alpha, native_id)
    await alpha.backend.adopt(native_id)
    await alpha.backend.stop(native_id, 0)
    async with asyncio.timeout(60):
        while (await alpha.backend.job(native_id)).phase is not Phase.PENDING:  # noqa: ASYNC110 - Slurm tells no event
            await asyncio.sleep(0.1)
    # A restart in place that got no further than its pin: the nodes that it wants are taken.
    blocker = await alpha.quick_job("blocker", "sleep 600", "--nodes=4", "--exclusive")
    await is_running(alpha, blocker)
    await alpha.backend.start_attempt(StartOrder(native_id=native_id, restarts=1, require=("alpha1", "alpha2")))
    await alpha.backend.hold(native_id)
    assert "gpu-runbooks:pin=none" in await by_hand(alpha, "list")
    assert "go to step 4" in await by_hand(alpha, "running", JOB=native_id)

    seen = await by_hand(alpha, "fence", JOB=native_id, NODE="alpha2")
    assert "BootTime=" in seen
    assert f"job {native_id} is PENDING" in seen
    await by_hand(alpha, "waiting", JOB=native_id)
    after = await alpha.backend.job(native_id)
    assert (after.held, after.adopted, after.required) == (False, False, ())
    await alpha.slurm("scancel", blocker)
    await is_running(alpha, native_id, restarts=1)
    assert "no job of ours" in await by_hand(alpha, "list")


@pytest.mark.slurm
async def test_a_persons_hold_stays_a_persons(alpha: Cluster) -> None:
    """A waiting job that its owner held, and that we had adopted before, is unmarked and not released."""
    native_id = await alpha.person_submit(alpha.training_spec("a", options=""))
    await is_running(alpha, native_id)
    await alpha.slurm("scontrol", "requeuehold", native_id)
    async with asyncio.timeout(60):
        while (await alpha.backend.job(native_id)).phase is not Phase.PENDING:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    await alpha.backend.hold(native_id)
    await by_hand(alpha, "waiting", JOB=native_id)
    after = await alpha.backend.job(native_id)
    assert (after.phase, after.held, after.adopted) == (Phase.PENDING, True, False)


@pytest.mark.slurm
async def test_a_node_and_its_reservation_are_given_back(alpha: Cluster) -> None:
    backend = alpha.backend
    before = await backend.isolate("alpha3", OP, "XID 79")
    await backend.reboot("alpha3", OP)
    async with asyncio.timeout(90):
        while (await backend.node("alpha3")).booted_at <= before.booted_at + 2:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    await backend.isolate("alpha4", OP, "sick too")
    listed = await by_hand(alpha, "list")
    assert re.search(rf"^alpha3 \S+ gpu-runbooks:{OP}: XID 79", listed, re.MULTILINE)
    assert f"ReservationName=gpu-runbooks_{OP}" in listed

    for node in ("alpha3", "alpha4"):  # one DOWN after its reboot, one only drained
        assert await by_hand(alpha, "node", NODE=node) == ""
    await by_hand(alpha, "reservation", RESERVATION=f"gpu-runbooks_{OP}")
    async with asyncio.timeout(30):  # a resumed node registers a moment later
        while len((await backend.capacity()).free_nodes) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert (await by_hand(alpha, "list")).splitlines() == [
        "no job of ours",
        "no node of ours",
        "no reservation of ours",
        "no check of ours",
    ]
    assert await backend.give_back_all() == ()  # the runbooks agree


@pytest.mark.slurm
async def test_a_node_that_does_not_answer_is_left_as_it_is(alpha: Cluster) -> None:
    await alpha.backend.isolate("alpha3", OP, "hung")
    await alpha.lab("slurmd-kill", "alpha", "alpha3")
    async with asyncio.timeout(90):
        while (await alpha.backend.node("alpha3")).responding:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    assert "start its slurmd first" in await by_hand(alpha, "node", NODE="alpha3")
    assert (await alpha.backend.node("alpha3")).op == OP


def test_every_block_that_changes_something_is_run_by_a_test() -> None:
    named = set(re.findall(r"^```sh (\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    run = set(re.findall(r'by_hand\(alpha, "(\w+)"', Path(__file__).read_text(encoding="utf-8")))
    assert named == run
