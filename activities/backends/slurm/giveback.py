"""Gives back everything of ours on a cluster: holds, drains and reservations, and nothing else."""

from activities.backends.slurm.jobs import JobOrders
from activities.backends.slurm.marks import op_of_reservation
from activities.backends.slurm.nodes import NodeOrders
from activities.backends.slurm.view import ClusterView
from fleet.errors import FleetError
from fleet.model import NodeFacts, NodeState


async def give_back_all(view: ClusterView, jobs: JobOrders, nodes: NodeOrders) -> tuple[str, ...]:
    """One line for each thing given back. All are tried; a failure is raised at the end, with what was done."""
    lines: list[str] = []
    failed: list[FleetError] = []
    for record in await view.live_jobs():
        if record.marks.ours and not record.job.phase.ended:
            try:
                await jobs.give_back(record.job.native_id)
                did = "released and unmarked" if record.job.held and record.marks.held else "unmarked"
                lines.append(f"job {record.job.native_id} {record.job.name}: {did}")
            except FleetError as error:
                failed.append(error)
    for facts in await view.live_nodes():
        if facts.isolated_by_us:
            try:
                lines.append(await _node_back(nodes, facts))
            except FleetError as error:
                failed.append(error)
    for reservation in await view.reads.list_reservations():
        if op_of_reservation(reservation.name) is not None:
            try:
                await nodes.delete_reservation(reservation.name)
                lines.append(f"reservation {reservation.name}: deleted")
            except FleetError as error:
                failed.append(error)
    if failed:
        raise type(failed[0])(f"{failed[0]} (given back before: {'; '.join(lines) or 'nothing'})") from failed[0]
    return tuple(lines)


async def _node_back(nodes: NodeOrders, facts: NodeFacts) -> str:
    """Our drain goes; a node that does not answer stays DOWN, for that is Slurm's word and not ours."""
    if facts.responding:
        await nodes.put_in_service(facts)
        return f"node {facts.node}: back in service"
    await nodes.undrain(facts)
    state = "it is DOWN and stays so" if facts.state is NodeState.DOWN else "it does not answer"
    return f"node {facts.node}: our drain taken away; {state}"
