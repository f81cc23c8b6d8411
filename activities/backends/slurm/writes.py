"""Every write: read, decide, write, read back. Success is the observed state; the command's answer is a hint."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from activities.backends.slurm.commands import Finished
from activities.backends.slurm.outcomes import Outcome, error_of_write
from fleet.errors import TemporaryError

T = TypeVar("T")
_HOPELESS = {Outcome.NOT_FOUND, Outcome.WRONG_STATE, Outcome.DENIED, Outcome.INVALID}
QUICK = 0.5
"""Seconds that a refused write is still read back: "already so" must not look like a failure."""


async def read_back(
    what: str, done: Finished, read: Callable[[], Awaitable[T]], settled: Callable[[T], bool], seconds: float
) -> T:
    """Polls until the effect of `done` shows and returns what was read.

    Raises what `outcomes.error_of_write` makes of the command's words when the effect does not show: so a time-out
    is AmbiguousError only after the read-back could not decide, and a refusal only when the state is not as wanted.
    """
    end = time.monotonic() + (QUICK if done.outcome in _HOPELESS else seconds)
    pause = 0.02
    while True:
        try:
            value = await read()
        except TemporaryError as error:
            if done.outcome in {Outcome.UNKNOWN, Outcome.NOT_DELIVERED}:
                raise error_of_write(what, done.outcome, f"{done.text}; {error}") from error
        else:
            if settled(value):
                return value
        if time.monotonic() >= end:
            raise error_of_write(what, done.outcome, done.text)
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.5)
