"""The stage of a runbook test, and waits that are short enough for it."""

import itertools
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

import workers.worker
import workflows.evacuation
import workflows.recovery
from clients.embedded import ServerInfo
from tests.workflows.stage import SHAPE, WIDE, Stage

_NUMBERS = itertools.count(1)

SHORT_WAITS = (
    (workflows.recovery, "PROVE_PATIENCE", 1.2),
    (workflows.recovery, "FENCE_WAITS", (0.5, 1.0)),
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


@pytest.fixture
async def bare_stage(temporal_server: ServerInfo, tmp_path: Path) -> AsyncIterator[Stage]:
    """Without a worker yet."""
    stage = await Stage.open(temporal_server.address, tmp_path, f"stage-{next(_NUMBERS)}")
    try:
        yield stage
    finally:
        await stage.close()


@pytest.fixture
async def wide_stage(temporal_server: ServerInfo, tmp_path: Path) -> AsyncIterator[Stage]:
    """Alpha has forty nodes and all of them may be out at once: many subjects in trouble side by side."""
    shape = SHAPE.model_copy(update={"nodes": 40})
    stage = await Stage.open(temporal_server.address, tmp_path, f"stage-{next(_NUMBERS)}", shape)
    stage.write_policy(limits=WIDE)
    try:
        await stage.start_worker()
        yield stage
    finally:
        await stage.close()


@pytest.fixture
async def stage(bare_stage: Stage) -> Stage:
    """With a worker for the runbooks and for alpha."""
    await bare_stage.start_worker()
    return bare_stage
