"""A cluster without a power hook of ours and with NVSentinel, whose janitor reboots. The janitor is a stand-in; its
objects, our account and the node are real."""

import asyncio
import json
from typing import Any

import pytest

from fleet.errors import RefusedError
from fleet.model import NodeState
from tests.kubernetes.backends import repairing
from tests.kubernetes.lab import Cluster
from tests.slurm.waiting import until

pytestmark = pytest.mark.kubernetes
OP = "oprbaaa"
CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "rebootnodes.janitor.dgxc.nvidia.com"},
    "spec": {
        "group": "janitor.dgxc.nvidia.com",
        "scope": "Cluster",
        "names": {"plural": "rebootnodes", "singular": "rebootnode", "kind": "RebootNode"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


class Janitor:
    """Takes the orders of the cluster, and says of each what NVSentinel's says."""

    def __init__(self, gamma: Cluster) -> None:
        self.gamma = gamma

    async def orders(self) -> list[dict[str, Any]]:
        return list((await self.gamma.get("rebootnodes"))["items"])

    async def answer(self, order: dict[str, Any], kind: str, status: str, reason: str) -> None:
        condition = {"type": kind, "status": status, "reason": reason, "message": f"{kind} of a test"}
        patch = json.dumps({"status": {"conditions": [condition]}})
        name = order["metadata"]["name"]
        await self.gamma.kubectl("patch", "rebootnode", name, "--subresource=status", "--type=merge", "-p", patch)

    async def work(self, *, manual: bool) -> None:
        """One order."""
        (order,) = await until(self.orders, lambda found: len(found) == 1, 60)
        if manual:
            await self.answer(order, "ManualMode", "True", "OutsideActorRequired")
            return
        await self.answer(order, "SignalSent", "True", "Succeeded")
        await self.gamma.lab("node-reboot", order["spec"]["nodeName"])


async def test_without_hook_and_crd_a_reboot_is_refused_and_with_the_crd_it_is_proven_by_another_boot(
    gamma: Cluster,
) -> None:
    node = gamma.node(1)
    async with repairing(gamma) as backend:
        await backend.isolate(node, OP, "a test")
        with pytest.raises(RefusedError, match="neither a power hook nor NVSentinel"):
            await backend.reboot(node, OP)
    await gamma.apply(CRD)
    await gamma.kubectl("wait", "--for=create", "crd/rebootnodes.janitor.dgxc.nvidia.com", "--timeout=30s")
    await until(lambda: served(gamma), bool, 30)
    janitor = Janitor(gamma)
    async with repairing(gamma) as backend:
        await backend.isolate(node, OP, "a test")
        before = await backend.node(node)

        at_work = asyncio.create_task(janitor.work(manual=True))
        with pytest.raises(RefusedError, match="manual mode"):
            await backend.reboot(node, OP)
        await at_work
        assert (await backend.node(node)).state is NodeState.DRAINED, "it is not rebooting"
        await gamma.kubectl("delete", "rebootnodes", "--all")

        at_work = asyncio.create_task(janitor.work(manual=False))
        asked = await backend.reboot(node, OP)
        assert asked.boot == before.boot or asked.boot
        await backend.reboot(node, OP)  # asked again, by a worker that died in between
        await at_work
        after = await until(lambda: backend.node(node), lambda n: n.boot != before.boot and n.responding, 90)
        assert len(await janitor.orders()) == 1
        assert (after.drained, after.op) == (True, OP)
        counted = await until(lambda: backend.node(node), lambda n: n.gpus == 8, 60)
        assert counted.gpus_expected == 8
        checked = await backend.run_check(node, OP, "quick")
        assert checked.passed, checked
        assert (await backend.release(node, OP)).state is NodeState.UP
    told = await gamma.kubectl("describe", "node", node)
    assert "asked NVSentinel for a RebootNode" in told


async def served(gamma: Cluster) -> bool:
    """The CRD's API is there."""
    return "rebootnodes" in await gamma.kubectl("api-resources", "--api-group=janitor.dgxc.nvidia.com", "-o", "name")
