"""Each step boundary of a failover once on real Slurm, with the faults in turn."""

import pytest

from tests.crash.boundary import AT_BOUNDARIES, BOUNDARIES, ONLY_ON_SLURM, STEPS, WORKFLOW, Case
from tests.crash_slurm.checks import assert_ends_alike, assert_no_rank_meets_another, assert_no_step_is_lost
from tests.crash_slurm.conftest import Ended

pytestmark = pytest.mark.slurm
IN_TURN = tuple(
    Case(boundary=boundary, fault=AT_BOUNDARIES[(at + at // len(AT_BOUNDARIES)) % len(AT_BOUNDARIES)])
    for at, boundary in enumerate(BOUNDARIES)
)
CASES = (*IN_TURN, *ONLY_ON_SLURM)


def test_every_step_of_an_undisturbed_failover_is_a_boundary(ended: Ended) -> None:
    assert (WORKFLOW, *ended(Case()).ending.steps) == STEPS


def test_an_undisturbed_failover_leaves_a_finished_job_and_a_healed_node(ended: Ended) -> None:
    played = ended(Case())
    ending = played.ending

    assert (ending.job["phase"], ending.job["restarts"]) == ("succeeded", 1)
    assert ending.job["excluded"] == ["CLUSTER2"]
    assert ending.attempts == (
        "1 first 0 2 nodes with the sick one ",
        "2 in_cluster 1 2 nodes xid:79",
    )
    assert ending.effects == {
        "submit": 1,
        "requeue": 1,
        "exclude": 1,
        "release": 2,
        "start": 2,
        "reboot": 1,
        "reserve": 1,
        "delete reservation": 1,
    }
    assert ending.hooks == {"prolog": 4, "epilog": 4, "reboot": 1}
    assert {n for n, state in ending.nodes.items() if not state.startswith("up same boot")} == {"CLUSTER2"}
    assert ending.nodes["CLUSTER2"] == "up booted again 8  None False None ()"
    assert "No reservations" in ending.reservations
    assert set(ending.results.values()) == {"done", "repaired, checked and back at work"}
    assert played.generations_at_once == 1
    assert_no_rank_meets_another(played.order)
    assert_no_step_is_lost(played)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_disturbed_failover_ends_as_an_undisturbed_one(case: Case, ended: Ended) -> None:
    assert_ends_alike(ended(case), ended(Case()), case)
