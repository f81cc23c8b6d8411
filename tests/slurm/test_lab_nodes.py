"""Nodes and controllers of real clusters: reservations, reboots that never end, checks, wrong configurations."""

import asyncio
import time

import pytest

from activities.backends.slurm.backend import SlurmBackend
from activities.backends.slurm.marks import check_name, reservation_name
from activities.backends.slurm.settings import SlurmSettings
from fleet.errors import PermanentError, RefusedError, TemporaryError
from fleet.model import NodeState, Phase
from tests.slurm.conftest import Opener
from tests.slurm.lab import QUICK, Cluster
from tests.slurm.waiting import job_in, until

pytestmark = pytest.mark.slurm
OP, OTHER = "opaaaaa", "opbbbbb"


async def reservations(cluster: Cluster) -> set[str]:
    return {r.name for r in await cluster.backend.view.reads.list_reservations()}


# -- probe


async def test_a_missing_configuration_is_answered_at_once() -> None:
    backend = SlurmBackend("alpha", SlurmSettings(conf="/nowhere/slurm.conf"))
    began = time.monotonic()
    with pytest.raises(PermanentError, match=r"/nowhere/slurm\.conf"):
        await backend.probe()
    assert time.monotonic() - began < 1


async def test_a_configuration_of_another_cluster_is_refused(alpha: Cluster) -> None:
    backend = SlurmBackend("beta", alpha.settings)
    with pytest.raises(PermanentError, match="of the cluster alpha, not beta"):
        await backend.probe()
    await backend.close()


async def test_the_probe_reads_the_waits_from_the_controller(alpha: Cluster) -> None:
    facts = await alpha.backend.probe()
    assert facts.version.count(".") == 2
    assert (facts.node_down_after, facts.stop_takes, facts.requeue_delay) == (27, 8, 6)
    assert facts.reboot_timeout == 60
    assert facts.notes == ()
    assert alpha.backend.commands.limit == 10


async def test_a_cluster_without_a_reboot_program_is_told_and_its_reboots_are_refused(lab: Opener) -> None:
    async with lab("alpha", nodes=1) as alpha:
        conf = alpha.root / "alpha" / "etc" / "slurm.conf"
        conf.write_text(
            "".join(
                line for line in conf.read_text().splitlines(keepends=True) if not line.startswith("RebootProgram=")
            )
        )
        await alpha.slurm("scontrol", "reconfigure")
        assert any("RebootProgram" in note for note in (await alpha.backend.probe()).notes)
        await alpha.backend.isolate("alpha1", OP, "sick")
        with pytest.raises(RefusedError, match="RebootProgram"):
            await alpha.backend.reboot("alpha1", OP)


async def test_a_frozen_controller_of_one_cluster_does_not_delay_the_other(lab: Opener) -> None:
    async with lab("alpha", nodes=1) as alpha, lab("beta", nodes=1) as beta:
        await alpha.lab("ctld-freeze", "alpha")
        frozen = asyncio.create_task(alpha.backend.jobs(max_age=-1))
        began = time.monotonic()
        native_id = await beta.quick_job("free", "sleep 300")
        await job_in(beta, native_id, Phase.RUNNING)
        await beta.backend.adopt(native_id)
        assert (await beta.backend.job(native_id)).held
        assert time.monotonic() - began < 5
        with pytest.raises(TemporaryError):
            await frozen
        await alpha.lab("ctld-thaw", "alpha")


@pytest.mark.parametrize("fault", ["ctld-stop", "munge-stop"])
async def test_a_controller_or_munge_that_is_gone_is_temporary_for_reads_and_writes(
    alpha: Cluster, fault: str
) -> None:
    native_id = await alpha.quick_job("kept", "sleep 300")
    await job_in(alpha, native_id, Phase.RUNNING)
    await alpha.lab(fault, "alpha")
    for call in (
        alpha.backend.job(native_id),
        alpha.backend.isolate("alpha1", OP, "x"),
        alpha.backend.stop(native_id, 0),
        alpha.backend.adopt(native_id),
    ):
        with pytest.raises(TemporaryError):
            await call
    await alpha.lab(fault.replace("stop", "start"), "alpha")
    await until(lambda: alpha.backend.job(native_id), lambda job: job.phase is Phase.RUNNING)
    assert not (await alpha.backend.node("alpha1")).drained


