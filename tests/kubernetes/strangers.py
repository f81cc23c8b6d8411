"""Other people's pods on a lab cluster, which no runbook of ours moves, and what protects them."""

from typing import Any

from tests.kubernetes.lab import Cluster

Raw = dict[str, Any]
HOLD = "example.com/hold"
"""A finalizer that nobody takes away."""
RUNS = "trap 'exit 0' TERM; while :; do sleep 1; done"
OURS = "strangers"
"""Label of all of them."""


def _pod(name: str, node: str, *, finalizers: tuple[str, ...] = (), gpus: int = 0) -> Raw:
    """Template: starts on `node` where it can, and elsewhere while that is cordoned. Ends soon after a SIGTERM."""
    main: Raw = {
        "name": "main",
        "image": "lab/base:1",
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", RUNS],
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],  # noqa: S108 - in the pod
    }
    if gpus:
        main["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    there = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    near = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": there}]}
    return {
        "metadata": {"labels": {"app": name, OURS: "yes"}, "finalizers": list(finalizers)},
        "spec": {
            "terminationGracePeriodSeconds": 3,
            "affinity": {"nodeAffinity": near},
            "containers": [main],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        },
    }


def service(name: str, node: str, *, finalizers: tuple[str, ...] = (), gpus: int = 0) -> Raw:
    """A Deployment of one pod."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": {OURS: "yes"}},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": _pod(name, node, finalizers=finalizers, gpus=gpus),
        },
    }


def agent(name: str) -> Raw:
    """A DaemonSet: one pod on every node."""
    template = _pod(name, "")
    del template["spec"]["affinity"]
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "labels": {OURS: "yes"}},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template},
    }


def loner(name: str, node: str) -> Raw:
    """A pod without a controller."""
    made = _pod(name, node)
    del made["spec"]["affinity"]
    made["spec"]["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **made["metadata"]}, "spec": made["spec"]}


def budget(name: str) -> Raw:
    """A disruption budget that never allows the one pod of `service(name)` to go."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": f"{name}-stays", "labels": {OURS: "yes"}},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": name}}},
    }


async def place(cluster: Cluster, *manifests: Raw) -> None:
    """Applies them and waits until their pods are ready, and until the budgets have counted them."""
    await cluster.apply(*manifests)
    for made in manifests:
        kind, name = made["kind"].lower(), made["metadata"]["name"]
        if kind == "pod":
            await cluster.kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=60s")
        elif kind == "poddisruptionbudget":
            await cluster.kubectl("wait", f"pdb/{name}", "--for=jsonpath={.status.currentHealthy}=1", "--timeout=60s")
        else:
            await cluster.kubectl("rollout", "status", f"{kind}/{name}", "--timeout=60s")


async def pods_of(cluster: Cluster, app: str, node: str = "") -> list[Raw]:
    """Its pods, oldest first; those on a node only, when one is named."""
    found = (await cluster.get("pods", "-l", f"app={app}"))["items"]
    here = [pod for pod in found if not node or pod["spec"].get("nodeName") == node]
    return sorted(here, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


async def clear_away(cluster: Cluster) -> None:
    """None of them is left."""
    for pod in (await cluster.get("pods", "-l", f"{OURS}=yes"))["items"]:
        if pod["metadata"].get("finalizers"):
            await cluster.kubectl(
                "patch", "pod", pod["metadata"]["name"], "--type=merge", "-p", '{"metadata":{"finalizers":null}}'
            )
    kinds = "deployments,daemonsets,pdb"
    await cluster.kubectl("delete", kinds, "-l", f"{OURS}=yes", "--cascade=foreground", "--wait=false")
    await cluster.kubectl("delete", "pods", "-l", f"{OURS}=yes", "--wait=true", "--timeout=60s")
