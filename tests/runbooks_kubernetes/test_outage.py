"""The control plane itself is away while a job is to be moved: that costs time, and nothing else."""

import asyncio

from fleet.model import NodeState, Phase
from tests.clients.stage import XID_79
from tests.runbooks_kubernetes.stage import Stage
from tests.runbooks_kubernetes.test_lost_gpu import looking

FROZEN = 60.0
"""Seconds: several times the silence after which the lab's node controller calls a node lost (16 s)."""


async def test_an_apiserver_that_stands_still_for_a_minute_costs_no_healthy_node_and_makes_no_second_job(
    stage: Stage,
) -> None:
    first = await stage.train()
    native_id = first.native_id
    sick = first.nodes[1]
    healthy = [node for node in map(stage.lab.node, (1, 2, 3)) if node != sick]
    boots = {node: await stage.lab.boot_id(node) for node in (*healthy, sick)}
    await stage.lab.kubectl("taint", "node", sick, "example.com/team=vision:PreferNoSchedule")
    async with looking(stage, "train") as seen:
        assert (await stage.cli("evidence", f"gamma/{sick}", "-", stdin=XID_79)).code == 0
        await stage.until(lambda: _isolated(stage, sick), "the sick node is isolated")
        await stage.lab.lab("api-freeze")
        await asyncio.sleep(FROZEN)  # the outage itself
        await stage.lab.lab("api-thaw")
        await stage.trains("train", 2)
        assert await stage.result(f"node/gamma/{sick}") == "repaired, checked and back at work"
    assert all(len(together) < 2 for together in seen)
    again = await stage.backend.job(native_id)
    assert (again.phase, again.restarts, again.fingerprint) == (Phase.RUNNING, 1, first.fingerprint)
    assert sick not in again.nodes
    assert len((await stage.lab.get("jobs", "-A"))["items"]) == 1
    for node in healthy:
        now = await stage.backend.node(node)
        assert (now.state, now.drained, now.op) == (NodeState.UP, False, None), node
        assert await stage.lab.boot_id(node) == boots[node], f"{node} was well and was power-cycled"
    assert await stage.lab.boot_id(sick) != boots[sick]
    taints = {taint["key"] for taint in (await stage.lab.get("node", sick))["spec"]["taints"]}
    assert taints == {"example.com/team"}, "another's taint is kept, ours is gone"


async def _isolated(stage: Stage, node: str) -> bool:
    return (await stage.backend.node(node)).op is not None
