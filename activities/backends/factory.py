"""From the policy's words to an adapter. An adapter is loaded only where the policy names its kind."""

from pathlib import Path

from activities.backends.port import ClusterBackend
from fleet.policy import Policy, SimCluster


def make_backend(cluster: str, policy: Policy, folder: Path) -> ClusterBackend:
    """The adapter of one cluster; relative paths lie in the folder of `fleet.yaml`."""
    settings = policy.cluster(cluster)
    if isinstance(settings, SimCluster):
        from activities.backends.sim import SimBackend, SimSettings

        return SimBackend(cluster, SimSettings(path=folder / settings.path))
    from activities.backends.slurm.backend import SlurmBackend
    from activities.backends.slurm.settings import SlurmSettings

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
