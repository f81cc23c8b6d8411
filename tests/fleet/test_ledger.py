"""The attempt ledger: what concerns an attempt."""

from typing import Any

import pytest

from fleet.faults.evidence import Evidence, Kind, Source
from fleet.ledger import Attempt, Rung

ATTEMPT = Attempt(
    generation=2,
    cluster="alpha",
    native_id="7",
    restarts=1,
    rung=Rung.IN_CLUSTER,
    nodes=("a1", "a2"),
    boots={"a1": "new"},
    running_at=100.0,
)


@pytest.mark.parametrize(
    ("seen", "concerns"),
    [
        ({"boot": "new", "seen_at": 90.0}, True),  # the fault stands there still
        ({"boot": "old", "seen_at": 90.0}, False),  # a repair came between
        ({"boot": "old", "seen_at": 110.0, "happened_at": 90.0}, False),
        ({"boot": "newer", "seen_at": 110.0}, True),  # the node was booted under the attempt
        ({"boot": None, "seen_at": 90.0}, True),
        ({"node": "a2", "boot": "old", "seen_at": 90.0}, True),  # nobody knows the boot of the attempt there
        ({"node": "a3", "boot": "new", "seen_at": 110.0}, False),
    ],
)
def test_what_was_seen_on_an_earlier_boot_of_its_node_before_it_ran_does_not_concern_an_attempt(
    seen: dict[str, Any], concerns: bool
) -> None:
    evidence = Evidence(source=Source.SCHEDULER, kind=Kind.NODE_DOWN, cluster="alpha", **({"node": "a1"} | seen))
    assert ATTEMPT.on_its_node(evidence) is concerns
