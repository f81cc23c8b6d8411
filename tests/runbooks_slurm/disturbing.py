"""Things that happen exactly before one of our Slurm commands."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from tests.runbooks_slurm.stage import Disturbance, Stage
from tests.slurm.lab import Cluster


def before(words: str, happens: Callable[[], Awaitable[None]]) -> Disturbance:
    """`happens` once, before the first command of ours that holds `words`."""

    @asynccontextmanager
    async def nothing_after() -> AsyncIterator[None]:
        await happens()
        yield

    return _once(words, nothing_after)


def at_write(stage: Stage, words: str, fault: str) -> Disturbance:
    """The controller of `stage.lab` is `frozen` or `killed` exactly while that command wants to be heard."""
    return _once(words, lambda: without_controller(stage.lab, fault))


@asynccontextmanager
async def without_controller(lab: Cluster, fault: str) -> AsyncIterator[None]:
    """slurmctld is frozen or killed; afterwards it goes on, or is started again."""
    await lab.lab("ctld-freeze" if fault == "frozen" else "ctld-kill", lab.name)
    try:
        yield
    finally:
        await lab.lab("ctld-thaw" if fault == "frozen" else "ctld-start", lab.name)


def all_of(*disturbances: Disturbance) -> Disturbance:
    """Each of them where it applies."""

    @asynccontextmanager
    async def each(argv: tuple[str, ...]) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for one in disturbances:
                await stack.enter_async_context(one(argv))
            yield

    return each


def _once(words: str, happens: Callable[[], AbstractAsyncContextManager[None]]) -> Disturbance:
    met: list[tuple[str, ...]] = []

    @asynccontextmanager
    async def disturb(argv: tuple[str, ...]) -> AsyncIterator[None]:
        if met or words not in " ".join(argv):
            yield
            return
        met.append(argv)
        async with happens():
            yield

    disturb.met = met  # type: ignore[attr-defined]
    return disturb
