"""The accounts of `deploy/kubernetes/rbac.yaml` in a lab cluster, so that tests run with those rights."""

from pathlib import Path

import yaml

from tests.kubernetes.lab import REPOSITORY, Cluster

RBAC = REPOSITORY / "deploy" / "kubernetes" / "rbac.yaml"


async def kubeconfig_of(cluster: Cluster, account: str) -> Path:
    """A kubeconfig with that account's token; the accounts are made where they are missing."""
    await cluster.kubectl("apply", "-f", str(RBAC))
    token = await cluster.kubectl("create", "token", account, "-n", "gpu-runbooks", "--duration=24h")
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token.strip()}
    path = cluster.root / f"{cluster.name}-{account}.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(config))
    return path
