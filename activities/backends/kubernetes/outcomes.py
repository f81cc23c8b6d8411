"""What an answer of the apiserver means, or the lack of one. The only place that looks at HTTP statuses.

Sources: the API conventions (kubernetes/community, sig-architecture/api-conventions.md, "HTTP status codes") and
k8s.io/apimachinery/pkg/api/errors. A 500 or 504 may come after etcd took the write; so may a time-out, a reset
connection and a body that stopped half-way.
"""

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
    INVALID = "invalid"  # 400, 405, 406, 413, 415, 422: as it is written it can never be taken
    UNAUTHENTICATED = "unauthenticated"  # 401: a token may be renewed meanwhile
    DENIED = "denied"  # 403
    NOT_FOUND = "not_found"  # 404
    CONFLICT = "conflict"  # 409: somebody wrote in between; read again and decide again
    EXISTS = "exists"  # 409 AlreadyExists
    GONE = "gone"  # 410: the resourceVersion is too old; list again
    BUSY = "busy"  # 429, and 503 with Retry-After: not taken
    NOT_DELIVERED = "not_delivered"  # nothing reached the apiserver
    UNKNOWN = "unknown"  # the write may have happened, or may still happen


_BY_STATUS = {
    401: Outcome.UNAUTHENTICATED,
    403: Outcome.DENIED,
    404: Outcome.NOT_FOUND,
    409: Outcome.CONFLICT,
    410: Outcome.GONE,
    429: Outcome.BUSY,
    500: Outcome.UNKNOWN,
    502: Outcome.UNKNOWN,
    503: Outcome.UNKNOWN,
    504: Outcome.UNKNOWN,
}
DELAY = 2.0
"""Seconds until a temporary trouble is looked at again when the apiserver names no time."""
LOGIN_DELAY = 10.0
"""Seconds after a 401: a renewed token has to arrive first."""
LONGEST_DELAY = 120.0
"""Seconds; a longer Retry-After is cut to this, for a runbook that sleeps an hour helps nobody."""


def classify(status: int, reason: str, retry_after: float | None) -> Outcome:
    """The class of an HTTP status; `reason` is that of the Status body."""
    if 200 <= status < 300:
        return Outcome.DONE
    if status == 409 and reason == "AlreadyExists":
        return Outcome.EXISTS
    if status == 503 and retry_after is not None:
        return Outcome.BUSY
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return Outcome.UNKNOWN if status >= 500 else Outcome.INVALID


def error_of_read(what: str, outcome: Outcome, text: str, retry_after: float | None = None) -> FleetError:
    """A read changes nothing, so an unknown outcome is only worth another try."""
    match outcome:
        case Outcome.NOT_FOUND:
            return NotFoundError(f"{what}: {text}")
        case Outcome.UNAUTHENTICATED | Outcome.DENIED | Outcome.INVALID:
            return _refusal(what, outcome, text)
        case _:
            return TemporaryError(f"{what}: the apiserver did not answer ({text}); asked again", _delay(retry_after))


def error_of_write(what: str, outcome: Outcome, text: str, retry_after: float | None = None) -> FleetError:
    """For a write whose effect was looked for and not seen."""
    match outcome:
        case Outcome.NOT_DELIVERED | Outcome.BUSY:
            delay = _delay(retry_after)
            return TemporaryError(f"{what}: not taken ({text}); nothing was changed, it is tried again", delay)
        case Outcome.CONFLICT | Outcome.GONE:
            return TemporaryError(f"{what}: somebody else keeps writing there ({text}); it is tried again", 1.0)
        case Outcome.UNKNOWN:
            return AmbiguousError(f"{what}: no answer ({text}) and no effect seen yet; read back before a retry")
        case Outcome.DONE:
            return TemporaryError(f"{what}: accepted, and its effect is not to be seen; it is asked again", DELAY)
        case Outcome.NOT_FOUND:
            return NotFoundError(f"{what}: {text}")
        case Outcome.EXISTS:
            return RefusedError(f"{what}: the name is taken by something that is not ours ({text})")
        case _:
            return _refusal(what, outcome, text)


def _refusal(what: str, outcome: Outcome, text: str) -> FleetError:
    if outcome is Outcome.UNAUTHENTICATED:
        return TemporaryError(f"{what}: the credentials were not taken ({text}); renew them", LOGIN_DELAY)
    if outcome is Outcome.DENIED:
        return PermanentError(f"{what}: not allowed ({text}); `runbook doctor` names the missing right")
    return InvalidInputError(f"{what}: the apiserver refused it: {text}")


def _delay(retry_after: float | None) -> float:
    return DELAY if retry_after is None else min(max(retry_after, 0.1), LONGEST_DELAY)