# -- isolate, reboot, release


async def test_our_reboot_leaves_a_reservation_that_release_takes_away_last(alpha: Cluster) -> None:
    await alpha.backend.isolate("alpha2", OP, "xid 79")
    before = await alpha.backend.node("alpha2")
    await alpha.backend.reboot("alpha2", OP)
    assert reservation_name(OP) in await reservations(alpha)
    back = await until(
        lambda: alpha.backend.node("alpha2"), lambda n: n.booted_at > before.booted_at + 2 and n.responding
    )
    assert (back.state, back.op, back.reserved_by) == (NodeState.DOWN, OP, reservation_name(OP))
    after = await alpha.backend.release("alpha2", OP)
    assert (after.state, after.op, after.reserved_by, after.responding) == (NodeState.UP, None, None, True)
    assert await reservations(alpha) == set()
    assert (await alpha.backend.release("alpha2", OP)).state is NodeState.UP


async def test_a_release_that_died_before_the_reservation_was_deleted_is_finished(alpha: Cluster) -> None:
    await alpha.backend.isolate("alpha2", OP, "xid 79")
    await alpha.backend._nodes.reserve("alpha2", OP)
    await alpha.slurm("scontrol", "update", "NodeName=alpha2", "State=UNDRAIN")
    facts = await until(lambda: alpha.backend.node("alpha2"), lambda n: not n.drained)
    assert facts.op == OP
    with pytest.raises(RefusedError):
        await alpha.backend.release("alpha2", OTHER)
    assert (await alpha.backend.release("alpha2", OP)).reserved_by is None
    assert await reservations(alpha) == set()


async def test_a_reboot_that_never_comes_back_is_no_new_boot_and_stays_ours(lab: Opener) -> None:
    async with lab("alpha", nodes=2, words=(*QUICK, "-o", "ResumeTimeout=10")) as alpha:
        await alpha.backend.isolate("alpha2", OP, "xid 79")
        before = await alpha.backend.node("alpha2")
        await alpha.backend.reboot("alpha2", OP)
        await alpha.lab("power-off", "alpha", "alpha2")
        facts = await until(
            lambda: alpha.backend.node("alpha2"), lambda n: n.state is NodeState.DOWN and not n.responding, 90
        )
        assert (facts.op, facts.boot) == (OP, before.boot)
        assert "alpha2" not in (await alpha.backend.capacity()).free_nodes
        with pytest.raises(RefusedError, match="does not answer"):
            await alpha.backend.release("alpha2", OP)


async def test_a_reboot_of_a_node_that_is_not_isolated_by_us_is_refused(alpha: Cluster) -> None:
    with pytest.raises(RefusedError, match="not isolated"):
        await alpha.backend.reboot("alpha2", OP)
    await alpha.slurm("scontrol", "update", "NodeName=alpha2", "State=DRAIN", "Reason=bad PSU")
    with pytest.raises(RefusedError):
        await alpha.backend.reboot("alpha2", OP)
    assert await reservations(alpha) == set()


async def test_a_health_checks_drain_stays_its_owners(alpha: Cluster) -> None:
    await alpha.lab("health", "alpha", "alpha2", "XID 79")
    await until(lambda: alpha.backend.node("alpha2"), lambda n: n.foreign_drain)
    facts = await alpha.backend.isolate("alpha2", OP, "ours")
    assert facts.reason == "healthcheck: XID 79"
    assert await alpha.backend.give_back_all() == ()


async def test_a_lost_node_that_we_isolate_does_not_come_back_into_service_by_itself(alpha: Cluster) -> None:
    await alpha.lab("slurmd-kill", "alpha", "alpha2")
    await until(lambda: alpha.backend.node("alpha2"), lambda n: n.state is NodeState.DOWN, 60)
    facts = await alpha.backend.isolate("alpha2", OP, "lost")
    assert (facts.drained, facts.op) == (True, OP)
    await alpha.lab("slurmd-start", "alpha", "alpha2")
    back = await until(lambda: alpha.backend.node("alpha2"), lambda n: n.responding)
    assert back.isolated_by_us
    assert "alpha2" not in (await alpha.backend.capacity()).free_nodes
    assert (await alpha.backend.release("alpha2", OP)).state is NodeState.UP


# -- check


