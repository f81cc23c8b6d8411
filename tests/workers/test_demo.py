"""The demo from end to end, as a person starts it: it ends well, in time, and leaves nothing running."""

import asyncio
import io
import signal
import time
from pathlib import Path

import pytest
from rich.console import Console
from temporalio.client import Client
from temporalio.service import RPCError

from clients.connection import connect
from clients.embedded import ServerInfo
from fleet.ledger import Ledger
from fleet.runbooks import Runbook, View
from tests.demos import LIMIT, check_told, processes_of, started
from tests.require import missing
from tests.slurm.lab import leftovers, why_not
from tests.temporal.waiting import wait
from workers.demo_play import Play
from workers.demo_sim import SimStage
from workers.demo_slurm import lab_root
from workers.fleets import write_sim_fleet
from workers.worker import GRACE, open_runtime, run_worker


@pytest.mark.temporal
def test_the_demo_ends_well_and_nothing_is_left_running(temporal_binary_found: None, tmp_path: Path) -> None:
    began = time.monotonic()
    with started(tmp_path) as demo:
        out, _ = demo.communicate(timeout=LIMIT + 30)
    assert demo.returncode == 0, out
    assert time.monotonic() - began < LIMIT
    check_told(out)
    assert processes_of(tmp_path) == []


@pytest.mark.temporal
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_demo_that_is_interrupted_takes_its_server_with_it(
    temporal_binary_found: None, tmp_path: Path, number: signal.Signals
) -> None:
    worker_log = tmp_path / "demo-sim" / "worker.log"
    with started(tmp_path) as demo:
        wait(lambda: worker_log.exists() and "worker is ready" in worker_log.read_text(), 120)
        assert len(processes_of(tmp_path)) >= 2  # the demo and its server
        demo.send_signal(number)
        out, _ = demo.communicate(timeout=60)
    assert demo.returncode in {1, 130}, out
    assert "interrupted" in out
    assert "Traceback" not in out
    assert processes_of(tmp_path) == []


@pytest.mark.slurm
@pytest.mark.temporal
def test_the_demo_on_real_slurm_ends_well_and_nothing_is_left(temporal_binary_found: None, tmp_path: Path) -> None:
    if (why := why_not()) is not None:
        missing("slurm", why)
    with started(tmp_path, "--backend", "slurm") as demo:
        out, _ = demo.communicate(timeout=LIMIT + 60)
    assert demo.returncode == 0, out
    check_told(out)
    assert "its ranks go on where real ones would hang" in out  # what is not real is said
    assert "no process, mount or namespace is left" in out
    assert processes_of(tmp_path) == []
    root = lab_root(tmp_path / "demo-slurm")
    assert str(root) in out
    assert not leftovers(root)
    assert not root.exists()


async def test_a_worker_that_only_watches_stops_without_waiting_for_its_grace(
    temporal_server: ServerInfo, tmp_path: Path
) -> None:
    """Two clusters used to cost two graces, one after the other."""
    fleet = write_sim_fleet(tmp_path)
    client = await connect(temporal_server.address)
    runtime = await open_runtime(client, fleet, tmp_path, embedded=True)
    stop = asyncio.Event()
    working = asyncio.create_task(run_worker(runtime, ("alpha", "beta"), stop=stop))
    async with asyncio.timeout(120):
        for cluster in ("alpha", "beta"):
            while not await _watches(client, cluster):  # noqa: ASYNC110 - the server offers no event for it
                await asyncio.sleep(0.05)
    began = time.monotonic()
    stop.set()
    await working
    assert time.monotonic() - began < GRACE.total_seconds() - 1


async def _watches(client: Client, cluster: str) -> bool:
    try:
        seen = await client.get_workflow_handle(f"watch/{cluster}").describe()
    except RPCError:
        return False
    return any(step.HasField("last_heartbeat_time") for step in seen.raw_description.pending_activities)


def test_what_a_runbook_says_is_never_taken_for_markup(tmp_path: Path) -> None:
    """`[red]`, `:ab:` and such are words of kernels and people."""
    console = Console(record=True, width=200, markup=False, emoji=False, highlight=False, file=io.StringIO())
    stage = SimStage(tmp_path)
    play = Play(None, stage, console)  # type: ignore[arg-type]  # nothing is asked of Temporal here
    play.views["job/x"] = View(
        workflow="job/x", kind=Runbook.SUPERVISE, story=("10:00:02 later", "10:00:01 [red]0000:ab:00[/red] :ab:")
    )
    play.retell()
    play.retell()
    lines = [line.split("  ", 2)[-1].strip() for line in console.export_text().splitlines()]
    assert lines == ["job/x: [red]0000:ab:00[/red] :ab:", "job/x: later"]
    asyncio.run(stage.close(keep=False))


def test_the_footer_shows_only_what_goes_on(tmp_path: Path) -> None:
    stage = SimStage(tmp_path)
    play = Play(None, stage, Console())  # type: ignore[arg-type]
    ledger = Ledger(job="demo-train", submitted_at=0.0)
    play.views = {
        "job/demo-train": View(
            workflow="", kind=Runbook.SUPERVISE, step="failover", waits_for="a fence", ledger=ledger
        ),
        "node/alpha/alpha2": View(workflow="", kind=Runbook.HEAL, step="over", result="back at work"),
    }
    shown = play.footer().plain
    assert "job/demo-train  failover, waits for a fence" in shown
    assert "alpha2" not in shown
    asyncio.run(stage.close(keep=False))
