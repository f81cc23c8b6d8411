"""From the policy's words to an adapter. An adapter is loaded only where the policy names its kind."""

from pathlib import Path
from typing import TYPE_CHECKING

from activities.backends.port import ClusterBackend
from fleet.errors import PermanentError
from fleet.policy import KubernetesCluster, Policy, SimCluster, SlurmCluster

if TYPE_CHECKING:
    from activities.backends.slurm.backend import SlurmBackend


def make_backend(cluster: str, policy: Policy, folder: Path) -> ClusterBackend:
    """The adapter of one cluster; relative paths lie in the folder of `fleet.yaml`."""
    settings = policy.cluster(cluster)
    if isinstance(settings, SimCluster):
        from activities.backends.sim import SimBackend, SimSettings

        return SimBackend(cluster, SimSettings(path=folder / settings.path))
    if isinstance(settings, KubernetesCluster):
        return _kubernetes(cluster, settings, policy)
    return _slurm(cluster, policy)


def _slurm(cluster: str, policy: Policy) -> "SlurmBackend":
    from activities.backends.slurm.backend import SlurmBackend
    from activities.backends.slurm.settings import SlurmSettings

    settings = policy.cluster(cluster)
    if not isinstance(settings, SlurmCluster):
        raise PermanentError(f"{cluster} is no Slurm cluster")
    power = settings.power
    return SlurmBackend(
        cluster,
        SlurmSettings(
            conf=settings.conf,
            bin_dir=settings.bin_dir,
            transport=settings.transport.value,
            power_off=power.off if power else None,
            power_on=power.on if power else None,
            power_status=power.status if power else None,
            check=settings.check,
            settle=policy.limits.settle,
        ),
    )


def _kubernetes(cluster: str, settings: KubernetesCluster, policy: Policy) -> ClusterBackend:
    """Raises PermanentError where the official client is not installed."""
    try:
        from activities.backends.kubernetes.backend import KubernetesBackend
        from activities.backends.kubernetes.settings import DevicePlugin, KubernetesSettings
    except ModuleNotFoundError as error:
        raise PermanentError(
            f"{cluster} needs the Kubernetes client ({error.name} is missing): install gpu-runbooks[kubernetes]"
        ) from error
    power, plugin = settings.power, settings.device_plugin
    slurm = policy.slurm_on(cluster)
    made = KubernetesSettings(
        kubeconfig=settings.kubeconfig,
        context=settings.context,
        namespaces=settings.namespaces,
        power_off=power.off if power else None,
        power_on=power.on if power else None,
        power_status=power.status if power else None,
        roots=settings.checkpoint_roots,
        check=settings.check,
        device_plugin=DevicePlugin(**plugin.model_dump()) if plugin else None,
        node_down_after=settings.node_down_after,
        settle=policy.limits.settle,
        slinky=slurm is not None,
    )
    if slurm is None:
        return KubernetesBackend(cluster, made)
    from activities.backends.twin import TwinBackend

    return TwinBackend(cluster, made, _slurm(slurm, policy))
