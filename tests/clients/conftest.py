"""The stage that the CLI's tests share, one for each module."""

from collections.abc import Iterator

import pytest

from clients.embedded import HOME_VARIABLE
from tests.clients.stage import Invoke, Stage, invoker
from tests.conftest import FAST_VALUES
from workers.server import ensure_server, stop_server


@pytest.fixture(scope="module")
def stage_of_module(temporal_binary_found: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Server and worker process, killed at the end."""
    home = tmp_path_factory.mktemp("stage")
    stage = Stage(home, ensure_server(home, values=FAST_VALUES))
    try:
        stage.start_worker()
        yield stage
    finally:
        stage.stop_worker()
        assert stop_server(home)


@pytest.fixture
def stage(stage_of_module: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """The stage, with this process's environment pointing at it."""
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "GPU_RUNBOOKS_FLEET", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(HOME_VARIABLE, str(stage_of_module.home))
    monkeypatch.setenv("GPU_RUNBOOKS_AS", "tester")
    monkeypatch.chdir(stage_of_module.home)
    stage_of_module.policy()
    return stage_of_module


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str]) -> Invoke:
    return invoker(capsys)
