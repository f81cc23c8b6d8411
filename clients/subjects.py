"""From a person's SUBJECT to a workflow id, where only a cluster knows which job is meant."""

from temporalio.client import Client

from activities import api
from clients import jobs, runs
from clients.ask_cluster import read
from clients.errors import CliError, usage
from clients.fleet_file import checked_cluster
from clients.names import is_name, is_workflow_id, name, workflow_id
from fleet.identity import job_workflow_id, node_workflow_id
from fleet.policy import Policy


async def resolved(client: Client, text: str, policy: Policy | None = None) -> str:
    """The id of the runbook that a person means: a whole id, a job's fleet name, CLUSTER/NODE, or a job as its
    cluster shows it, CLUSTER/NATIVEID, CLUSTER/NAME or CLUSTER/NAMESPACE/NAME. A node that has a runbook goes first.

    Raises CliError (usage) for an unknown job or one that is not unique; CLUSTER/NODE is not looked up here.
    """
    cluster, slash, rest = text.partition("/")
    if not slash or is_workflow_id(text):
        return workflow_id(text)
    may_be_node = is_name(rest)
    if may_be_node and await runs.find(client, node_workflow_id(name(cluster, "cluster"), rest)) is not None:
        return workflow_id(text)
    try:
        where = await checked_cluster(client, cluster, policy)
        found = await read(client, api.FIND_JOB, api.FindJob(cluster=where, job=jobs.native_word(rest)), where)
    except CliError:
        if may_be_node:
            return workflow_id(text)
        raise
    if found.jobs:
        return job_workflow_id((await jobs.only_one(client, text, [(where, hit) for hit in found.jobs])).job)
    if may_be_node:
        return workflow_id(text)
    raise usage(f"{where} has no job {rest!r}; `runbook list --kind job` shows the supervised ones")
