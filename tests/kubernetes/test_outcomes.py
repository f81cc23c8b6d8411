"""One table for every answer of an apiserver, and for none."""

import pytest

from activities.backends.kubernetes.outcomes import (
    DELAY,
    LONGEST_DELAY,
    Outcome,
    classify,
    error_of_read,
    error_of_write,
)
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
    ("status", "reason", "after", "outcome"),
    [
        (200, "", None, Outcome.DONE),
        (201, "", None, Outcome.DONE),
        (400, "BadRequest", None, Outcome.INVALID),
        (401, "Unauthorized", None, Outcome.UNAUTHENTICATED),
        (403, "Forbidden", None, Outcome.DENIED),
        (404, "NotFound", None, Outcome.NOT_FOUND),
        (409, "Conflict", None, Outcome.CONFLICT),
        (409, "AlreadyExists", None, Outcome.EXISTS),
        (410, "Expired", None, Outcome.GONE),
        (422, "Invalid", None, Outcome.INVALID),
        (429, "TooManyRequests", 3.0, Outcome.BUSY),
        (500, "InternalError", None, Outcome.UNKNOWN),
        (502, "", None, Outcome.UNKNOWN),
        (503, "ServiceUnavailable", None, Outcome.UNKNOWN),
        (503, "ServiceUnavailable", 5.0, Outcome.BUSY),
        (504, "Timeout", None, Outcome.UNKNOWN),
        (507, "", None, Outcome.UNKNOWN),
    ],
)
def test_each_status_has_one_meaning(status: int, reason: str, after: float | None, outcome: Outcome) -> None:
    assert classify(status, reason, after) is outcome


@pytest.mark.parametrize(
    ("outcome", "read", "write"),
    [
        (Outcome.INVALID, InvalidInputError, InvalidInputError),
        (Outcome.UNAUTHENTICATED, TemporaryError, TemporaryError),
        (Outcome.DENIED, PermanentError, PermanentError),
        (Outcome.NOT_FOUND, NotFoundError, NotFoundError),
        (Outcome.CONFLICT, TemporaryError, TemporaryError),
        (Outcome.EXISTS, TemporaryError, RefusedError),
        (Outcome.GONE, TemporaryError, TemporaryError),
        (Outcome.BUSY, TemporaryError, TemporaryError),
        (Outcome.NOT_DELIVERED, TemporaryError, TemporaryError),
        (Outcome.UNKNOWN, TemporaryError, AmbiguousError),
        (Outcome.DONE, TemporaryError, TemporaryError),
    ],
)
def test_an_unknown_write_is_ambiguous_and_an_unknown_read_only_another_try(
    outcome: Outcome, read: type[FleetError], write: type[FleetError]
) -> None:
    assert type(error_of_read("read it", outcome, "why")) is read
    assert type(error_of_write("write it", outcome, "why")) is write


@pytest.mark.parametrize(("after", "delay"), [(None, DELAY), (7.0, 7.0), (0.0, 0.1), (86400.0, LONGEST_DELAY)])
def test_retry_after_is_the_delay_within_reason(after: float | None, delay: float) -> None:
    for error in (error_of_read("x", Outcome.BUSY, "", after), error_of_write("x", Outcome.BUSY, "", after)):
        assert isinstance(error, TemporaryError)
        assert error.delay == delay
