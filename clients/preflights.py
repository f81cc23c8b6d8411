"""The last preflights: could each cluster receive a job? And asking anew."""

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from activities import api, preflight_api
from clients import jobs, runs, talk
from clients.ask_cluster import read
from clients.errors import CliError, Exit, usage
from fleet.identity import PREFLIGHT, RUNBOOKS_QUEUE
from fleet.policy import Policy
from fleet.preflight import Readiness
from fleet.runbooks import PreflightInput, Runbook

ALL = "fleet"
"""Subject of a preflight of all jobs."""
SUMMARY = "could each cluster receive it?"


async def last(client: Client, job: str | None, policy: Policy | None) -> tuple[list[Readiness], list[str]]:
    """The last one of a job, or of each that is under supervision; and the jobs that were never looked at."""
    names = [(await jobs.find_job(client, job, policy)).job] if job is not None else []
    if job is None:
        names = list((await read(client, preflight_api.LIST_JOBS, api.Nothing())).jobs)
    found: list[Readiness] = []
    for start in range(0, len(names), preflight_api.MANY):
        few = preflight_api.Jobs(jobs=tuple(names[start : start + preflight_api.MANY]))
        found += (await read(client, preflight_api.READ_READINESS, few)).found
    seen = {one.job for one in found}
    return found, [name for name in names if name not in seen]


async def of_job(client: Client, job: str) -> Readiness | None:
    """The last one of a job, for its page; None where there is none, or nobody can say."""
    try:
        found = (await read(client, preflight_api.READ_READINESS, preflight_api.Jobs(jobs=(job,)))).found
    except CliError:
        return None
    return found[0] if found else None


async def now(client: Client, job: str | None, policy: Policy | None, limit: float) -> None:
    """Lets `PreflightTargets` look now, and waits until it has. Raises CliError (timeout) where it takes longer."""
    ref = await jobs.find_job(client, job, policy) if job is not None else None
    if ref is not None and ref.handle is None:
        raise usage(
            f"{ref.job} is not under supervision, so nothing would move it; `runbook list --kind job` shows those"
        )
    identity = f"{PREFLIGHT}/{ref.job if ref else ALL}"
    await client.start_workflow(
        Runbook.PREFLIGHT,
        PreflightInput(jobs=(ref.job,) if ref else ()),
        id=identity,
        task_queue=RUNBOOKS_QUEUE,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        static_summary=SUMMARY,
        search_attributes=talk.search_attributes(job=ref.job if ref else ""),
    )
    try:
        await runs.wait_closed(client, identity, limit)
    except runs.StillRunning as error:
        raise CliError(f"{identity} goes on; `runbook watch {identity}` follows it", Exit.TIMEOUT) from error
