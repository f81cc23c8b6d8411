"""Whatever dies at whatever step of a move to another cluster: one job trains on, from one newest checkpoint."""

import pytest

from fleet.runbooks import Runbook
from tests.crash.boundary import WORKFLOW, Boundary, Case, Fault
from tests.crash.conftest import Moved

STEPS = (
    WORKFLOW,
    "list_clusters",
    "locate_storage",
    "find_checkpoints",
    "find_checkpoints",
    "read_room",
    "choose_cluster",
    "find_storage",
    "find_checkpoints",
    "check_target_cluster",
    "find_storage",
    "check_site",
    "read_job",
    "request_checkpoint",
    "stop_job",
    "prove_stopped",
    "find_checkpoints",
    "survey_copy",
    "copy_files",
    "prove_copy",
    "publish_copy",
    "drop_copy",
    "find_checkpoints",
    "adopt_job",
    "wait_step",
)
"""Of an undisturbed move, in order; a test compares them with its history."""
FAULTS = (Fault.WORKER_KILLED, Fault.SERVER_KILLED, Fault.WORKER_FROZEN)
CALM = Case(runbook=Runbook.TRANSFER)
CASES = tuple(
    Case(boundary=Boundary(step=step, side=side), fault=FAULTS[(2 * at + side_at) % 3], runbook=Runbook.TRANSFER)
    for at, step in enumerate(dict.fromkeys(STEPS))
    for side_at, side in enumerate(("before", "after"))
)
"""Each boundary once, with the faults in turn."""


def test_every_step_of_an_undisturbed_move_is_a_boundary(moved: Moved) -> None:
    assert (WORKFLOW, *moved(CALM).ending.steps) == STEPS


def test_an_undisturbed_move_leaves_one_finished_job_and_nothing_where_it_was(moved: Moved) -> None:
    played = moved(CALM)

    assert played.ending.jobs == {"alpha": ("cancelled 0 1",), "beta": ("succeeded 1 0",)}
    assert played.ending.attempts == ("1 alpha first 0", "2 beta across_clusters 0")
    assert played.ending.result == "done"
    assert played.resumed == played.newest
    assert (played.most_attempts, played.published) == (1, 1)


@pytest.mark.parametrize("move", CASES, ids=str)
def test_a_disturbed_move_ends_as_an_undisturbed_one(move: Case, moved: Moved) -> None:
    played = moved(move)

    assert played.hit, "the fault never happened"
    assert played.ending.model_dump(exclude={"steps"}) == moved(CALM).ending.model_dump(exclude={"steps"})
    assert dict.fromkeys(played.ending.steps) == dict.fromkeys(STEPS[1:])
    assert played.failed_tasks == ()
    assert played.resumed == played.newest, "it goes on from the first one's newest checkpoint"
    assert (played.most_attempts, played.published) == (1, 1)
    assert played.servers == (2 if move.fault is Fault.SERVER_KILLED else 1)
    assert played.workers == 1 if move.fault is Fault.SERVER_KILLED else played.workers >= 2
