"""`runbook dev` and `runbook worker`: the embedded server with a worker, or a worker for a server of yours."""

import asyncio
import sys
from pathlib import Path

import structlog

from activities.copying.rclone import rclone_program
from clients.connection import connect_to, find_target
from clients.embedded import home
from fleet.errors import FleetError
from fleet.policy_file import parse_policy
from workers.fleets import find_fleet, write_sim_fleet
from workers.logs import LogContext, configure_logs

log = structlog.get_logger()


def dev(
    *,
    fleet: str | None = None,
    sim: bool = False,
    stop: bool = False,
    port: int | None = None,
    ui_port: int | None = None,
    state: str | None = None,
) -> int:
    """Start the embedded Temporal server (or find the one that runs) and a worker for the whole fleet.

    Runs in the foreground; Ctrl-C stops the worker, the server goes on until `runbook dev --stop`.

    Parameters
    ----------
    fleet
        Fleet file; default $GPU_RUNBOOKS_FLEET, ./fleet.yaml, or the state folder's.
    sim
        Make an embedded simulated fleet (alpha and beta) in the state folder and use it.
    stop
        Stop the embedded server of the state folder and end.
    port
        Port of the server; default the last one, else a free one.
    ui_port
        Port of the Temporal UI, likewise.
    state
        State folder of the server; default $GPU_RUNBOOKS_HOME or ./.runbook.
    """
    from workers.server import ensure_server, stop_server

    configure_logs()
    folder = home(state)
    if stop:
        print("stopped" if stop_server(folder) else "no server was running", file=sys.stderr)  # noqa: T201
        return 0
    file = write_sim_fleet(folder) if sim else find_fleet(fleet, state)
    clusters, sites = clusters_of(file), _sites_of(file)
    info = ensure_server(folder, port=port, ui_port=ui_port)
    print(f"Temporal UI  {info.ui}\nfleet        {file} ({', '.join(clusters)})", file=sys.stderr)  # noqa: T201
    asyncio.run(serve(file, clusters, folder, address=info.address, runbooks=True, sites=sites))
    return 0


def worker(
    *,
    cluster: list[str] | None = None,
    runbooks: bool = True,
    data: list[str] | None = None,
    fleet: str | None = None,
    address: str | None = None,
    namespace: str | None = None,
    profile: str | None = None,
    state: str | None = None,
) -> int:
    """Run a worker: for the runbooks, for clusters, or both.

    Parameters
    ----------
    cluster
        Cluster to serve, may be repeated; default every cluster of the fleet. The worker must reach it.
    runbooks
        Whether to run workflows too; a worker next to a cluster may leave them to another (--no-runbooks).
    data
        Site whose checkpoints and datasets it moves (queue `data.SITE`), may be repeated; needs rclone.
    fleet
        Fleet file.
    address
        Temporal server, host:port; else Temporal's own environment and profiles, else the embedded one.
    namespace
        Temporal namespace.
    profile
        Profile of Temporal's configuration file.
    state
        State folder of the embedded server.
    """
    configure_logs()
    file = find_fleet(fleet, state)
    known = clusters_of(file)
    wanted = tuple(cluster or known)
    for name in wanted:
        parse_policy(file.read_text(), str(file)).cluster(name)
    sites = tuple(data or ())
    if sites:
        rclone_program()
    asyncio.run(
        serve(
            file,
            wanted,
            home(state),
            address=address,
            namespace=namespace,
            profile=profile,
            runbooks=runbooks,
            sites=sites,
        )
    )
    return 0


def clusters_of(file: Path) -> tuple[str, ...]:
    """Names of the fleet file's clusters. Raises InvalidInputError for a broken file."""
    return tuple(parse_policy(file.read_text(encoding="utf-8"), str(file)).clusters)


def _sites_of(file: Path) -> tuple[str, ...]:
    """Sites of the fleet file; none where rclone is missing, which is said."""
    sites = tuple(parse_policy(file.read_text(encoding="utf-8"), str(file)).sites)
    try:
        return sites if sites and rclone_program() else ()
    except FleetError as error:
        print(f"no checkpoint is moved: {error}", file=sys.stderr)  # noqa: T201
        return ()


async def serve(
    file: Path,
    clusters: tuple[str, ...],
    folder: Path,
    *,
    runbooks: bool,
    address: str | None = None,
    namespace: str | None = None,
    profile: str | None = None,
    sites: tuple[str, ...] = (),
    stop: asyncio.Event | None = None,
) -> None:
    """Connects and runs the worker until it is told to stop."""
    from workers.worker import open_runtime, run_worker

    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    target = find_target(address, namespace=namespace, profile=profile, state_dir=folder)
    client = await connect_to(target)
    if not target.embedded:
        log.info("not the embedded server: unsigned answers are refused", address=target.address)
    runtime = await open_runtime(client, file, folder, embedded=target.embedded)
    await run_worker(runtime, clusters, runbooks=runbooks, sites=sites, interceptors=[LogContext()], stop=stop)
