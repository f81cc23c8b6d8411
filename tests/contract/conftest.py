"""One suite, every backend: each test that asks for `rig` runs once on each kind that can start here."""

import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.contract.rig import Rig, RigKind
from tests.side_by_side import SideBySide, chosen, params_of

MODULES = ("tests.contract.sim_rig", "tests.contract.slurm_rig", "tests.contract.kubernetes_rig")


def all_kinds() -> tuple[RigKind, ...]:
    """Every kind that has a rig module, whether or not it can start here."""
    found: list[RigKind] = []
    for name in MODULES:
        if importlib.util.find_spec(name) is not None:
            found.extend(importlib.import_module(name).KINDS)
    return tuple(found)


def required(name: str) -> bool:
    """`GPU_RUNBOOKS_REQUIRE=slurm,temporal` turns the skip of a named component into a failure."""
    return name in os.environ.get("GPU_RUNBOOKS_REQUIRE", "").replace(",", " ").split()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "rig_kind" not in metafunc.fixturenames:
        return
    kinds = all_kinds()
    if metafunc.function.__name__ != "test_the_rig_can_start":
        kinds = tuple(
            k for k in kinds if k.why_not() is None and (not k.only or metafunc.function.__name__ in k.only)
        )
    params = [pytest.param(kind, id=kind.name, marks=[getattr(pytest.mark, m) for m in kind.marks]) for kind in kinds]
    metafunc.parametrize("rig_kind", params)


def pytest_sessionfinish() -> None:
    """Rig modules whose cluster outlives a test take it down."""
    for name in MODULES:
        module = sys.modules.get(name)
        if module is not None and hasattr(module, "finish"):
            module.finish()


@pytest.fixture
async def rig(
    request: pytest.FixtureRequest, rig_kind: RigKind, side_by_side: dict[str, SideBySide], tmp_path: Path
) -> AsyncIterator[Rig | SideBySide]:
    """Fresh for each test; of a kind whose tests are played side by side all are under way."""
    if rig_kind.at_once == 1:
        async with rig_kind.open(tmp_path) as opened:
            yield opened
        return
    if rig_kind.name not in side_by_side:
        of_kind = chosen(request.session, lambda i: "rig" in i.fixturenames and params_of(i)["rig_kind"] is rig_kind)
        side_by_side[rig_kind.name] = SideBySide(of_kind, _world, rig_kind.at_once)
    yield side_by_side[rig_kind.name]


@pytest.fixture(scope="session")
def side_by_side() -> Iterator[dict[str, SideBySide]]:
    """By the kind's name, once the first test of the kind runs."""
    playing: dict[str, SideBySide] = {}
    yield playing
    for one in playing.values():
        one.close()


@asynccontextmanager
async def _world(item: pytest.Function) -> AsyncIterator[dict[str, Rig]]:
    kind: RigKind = params_of(item)["rig_kind"]
    with tempfile.TemporaryDirectory(prefix="rig") as folder:
        async with kind.open(Path(folder)) as opened:
            yield {"rig": opened}
