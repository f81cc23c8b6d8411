"""What a node's own state says of it, and of an attempt that ran on it."""

import pytest

from activities.nodes import node_evidence, under_job
from fleet.faults.evidence import Kind
from fleet.model import NodeFacts, NodeState

NOW = 1_800_000_000.0


def facts(state: NodeState, *, responding: bool, ours: bool) -> NodeFacts:
    mark = {"op": "opaaaaa", "drained": True} if ours else {}
    return NodeFacts(cluster="alpha", node="alpha1", state=state, responding=responding, boot="b1", **mark)


@pytest.mark.parametrize("ours", [True, False])
def test_a_silent_node_that_was_given_up_says_so_of_the_attempt_on_it_also_when_it_is_isolated_by_us(
    *, ours: bool
) -> None:
    (found,) = under_job(facts(NodeState.DOWN, responding=False, ours=ours), NOW)
    assert (found.kind, found.node, found.boot) == (Kind.NODE_DOWN, "alpha1", "b1")


def test_what_we_did_to_a_node_says_nothing() -> None:
    for state, responding in ((NodeState.DRAINED, True), (NodeState.DOWN, True), (NodeState.REBOOTING, False)):
        ours = facts(state, responding=responding, ours=True)
        assert (under_job(ours, NOW), node_evidence(ours, NOW)) == ((), ())
    assert node_evidence(facts(NodeState.DOWN, responding=False, ours=True), NOW) == ()
