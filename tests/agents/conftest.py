"""The stand-in driver library that the agents' tests share, built here from C against NVIDIA's own header."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.driver import Driver, built


@pytest.fixture(scope="session")
def nvml_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the stand-in `libnvidia-ml.so.1`."""
    return built(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(nvml_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """A driver for this test's child processes, with eight sound GPUs."""
    found = Driver(tmp_path / "nvml.control", nvml_folder)
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    yield found
    found.path.write_text("")  # lets go of whatever hangs in it
