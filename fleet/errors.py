"""Two roots decide everything, and a third outcome is no error at all.

FleetError
├── PermanentError      retry is useless; the text says what to do
│   ├── NotFoundError       the target does not exist
│   ├── InvalidInputError   the caller's words are off
│   ├── RefusedError        a law forbids it (foreign drain, no receipt, empty target, frozen ...)
│   └── UnreadableError     the backend answered something that we do not understand
├── TemporaryError      try again after `delay` seconds
└── AmbiguousError      a write whose outcome is unknown: read it back by its operation id before anything else
"""


class FleetError(Exception):
    """Root of every error that we raise on purpose."""


class PermanentError(FleetError):
    """Retry is useless."""


class NotFoundError(PermanentError):
    """The named cluster, node or job does not exist."""


class InvalidInputError(PermanentError):
    """The caller's words are off; the text says what is allowed."""


class RefusedError(PermanentError):
    """A law forbids the step; the text names it and what to do."""


class UnreadableError(PermanentError):
    """The backend's answer could not be understood; never read as "empty" or "ok"."""


class TemporaryError(FleetError):
    """Worth another try after `delay` seconds."""

    def __init__(self, message: str, delay: float = 2.0) -> None:
        super().__init__(message)
        self.delay = delay


class AmbiguousError(FleetError):
    """The write may have happened. Read back by operation id, then decide."""
