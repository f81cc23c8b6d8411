"""Trouble that others met on Kubernetes, on the real lab (trouble cases PC-K02 and PC-K10)."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from activities.backends.kubernetes.backend import KubernetesBackend
from activities.backends.kubernetes.settings import DevicePlugin
from fleet.identity import TOKEN_PREFIX
from fleet.model import NodeState, Phase
from tests.kubernetes.backends import repairing
from tests.kubernetes.lab import Cluster
from tests.slurm.waiting import until

pytestmark = pytest.mark.kubernetes
OP = "opkaaaa"
PLUGIN = DevicePlugin(namespace="kube-system", selector="name=device-plugin")


def opened(gamma: Cluster, plugin: DevicePlugin | None) -> AbstractAsyncContextManager[KubernetesBackend]:
    """With the lab's check pod."""
    return repairing(gamma, check=str(gamma.place.check_pod(gamma.name)), device_plugin=plugin)


async def offer(gamma: Cluster, node: str, gpus: int) -> None:
    """What the node's device plugin tells its kubelet, which makes the allocatable number of the capacity."""
    counts = {"nvidia.com/gpu": str(gpus)}
    await gamma.kubectl(
        "patch", "node", node, "--subresource=status", "--type=merge",
        "-p", json.dumps({"status": {"capacity": counts, "allocatable": counts}}),
    )  # fmt: skip


async def plugin_pods(gamma: Cluster, node: str) -> list[str]:
    found = await gamma.get("pods", "-n", "kube-system", "-l", PLUGIN.selector)
    living = [p for p in found["items"] if "deletionTimestamp" not in p["metadata"]]
    return [p["metadata"]["uid"] for p in living if p["spec"].get("nodeName") == node]


def plugin_daemon() -> dict[str, Any]:
    labels = {"name": "device-plugin"}
    container = {"name": "plugin", "image": "lab/base:1", "imagePullPolicy": "Never", "command": ["sleep", "100000"]}
    spec = {"containers": [container], "tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 0}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "device-plugin", "namespace": "kube-system"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


async def test_a_plugin_that_keeps_a_healthy_gpu_unhealthy_is_started_again_before_the_node_is_judged(
    gamma: Cluster,
) -> None:
    node = gamma.node(1)
    await gamma.apply(plugin_daemon())
    (old,) = await until(lambda: plugin_pods(gamma, node), lambda uids: len(uids) == 1, 60)

    async def counts_again() -> None:
        """The stand-in's GPU: its count is right as soon as a new plugin has registered."""
        await until(lambda: plugin_pods(gamma, node), lambda uids: bool(uids) and old not in uids, 60)
        await offer(gamma, node, 8)

    try:
        async with opened(gamma, None) as blind:
            await blind.isolate(node, OP, "a test")
            await offer(gamma, node, 7)
            await until(lambda: blind.node(node), lambda n: n.gpus == 7, 30)
            refused = await blind.run_check(node, OP, "quick")
            assert (refused.passed, refused.detail) == (False, "7 of 8 GPUs are allocatable")
            assert await plugin_pods(gamma, node) == [old]
            async with opened(gamma, PLUGIN) as backend:
                again = asyncio.create_task(counts_again())
                passed = await backend.run_check(node, OP, "quick")
                await again
            assert (passed.ran, passed.passed, passed.gpus) == (True, True, 8), passed
            assert (await blind.node(node)).state is NodeState.UP
    finally:
        await gamma.kubectl("delete", "daemonset", "-n", "kube-system", "device-plugin")
        await offer(gamma, node, 8)


async def test_ranks_that_are_done_stay_done_when_their_node_is_taken_away(gamma: Cluster) -> None:
    """Neither is the job begun again, nor does it look as if it waited for the ranks that are done."""
    made = gamma.training_job("early", steps=100_000)
    made["metadata"]["labels"] = {f"{TOKEN_PREFIX}supervise": "true"}
    container = made["spec"]["template"]["spec"]["containers"][0]
    done = f"{gamma.work}/early-may-end"
    script = f'[ "$JOB_COMPLETION_INDEX" = 0 ] || until [ -e {done} ]; do sleep 0.2; done'
    container |= {"command": ["/bin/sh", "-c"], "args": [script]}
    await gamma.apply(made)
    async with opened(gamma, None) as backend:

        def succeeded(count: int) -> Callable[[Any], bool]:
            return lambda job: int(job.get("status", {}).get("succeeded") or 0) == count

        await until(lambda: gamma.get("job", "early"), succeeded(1), 60)
        ended = next(p for p in await gamma.pods("early") if p["status"]["phase"] == "Succeeded")
        node, done_pod = ended["spec"]["nodeName"], ended["metadata"]["name"]
        before = await backend.job("job/default/early")
        await gamma.kubectl("delete", "node", node)
        await gamma.kubectl("delete", "pod", done_pod, "--force", "--grace-period=0")  # as the pod garbage collector
        await until(lambda: gamma.pods("early"), lambda pods: len(pods) == 1, 60)
        after = await backend.job("job/default/early")
        assert (before.phase, after.phase) == (Phase.RUNNING, Phase.RUNNING)
        assert (after.restarts, after.uid) == (0, before.uid)
        (gamma.work / "early-may-end").touch()
        await until(lambda: gamma.get("job", "early"), succeeded(2), 60)
        await until(lambda: backend.job("job/default/early"), lambda j: j.phase is Phase.SUCCEEDED, 30)
    await gamma.kubectl("delete", "job", "early")
    await gamma.lab("node-reboot", node)