async def test_a_node_with_a_lost_gpu_fails_its_check_with_both_numbers(alpha: Cluster) -> None:
    await alpha.backend.isolate("alpha2", OP, "xid 79")
    await alpha.lab("gpu-lose", "alpha", "alpha2", "3")
    result = await alpha.backend.run_check("alpha2", OP, "quick")
    assert (result.ran, result.passed, result.gpus) == (True, False, 7)
    assert "7 of 8" in result.detail
    assert (await alpha.backend.node("alpha2")).isolated_by_us


async def test_without_a_configured_check_the_granted_gpus_are_counted(alpha: Cluster) -> None:
    backend = alpha.another_backend(check=None)
    await backend.isolate("alpha2", OP, "xid 79")
    result = await backend.run_check("alpha2", OP, "quick")
    assert (result.ran, result.passed, result.gpus) == (True, True, 8)
    await backend.close()


async def test_a_check_that_cannot_run_is_not_a_sick_node(alpha: Cluster) -> None:
    backend = alpha.another_backend(check=("/nowhere/check",))
    await backend.isolate("alpha2", OP, "xid 79")
    result = await backend.run_check("alpha2", OP, "quick")
    assert (result.ran, result.passed) == (False, False)
    assert (await backend.node("alpha2")).isolated_by_us
    await backend.close()


async def test_a_check_that_takes_too_long_is_ended_and_the_next_one_finds_no_orphan(alpha: Cluster) -> None:
    backend = alpha.another_backend(check=("/bin/sleep", "600"), check_seconds=-27.0)
    await backend.isolate("alpha2", OP, "xid 79")
    result = await backend.run_check("alpha2", OP, "quick")
    assert not result.ran
    await backend.close()
    left = [j for j in await alpha.backend.jobs(max_age=-1) if j.name == check_name(OP) and not j.phase.ended]
    assert left == []
    assert (await alpha.backend.run_check("alpha2", OP, "quick")).passed


async def test_a_check_of_a_crashed_worker_is_ended_before_the_next_one(alpha: Cluster) -> None:
    await alpha.backend.isolate("alpha2", OP, "xid 79")
    await alpha.backend._nodes.reserve("alpha2", OP)
    await alpha.slurm("scontrol", "update", "NodeName=alpha2", "State=UNDRAIN")
    orphan = await alpha.quick_job(
        check_name(OP), "sleep 300", f"--reservation={reservation_name(OP)}", "-w", "alpha2", "--gres=gpu:8"
    )
    await job_in(alpha, orphan, Phase.RUNNING)
    assert (await alpha.backend.run_check("alpha2", OP, "quick")).passed
    assert (await alpha.backend.job(orphan)).phase is Phase.CANCELLED


async def test_a_check_beside_running_work_is_refused(alpha: Cluster) -> None:
    native_id = await alpha.quick_job("busy", "sleep 300", "-w", "alpha2")
    await job_in(alpha, native_id, Phase.RUNNING)
    await alpha.backend.isolate("alpha2", OP, "xid 79")
    with pytest.raises(RefusedError, match=native_id):
        await alpha.backend.run_check("alpha2", OP, "quick")
    assert await reservations(alpha) == set()


# -- power and give back


async def test_power_of_a_node_in_service_is_not_taken_away(alpha: Cluster) -> None:
    with pytest.raises(RefusedError, match="isolate it"):
        await alpha.backend.power_off("alpha2", OP)
    assert not await alpha.backend.power.is_off("alpha2")


async def test_giving_back_takes_reservations_and_the_drain_of_a_dead_node(alpha: Cluster) -> None:
    for node in ("alpha1", "alpha2"):
        await alpha.backend.isolate(node, OP, "sick")
    await alpha.backend._nodes.reserve("alpha1", OP)
    await alpha.backend.power_off("alpha2", OP)
    await until(lambda: alpha.backend.node("alpha2"), lambda n: not n.responding, 60)
    lines = await alpha.backend.give_back_all()
    assert len(lines) == 3
    assert await reservations(alpha) == set()
    first, second = await alpha.backend.node("alpha1"), await alpha.backend.node("alpha2")
    assert (first.state, first.drained) == (NodeState.UP, False)
    assert (second.drained, second.responding) == (False, False)
    assert await alpha.backend.give_back_all() == ()
