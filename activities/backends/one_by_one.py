"""Bulk calls of the port for a backend that takes one node a call."""

from collections.abc import Mapping

from activities.backends.port import ClusterBackend, GoOn, Isolations
from fleet.errors import NotFoundError
from fleet.model import NodeFacts, OpId


async def isolate_each(backend: ClusterBackend, ops: Mapping[str, OpId], text: str, go_on: GoOn) -> Isolations:
    """See `ClusterBackend.isolate_many`."""
    marked: list[str] = []
    left: dict[str, str] = {}
    for done, (node, op) in enumerate(ops.items()):
        await go_on(done)
        try:
            facts = await backend.isolate(node, op, text)
        except NotFoundError as error:
            left[node] = str(error)
            continue
        if facts.op == op:
            marked.append(node)
        else:
            left[node] = why_left(facts)
    return Isolations(marked=tuple(marked), left=left)


def why_left(facts: NodeFacts) -> str:
    """Why a node that does not carry the mark was left alone."""
    if facts.foreign_drain:
        return f"drained by somebody else ({facts.reason or 'no reason'})"
    return f"it carries the mark of {facts.op}" if facts.op else "it took no mark"
