"""`HoldLease` with real launchers, real ranks and a real server: what holds a lease, what ends it, what it proves."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import fleet.lease
from activities import lease_api
from clients.ask_cluster import read
from clients.embedded import is_alive, read_state
from fleet.lease import LEASE_LOST, ClusterLoss, LeaseLapse, LeaseState, SeatState, lease_receipt
from fleet.ledger import Attempt, Rung
from fleet.model import ReceiptGrade
from fleet.runbooks import LEASE_STATE
from tests.conftest import FAST_VALUES
from tests.temporal.waiting import wait
from tests.workflows.conftest import Opener
from tests.workflows.stage import Stage
from tests.workflows.test_transfer import Pair
from tests.workflows.test_transfer import pair as pair  # a fixture
from workers.server import ensure_server, stop_server

REPOSITORY = Path(__file__).resolve().parents[2]
STUBBORN = "trap '' TERM; setsid sleep 1000 & (sleep 1001 &); sleep 1002 & wait"
LEASE = "lease/alpha/77/0"
ATTEMPT = Attempt(
    generation=1, cluster="alpha", native_id="77", restarts=0, rung=Rung.FIRST, nodes=("alpha1", "alpha2")
)


@pytest.fixture(autouse=True)
def short_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited for after the KILL is no part of what is tested."""
    monkeypatch.setattr(fleet.lease, "MARGIN", 0.5)


