"""What a judgement takes from the store beside its own evidence: what was before, and what is seen around it now."""

from collections.abc import Sequence
from typing import NamedTuple

from activities.store import AsyncHistoryStore
from fleet.faults.common_causes import COMMON_SECONDS
from fleet.faults.evidence import Evidence, Kind
from fleet.faults.recurring import MONTH, WEEK

HISTORY_SECONDS = 24 * 3600.0
"""How far back the judgement of a whole wave looks: most rules of repetition count within 24 h."""
HISTORY_MOST = 2000
"""Pieces of a subject's past at most, the newest: four weeks of a sick node, read and parsed in about 50 ms."""
AROUND_MOST = 2000
"""Pieces of the rest of the cluster at most: an hour of a large one."""
NODES_MOST = 200
"""Nodes of a job whose past is read."""


class Remembered(NamedTuple):
    """See `fleet.faults.classify.classify`."""

    history: tuple[Evidence, ...]
    around: tuple[Evidence, ...]


async def remembered(
    store: AsyncHistoryStore,
    cluster: str,
    evidence: Sequence[Evidence],
    *,
    node: str | None,
    job: str | None,
    now: float,
) -> Remembered:
    """Four weeks of the node or job; of a job's nodes, and of the same texts of other jobs, one; and the last hour of
    the cluster."""
    known = {e.key for e in evidence}
    told = list(await store.evidence_for(cluster, node=node, job=job, since=now - MONTH, limit=HISTORY_MOST))
    if job is not None:
        nodes = sorted({n for e in evidence for n in (*e.nodes, e.node) if n})[:NODES_MOST]
        of_nodes = await store.evidence_of_nodes(cluster, nodes, now - WEEK) if nodes else {}
        told += [e for pieces in of_nodes.values() for e in pieces[-HISTORY_MOST:]]
        if any(e.kind is Kind.LOG_TEXT for e in evidence):
            told += await store.evidence_for(cluster, since=now - WEEK, limit=HISTORY_MOST, kind=Kind.LOG_TEXT)
    around = await store.evidence_for(cluster, since=now - COMMON_SECONDS, limit=AROUND_MOST)
    history = tuple({e.key: e for e in told if e.key not in known}.values())
    return Remembered(history, tuple(e for e in around if e.key not in known))
