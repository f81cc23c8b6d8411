"""Scenarios on real clusters wait most of their time, so a few of them run side by side in one event loop, each with
clusters, a Temporal namespace and a worker of its own. Each is still one test with its own result."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.runbooks_slurm.stage import Stage

Body = Callable[..., Awaitable[None]]


@dataclass(frozen=True)
class Setup:
    """The world of one scenario."""

    clusters: tuple[str, ...] = ("alpha",)
    nodes: int = 4
    lab: tuple[str, ...] = ()
    """Lines of slurm.conf that differ, `Key=Value`."""
    ours: tuple[str, ...] = ()
    """Lines that differ in the copy of slurm.conf that only our own commands read."""
    power: bool = True
    """Whether the fleet has a power hook."""
    modes: dict[str, str] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)
    sites: bool = False
    """Each cluster's jobs folder is a site of its own, `at-<cluster>`, with a data worker."""


def scenario(**words: Any) -> Callable[[Body], Body]:
    """Gives a test of `stage` its world; `words` are those of `Setup`."""

    def bind(body: Body) -> Body:
        body.setup = Setup(**words)  # type: ignore[attr-defined]
        return body

    return bind


@asynccontextmanager
async def telling(stage: Stage) -> AsyncIterator[Stage]:
    """What the runbooks told is added to a failure."""
    try:
        yield stage
    except BaseException as error:
        error.add_note(await _told(stage))
        raise


async def _told(stage: Stage) -> str:
    """The stories of all runbooks of the scenario, for whoever looks at a failure."""
    try:
        return await stage.stories()
    except Exception as error:  # noqa: BLE001 - the edge: the scenario's own failure is what counts
        return f"the stories could not be read: {error!r}"
