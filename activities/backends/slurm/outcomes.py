"""What a Slurm command's words mean. The exit code is a hint only: `scancel` of an unknown job ends with 0,
other errors with 1, 8, 140 or 239."""

from enum import StrEnum

from fleet.errors import (
    AmbiguousError,
    FleetError,
    InvalidInputError,
    NotFoundError,
    PermanentError,
    RefusedError,
    TemporaryError,
)


class Outcome(StrEnum):
    """Classes of answers, for reads and writes alike."""

    DONE = "done"
    NOT_FOUND = "not_found"
    WRONG_STATE = "wrong_state"  # the target is in another state: read it, it may be what was wanted
    DENIED = "denied"
    INVALID = "invalid"
    NOT_DELIVERED = "not_delivered"  # nothing reached the controller: try again
    UNKNOWN = "unknown"  # the write may have happened, or may still happen


_TEXTS: tuple[tuple[Outcome, tuple[str, ...]], ...] = (
    (
        Outcome.NOT_DELIVERED,
        (
            "unable to contact slurm controller",
            "connection refused",
            "communication connection failure",
            "protocol authentication error",
            "authentication credential",
            "unable to contact munge",
            "munge encode failed",
            "standby mode",
            "resource temporarily unavailable",
            "temporarily unable to accept job",
            "slurm controller not responding",
        ),
    ),
    (
        Outcome.UNKNOWN,
        (
            "socket timed out",
            "zero bytes were transmitted",
            "unexpected message received",
            "connection reset",
            "message receive failure",
            "insane message length",
            "message send failure",
            "transport endpoint is not connected",
        ),
    ),
    (
        Outcome.NOT_FOUND,
        (
            "invalid job id specified",
            "invalid node name specified",
            "node not found",
            "requested reservation is invalid",
            "job/step not found",
        ),
    ),
    (
        Outcome.WRONG_STATE,
        (
            "job is pending execution",
            "job is no longer pending execution",
            "job has already finished",
            "already completing or completed",
            "job is in held state",
            "requested operation is presently disabled",
            "invalid node state",
            "duplicate reservation name",
            "job/step is pending",
            "requested nodes are busy",
        ),
    ),
    (
        Outcome.DENIED,
        ("access/permission denied", "invalid user id", "user not authorized", "only batch jobs are accepted"),
    ),
)


def classify(rc: int, stderr: str) -> Outcome:
    """Words first, exit code second. An error that nobody has described is INVALID: never retried by itself."""
    text = stderr.lower()
    for outcome, words in _TEXTS:
        if any(word in text for word in words):
            return outcome
    return Outcome.DONE if rc == 0 else Outcome.INVALID


def error_of_read(what: str, outcome: Outcome, text: str) -> FleetError:
    """A read changes nothing, so an unknown outcome is only worth another try."""
    if outcome in {Outcome.NOT_DELIVERED, Outcome.UNKNOWN}:
        return TemporaryError(f"{what}: the Slurm controller did not answer ({text}); it is asked again", delay=2.0)
    if outcome is Outcome.NOT_FOUND:
        return NotFoundError(f"{what}: {text}")
    return PermanentError(f"{what}: {text}")


def error_of_write(what: str, outcome: Outcome, text: str) -> FleetError:
    """For a write whose effect was looked for and not seen."""
    match outcome:
        case Outcome.NOT_DELIVERED:
            return TemporaryError(
                f"{what}: not delivered ({text}); nothing was changed, it is tried again", delay=2.0
            )
        case Outcome.UNKNOWN:
            return AmbiguousError(f"{what}: no answer ({text}) and no effect seen yet; read back before a retry")
        case Outcome.DONE:
            return TemporaryError(f"{what}: accepted, and its effect is not to be seen; it is asked again", delay=2.0)
        case Outcome.NOT_FOUND:
            return NotFoundError(f"{what}: {text}")
        case Outcome.INVALID:
            return InvalidInputError(f"{what}: Slurm refused it: {text}")
        case _:
            return RefusedError(f"{what}: Slurm refused it in this state: {text}")
