"""What is asked of a cluster about a job, and what comes back: the values of `activities/backends/port.py`."""

import re
from collections.abc import Mapping

from pydantic import Field

from fleet.errors import InvalidInputError
from fleet.model import NativeJob, NodeReceipt, Value

EPOCH_ENV = "GPU_RUNBOOKS_EPOCH"
"""Environment variable in which a job's ranks find the first part of their generation."""
RESTART_ENV = "GPU_RUNBOOKS_RESTART"
"""Environment variable in which they find the second part, where the scheduler has none of its own."""
CHECKPOINT_ENV = "GPU_RUNBOOKS_CHECKPOINT"
"""Environment variable that names a job's checkpoint root where it is not the one of its first cluster."""
_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")
_OURS = frozenset({EPOCH_ENV, RESTART_ENV, "HOME", "USER", "PATH", "LC_ALL", "TZ"})
_THEIRS = ("SLURM_", "SBATCH_", "MUNGE_", "LD_", "GLIBC_", "GCONV_")
"""Beginnings of what changes the meaning of a scheduler's own programs, which pass the environment on."""


class JobSpec(Value):
    """What is submitted: a batch script in the backend's own language, as its user."""

    job: str
    """Fleet-unique name; with `epoch` the idempotency key of the submit (legal characters only, no comma)."""
    name: str
    """The user's own name for it; the native name becomes `<name>.<job>` where the backend needs it."""
    script: str
    """Text of the batch script, starting with `#!`."""
    workdir: str = "/"
    comment: str = ""
    user: str | None = None
    options: tuple[str, ...] = ()
    """Further submit options, each one argument (Slurm: `--nodes=2`)."""
    epoch: int = Field(default=0, ge=0, le=999_999_999)
    """One for each submission of the job anywhere in the fleet, a later one higher: the first part of the fencing
    token that its ranks see. Each makes a native object of its own."""
    env: Mapping[str, str] = {}
    """Further environment of its ranks, such as `CHECKPOINT_ENV`; see `check_env`."""


def check_env(spec: JobSpec) -> None:
    """Raises InvalidInputError for a variable that cannot be handed on, or that is not the caller's to set."""
    for name, value in spec.env.items():
        if not _NAME.fullmatch(name):
            raise InvalidInputError(
                f"{name!r} is no environment variable; capitals, digits and _ only, no digit first"
            )
        if name in _OURS or name.startswith(_THEIRS):
            raise InvalidInputError(f"the variable {name} is set by the runbook or the scheduler; leave it out")
        if re.search(r"[\x00-\x1f\x7f]", value):
            raise InvalidInputError(f"the variable {name} may hold no control characters")


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
    """Beside the nodes that the job's owner rules out; those of an earlier order are taken back."""
    require: tuple[str, ...] = ()
    """Exactly these nodes (restart in place); cleared again once it runs."""
    front: bool = True
