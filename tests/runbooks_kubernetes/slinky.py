"""What Slinky's slurm-operator does to the Slurm twins of Kubernetes nodes, for a lab that cannot run it.

The operator speaks to slurmrestd of a release that Debian has not, so its rules are written down here: `syncCordon`,
`MakeNodeDrain`, `MakeNodeUndrain` and `IsNodeReasonOurs` of SlinkyProject/slurm-operator, as of August 2026 in
internal/controller/nodeset. The clusters on both sides are real.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from activities.backends.kubernetes.marks import CORDON_REASON, SLURM_NODE
from fleet.errors import FleetError
from tests.kubernetes import lab as k8s
from tests.slurm import lab as slurm

PREFIX = "slurm-operator: "
EVERY = 0.5
"""Seconds between two looks; the operator itself is told of changes."""


async def _reconcile(kubernetes: k8s.Cluster, twin: slurm.Cluster) -> None:
    nodes = {n["metadata"]["name"]: n for n in (await kubernetes.get("nodes"))["items"]}
    for facts in await twin.backend.nodes(0):
        node = nodes.get(facts.node)
        ours = not facts.reason or facts.reason.startswith(PREFIX)
        if node is None or not ours or not facts.responding:
            continue
        cordoned = bool(node["spec"].get("unschedulable"))
        if cordoned and not facts.drained:
            notes = node["metadata"].get("annotations", {})
            why = notes.get(CORDON_REASON, f"Node ({facts.node}) was cordoned, Pod ({facts.node}) must be cordoned")
            words = ("State=DRAIN", f"Reason={facts.reason or PREFIX + why}")
            await twin.slurm("scontrol", "update", f"NodeName={facts.node}", *words)
        if not cordoned and facts.drained:
            words = ("State=UNDRAIN", f"Reason={PREFIX}Pod ({facts.node}) was uncordoned")
            await twin.slurm("scontrol", "update", f"NodeName={facts.node}", *words)


@asynccontextmanager
async def operator(kubernetes: k8s.Cluster, twin: slurm.Cluster) -> AsyncIterator[None]:
    """Reconciles until the body has ended; what it cannot do now it does at the next look."""

    async def run() -> None:
        while True:
            with contextlib.suppress(FleetError, AssertionError):
                await _reconcile(kubernetes, twin)
            await asyncio.sleep(EVERY)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def slurmd_pod(node: str) -> dict[str, object]:
    """What stands for the pod of a NodeSet: all GPUs of the node, under the label that names its Slurm node. The
    slurmd itself runs beside it, in the Slurm lab."""
    worker = {
        "name": "slurmd",
        "image": "lab/base:1",
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done"],
        "resources": {"limits": {"nvidia.com/gpu": "8"}},
    }
    spec = {
        "nodeName": node,
        "terminationGracePeriodSeconds": 2,
        "tolerations": [{"operator": "Exists"}],
        "containers": [worker],
    }
    meta = {"name": f"slurmd-{node}", "labels": {SLURM_NODE: node}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
