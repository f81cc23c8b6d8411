"""An embedded simulated fleet in one SQLite file, held to the same contract as the real backends."""

from activities.backends.sim.backend import SimBackend
from activities.backends.sim.settings import ClusterShape, SimSettings
from activities.backends.sim.world import create_world

__all__ = ["ClusterShape", "SimBackend", "SimSettings", "create_world"]
