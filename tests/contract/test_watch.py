"""The watch: the full picture first, then what changed."""

import asyncio

from fleet.model import Phase
from tests.contract.rig import SLACK, Rig
from tests.contract.steps import OP, started


async def test_the_watch_gives_the_full_picture_and_then_the_changes(rig: Rig) -> None:
    _, job = await started(rig)
    changes = rig.backend.watch()
    try:
        async with asyncio.timeout(30 / rig.time_scale + SLACK):
            first = await anext(changes)
            assert first.resync
            assert {n.node for n in first.nodes} == {n.node for n in await rig.backend.nodes()}
            assert [j.native_id for j in first.jobs if j.phase is Phase.RUNNING] == [job.native_id]
            await rig.backend.isolate(job.nodes[0], OP, "sick")
            await rig.backend.cancel(job.native_id)
            isolated = ended = False
            while not (isolated and ended):
                change = await anext(changes)
                isolated = isolated or any(n.node == job.nodes[0] and n.op == OP for n in change.nodes)
                ended = ended or any(j.native_id == job.native_id and j.phase.ended for j in change.jobs)
    finally:
        await changes.aclose()  # type: ignore[attr-defined]
