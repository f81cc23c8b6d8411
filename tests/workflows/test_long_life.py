"""Runbooks that live for ever begin anew when their history grows long, and lose nothing by it."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from clients.embedded import ServerInfo
from fleet.faults.evidence import Evidence, Kind, Source
from fleet.people import Choice
from fleet.runbooks import FREEZE_MEMO, Update
from tests.conftest import FAST_VALUES
from tests.workflows.conftest import Opener
from tests.workflows.stage import Handle, Stage
from workers.server import ensure_server

SHORT_HISTORY = FAST_VALUES | {"limit.historyCount.suggestContinueAsNew": "60"}
"""Events after which the server suggests to begin anew; 4,096 by default."""


@pytest.fixture(scope="module")
def short_lived(temporal_binary_found: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInfo]:
    """A server that suggests continue-as-new early."""
    info = ensure_server(tmp_path_factory.mktemp("short-history"), values=SHORT_HISTORY)
    yield info
    os.kill(info.pid, signal.SIGKILL)


@pytest.fixture
async def forgetful(open_stage: Opener, short_lived: ServerInfo) -> Stage:
    stage = await open_stage(short_lived.address)
    await stage.start_worker()
    return stage


async def run_id(handle: Handle) -> str:
    return (await handle.describe()).run_id


async def test_a_guard_keeps_its_freeze_and_its_leases_and_shows_no_gap(forgetful: Stage) -> None:
    stage = forgetful
    other = stage.faults.person_submit(stage.spec("other", tokens="-", nodes=1))
    busy = (await stage.native(other)).nodes[0]
    await stage.heal(busy, stage.faults.gpu_lost(busy))
    await stage.at_step(f"node/alpha/{busy}", "evacuate")
    guard = stage.handle("guard/alpha")
    first, before = await run_id(guard), await stage.view("guard/alpha")
    assert [lease.node for lease in before.leases] == [busy]
    await stage.freeze("alpha")
    gaps: list[str] = []
    ended = asyncio.Event()
    watching = asyncio.create_task(_watch_memo(guard, gaps, ended))
    for _ in range(40):
        await stage.freeze("alpha")
    await stage.until(lambda: _is_another(guard, first), "the guard began anew")
    ended.set()
    await watching
    assert gaps == []
    after = await stage.view("guard/alpha")
    assert after.freeze
    assert (after.freeze.by, after.leases) == ("ada", before.leases)
    await stage.freeze("alpha", Update.UNFREEZE)
    await stage.record("guard/alpha", "guard-begun-anew")


async def test_a_guard_carries_its_wave_into_its_next_run(forgetful: Stage) -> None:
    """Repairs go on in order, each node is isolated once, and its runbook still finds the wave's mark."""
    stage = forgetful
    stage.write_policy(limits={"wave_from": "2", "nodes_isolated_percent": '"100%"', "nodes_out": "1"})
    guard = stage.handle("guard/alpha")
    await stage.until(lambda: stage.runs("guard/alpha"), "the guard runs")
    first = await run_id(guard)
    nodes = [f"alpha{n}" for n in range(1, 5)]
    lines = [(node, stage.faults.gpu_lost(node)) for node in nodes]
    await stage.tell(*(e for node, line in lines for e in stage.parsed(node, line)))
    for node in nodes:
        assert "back at work" in await stage.result(f"node/alpha/{node}")
        assert stage.ops(target=node) == ["isolate", "reboot", "check", "release"]
    assert await _is_another(guard, first)
    done = (await stage.view("guard/alpha")).wave
    assert done is not None
    assert (done.nodes, done.isolated, done.left) == (4, 4, 0)


async def _watch_memo(guard: Handle, gaps: list[str], ended: asyncio.Event) -> None:
    """Reads the freeze as workers do, as often as it can."""
    while not ended.is_set():
        seen = await guard.describe()
        if await seen.memo_value(FREEZE_MEMO, default=None) is None:
            gaps.append(seen.run_id)


async def _is_another(handle: Handle, run: str) -> bool:
    return await run_id(handle) != run


async def test_a_watch_routes_what_comes_while_it_begins_anew_and_nothing_twice(forgetful: Stage) -> None:
    stage = forgetful
    watch = stage.handle("watch/alpha")
    await stage.until(lambda: stage.runs("watch/alpha"), "the watch runs")
    first = await run_id(watch)
    for n in range(30):
        await stage.tell(note(n))
        await asyncio.sleep(0.02)
    await stage.until(lambda: _is_another(watch, first), "the watch began anew")
    await stage.until(lambda: _routed(stage, 30), "all of it was routed")
    for n in range(30):
        await stage.tell(note(n))
    native_id = await stage.supervise()
    await stage.lose_gpu((await stage.nodes_of())[0])
    await stage.trains_again("train", native_id, 2)
    assert await _routed(stage, 31)
    await stage.record("watch/alpha", "watch-begun-anew")


def note(number: int) -> Evidence:
    """Something that needs no action."""
    return Evidence(
        source=Source.KERNEL,
        kind=Kind.XID,
        code="63",
        cluster="alpha",
        node="alpha4",
        seen_at=0,
        raw_hash=str(number),
        detail="Row remapper: new row marked for remapping",
    )


async def _routed(stage: Stage, count: int) -> bool:
    return (await stage.view("watch/alpha")).result.startswith(f"{count} pieces")


async def test_a_jobs_runbook_keeps_its_ledger_its_question_numbers_and_what_waits(forgetful: Stage) -> None:
    stage = forgetful
    stage.write_policy(modes={"failover_in_cluster": "approve"})
    native_id = await stage.supervise()
    job = stage.handle("job/train")
    runs = {await run_id(job)}
    for attempt in (2, 3):
        await stage.order("train")
        asked = await stage.question(f"job/train/failover/{attempt}")
        await stage.answer(asked, Choice.APPROVE)
        await stage.trains_again("train", native_id, attempt)
        runs.add(await run_id(job))
    assert len(runs) > 1
    view = await stage.view("job/train")
    assert view.ledger
    assert [a.generation for a in view.ledger.attempts] == [1, 2, 3]
    assert all(a.receipt for a in view.ledger.attempts[:2])
    assert stage.ops().count("adopt") == 1
    assert view.op == (await stage.view("job/train/failover/3")).op
    sick = (await stage.nodes_of())[0]
    stage.write_policy()
    await stage.lose_gpu(sick)
    await stage.trains_again("train", native_id, 4)
    assert sick not in await stage.nodes_of()
    await stage.record("job/train", "supervise-begun-anew")
    await job.cancel()
    await stage.ended("job/train")
    await stage.alpha.give_back(native_id)
    await stage.stays(lambda: _is_over(stage), "a job that a person took away is not adopted again")


async def _is_over(stage: Stage) -> bool:
    return not await stage.runs("job/train")
