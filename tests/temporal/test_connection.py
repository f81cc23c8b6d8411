"""Where a client connects to, who decides it, and what it says when nobody answers."""

import asyncio
import os
import signal
import socket
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
from temporalio.client import Client

from activities.api import OnNode
from clients.connection import Target, connect, find_target, is_embedded
from clients.embedded import HOME_VARIABLE, STATE_FILE, ServerInfo, process_start
from fleet.errors import InvalidInputError, TemporaryError
from tests.temporal.waiting import state_of, wait

PROFILES = """
[profile.default]
address = "file-default:7233"
[profile.prod]
address = "prod.example:7233"
namespace = "gpu"
api_key = "key-of-prod"
"""


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No configuration of whoever runs the tests."""
    for name in [n for n in os.environ if n.startswith("TEMPORAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "temporal.toml"
    path.write_text(PROFILES)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(path))
    return path


@pytest.fixture
def home_of_server(temporal_server: ServerInfo) -> Path:
    return Path(temporal_server.db).parent


def where(target: Target) -> tuple[str, str, str]:
    return target.address, target.namespace, target.source


# -- who decides


@pytest.mark.usefixtures("profiles")
def test_the_flag_comes_before_the_environment_before_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    assert where(find_target()) == ("file-default:7233", "default", "profile default of Temporal's configuration")
    monkeypatch.setenv("TEMPORAL_ADDRESS", "env:7233")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "env-ns")
    assert where(find_target()) == ("env:7233", "env-ns", "TEMPORAL_ADDRESS")
    assert where(find_target("flag:7233", "flag-ns")) == ("flag:7233", "flag-ns", "--address")


@pytest.mark.usefixtures("profiles")
def test_a_profile_brings_its_namespace_key_and_tls_and_the_key_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    target = find_target(profile="prod")
    assert (target.address, target.namespace, target.api_key, target.tls) == (
        "prod.example:7233",
        "gpu",
        "key-of-prod",
        True,
    )
    assert "key-of-prod" not in repr(target)
    monkeypatch.setenv("TEMPORAL_PROFILE", "prod")
    assert where(find_target()) == ("prod.example:7233", "gpu", "profile prod of Temporal's configuration")


def test_a_config_file_can_be_given(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEMPORAL_CONFIG_FILE")
    assert find_target(config_file=profiles, profile="prod").address == "prod.example:7233"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"profile": "nope"}, "nope"),
        ({"config_file": "/nowhere.toml"}, "does not exist"),
        ({"api_key": "k"}, "no address"),
        ({"tls": True}, "no address"),
        ({"address": "http://host:1"}, "HOST:PORT"),
        ({"address": "host"}, "HOST:PORT"),
    ],
)
@pytest.mark.usefixtures("profiles")
def test_settings_that_cannot_work_are_refused(
    settings: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if message == "no address":
        monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "absent"))
    with pytest.raises(InvalidInputError, match=message):
        find_target(**settings)  # type: ignore[arg-type]


def test_a_broken_config_file_is_a_clear_error(profiles: Path) -> None:
    profiles.write_text("[profile.default\n")
    with pytest.raises(InvalidInputError, match="cannot be used"):
        find_target()


# -- the embedded server


async def test_without_settings_the_embedded_server_is_found(
    temporal_server: ServerInfo, home_of_server: Path
) -> None:
    target = find_target(state_dir=home_of_server)
    assert (target.address, target.embedded) == (temporal_server.address, True)
    client = await connect(state_dir=home_of_server)
    assert is_embedded(client, home_of_server)


def test_an_address_that_is_the_embedded_server_gets_no_key(
    temporal_server: ServerInfo, home_of_server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_API_KEY", "key-of-prod")
    target = find_target(temporal_server.address, state_dir=home_of_server)
    assert (target.embedded, target.api_key, target.tls) == (True, None, None)
    other = find_target("prod.example:7233", state_dir=home_of_server)
    assert (other.embedded, other.api_key, other.tls) == (False, "key-of-prod", True)


async def test_only_the_server_of_the_state_file_counts_as_embedded(
    temporal_server: ServerInfo, temporal_client: Client, home_of_server: Path, tmp_path: Path
) -> None:
    port = temporal_server.port
    assert is_embedded(temporal_client, home_of_server)
    assert is_embedded(f"localhost:{port}", home_of_server)
    assert not is_embedded(temporal_client, tmp_path)  # another directory's
    assert not is_embedded(f"prod.example:{port}", home_of_server)
    assert not is_embedded(f"127.0.0.1:{port + 1}", home_of_server)
    # The same port, but the process that we started is gone: whoever answers there now is not it.
    gone = temporal_server.model_copy(update={"pid_started": "an earlier process"})
    (tmp_path / STATE_FILE).write_text(gone.model_dump_json())
    assert not is_embedded(temporal_client, tmp_path)


def test_with_nothing_configured_the_command_that_starts_one_is_named(
    tmp_path: Path, temporal_server: ServerInfo
) -> None:
    with pytest.raises(TemporaryError, match="`runbook dev` starts one"):
        find_target(state_dir=tmp_path / "none")
    stopped = temporal_server.model_copy(update={"pid_started": "an earlier process"})
    (tmp_path / STATE_FILE).write_text(stopped.model_dump_json())
    with pytest.raises(TemporaryError, match="is stopped: `runbook dev` starts it again"):
        find_target(state_dir=tmp_path)


# -- nobody answers


async def test_a_refused_connection_names_address_source_and_remedy() -> None:
    with pytest.raises(TemporaryError) as told:
        await connect("127.0.0.1:1")
    assert str(told.value) == (
        "no Temporal server answers at 127.0.0.1:1 (from --address): Connection refused; "
        "`runbook dev` starts a server here"
    )


async def test_a_server_that_never_answers_is_given_up_in_time() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        async with asyncio.timeout(5):
            with pytest.raises(TemporaryError, match=r"no answer in 0\.3 s"):
                await connect(f"127.0.0.1:{silent.getsockname()[1]}", limit=0.3)


async def test_a_frozen_embedded_server_is_told_from_one_that_is_stopped(
    temporal_server: ServerInfo, home_of_server: Path
) -> None:
    os.kill(temporal_server.pid, signal.SIGSTOP)
    try:
        await asyncio.to_thread(wait, lambda: state_of(temporal_server.pid) == "T")
        with pytest.raises(TemporaryError, match="end it with"):
            await connect(state_dir=home_of_server, limit=0.5)
    finally:
        os.kill(temporal_server.pid, signal.SIGCONT)


async def test_a_server_in_a_network_of_its_own_is_told_with_the_way_in(
    tmp_path: Path,
) -> None:
    there = await asyncio.create_subprocess_exec(
        *("unshare", "--user", "--net", "sh", "-c", "echo there; read line"), stdin=PIPE, stdout=PIPE
    )
    assert there.stdin
    assert there.stdout
    try:
        if not await there.stdout.readline():
            pytest.skip("no user namespaces here")
        started = str(process_start(there.pid))
        ports = {"port": 1, "ui_port": 2, "http_port": 3, "metrics_port": 4}
        info = ServerInfo(**ports, pid=there.pid, pid_started=started, db="", log="")
        (tmp_path / STATE_FILE).write_text(info.model_dump_json())
        with pytest.raises(TemporaryError, match="`runbook lab shell`"):
            await connect(state_dir=tmp_path, limit=0.5)
    finally:
        there.stdin.close()
        await there.wait()


async def test_values_travel_as_pydantic(temporal_client: Client) -> None:
    given = OnNode(cluster="alpha", node="n1")
    payloads = await temporal_client.data_converter.encode([given])
    assert await temporal_client.data_converter.decode(payloads, [OnNode]) == [given]
