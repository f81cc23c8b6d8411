"""The accounts of `deploy/kubernetes/rbac.yaml` in a lab cluster, so that tests run with those rights."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.lab import Cluster
from tests.kubernetes.rbac import RBAC, Granted


async def kubeconfig_of(cluster: Cluster, account: str) -> Path:
    """A kubeconfig with that account's token; the accounts are made where they are missing."""
    await cluster.kubectl("apply", "-f", str(RBAC))
    token = await cluster.kubectl("create", "token", account, "-n", "gpu-runbooks", "--duration=24h")
    return kubeconfig_with(cluster, account, token.strip())


def kubeconfig_with(cluster: Cluster, account: str, token: str) -> Path:
    """A kubeconfig with that token, named after the account."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    path = cluster.root / f"{cluster.name}-{account}.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(config))
    return path


def account_with(name: str, namespace: str, rights: Iterable[Granted]) -> tuple[dict[str, Any], ...]:
    """Manifests of a service account with just those rights: itself, its role, its binding."""
    group = "rbac.authorization.k8s.io"
    return (
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": [right.rule() for right in rights],
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
    )
