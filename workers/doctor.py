"""`runbook doctor`: says what is missing and what to do. It changes nothing, except what `--fix` names."""

import asyncio
from pathlib import Path

from temporalio.client import Client

from clients.connection import Target, connect_to, find_target
from clients.errors import Exit, usage
from clients.options import COMMON, Common
from fleet.errors import FleetError, InvalidInputError
from workers.doctor_checks import Area, Check, Diagnosis, Grade, as_table
from workers.doctor_cluster import look_at_clusters
from workers.doctor_fleet import look_at_fleet, read_fleet
from workers.doctor_here import look_here
from workers.doctor_job import look_at_job
from workers.doctor_temporal import look_at_temporal
from workers.worker import store_url


def doctor(
    job: str | None = None,
    name: str | None = None,
    /,
    *,
    fleet: str | None = None,
    fix: bool = False,
    state: str | None = None,
    common: Common = COMMON,
) -> int:
    """Look at everything that runbooks need, here, in Temporal and in each cluster; exit 1 when something fails.

    The clusters are asked from this machine: run it where the clusters' workers run.

    Parameters
    ----------
    job
        Look at one job instead: is it protected, can it be restarted, could a late writer spoil its checkpoint?
    name
        Its name, where the word before is `job`.
    fleet
        Fleet file; default $GPU_RUNBOOKS_FLEET, ./fleet.yaml, or the state folder's.
    fix
        Register missing search attributes; nothing else is ever changed.
    state
        State folder of the embedded server.
    """
    if name is not None and job != "job":
        raise usage(f"{name!r} is one word too many; write `runbook doctor JOB`")
    job = name or job
    look = look_at_one_job(job, fleet, state, common) if job else look_at_all(fleet, state, common, fix=fix)
    found = Diagnosis.of(asyncio.run(look))
    screen = common.screen
    if screen.form == "json":
        screen.data(found)
    else:
        screen.show(as_table(found.checks))
        counts = {grade: sum(check.grade is grade for check in found.checks) for grade in Grade}
        screen.note(", ".join(f"{count} {grade}" for grade, count in counts.items()))
    return Exit.DONE if found.ok else Exit.FAILED


async def look_at_all(fleet: str | None, state: str | None, common: Common, *, fix: bool) -> tuple[Check, ...]:
    """Here, fleet.yaml, Temporal, then the clusters; what one lacks does not hide the others."""
    target, why = _target(common, state)
    file, policy, fleet_check = read_fleet(fleet, state)
    found = [*look_here(state, embedded=target is None or target.embedded), fleet_check]
    if file is not None and policy is not None:
        found += await asyncio.to_thread(look_at_fleet, policy, store_url(file, _home(state)))
    beside = asyncio.create_task(look_at_clusters(policy, file.parent)) if policy and file else None
    client, connect_check = await _connected(target, why)
    if client is None or target is None:
        found.append(connect_check)
    else:
        approvers = len(policy.approvers) if policy else None
        clusters = tuple(policy.clusters) if policy else ()
        found += await look_at_temporal(client, target, clusters, approvers=approvers, fix=fix)
    return (*found, *(await beside if beside else ()))


async def look_at_one_job(job: str, fleet: str | None, state: str | None, common: Common) -> tuple[Check, ...]:
    """Raises InvalidInputError without a valid fleet file, CliError for a job that no cluster has."""
    file, policy, check = read_fleet(fleet, state)
    if file is None or policy is None:
        raise InvalidInputError(f"{check.text}; {check.todo}")
    client, _ = await _connected(*_target(common, state))
    return await look_at_job(job, policy, file.parent, client)


def _home(state: str | None) -> Path:
    from clients.embedded import home

    return home(state)


def _target(common: Common, state: str | None) -> tuple[Target | None, str]:
    try:
        return find_target(common.address, common.namespace, profile=common.profile, state_dir=state), ""
    except FleetError as error:
        return None, str(error)


async def _connected(target: Target | None, why: str) -> tuple[Client | None, Check]:
    area = Area("temporal")
    if target is None:
        text, _, todo = why.partition(": ")
        return None, area.fail("server", text, todo)
    try:
        client = await connect_to(target)
    except FleetError as error:
        text, _, todo = str(error).rpartition("; ")
        return None, area.fail("server", text, todo)
    return client, area.ok("server", "answers")
