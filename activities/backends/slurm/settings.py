"""What `fleet.yaml` says about one Slurm cluster, as the adapter needs it."""

from typing import Literal

from fleet.model import Value


class SlurmSettings(Value):
    """One cluster's configuration file, programs and hooks."""

    conf: str
    """Absolute path of the cluster's `slurm.conf`; checked before every command, for Slurm itself waits 60 s."""
    bin_dir: str = "/usr/bin"
    transport: Literal["auto", "cli", "pyslurm"] = "auto"
    """Who reads: `auto` takes pyslurm where it imports and equals the controller's release."""
    power_off: tuple[str, ...] | None = None
    """Argument list with `{node}`; ends with 0 once the order was taken."""
    power_on: tuple[str, ...] | None = None
    power_status: tuple[str, ...] | None = None
    """Argument list with `{node}`; its first word on standard output is `on` or `off`."""
    check: tuple[str, ...] | None = None
    """Argument list with `{gpus}` and `{node}`, run on the node; prints one JSON line {"ok", "gpus", "detail"}."""
    check_seconds: float = 900.0
    """Longest time that a check may take."""
    poll_interval: float = 2.0
    """Seconds between two polls of the watch: one `squeue` and one node list serve all runbooks."""
    settle: float = 15.0
    """Seconds that a node's daemon must answer steadily before its word counts for an end that we did not order.

    Measured: an old rank was killed 2.3 s after its thawed node was back in service. The adapter never waits less
    than Slurm's own KillWait and three seconds.
    """
    read_back: float = 6.0
    """Seconds within which an acknowledged write must show."""
    epoch: int = 0
    """First part of the generation token `E.R` that a job's first submission gets (`GPU_RUNBOOKS_EPOCH`); that of
    a later one (`JobSpec.epoch`) is counted on from it. Equal on all clusters between which a job may move, and those
    of another kind have 0."""

    @property
    def has_power(self) -> bool:
        return self.power_off is not None and self.power_on is not None and self.power_status is not None
