"""Scenarios on real clusters wait most of their time, so a few of them run side by side in one event loop, each with
clusters, a Temporal namespace and a worker of its own. Each is still one test with its own result."""

import inspect
from collections.abc import Awaitable, Callable
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


def scenario(**words: Any) -> Callable[[Body], Callable[..., None]]:
    """Makes a test of `async def test_...(stage, <parameters>)`; `words` are those of `Setup`."""
    setup = Setup(**words)

    def bind(body: Body) -> Callable[..., None]:
        def test(played: Callable[[], None], **_: object) -> None:
            played()

        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        _, *given = inspect.signature(body).parameters.values()
        played = inspect.Parameter("played", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = inspect.Signature([played, *given])  # type: ignore[attr-defined]
        test.body, test.setup = body, setup  # type: ignore[attr-defined]
        return test

    return bind


async def play(body: Body, setup: Setup, stage: Callable[[Setup], Any], params: dict[str, object]) -> None:
    """Plays one scenario to its end. What the runbooks told is added to a failure."""
    async with stage(setup) as made:
        try:
            await body(made, **params)
        except BaseException as error:
            error.add_note(await told(made))
            raise


async def told(stage: Stage) -> str:
    """The stories of all runbooks of the scenario, for whoever looks at a failure."""
    try:
        return await stage.stories()
    except Exception as error:  # noqa: BLE001 - the edge: the scenario's own failure is what counts
        return f"the stories could not be read: {error!r}"
