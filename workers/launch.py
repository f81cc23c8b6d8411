"""`runbook-launch`: ranks under a lease that this launcher renews at Temporal.

Wired here, for `agents/` may not know Temporal and `clients/` may not know the launcher. What needs threads
(Temporal's SDK) is imported only after the guard was forked.
"""

import asyncio
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App, Parameter

from agents.launch import Launcher, Ranks, warn_of_short
from clients.app import leave
from clients.app import main as run
from clients.errors import usage
from clients.names import name
from fleet.lease import LeaseKey, LeaseTerms, Seat
from fleet.units import parse_duration

if TYPE_CHECKING:
    from clients.lease import HeldSeat

CLUSTER_VARIABLE = "GPU_RUNBOOKS_CLUSTER"
NATIVE_VARIABLES = ("GPU_RUNBOOKS_NATIVE_ID", "SLURM_JOB_ID")
ARRAY_VARIABLES = ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")
RESTART_VARIABLES = ("GPU_RUNBOOKS_RESTART", "SLURM_RESTART_COUNT")
NODE_VARIABLES = ("SLURMD_NODENAME", "NODE_NAME")
STARTS_ELSEWHERE = frozenset(
    {"srun", "sbatch", "salloc", "mpirun", "mpiexec", "mpiexec.hydra", "prun", "prterun", "ssh", "pdsh", "kubectl"}
)
"""Programs whose ranks are other daemons' children, so that no launcher above them could end them."""


def main() -> None:
    """`runbook-launch`."""
    leave(run(make_app(), sys.argv[1:]))


def make_app() -> App:
    """Its command line."""
    app = App(
        name="runbook-launch",
        help="Run a training command under a lease: it is ended when the lease cannot be renewed in time.",
        help_format="plaintext",
        default_parameter=Parameter(show_default=False, negative=()),
        suppress_keyboard_interrupt=False,
    )
    app.default(launch)
    return app


def launch(
    *command: str,
    cluster: str | None = None,
    job_id: str | None = None,
    restarts: int | None = None,
    node: str | None = None,
    term: str = "15m",
    grace: str = "30s",
    wait: str = "10m",
    address: str | None = None,
    namespace: str | None = None,
    profile: str | None = None,
) -> int:
    """Run until the command ends; its exit code is this one's. 75: it was ended, or not started, for want of a lease.

    Parameters
    ----------
    command
        The training command of this rank or node, after `--`.
    cluster
        The cluster as fleet.yaml names it; else $GPU_RUNBOOKS_CLUSTER.
    job_id
        The cluster's own id of the job: else $GPU_RUNBOOKS_NATIVE_ID (job/NAMESPACE/NAME on Kubernetes), else
        $SLURM_JOB_ID.
    restarts
        How often the cluster has restarted the job; else $GPU_RUNBOOKS_RESTART, else $SLURM_RESTART_COUNT, else 0.
    node
        The node as the cluster names it; else $SLURMD_NODENAME, else $NODE_NAME, else the host name up to the first
        dot.
    term
        Time for which the command may run without a renewal. A longer outage of Temporal ends the training.
    grace
        Time from TERM to KILL.
    wait
        Time for the first lease; the command is not started without one.
    address
        HOST:PORT of Temporal; else TEMPORAL_ADDRESS, else a profile, else the embedded server.
    namespace
        Temporal namespace; else TEMPORAL_NAMESPACE, else the profile's, else default.
    profile
        Profile of Temporal's own configuration file.
    """
    if not command:
        raise usage("no command: write `runbook-launch OPTIONS -- COMMAND ...`")
    if (program := Path(command[0]).name) in STARTS_ELSEWHERE:
        raise usage(
            f"{program} starts its ranks outside of this launcher, which could not end them: put the launcher "
            f"inside, `{program} ... runbook-launch -- COMMAND`"
        )
    key, place = whose(os.environ, cluster, job_id, restarts, node)
    terms = LeaseTerms(term=_seconds("--term", term, 1), grace=_seconds("--grace", grace, 0))
    limit = _seconds("--wait", wait, 1)
    seat = Seat(node=place, who=secrets.token_hex(6), terms=terms)
    ranks = Ranks(command, terms.grace)  # forks: everything below may make threads
    return asyncio.run(_until_over(Launcher(ranks, terms, _keeper(key, seat, address, namespace, profile), limit)))


def whose(
    environment: Mapping[str, str], cluster: str | None, job_id: str | None, restarts: int | None, node: str | None
) -> tuple[LeaseKey, str]:
    """Which attempt's lease it is, and on which node. Raises CliError (usage) that says what to give."""
    where = cluster or environment.get(CLUSTER_VARIABLE)
    native = job_id or _array_task(environment) or _first(environment, NATIVE_VARIABLES)
    if not where:
        raise usage(f"which cluster is this? give --cluster or {CLUSTER_VARIABLE}, as fleet.yaml names it")
    if not native:
        raise usage(f"which job is this? give --job-id or one of {', '.join(NATIVE_VARIABLES)}")
    count = restarts if restarts is not None else _first(environment, RESTART_VARIABLES) or "0"
    if not str(count).isdigit():
        raise usage(f"{count!r} is no count of restarts; give --restarts, a number from 0")
    here = node or _first(environment, NODE_VARIABLES) or os.uname().nodename.split(".")[0]
    for part in native.split("/"):
        name(part, "job")
    key = LeaseKey(cluster=name(where, "cluster"), native_id=native, restarts=int(count))
    return key, name(here, "node")


def _array_task(environment: Mapping[str, str]) -> str | None:
    """An array task's id as Slurm's own programs write it: the bare number may mean the whole array."""
    words = [environment.get(n, "") for n in ARRAY_VARIABLES]
    return "_".join(words) if all(words) else None


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environment[n] for n in names if environment.get(n)), None)


def _seconds(option: str, text: str, least: float) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise usage(f"{option}: {error}") from error
    if not least <= seconds <= 86400:
        raise usage(f"{option} {text}: from {least:g}s to 1d")
    return seconds


def _keeper(key: LeaseKey, seat: Seat, address: str | None, namespace: str | None, profile: str | None) -> "HeldSeat":
    from clients.connection import connect
    from clients.lease import HeldSeat
    from workers.logs import configure_logs, core_runtime

    configure_logs()
    runtime = core_runtime("ERROR")
    return HeldSeat(lambda: connect(address, namespace, profile=profile, runtime=runtime), key, seat)


async def _until_over(launcher: Launcher) -> int:
    warn_of_short(launcher.terms)
    return await launcher.run()


if __name__ == "__main__":
    main()
