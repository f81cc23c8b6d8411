"""Slurm's words, as they were printed by 22.05 and 25.11, and what they mean."""

import pytest

from activities.backends.slurm.outcomes import Outcome, classify, error_of_read, error_of_write
from fleet.errors import (
    AmbiguousError,
    FleetError,
    InvalidInputError,
    NotFoundError,
    PermanentError,
    RefusedError,
    TemporaryError,
)


@pytest.mark.parametrize(
    ("rc", "text", "outcome"),
    [
        (0, "", Outcome.DONE),
        (1, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)", Outcome.NOT_DELIVERED),
        (239, "scancel: error: slurm_kill_job2: Protocol authentication error", Outcome.NOT_DELIVERED),
        (140, "scancel: error: Kill job error on job id 1: Socket timed out on send/recv operation", Outcome.UNKNOWN),
        (1, "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received", Outcome.UNKNOWN),
        (1, "Unexpected message received for job 7", Outcome.UNKNOWN),
        (1, "slurm_load_jobs error: Invalid job id specified", Outcome.NOT_FOUND),
        (1, "Node a99 not found", Outcome.INVALID),
        (1, "slurm_update error: Invalid node name specified", Outcome.NOT_FOUND),
        (1, "Job is pending execution for job 3", Outcome.WRONG_STATE),
        (1, "Job is no longer pending execution for job 3", Outcome.WRONG_STATE),
        (1, "slurm_update error: Invalid node state specified", Outcome.WRONG_STATE),
        (1, "slurm_update error: Invalid node state transition", Outcome.WRONG_STATE),
        (1, "Job is in held state, pending scheduler release", Outcome.WRONG_STATE),
        (1, "Requested operation is presently disabled for job 3", Outcome.WRONG_STATE),
        (1, "Error creating the reservation: Duplicate reservation name", Outcome.WRONG_STATE),
        (1, "slurm_update error: Access/permission denied", Outcome.DENIED),
        (1, "sbatch: error: invalid partition specified: nope", Outcome.INVALID),
        (1, "scontrol: fatal: Unable to process configuration file", Outcome.INVALID),
        (1, "words that nobody has described", Outcome.INVALID),
        (0, "slurm_kill_job error: Socket timed out on send/recv operation", Outcome.UNKNOWN),
    ],
)
def test_the_words_decide_and_not_the_exit_code(rc: int, text: str, outcome: Outcome) -> None:
    assert classify(rc, text) is outcome


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Outcome.DONE, TemporaryError),
        (Outcome.NOT_DELIVERED, TemporaryError),
        (Outcome.UNKNOWN, AmbiguousError),
        (Outcome.NOT_FOUND, NotFoundError),
        (Outcome.WRONG_STATE, RefusedError),
        (Outcome.DENIED, RefusedError),
        (Outcome.INVALID, InvalidInputError),
    ],
)
def test_a_write_without_effect_says_what_it_is(outcome: Outcome, error: type[FleetError]) -> None:
    made = error_of_write("drain a1", outcome, "text")
    assert type(made) is error
    assert "drain a1" in str(made)


def test_a_read_is_never_ambiguous_and_keeps_the_full_text() -> None:
    assert isinstance(error_of_read("squeue", Outcome.UNKNOWN, "x"), TemporaryError)
    made = error_of_read("squeue", Outcome.INVALID, "unrecognized option '--json'")
    assert type(made) is PermanentError
    assert "unrecognized option '--json'" in str(made)
