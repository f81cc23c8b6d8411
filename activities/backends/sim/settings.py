"""What a simulated fleet is made of. Every duration is in simulated seconds."""

from pathlib import Path

from pydantic import Field

from fleet.model import Value


class SimSettings(Value):
    """Where the world's file is. Several processes may open the same one."""

    path: Path
    time_scale: float | None = Field(default=None, gt=0)
    """Simulated seconds per real second that the caller counts on. The rate is a property of the world's file;
    `probe` refuses when another one was promised here. None: whatever the world has."""


class ClusterShape(Value):
    """One cluster of equal nodes, named `<cluster>1`, `<cluster>2`, ... A job takes whole nodes.

    The defaults are what a real Slurm 22.05 showed in the lab with its default requeue settings.
    """

    nodes: int = Field(default=6, ge=1, le=100_000)
    gpus: int = Field(default=8, ge=0, le=64)
    gpu_model: str = "H100"
    """As the cluster names it; empty: it does not say."""
    switch_nodes: int = Field(default=0, ge=0)
    """So many nodes in their order hang on one switch; 0: the cluster does not say which."""
    quota_gpus: int | None = Field(default=None, ge=0)
    """GPUs that all jobs together may hold; a job beyond that waits. None: no limit."""
    node_down_after: float = Field(default=27.0, gt=0)
    """From a node's last word until the scheduler declares it down and requeues (measured: 25 to 29 s)."""
    no_answer_after: float = Field(default=9.0, gt=0)
    """From a node's last word until it shows as not responding (measured: 7 to 11 s)."""
    kill_wait: float = Field(default=5.0, ge=0)
    """SIGTERM to SIGKILL (Slurm's KillWait as in the lab)."""
    term_takes: float = Field(default=0.3, ge=0)
    """How long a healthy rank takes to end after SIGTERM (measured: 0.2 to 0.7 s until pending)."""
    requeue_delay: float = Field(default=121.0, ge=0)
    """How long the scheduler keeps a requeued job waiting (Slurm's default cred_expire 120 s + 1)."""
    reboot_seconds: float = Field(default=3.0, ge=0)
    """Reboot or power on until the daemon answers."""
    boot_timeout: float = Field(default=60.0, gt=0)
    """A node that is not back by then is declared down (Slurm's ResumeTimeout as in the lab)."""
    stale_kill_after: float = Field(default=2.3, ge=0)
    """From a node's return until its daemon has killed ranks that should not be there (measured)."""
    settle: float = Field(default=15.0, ge=0)
    """How long after an end that nobody ordered a daemon's "nothing runs" counts as proof."""
    message_timeout: float = Field(default=5.0, ge=0)
    """How long a call hangs on a frozen controller (Slurm's MessageTimeout as in the lab)."""