class Node:
    """One node of a job: its launcher as a process of its own, its ranks found by a word in their environment."""

    def __init__(self, stage: Stage, node: str, address: str, *, native: str = "77", restarts: int = 0) -> None:
        self.log = stage.folder / f"{node}.{restarts}.log"
        self.mark = f"NODE_MARK={stage.folder}/{node}/{restarts}"
        self.words = ["--cluster", "alpha", "--job-id", native, "--restarts", str(restarts), "--node", node]
        self.words += ["--address", address, "--namespace", stage.client.namespace]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *command: str, term: str = "12s", grace: str = "0.3s", wait_for: str = "60s") -> "Node":
        name, _, value = self.mark.partition("=")
        words = [*self.words, "--term", term, "--grace", grace, "--wait", wait_for, "--", *command]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "workers.launch", *words],
                cwd=REPOSITORY,
                env={**os.environ, name: value},
                stderr=log,
                start_new_session=True,
            )
        return self

    @property
    def launcher(self) -> int:
        assert self.process is not None
        return self.process.pid

    async def code(self) -> int:
        assert self.process is not None
        return await asyncio.to_thread(self.process.wait, 60)

    async def trains(self, ranks: int = 4) -> None:
        await asyncio.to_thread(wait, lambda: len(self.ranks()) >= ranks, 60)

    async def is_empty(self) -> None:
        await asyncio.to_thread(wait, lambda: not self.ranks(), 60)

    def ranks(self) -> list[int]:
        """The truth, from outside: what carries the mark and is neither launcher nor guard."""
        return [pid for pid in self.all() if b"workers.launch" not in _cmdline(pid)]

    def guard(self) -> int:
        (guard,) = [p for p in self.all() if b"workers.launch" in _cmdline(p) and p != self.launcher]
        return guard

    def all(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if self.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def end(self) -> None:
        for pid in self.all():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait(30)


def _cmdline(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


class Job:
    """A job of two nodes, each under a launcher."""

    def __init__(self, stage: Stage, address: str, home: Path | None = None) -> None:
        """`home`: of a server that the test may kill."""
        self.stage, self.address, self.home = stage, address, home
        self.nodes: list[Node] = []

    def node(self, name: str, *, native: str = "77", restarts: int = 0) -> Node:
        self.nodes.append(Node(self.stage, name, self.address, native=native, restarts=restarts))
        return self.nodes[-1]

    async def state(self) -> LeaseState:
        state: LeaseState = await self.stage.handle(LEASE).query(LEASE_STATE, result_type=LeaseState)
        return state

    async def lapse(self, **more: object) -> LeaseLapse:
        """As the runbook of a failover asks for it."""
        wish = {"loss": ClusterLoss(reachable=False, answered_at=time.time()), "checks_generation": True, **more}
        arg = lease_api.LapseIn.model_validate({"cluster": "alpha", "attempt": ATTEMPT, "why": "moved", **wish})
        return await read(self.stage.client, lease_api.LAPSE_LEASE, arg)

    async def kill_server(self) -> None:
        info = read_state(self.home)
        assert info is not None
        os.kill(info.pid, signal.SIGKILL)
        await asyncio.to_thread(wait, lambda: not is_alive(info))

    async def start_server(self) -> None:
        assert self.home is not None
        await asyncio.to_thread(ensure_server, self.home, values=FAST_VALUES)

    def end(self) -> None:
        for node in self.nodes:
            node.end()


@pytest.fixture
async def job(stage: Stage) -> AsyncIterator[Job]:
    target = stage.client.service_client.config.target_host
    job = Job(stage, target)
    yield job
    await asyncio.to_thread(job.end)


def receipt(lapse: LeaseLapse) -> fleet.lease.LeaseVerdict:
    loss = ClusterLoss(reachable=False, answered_at=time.time())
    return lease_receipt(ATTEMPT, lapse, checks_generation=True, loss=loss)


async def test_launchers_that_hear_of_the_end_stop_their_ranks_at_once_and_say_so(job: Job) -> None:
    nodes = [job.node(n).start("sh", "-c", STUBBORN) for n in ATTEMPT.nodes]
    for node in nodes:
        await node.trains()
    begun = time.monotonic()
    lapse = await job.lapse()
    assert time.monotonic() - begun < 12 + 0.3  # what silent launchers would have been waited for
    assert {seen.state for seen in lapse.seats} == {SeatState.LEFT}
    assert [node.ranks() for node in nodes] == [[], []]
    assert [await node.code() for node in nodes] == [LEASE_LOST, LEASE_LOST]
    proof = receipt(lapse).receipt
    assert proof is not None
    assert proof.grade() is ReceiptGrade.LEASE_EXPIRED
    assert [n.node for n in proof.nodes] == list(ATTEMPT.nodes)
    await job.stage.record(LEASE, "lease-taken-back")

    late = job.node("alpha1").start("sh", "-c", "sleep 1000")
    assert await late.code() == LEASE_LOST, "the old cluster came back and started the attempt again"
    assert late.ranks() == []
    again = job.node("alpha1", restarts=1).start("sh", "-c", "exit 5")
    assert await again.code() == 5, "another attempt has a lease of its own"


async def test_a_launcher_that_says_nothing_any_more_is_waited_out(job: Job) -> None:
    """Its whole machine may be cut off: nobody hears that its ranks are gone."""
    silent, frozen = (job.node(n).start("sh", "-c", STUBBORN, term="4s") for n in ATTEMPT.nodes)
    for node in (silent, frozen):
        await node.trains()
    os.kill(silent.launcher, signal.SIGKILL)
    os.kill(frozen.launcher, signal.SIGSTOP)
    lapse = await job.lapse()
    assert [node.ranks() for node in (silent, frozen)] == [[], []]
    assert lapse.waited >= 4.0 + 0.3
    proof = receipt(lapse).receipt
    assert proof is not None
    assert all("silent" in n.detail for n in proof.nodes)
    os.kill(frozen.launcher, signal.SIGCONT)
    assert await frozen.code() == LEASE_LOST


async def test_a_lease_that_would_prove_nothing_is_not_taken_back(job: Job) -> None:
    node = job.node("alpha1").start("sh", "-c", STUBBORN)
    await node.trains()
    lapse = await job.lapse()
    assert lapse.refused == ("alpha2 has no launcher: its ranks hold no lease",)
    assert receipt(lapse).receipt is None
    unchecked = await job.lapse(checks_generation=False)
    assert any("generation-check" in why for why in unchecked.refused)
    assert (await job.state()).revoked_at is None
    assert len(node.ranks()) == 4


async def test_without_any_launcher_there_is_no_lease(job: Job) -> None:
    lapse = await job.lapse()
    assert not lapse.found
    assert receipt(lapse).receipt is None


async def test_renewals_need_no_worker_and_leave_no_history(job: Job) -> None:
    node = job.node("alpha1").start("sh", "-c", STUBBORN, term="6s")
    await node.trains()
    await job.stage.stop_worker()
    lease = job.stage.handle(LEASE)

    async def renewed() -> tuple[float, int]:
        seen = await lease.describe()
        (seat,) = seen.raw_description.pending_activities
        return seat.last_heartbeat_time.ToDatetime().timestamp(), seen.history_length

    first, length = await renewed()

    async def again() -> bool:
        return (await renewed())[0] > first + 7.0  # more than its term

    await job.stage.until(again, "the lease is renewed without a worker")
    assert (await renewed())[1] == length
    assert len(node.ranks()) == 4


async def test_a_command_that_ends_gives_its_seat_back_and_the_next_one_gets_another(job: Job) -> None:
    assert await job.node("alpha1").start("sh", "-c", "exit 7").code() == 7
    assert await job.node("alpha1").start("sh", "-c", "exit 0").code() == 0

    async def left() -> bool:
        return {s.state for s in (await job.state()).seats} == {SeatState.LEFT}

    await job.stage.until(left, "both have left")
    assert [s.text for s in (await job.state()).seats] == ["ended with code 7", "ended with code 0"]


async def test_a_lease_that_a_person_cancels_ends_no_training_and_is_begun_again(job: Job) -> None:
    node = job.node("alpha1").start("sh", "-c", STUBBORN)
    await node.trains()
    first = await job.stage.handle(LEASE).describe()
    await job.stage.handle(LEASE).cancel()

    async def again() -> bool:
        seen = await job.stage.handle(LEASE).describe()
        seats = seen.raw_description.pending_activities
        return seen.run_id != first.run_id and any(seat.HasField("last_heartbeat_time") for seat in seats)

    await job.stage.until(again, "its launcher has a seat again")
    assert len(node.ranks()) == 4


async def test_a_lost_cluster_is_left_without_a_person_once_its_launchers_have_stopped(pair: Pair) -> None:
    stage = pair.stage
    pair.policy(limits={"cluster_lost_after": "1s"})
    native = await stage.supervise(spec=pair.spec())
    job = Job(stage, stage.client.service_client.config.target_host)
    try:
        nodes = [job.node(n, native=native).start("sh", "-c", STUBBORN) for n in await stage.nodes_of()]
        for node in nodes:
            await node.trains()
        stage.faults.controller_kill()
        view = await stage.runs_in("train", 2)
        assert [node.ranks() for node in nodes] == [[], []]
    finally:
        await asyncio.to_thread(job.end)
    assert view.ledger is not None
    old, new = view.ledger.attempts
    assert old.receipt is not None
    assert old.receipt.grade() is ReceiptGrade.LEASE_EXPIRED
    assert new.cluster == "beta"


# -- the server is away


@pytest.fixture
def home(tmp_path: Path, temporal_binary_found: None) -> Iterator[Path]:
    """Of a server that the test may kill."""
    place = tmp_path / "server"
    ensure_server(place, values=FAST_VALUES)
    yield place
    stop_server(place)


@pytest.fixture
async def own_server(home: Path, open_stage: Opener) -> AsyncIterator[Job]:
    """A job whose server is the test's own; it is there again when the stage ends."""
    info = read_state(home)
    assert info is not None
    stage = await open_stage(address=info.address)
    await stage.start_worker()
    job = Job(stage, info.address, home)
    yield job
    await asyncio.to_thread(job.end)
    await job.start_server()


async def test_a_restart_of_the_server_is_not_felt_and_a_long_outage_ends_the_ranks(own_server: Job) -> None:
    node = own_server.node("alpha1").start("sh", "-c", STUBBORN, term="20s")
    await node.trains()
    await own_server.kill_server()
    await asyncio.to_thread(wait, lambda: "cannot be renewed" in node.log.read_text(), 30)
    await own_server.start_server()
    await asyncio.to_thread(wait, lambda: node.log.read_text().count("the lease holds") == 2, 30)
    assert len(node.ranks()) == 4
    await own_server.kill_server()
    await node.is_empty()
    assert await node.code() == LEASE_LOST
