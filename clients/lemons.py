"""Lemons: who came back with trouble over four weeks, judged now. It asks nobody and changes nothing."""

from temporalio.client import Client

from activities import api, lemon_api
from clients.ask_cluster import read, read_each
from clients.errors import CliError
from clients.shapes import LemonRow


async def lemons(client: Client) -> tuple[list[LemonRow], dict[str, str]]:
    """The lemons of all clusters that could be asked, worst first, and why others could not.

    Raises CliError where none could be asked.
    """
    scope = await read(client, lemon_api.READ_SCOPE, api.Nothing())
    asked = {cluster: api.PolicyIn(cluster=cluster) for cluster in scope.clusters}
    seen, failed = await read_each(client, lemon_api.LIST_NODES, asked)
    if not seen:
        raise CliError("; ".join(failed.values()))
    clusters = tuple(seen.values())
    found = await read(client, lemon_api.FIND_LEMONS, lemon_api.LemonsIn(clusters=clusters))
    out = {(one.cluster, node) for one in clusters for node in one.out}
    rows = [
        LemonRow(
            subject=lemon.subject,
            cluster=lemon.cluster,
            node=lemon.node,
            gpu=lemon.gpu,
            score=lemon.score,
            strikes=lemon.strikes,
            last_at=lemon.last_at,
            text=lemon.text,
            out=(lemon.cluster, lemon.node) in out,
            answer=found.answered.get(lemon.subject, ""),
        )
        for lemon in found.lemons
    ]
    return rows, failed
