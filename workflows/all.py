"""The runbooks that a worker runs. The package itself imports none: each loads its own file in its sandbox."""

from workflows.ask import AskHuman
from workflows.failover import FailoverInCluster
from workflows.guard import GuardCluster
from workflows.heal import HealNode
from workflows.lease import HoldLease
from workflows.lemons import FindLemons
from workflows.place import PlaceJob
from workflows.preflight import PreflightTargets
from workflows.replicate import ReplicateCheckpoints
from workflows.restart import RestartInPlace
from workflows.supervise import SuperviseJob
from workflows.transfer import FailoverAcrossClusters
from workflows.watch import WatchCluster

ALL = (
    SuperviseJob,
    RestartInPlace,
    FailoverInCluster,
    FailoverAcrossClusters,
    HealNode,
    AskHuman,
    WatchCluster,
    GuardCluster,
    FindLemons,
    PlaceJob,
    HoldLease,
    PreflightTargets,
    ReplicateCheckpoints,
)
