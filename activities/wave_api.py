"""Names, inputs, outputs and time limits of the activities of a wave: bulk steps for many nodes of one cluster.

As in `activities/api.py`: no SDK, no effect.
"""

from collections.abc import Mapping
from datetime import timedelta

from activities.api import Activity, Nothing
from fleet.faults.evidence import Evidence, FaultClass
from fleet.model import Value
from fleet.waves import WaveOrder

BATCH = 250
"""Nodes of one bulk step: at the 250 patches a second that an apiserver beside it takes, about a second, after which
the page shows how far it is; its names are 4 KiB in the history."""
PIECES = 200
"""Pieces of evidence in one payload: about 100 KiB; the server warns at 512."""


class NodesIn(Value):
    cluster: str
    nodes: tuple[str, ...] = ()
    """None named: all of them."""


class NodesSeen(Value):
    """Nodes as one live reading shows them; those that are missing are not in the cluster."""

    boots: Mapping[str, str]
    """node -> identity of its present boot."""
    out: tuple[str, ...] = ()
    """Drained or silent: evidence of an earlier boot does not count as mended there."""
    jobs: Mapping[str, tuple[str, ...]] = {}
    """Fleet name of each supervised job on them -> those of the nodes that it holds."""


class JudgeNodes(Value):
    cluster: str
    evidence: tuple[Evidence, ...]


class Judged(Value):
    """The rest of the verdict is in the store, for the node's own runbook."""

    node: str
    fault: FaultClass
    why: str
    """The verdict's title without the place: equal for all nodes with the same fault."""


class NodesJudged(Value):
    nodes: tuple[Judged, ...]


class WaveIn(Value):
    cluster: str
    order: WaveOrder


class BlastIn(Value):
    cluster: str
    out: tuple[str, ...] = ()
    """Nodes that live runbooks have out or are about to take out."""


class Blast(Value):
    """How much of a cluster is out, by a live reading, and how much may be."""

    nodes: int
    isolated: int
    """Nodes with a mark of ours, and those of the question."""
    limit: int
    """How many may be isolated."""
    nodes_out: int
    """How many may be under repair."""


class IsolateNodes(Value):
    """Each node's mark is `fleet.waves.wave_op` of it and the tag."""

    cluster: str
    tag: str
    nodes: tuple[str, ...]
    text: str


class NodesIsolated(Value):
    marked: tuple[str, ...] = ()
    left: Mapping[str, str] = {}
    """node -> why it was left as it is."""


class HealNodes(Value):
    """Starts the runbooks of nodes; evidence and verdict come from the store."""

    cluster: str
    nodes: tuple[str, ...]
    by: str


READ_NODES = Activity("read_nodes", NodesIn, NodesSeen, timedelta(seconds=60), timedelta(seconds=600))
JUDGE_NODES = Activity("judge_nodes", JudgeNodes, NodesJudged, timedelta(seconds=60), timedelta(seconds=600))
REQUEST_WAVE = Activity("request_wave", WaveIn, Nothing, timedelta(seconds=20), timedelta(seconds=600))
READ_BLAST = Activity("read_blast", BlastIn, Blast, timedelta(seconds=60), timedelta(seconds=600))
WAIT_ISOLATED = Activity("wait_isolated", NodesIn, Nothing, timedelta(seconds=600), timedelta(seconds=900))
ISOLATE_NODES = Activity(
    "isolate_nodes", IsolateNodes, NodesIsolated, timedelta(seconds=600), timedelta(seconds=1800), mutates=True
)
TELL_NODES = Activity(
    "tell_nodes", IsolateNodes, Nothing, timedelta(seconds=300), timedelta(seconds=600), mutates=True
)
REQUEST_HEALS = Activity("request_heals", HealNodes, Nothing, timedelta(seconds=60), timedelta(seconds=600))
