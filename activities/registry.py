"""How an activity is bound to its row in `activities/api.py`: name, heartbeat, freeze, error translation.

Errors cross to Temporal here and nowhere else. Temporal is the one layer that retries:
permanent and refused errors end the step, temporary ones come back after their own delay, an ambiguous write
comes back at once, for every write reads first and finds what the lost one did.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities import api, presence
from activities.api import Activity
from fleet.errors import AmbiguousError, PermanentError, RefusedError, TemporaryError
from fleet.model import Value

In = TypeVar("In", bound=Value)
Out = TypeVar("Out", bound=Value)

BEAT_SECONDS = 1.0
_DETAILS: ContextVar[list[Any]] = ContextVar("heartbeat_details")
log = structlog.get_logger()


class FrozenError(RefusedError):
    """A freeze is on; the runbook waits for the unfreeze and tries the step again."""


class HasFreeze(Protocol):
    """What an activity class offers, so that its mutating steps can look at the freeze first."""

    async def check_freeze(self, cluster: str) -> None:
        """Raises FrozenError under a freeze, TemporaryError when nobody can tell."""


Owner = TypeVar("Owner", bound=HasFreeze)


def implements(
    spec: Activity[In, Out],
) -> Callable[[Callable[[Owner, In], Awaitable[Out]]], Callable[[Owner, In], Awaitable[Out]]]:
    """Makes a method the implementation of `spec`."""

    def bind(method: Callable[[Owner, In], Awaitable[Out]]) -> Callable[[Owner, In], Awaitable[Out]]:
        async def run(self: Owner, arg: In) -> Out:
            cluster = str(getattr(arg, "cluster", ""))
            with structlog.contextvars.bound_contextvars(step=spec.name, cluster=cluster):
                async with _beating():
                    try:
                        if spec.mutates:
                            await self.check_freeze(cluster)
                        return await method(self, arg)
                    except (PermanentError, TemporaryError, AmbiguousError) as error:
                        raise _translate(spec, error) from error

        run.__name__ = spec.name
        run.__doc__ = method.__doc__
        run.__annotations__ = {"arg": spec.takes, "return": spec.gives}
        return activity.defn(name=spec.name)(run)

    return bind


def _translate(spec: Activity[Any, Any], error: Exception) -> ApplicationError:
    text = f"{spec.name}: {error}"
    if isinstance(error, FrozenError):
        return ApplicationError(
            text, type=api.ERROR_FROZEN, non_retryable=True, category=ApplicationErrorCategory.BENIGN
        )
    if isinstance(error, PermanentError):
        kind = api.ERROR_REFUSED if isinstance(error, RefusedError) else api.ERROR_PERMANENT
        log.warning("step refused", error=str(error))
        return ApplicationError(text, type=kind, non_retryable=True)
    if isinstance(error, TemporaryError):
        log.info("step will be tried again", error=str(error), delay=error.delay)
        return ApplicationError(
            text, type=api.ERROR_TEMPORARY, next_retry_delay=timedelta(seconds=max(error.delay, 0.1))
        )
    log.warning("outcome unknown, reading back", error=str(error))
    return ApplicationError(text, type=api.ERROR_AMBIGUOUS, next_retry_delay=timedelta(seconds=1))


@contextlib.asynccontextmanager
async def _beating() -> AsyncIterator[None]:
    """Beats while the body runs. Each call of a backend has a time limit below the step's own, so a hung one
    cannot hide behind the beats for longer than `start_to_close`.

    The first beat comes after a second: most steps are over by then, and a beat costs the server a write (4 to 7 of
    the 32 ms of processor time that a short step costs it, measured). Every beat replaces what the server keeps, so
    it carries on what the try before kept.
    """
    details: list[Any] = list(activity.info().heartbeat_details)
    _DETAILS.set(details)

    present = presence.begin()

    async def beat() -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            present.beat()
            activity.heartbeat(*details)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def remember(*details: Any) -> None:
    """Keeps plain values in the heartbeat, for the next try of this step."""
    _DETAILS.get()[:] = details
    activity.heartbeat(*details)


def remembered() -> tuple[Any, ...]:
    """What the try before this one kept; empty on the first."""
    return tuple(activity.info().heartbeat_details)


def implementations(owner: object) -> list[Callable[..., Any]]:
    """All activities that an object's methods implement, for the worker."""
    found = (getattr(owner, name) for name in dir(type(owner)) if not name.startswith("__"))
    return [f for f in found if getattr(f, "__temporal_activity_definition", None)]
