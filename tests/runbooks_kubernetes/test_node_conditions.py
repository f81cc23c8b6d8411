"""What a node's own agent writes into its status is evidence, and asks for one repair."""

import json
import time

from fleet.model import NodeState
from tests.runbooks_kubernetes.stage import Stage


async def test_a_kernel_deadlock_that_an_agent_reports_heals_the_node_once(stage: Stage) -> None:
    sick, well = stage.lab.node(1), stage.lab.node(2)
    before = await stage.backend.node(sick)
    for node, kind, status in ((sick, "KernelDeadlock", "True"), (well, "GpuFrobnication", "True")):
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        told = {"type": kind, "status": status, "reason": "Test", "message": "task kworker blocked"}
        told |= {"lastTransitionTime": now, "lastHeartbeatTime": now}
        patch = json.dumps({"status": {"conditions": [told]}})
        await stage.lab.kubectl("patch", "node", node, "--subresource=status", "-p", patch)
    assert await stage.result(f"node/gamma/{sick}") == "repaired, checked and back at work"
    after = await stage.backend.node(sick)
    assert after.boot != before.boot
    assert (after.state, after.op) == (NodeState.UP, None)
    assert [c.type for c in after.conditions] == ["KernelDeadlock"], "the agent that would clear it is not there"
    watch = await stage.cli("describe", "watch/gamma")
    assert "a type that is not in the catalogue" in watch.out
    assert (await stage.backend.node(well)).state is NodeState.UP
    assert [name for name in await stage.runbooks() if name.startswith("node/")] == [f"node/gamma/{sick}"]
