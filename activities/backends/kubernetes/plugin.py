"""The GPU device plugin of a node, made to count again: after a reset it may keep a healthy GPU unhealthy."""

import asyncio
import time

from activities.backends.kubernetes.api import KubeApi
from activities.backends.kubernetes.view import ClusterView
from activities.backends.kubernetes.writes import end_pod
from fleet.model import NodeFacts

COUNTS_WITHIN = 90.0
"""Seconds until a plugin that was started again offers its GPUs: its pod's start and one registration."""


async def restart_plugin(api: KubeApi, view: ClusterView, facts: NodeFacts) -> NodeFacts:
    """Ends the plugin's pod, which its DaemonSet starts again, and waits until all GPUs are allocatable.

    Returns the node as it is then, or after 90 s; at once where no plugin is configured or none runs there.
    """
    plugin = view.settings.device_plugin
    if plugin is None:
        return facts
    space = f"/api/v1/namespaces/{plugin.namespace}/pods"
    query = [("labelSelector", plugin.selector), ("fieldSelector", f"spec.nodeName={facts.node}")]
    pods, _ = await api.list(f"device plugin of {facts.node}", space, query)
    if not pods:
        return facts
    what = f"restart the device plugin of {facts.node}"
    metas = [pod["metadata"] for pod in pods]
    await asyncio.gather(*(end_pod(api, what, plugin.namespace, meta["name"], meta["uid"]) for meta in metas))
    end = time.monotonic() + COUNTS_WITHIN
    pause = 0.2
    while time.monotonic() < end:
        facts = await view.node(facts.node)
        if facts.gpus >= facts.gpus_expected:
            break
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 3.0)
    return facts
