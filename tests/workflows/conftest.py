"""The stage of a runbook test, and waits that are short enough for it."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

import workers.worker
import workflows.evacuation
import workflows.fencing
import workflows.heal
from clients.embedded import ServerInfo
from tests.workflows.stage import SHAPE, WIDE, Stage

_NUMBERS = itertools.count(1)

SHORT_WAITS = (
    (workflows.fencing, "PROVE_PATIENCE", 1.2),
    (workflows.fencing, "FENCE_WAITS", (0.5, 1.0)),
    (workflows.heal, "LOOK_AFTER_RELEASE", 0.2),
    (workflows.evacuation, "LEASE_WAITS", (0.3, 0.5)),
    (workflows.evacuation, "HOLDER_WAITS", (0.3, 0.5)),
    (workflows.evacuation, "SILENT_AFTER", 1.0),
    (workers.worker, "GRACE", timedelta(seconds=0.1)),
)
"""Waits between two looks, and a worker's farewell; what is looked for stays the same."""


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in SHORT_WAITS:
        assert type(getattr(module, name)) is type(value), name
        monkeypatch.setattr(module, name, value)


Opener = Callable[..., Awaitable[Stage]]


@pytest.fixture
async def open_stage(temporal_server: ServerInfo, tmp_path: Path) -> AsyncIterator[Opener]:
    """Opens a stage whose alpha has the given shape, without a worker yet."""
    stages: list[Stage] = []

    async def make(address: str = temporal_server.address, **shape: float) -> Stage:
        folder = tmp_path / str(len(stages))
        folder.mkdir()
        number = next(_NUMBERS)
        stages.append(await Stage.open(address, folder, f"stage-{number}", SHAPE.model_copy(update=shape)))
        return stages[-1]

    try:
        yield make
    finally:
        for stage in stages:
            await stage.close()


@pytest.fixture
async def stage(open_stage: Opener) -> Stage:
    """With a worker for the runbooks and for alpha."""
    stage = await open_stage()
    await stage.start_worker()
    return stage


@pytest.fixture
async def wide_stage(open_stage: Opener) -> Stage:
    """Alpha has forty nodes and all of them may be out at once: many subjects in trouble side by side."""
    stage = await open_stage(nodes=40)
    stage.write_policy(limits=WIDE)
    await stage.start_worker()
    return stage
