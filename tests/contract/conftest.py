"""One suite, every backend: each test that asks for `rig` runs once on each kind that can start here."""

import importlib
import importlib.util
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.rig import Rig, RigKind

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
async def rig(rig_kind: RigKind, tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig_kind.open(tmp_path) as opened:
        yield opened
