"""The archive, unpacked once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoints.real import copy_of, unpack

Real = Callable[[str], Path]


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every root, not to be changed."""
    return unpack(tmp_path_factory.mktemp("real"))


@pytest.fixture
def real(unpacked: Path, tmp_path: Path) -> Real:
    """Gives a copy of a library's root."""
    return lambda library: copy_of(unpacked, library, tmp_path)
