"""Whatever dies at whatever step of a failover: the cluster ends as after an undisturbed run, no effect twice."""

import pytest

from tests.crash.boundary import EVERY_CASE, STEPS, WORKFLOW, Case, Fault
from tests.crash.conftest import Ended
from tests.crash.play import JOB, Played
from tests.crash.play import STEPS as TOTAL


def test_every_step_of_an_undisturbed_failover_is_a_boundary(ended: Ended) -> None:
    assert (WORKFLOW, *ended(Case()).ending.steps) == STEPS


def test_an_undisturbed_failover_leaves_a_finished_job_and_a_healed_node(ended: Ended) -> None:
    ending = ended(Case()).ending

    assert ending.job["phase"] == "succeeded"
    assert ending.job["step"] == ending.job["saved"] == TOTAL
    assert (ending.job["restarts"], ending.job["excluded"]) == (1, ("alpha2",))
    assert ending.attempts == (
        "1 first 0 ('alpha1', 'alpha2') ",
        "2 in_cluster 1 ('alpha1', 'alpha3') xid:79",
    )
    assert ending.nodes["alpha2"] == "up alpha2#2 8  None False ()"
    assert ending.effects == (
        "attempt 1 restarts=0 nodes=alpha1,alpha2",
        "attempt 1 restarts=1 nodes=alpha1,alpha3",
        "isolate alpha2 OP",
        "reboot alpha2 OP",
        "release alpha2 OP",
        "start_attempt 1 restarts=1 exclude=alpha2",
        "stop 1 restarts=0",
        f"submit 1 {JOB}",
    )
    assert (ending.most_attempts, ending.most_ranks, ending.late_writes) == (1, 2, 0)
    assert set(ending.results.values()) == {"done", "repaired, checked and back at work"}


@pytest.mark.parametrize("case", EVERY_CASE, ids=str)
def test_a_disturbed_failover_ends_as_an_undisturbed_one(case: Case, ended: Ended) -> None:
    played = ended(case)

    assert played.hit, "the fault never happened"
    assert played.ending.model_dump() == ended(Case()).ending.model_dump()
    assert played.failed_tasks == ()
    assert_no_step_is_lost(played)
    assert_the_fault_took_its_toll(played, case)


def assert_no_step_is_lost(played: Played) -> None:
    """The second attempt goes on from the first one's last checkpoint, and makes each step once."""
    assert played.resumed == played.newest_checkpoint
    made = [int(line.split()[1].split("/")[0]) for line in played.attempt_lines]
    assert made == list(range(played.newest_checkpoint + 1, TOTAL + 1))


def assert_the_fault_took_its_toll(played: Played, case: Case) -> None:
    """A fault that nobody felt proves nothing. A save may be asked for again when its asking was disturbed."""
    assert played.servers == (2 if case.fault is Fault.SERVER_KILLED else 1)
    kept = case.fault in {Fault.SERVER_KILLED, Fault.ANSWER_LOST}
    assert played.workers == 1 if kept else played.workers >= 2  # one that cannot start in time is started again
    asked = case.boundary is not None and case.boundary.step == "request_checkpoint"
    assert played.signals in ({1, 2} if asked else {1})
