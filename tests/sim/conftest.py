"""A world at the wall clock's rate; tests move its clock by `jump`, so they wait for nothing."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from activities.backends.sim import ClusterShape, SimBackend, SimSettings, create_world
from activities.backends.sim.faults import Faults
from fleet.orders import JobSpec


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return create_world(tmp_path / "world.db", {"alpha": ClusterShape(), "beta": ClusterShape(nodes=2)})


@pytest.fixture
def faults(path: Path) -> Iterator[Faults]:
    world = Faults(path, "alpha")
    yield world
    world.close()


@pytest.fixture
async def alpha(path: Path) -> AsyncIterator[SimBackend]:
    backend = SimBackend("alpha", SimSettings(path=path))
    yield backend
    await backend.close()


def spec(job: str = "train", comment: str = "", **directives: object) -> JobSpec:
    """Two nodes, 1000 steps of 0.5 s, a save of 0.2 s each 20 steps, 1 s of loading; `directives` change it."""
    given: dict[str, object] = {"nodes": 2, "steps": 1000, "step_time": 0.5, "checkpoint_every": 20, "save_time": 0.2}
    given |= {"load_time": 1.0, **directives}
    line = " ".join(f"{key}={value}" for key, value in given.items())
    return JobSpec(job=job, name="demo", script=f"#!/bin/sh\n#SIM {line}\n", comment=comment)
