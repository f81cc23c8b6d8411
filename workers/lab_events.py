"""Events of a lab: the words of a person on one side, the verbs of the lab's script on the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet.errors import InvalidInputError


@dataclass(frozen=True)
class Events:
    """What can happen in one kind of lab."""

    command: str
    """`runbook lab KIND`, for examples in texts."""
    node_suffix: str
    """What makes the first node's name of a cluster's, e.g. `1` or `-n1`."""
    of_node: Mapping[str, str]
    """Event of a node -> verb of the script."""
    of_cluster: Mapping[str, str]
    """Event of a whole cluster -> verb."""
    wants: Mapping[str, str] = field(default_factory=dict)
    """Events that need one more text, and what it is."""

    def words(self, cluster: str, name: str, node: str | None, more: Sequence[str]) -> tuple[str, ...]:
        """The script's words for an event. Raises InvalidInputError that says what is allowed."""
        if name in self.of_cluster:
            return self._cluster_words(cluster, name, [*([node] if node is not None else []), *more])
        example = f"{self.command} event {cluster} {name}"
        if name not in self.of_node:
            raise InvalidInputError(f"no event {name!r}; there are: {', '.join((*self.of_node, *self.of_cluster))}")
        if node is None:
            raise InvalidInputError(f"{name} needs a node: {example} {cluster}{self.node_suffix}")
        if name in self.wants and not more:
            raise InvalidInputError(f"{name} needs {self.wants[name]}: {example} {node} ...")
        if name not in self.wants and more:
            raise InvalidInputError(f"{name} takes nothing more than the node; leave {' '.join(more)!r} out")
        return (self.of_node[name], cluster, node, *([" ".join(more)] if more else []))

    def _cluster_words(self, cluster: str, name: str, more: Sequence[str]) -> tuple[str, ...]:
        if name not in self.wants and more:
            raise InvalidInputError(f"{name} is of the whole cluster; leave {' '.join(more)!r} out")
        if name in self.wants and not more:
            raise InvalidInputError(f"{name} needs {self.wants[name]}: {self.command} event {cluster} {name} ...")
        return (self.of_cluster[name], cluster, *([" ".join(more)] if more else []))
