"""When ranks count as gone, and what never counts. Time is set by the tests."""

from pathlib import Path

import pytest

from activities.backends.slurm.commands import Commands
from activities.backends.slurm.power import PowerHooks
from activities.backends.slurm.proofs import Proofs
from activities.backends.slurm.settings import SlurmSettings
from activities.backends.slurm.view import ClusterView, newer_boot
from fleet.model import Phase, ReceiptGrade
from fleet.orders import StopProof, StopQuery
from tests.slurm.doubles import Readings, a_node, record

SETTLE, SILENCE = 15.0, 27.0
END = 5000.0
"""When the attempt was seen to end."""


class Clock:
    """The time of readings."""

    now = END

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("activities.backends.slurm.view.time", made)
    return made


class Bench:
    """Proofs over readings that a test sets."""

    def __init__(self, clock: Clock, reads: Readings, status: str | None = None) -> None:
        self.clock = clock
        self.reads = reads
        hook = ("/bin/echo", status) if status else None
        commands = Commands(SlurmSettings(conf="/nowhere", power_status=hook))
        self.view = ClusterView("alpha", reads, SETTLE)
        self.proofs = Proofs(self.view, PowerHooks(commands, self.view), SETTLE)
        self.proofs.silence = SILENCE

    async def at(self, seconds: float, **query: object) -> StopProof:
        """A proof that many seconds after the end."""
        self.clock.now = END + seconds
        values: dict[str, object] = {"native_id": "7", "restarts": 0, "boots": {"a1": "1000", "a2": "1000"}}
        values |= {"ordered": False, "since": END} | query
        return await self.proofs.prove(StopQuery(**values))  # type: ignore[arg-type]


def waiting(**fields: object) -> Readings:
    return Readings((record(Phase.PENDING, restarts=1, held=True, **fields),), (a_node("a1"), a_node("a2")))


def grades(proof: StopProof) -> dict[str, ReceiptGrade]:
    return {receipt.node: receipt.grade for receipt in proof.receipts}


async def test_an_ordered_end_is_proven_by_daemons_that_never_went_away(clock: Clock) -> None:
    proof = await Bench(clock, waiting()).at(1, ordered=True)
    assert grades(proof) == {"a1": ReceiptGrade.DAEMON_GONE, "a2": ReceiptGrade.DAEMON_GONE}


async def test_an_end_that_nobody_ordered_needs_steady_answers_for_the_whole_settle_time(clock: Clock) -> None:
    bench = Bench(clock, waiting())
    for seconds in (0, 5, 10, 14):
        proof = await bench.at(seconds)
        assert grades(proof) == {}
        assert "more of steady answers" in proof.unproven["a1"]
    assert set(grades(await bench.at(15.5))) == {"a1", "a2"}


async def test_a_first_look_long_after_the_end_still_waits(clock: Clock) -> None:
    bench = Bench(clock, waiting())
    assert grades(await bench.at(1000)) == {}
    assert set(grades(await bench.at(1016))) == {"a1", "a2"}


async def test_a_missed_answer_starts_the_wait_anew_also_for_an_ordered_end(clock: Clock) -> None:
    bench = Bench(clock, waiting())
    bench.reads.nodes = (a_node("a1", "IDLE", "NOT_RESPONDING"), a_node("a2"))
    proof = await bench.at(1, ordered=True)
    assert set(grades(proof)) == {"a2"}
    assert "nobody knows what runs there" in proof.unproven["a1"]
    bench.reads.nodes = (a_node("a1"), a_node("a2"))
    assert "a1" in (await bench.at(2, ordered=True)).unproven
    assert "a1" in (await bench.at(16, ordered=True)).unproven
    assert set(grades(await bench.at(17.5, ordered=True))) == {"a1", "a2"}


async def test_readings_too_far_apart_are_not_steady(clock: Clock) -> None:
    bench = Bench(clock, waiting())
    await bench.at(0)
    assert grades(await bench.at(100)) == {}


@pytest.mark.parametrize("flags", [("NOT_RESPONDING",), ("NOT_RESPONDING", "DRAIN"), ("REBOOT_ISSUED",)])
async def test_down_is_an_opinion_and_never_a_proof(clock: Clock, flags: tuple[str, ...]) -> None:
    bench = Bench(clock, waiting())
    bench.reads.nodes = (a_node("a1", "DOWN", *flags), a_node("a2"))
    for seconds in range(0, 3000, 20):
        proof = await bench.at(seconds)
    assert "a1" in proof.unproven


