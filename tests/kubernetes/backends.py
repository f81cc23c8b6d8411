"""Our adapter over a lab cluster, as tests hold it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from activities.backends.kubernetes.backend import KubernetesBackend
from activities.backends.kubernetes.settings import KubernetesSettings
from tests.kubernetes.accounts import kubeconfig_of
from tests.kubernetes.lab import NODE_GRACE, Cluster


@asynccontextmanager
async def repairing(cluster: Cluster, **more: object) -> AsyncIterator[KubernetesBackend]:
    """Under the account `repair`; none of our marks is left afterwards. `more`: further settings."""
    config = str(await kubeconfig_of(cluster, "repair"))
    settings = {"kubeconfig": config, "node_down_after": NODE_GRACE + 2, **more}
    made = KubernetesBackend(cluster.name, KubernetesSettings.model_validate(settings))
    try:
        yield made
        await made.give_back_all()
    finally:
        await made.close()


def hooks(cluster: Cluster) -> dict[str, tuple[str, ...]]:
    """Settings of the lab's power hook."""
    return {f"power_{verb}": words for verb, words in cluster.power().items()}
