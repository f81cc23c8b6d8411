"""Fixtures that several folders share: the real Temporal server, its client, and virtual time on it."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from temporalio.client import Client
from temporalio.testing import TimeSkipper

from clients.connection import connect
from clients.embedded import ServerInfo, is_alive
from fleet.errors import PermanentError
from tests.kubernetes.lab import isolated, why_not
from tests.require import missing
from tests.side_by_side import SideBySide
from workers.server import ServerState, ensure_server, server_status, stop_server, temporal_binary

FAST_VALUES = {
    # Timers may fire this late; the default of 1 s would be most of a test's time.
    "history.timerProcessorMaxTimeShift": '"1ms"',
    # Wait between two runs of one workflow id, e.g. at continue-as-new; 1 s by default.
    "history.workflowIdReuseMinimalInterval": '"0s"',
}


def pytest_collection_finish(session: pytest.Session) -> None:
    """A run with tests on the Kubernetes lab moves into a network namespace of its own, before it has other threads:
    the lab, its workers and their Temporal server then see each other and nothing else."""
    chosen = [item for item in session.items if item.get_closest_marker("kubernetes")]
    if chosen and why_not() is None and not session.config.option.collectonly:
        house = ExitStack()
        house.enter_context(isolated())
        session.config.add_cleanup(house.close)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "temporal_binary_found" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.temporal)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is played side by side with others is only waited for."""
    for value in pyfuncitem.funcargs.values():
        if isinstance(value, SideBySide):
            print(f"{pyfuncitem.name}: {value.seconds(pyfuncitem):.1f} s")  # noqa: T201 - shown by -rP
            return True
    return None


@pytest.fixture(scope="session")
def temporal_binary_found() -> None:
    """Skips, or fails where it is required, without the Temporal server's program."""
    try:
        temporal_binary()
    except PermanentError as error:
        missing("temporal", str(error))


@pytest.fixture(scope="session")
def temporal_server(temporal_binary_found: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInfo]:
    """A server of this session's own: free ports, a file in a temporary folder, killed at the end."""
    home = tmp_path_factory.mktemp("temporal-home")
    info = ensure_server(home, values=FAST_VALUES)
    yield info
    if is_alive(info):
        os.kill(info.pid, signal.SIGKILL)
    stop_server(home)
    assert not is_alive(info)
    assert server_status(home).state is ServerState.STOPPED


@pytest.fixture
async def temporal_client(temporal_server: ServerInfo) -> Client:
    """A client as ours are: pydantic values, default namespace."""
    return await connect(temporal_server.address)


@pytest.fixture
def time_skipper(temporal_client: Client) -> TimeSkipper:
    """Virtual time, one clock per workflow: start workflows and run workers through `time_skipper.client`.

    A workflow jumps to its next timer as soon as it is idle, also to the expiry of an approval that the test is about
    to give. Start such a one inside `with time_skipper.with_time_skipping_disabled():` and move its time by hand:
    `await time_skipper.fast_forward(handle, timedelta(hours=1))`.
    """
    return TimeSkipper(temporal_client)