async def test_a_down_node_that_may_only_look_as_if_it_answers_waits_for_the_next_missed_ping(clock: Clock) -> None:
    bench = Bench(clock, waiting())
    bench.reads.nodes = (a_node("a1", "DOWN"), a_node("a2"))
    for seconds in (0, 10, 20):
        proof = await bench.at(seconds)
    assert set(grades(proof)) == {"a2"}
    assert "a1" in (await bench.at(26)).unproven
    assert set(grades(await bench.at(28))) == {"a1", "a2"}


async def test_a_job_that_runs_or_is_completing_proves_nothing(clock: Clock) -> None:
    for phase in (Phase.RUNNING, Phase.STOPPING):
        bench = Bench(clock, Readings((record(phase),), (a_node("a1"), a_node("a2"))))
        await bench.at(0, ordered=True)
        assert grades(await bench.at(16, ordered=True)) == {}


async def test_a_newer_attempt_that_runs_does_not_hide_that_the_old_one_is_gone(clock: Clock) -> None:
    bench = Bench(clock, Readings((record(Phase.RUNNING, restarts=1),), (a_node("a1"), a_node("a2"))))
    assert set(grades(await bench.at(1, ordered=True))) == {"a1", "a2"}


async def test_a_newer_boot_is_a_proof_even_while_slurm_says_running(clock: Clock) -> None:
    bench = Bench(clock, Readings((record(Phase.RUNNING),), (a_node("a1", boot=4990, start=4993), a_node("a2"))))
    assert grades(await bench.at(0)) == {"a1": ReceiptGrade.BOOT_CHANGED}


@pytest.mark.parametrize("boot", [0, 998, 999, 1000, 1001, 1002])
async def test_an_unknown_or_wavering_boot_time_is_no_reboot(clock: Clock, boot: int) -> None:
    bench = Bench(clock, Readings((record(Phase.RUNNING),), (a_node("a1", boot=boot), a_node("a2"))))
    assert grades(await bench.at(0)) == {}


async def test_a_boot_time_that_moved_without_a_new_slurmd_is_a_machine_that_stood_still(clock: Clock) -> None:
    bench = Bench(clock, Readings((record(Phase.RUNNING),), (a_node("a1", start=1010), a_node("a2"))))
    await bench.at(0)
    bench.reads.nodes = (a_node("a1", boot=4000, start=1010), a_node("a2"))
    assert grades(await bench.at(1)) == {}
    assert (await bench.view.node("a1")).boot == "1000"


async def test_an_unrecorded_boot_proves_nothing(clock: Clock) -> None:
    bench = Bench(clock, Readings((record(Phase.RUNNING),), (a_node("a1", boot=4990),)))
    assert grades(await bench.at(0, boots={"a1": ""})) == {}


async def test_power_that_reads_off_is_a_proof_whatever_slurm_says(clock: Clock) -> None:
    bench = Bench(clock, Readings((record(Phase.RUNNING),), (a_node("a1"), a_node("a2"))), status="off")
    assert grades(await bench.at(0)) == {"a1": ReceiptGrade.POWER_OFF, "a2": ReceiptGrade.POWER_OFF}
    bench = Bench(clock, Readings((record(Phase.RUNNING),), (a_node("a1"), a_node("a2"))), status="on")
    assert grades(await bench.at(0)) == {}


async def test_a_node_that_the_cluster_lost_is_unproven(clock: Clock, tmp_path: Path) -> None:
    bench = Bench(clock, Readings((record(Phase.PENDING, restarts=1),), (a_node("a2"),)))
    assert "does not know this node" in (await bench.at(1, ordered=True)).unproven["a1"]


async def test_one_boot_keeps_one_identity_although_slurm_wavers(clock: Clock) -> None:
    bench = Bench(clock, waiting())
    seen = set()
    for boot in (1000, 1001, 999, 1000):
        bench.reads.nodes = (a_node("a1", boot=boot), a_node("a2"))
        facts = await bench.view.node("a1")
        seen.add(facts.boot)
    assert seen == {"1000"}
    bench.reads.nodes = (a_node("a1", boot=1004), a_node("a2"))
    facts = await bench.view.node("a1")
    assert newer_boot(facts, "1000")
