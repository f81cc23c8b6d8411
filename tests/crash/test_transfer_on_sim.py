"""Whatever dies at whatever step of a move to another cluster: one job trains on, from one newest checkpoint."""

import os

import pytest
from _pytest.mark import ParameterSet

from fleet.runbooks import Runbook
from tests.crash.boundary import WORKFLOW, Boundary, Case, Fault
from tests.crash.conftest import Moved
from tests.crash.play_transfer import Played

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
COPYING = ("survey_copy", "copy_files", "prove_copy", "publish_copy", "drop_copy")
"""What a storage can spoil once the job has been stopped."""
ASKING = ("read_room", "check_target_cluster", "adopt_job", "wait_step")
"""What asks the cluster that the job goes to; so do the steps of the placement there:"""
PLACING = ("try_submit", "submit_job", "wait_placed")


def surrounded(fault: Fault, steps: tuple[str, ...], runbook: Runbook = Runbook.TRANSFER) -> tuple[Case, ...]:
    """That fault before and after each of the steps."""
    return tuple(
        Case(boundary=Boundary(step=step, side=side), fault=fault, runbook=runbook)
        for step in steps
        for side in ("before", "after")
    )


AROUND = (
    *surrounded(Fault.TARGET_FULL, COPYING),
    *surrounded(Fault.SOURCE_GONE, COPYING),
    *surrounded(Fault.TARGET_FROZEN, ASKING),
    *surrounded(Fault.TARGET_FROZEN, PLACING, Runbook.PLACE),
)
"""Each boundary with each fault of its surroundings that can matter there."""
EVERY_CASE = tuple(
    case.model_copy(update={"fault": fault}) for case in CASES for fault in FAULTS if case.fault is not fault
)
"""What is left of the product."""


def marked(case: Case) -> ParameterSet:
    """A storage that gets full takes root: a file system of its own is mounted."""
    fills = case.fault is Fault.TARGET_FULL and os.geteuid() != 0
    once = case.boundary is not None and case.boundary.side == "before"
    marks = [pytest.mark.skipif(fills, reason="only root mounts"), *([] if once else [pytest.mark.matrix])]
    return pytest.param(case, marks=marks, id=str(case))


def test_every_step_of_an_undisturbed_move_is_a_boundary(moved: Moved) -> None:
    assert (WORKFLOW, *moved(CALM).ending.steps) == STEPS


def test_an_undisturbed_move_leaves_one_finished_job_and_nothing_where_it_was(moved: Moved) -> None:
    played = moved(CALM)

    assert played.ending.jobs == {"alpha": ("cancelled 0 1",), "beta": ("succeeded 1 0",)}
    assert played.ending.attempts == ("1 alpha first 0", "2 beta across_clusters 0")
    assert played.ending.result == "done"
    assert played.resumed == played.newest
    assert (played.most_attempts, played.published) == (1, 1)


def goes_on(played: Played, calm: Played) -> None:
    """One job trains on from the one newest checkpoint, and its end is that of an undisturbed move."""
    assert played.hit, "the fault never happened"
    assert played.ending.model_dump(exclude={"steps", "runbooks"}) == calm.ending.model_dump(
        exclude={"steps", "runbooks"}
    )
    assert played.failed_tasks == ()
    assert played.resumed == played.newest, "it goes on from the first one's newest checkpoint"
    assert (played.most_attempts, played.published) == (1, 1)


@pytest.mark.parametrize(
    "move", [*CASES, *(pytest.param(case, marks=pytest.mark.matrix) for case in EVERY_CASE)], ids=str
)
def test_a_disturbed_move_ends_as_an_undisturbed_one(move: Case, moved: Moved) -> None:
    played = moved(move)

    goes_on(played, moved(CALM))
    assert played.ending.runbooks == moved(CALM).ending.runbooks
    assert dict.fromkeys(played.ending.steps) == dict.fromkeys(STEPS[1:])
    assert played.servers == (2 if move.fault is Fault.SERVER_KILLED else 1)
    assert played.workers == 1 if move.fault is Fault.SERVER_KILLED else played.workers >= 2


@pytest.mark.parametrize("move", [marked(case) for case in AROUND])
def test_a_move_whose_surroundings_fail_waits_or_asks_and_goes_on_when_they_are_back(
    move: Case, moved: Moved
) -> None:
    played = moved(move)

    goes_on(played, moved(CALM))
    for question in played.asked:
        assert "runbook release train-8" in question, "it says what is safe to do"
    if move.boundary == Boundary(step="copy_files", side="before") and move.fault is not Fault.TARGET_FROZEN:
        assert played.asked, "nothing can be copied, and nobody but a person can change that"
