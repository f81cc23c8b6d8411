"""Gives back everything of ours on a cluster: holds, marks, cordons, kept pod objects; and nothing else."""

from activities.backends.kubernetes.jobs import JobOrders
from activities.backends.kubernetes.nodes import NodeOrders
from activities.backends.kubernetes.view import ClusterView
from fleet.errors import FleetError


async def give_back_all(view: ClusterView, jobs: JobOrders, nodes: NodeOrders) -> tuple[str, ...]:
    """One line for each thing given back. All are tried; a failure is raised at the end, with what was done."""
    lines: list[str] = []
    failed: list[FleetError] = []
    picture = await view.picture(0)
    for record in view.records_of(picture):
        kept = [p for p in record.pods if p.ours]
        try:
            if record.job.adopted or record.newest.held_by_us:
                before = record.newest.stopped
                await jobs.give_back(record.job.native_id)
                did = "released and unmarked" if before else "unmarked"
                lines.append(f"job {record.job.native_id}: {did}")
            if kept:
                await jobs.drop_proofs(kept)
                lines.append(f"job {record.job.native_id}: {len(kept)} kept pod objects let go")
        except FleetError as error:
            failed.append(error)
    for facts in view.facts_of(picture):
        try:
            if facts.op is not None:
                await nodes.unmark(facts.node, facts.op)
                lines.append(f"node {facts.node}: isolation of {facts.op} taken away")
            elif picture.nodes[facts.node].out_of_service:
                await nodes.in_service(facts.node)
                lines.append(f"node {facts.node}: our out-of-service taint taken away")
        except FleetError as error:
            failed.append(error)
    if failed:
        raise type(failed[0])(f"{failed[0]} (given back before: {'; '.join(lines) or 'nothing'})") from failed[0]
    return tuple(lines)
