"""The activities of `FindLemons`, as in `activities/api.py`. No SDK."""

from collections.abc import Mapping
from datetime import timedelta

from activities.api import Activity, Nothing, PolicyIn
from fleet.lemons import Lemon
from fleet.model import Value


class Scope(Value):
    """The clusters whose own nodes are judged; a Slurm cluster on the nodes of a Kubernetes one has none."""

    clusters: tuple[str, ...]


class ClusterNodes(Value):
    """A cluster's nodes, live, and how many more may be out."""

    cluster: str
    nodes: tuple[str, ...] = ()
    gpus: int = 0
    out: tuple[str, ...] = ()
    """Nodes that take no work now, whoever isolated them."""
    limit: int = 0
    """Nodes that may be out at a time by the policy, at today's size."""
    ours: int = 0
    """Nodes that our runbooks have out now."""


class LemonsIn(Value):
    """All clusters that could be read."""

    clusters: tuple[ClusterNodes, ...]


class LemonsOut(Value):
    """The lemons, worst first."""

    lemons: tuple[Lemon, ...] = ()
    answered: Mapping[str, str] = {}
    """Lemon -> what a person said about just this record; a newer strike opens it again."""


class AnswerIn(Value):
    """What a person said about lemons, to be remembered with what it was said about."""

    lemons: tuple[Lemon, ...]
    answer: str


class Forgotten(Value):
    """Rows that were older than the policy keeps them, by table."""

    rows: Mapping[str, int] = {}


def _s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


READ_SCOPE = Activity("read_lemon_scope", Nothing, Scope, _s(20), _s(600))
TIDY_HISTORY = Activity("tidy_history", Nothing, Forgotten, _s(900), _s(1800))
LIST_NODES = Activity("list_nodes", PolicyIn, ClusterNodes, _s(30), _s(120))
FIND_LEMONS = Activity("find_lemons", LemonsIn, LemonsOut, _s(60), _s(600))
REMEMBER_ANSWER = Activity("remember_lemon_answer", AnswerIn, Nothing, _s(20), _s(600))
