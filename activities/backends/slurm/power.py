"""The power hook of a Slurm cluster."""

from activities.backends.power import Hooks, Power
from activities.backends.slurm.commands import Commands
from activities.backends.slurm.view import ClusterView


class PowerHooks(Power):
    """Power of one cluster's nodes."""

    def __init__(self, commands: Commands, view: ClusterView) -> None:
        settings = commands.settings
        hooks = Hooks(off=settings.power_off, on=settings.power_on, status=settings.power_status)
        super().__init__(hooks, commands.environment, view.node, view.steadiness)
