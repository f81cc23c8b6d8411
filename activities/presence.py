"""Whether this process may still act for the step that it runs.

A worker that was frozen (SIGSTOP, a paused machine, a swap storm) does not notice. Meanwhile its step was given to
another worker, which may be several steps further. What it decided before the freeze must not be carried out after.
"""

import time
from contextvars import ContextVar

from fleet.errors import TemporaryError

AWAY = 3.0
"""Seconds without a sign of life after which a step may be another worker's: the heartbeat timeout of 6 s, less the
throttle of 2 s and one beat of 1 s that the server has not seen yet."""


class Presence:
    """Signs of life of one try of a step. Once they failed for too long, the try may write no more."""

    def __init__(self) -> None:
        self._last = _clock()
        self._away = 0.0

    def beat(self) -> None:
        """A sign of life; a gap before it is remembered for good."""
        now = _clock()
        self._away = max(self._away, now - self._last)
        self._last = now

    def check(self) -> None:
        """Raises TemporaryError when this try was away for too long: the next one looks at the state as it is."""
        self.beat()
        if self._away > AWAY:
            raise TemporaryError(
                f"this worker was away for {self._away:.0f} s, so another one may have its step; nothing was "
                "written, the step is tried again from what is there now",
                delay=1.0,
            )


_PRESENT: ContextVar[Presence | None] = ContextVar("presence", default=None)


def begin() -> Presence:
    """Presence of a try that begins now, for everything that it calls."""
    presence = Presence()
    _PRESENT.set(presence)
    return presence


def check_presence() -> None:
    """Just before a write: raises TemporaryError when the step may be another worker's. Nothing outside a step."""
    presence = _PRESENT.get()
    if presence is not None:
        presence.check()


def _clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # counts a suspended machine's time too
