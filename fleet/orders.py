"""What is asked of a cluster about a job, and what comes back: the values of `activities/backends/port.py`."""

from collections.abc import Mapping

from fleet.model import NativeJob, NodeReceipt, Value


class JobSpec(Value):
    """What is submitted: a batch script in the backend's own language, as its user."""

    job: str
    """Fleet-unique name; also the idempotency key of the submit (legal characters only, no comma)."""
    name: str
    """The user's own name for it; the native name becomes `<name>.<job>` where the backend needs it."""
    script: str
    """Text of the batch script, starting with `#!`."""
    workdir: str = "/"
    comment: str = ""
    user: str | None = None
    options: tuple[str, ...] = ()
    """Further submit options, each one argument (Slurm: `--nodes=2`)."""


class AdoptedJob(Value):
    """A job that is under supervision now: held against the scheduler's own requeue."""

    job: NativeJob
    script: str | None = None
    """The batch script as the controller stored it, for the history store; None when it cannot be read."""
    spec_text: str = ""
    """The native description (`scontrol show job`, a manifest) at adoption, nothing secret in it."""


class StopQuery(Value):
    """Which attempt is asked to be proven gone, and from where."""

    native_id: str
    restarts: int
    """Restart count of the attempt in question; a higher one now means that it already ended."""
    boots: Mapping[str, str]
    """node -> boot identity recorded while the attempt ran there."""
    ordered: bool
    """We stopped it and each node's daemon answered before and after. False: the scheduler ended it by itself,
    so a node may have been lost and come back in between."""
    since: float
    """When the attempt was seen to end (epoch seconds)."""


class StopProof(Value):
    """Receipts for the nodes proven clean, and for each other node why not."""

    receipts: tuple[NodeReceipt, ...] = ()
    unproven: Mapping[str, str] = {}
    settling: Mapping[str, float] = {}
    """Unproven nodes that need nothing but time: seconds of steady answers that are still missing."""


class StartOrder(Value):
    """The next attempt of a stopped, held job."""

    native_id: str
    restarts: int
    """Restart count seen when the order was made; another one now means somebody else acted: refused."""
    exclude: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    """Exactly these nodes (restart in place); cleared again once it runs."""
    front: bool = True
