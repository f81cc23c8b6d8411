"""The embedded server: one per directory, found again, restarted on its file and ports, whatever died in between."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.testing import TimeSkipper
from temporalio.worker import Worker

from clients.connection import connect
from clients.embedded import STATE_FILE, ServerInfo, is_alive, process_start, read_state, search_attributes
from fleet import attributes
from fleet.errors import PermanentError, TemporaryError
from tests.temporal.samples import QUEUE, Sleeper, Waiter
from tests.temporal.waiting import state_of, wait
from workers import server
from workers.server import ServerState, ensure_server, server_status, stop_server

pytestmark = pytest.mark.usefixtures("temporal_binary_found")

PROGRAM = """
import sys
from workers.server import ensure_server
info = ensure_server(sys.argv[1])
print(info.model_dump_json(), info.started_here, flush=True)
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A state directory whose servers are gone after the test."""
    place = tmp_path / "home"
    yield place
    for pid in servers_of(place):
        os.kill(pid, signal.SIGKILL)
    wait(lambda: not servers_of(place))
    stop_server(place)


def servers_of(place: Path) -> list[int]:
    """Pids of all servers on the directory, by their command lines: independent of our own records."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if f"{place}/temporal.sqlite".encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def kill(info: ServerInfo) -> None:
    os.kill(info.pid, signal.SIGKILL)
    wait(lambda: not is_alive(info) and server._port_is_free(info.port))


def start_elsewhere(home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(home)], stdout=subprocess.PIPE, text=True)


# -- one server


def test_several_processes_at_once_start_one_server(home: Path) -> None:
    starters = [start_elsewhere(home) for _ in range(3)]
    said = [starter.communicate(timeout=60)[0].rpartition(" ") for starter in starters]
    assert sorted(started.strip() for _, _, started in said) == ["False", "False", "True"]
    infos = {text for text, _, _ in said}
    assert len(infos) == 1
    assert servers_of(home) == [ServerInfo.model_validate_json(infos.pop()).pid]


def test_the_server_outlives_its_starter_and_is_found_again(home: Path) -> None:
    # `communicate` ends at once only because the server holds none of its starter's pipes.
    said, _ = start_elsewhere(home).communicate(timeout=60)
    found = ensure_server(home)
    assert not found.started_here
    assert found.pid == json.loads(said.rpartition(" ")[0])["pid"]
    assert os.getsid(found.pid) == found.pid
    assert server_status(home).state is ServerState.RUNNING


def test_a_starter_killed_half_way_leaves_a_server_that_is_found(home: Path) -> None:
    starter = start_elsewhere(home)
    wait(lambda: read_state(home) is not None)
    starter.kill()
    starter.communicate()
    found = ensure_server(home)
    assert servers_of(home) == [found.pid]


def test_a_server_without_a_state_file_is_not_doubled(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = ensure_server(home)
    (home / STATE_FILE).unlink()
    monkeypatch.setattr(server, "FOUND_LIMIT", 0.1)
    with pytest.raises(TemporaryError, match="fuser"):
        ensure_server(home)
    with pytest.raises(TemporaryError, match="fuser"):
        stop_server(home)
    assert servers_of(home) == [info.pid]


def test_two_directories_have_two_servers(home: Path, tmp_path: Path) -> None:
    one, two = ensure_server(home), ensure_server(tmp_path / "other")
    try:
        ports = [p for i in (one, two) for p in (i.port, i.ui_port, i.http_port, i.metrics_port)]
        assert len(set(ports)) == 8
        assert all(p in server.PORTS for p in ports)
    finally:
        assert stop_server(tmp_path / "other")
    assert is_alive(one)


# -- killed and started again


async def test_killed_and_started_again_it_keeps_workflows_and_the_same_worker_goes_on(home: Path) -> None:
    first = await asyncio.to_thread(ensure_server, home)
    client = await connect(state_dir=home)
    async with Worker(client, task_queue=QUEUE, workflows=[Waiter]):
        handles = [await client.start_workflow(Waiter.run, id=f"job/{n}", task_queue=QUEUE) for n in range(5)]
        for handle in handles:  # a task that is lost with the server is only given again after its time limit of 10 s
            while (await handle.describe()).history_length < 4:  # noqa: ASYNC110 - the server offers no event for it
                await asyncio.sleep(0.02)
        os.kill(first.pid, signal.SIGKILL)  # and at once, while the process may still be ending:
        again = await asyncio.to_thread(ensure_server, home)
        assert again.started_here
        assert again.pid != first.pid
        assert (again.address, again.ui, again.db) == (first.address, first.ui, first.db)
        for number, handle in enumerate(handles):
            assert await handle.execute_update(Waiter.tell, f"text {number}") == f"got text {number}"
            assert await handle.result() == f"text {number}"


def test_a_clean_stop_ends_it_and_the_next_start_takes_the_same_ports(home: Path) -> None:
    first = ensure_server(home)
    assert stop_server(home)
    assert servers_of(home) == []
    assert not stop_server(home)
    assert server_status(home).state is ServerState.STOPPED
    assert ensure_server(home).port == first.port


def test_a_stale_state_file_that_names_another_process_harms_nobody(home: Path) -> None:
    """After a reboot or a wrapped pid counter the recorded pid may be anybody's."""
    info = ensure_server(home)
    kill(info)
    bystander = subprocess.Popen(["/bin/sleep", "60"])
    try:
        stale = info.model_copy(update={"pid": bystander.pid})
        (home / STATE_FILE).write_text(stale.model_dump_json())
        assert server_status(home).state is ServerState.STOPPED
        assert not stop_server(home)
        again = ensure_server(home)
        assert again.started_here
        assert again.port == info.port
        assert stop_server(home)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize("text", ["", "{", '{"port": 1}', "\udcff"])
def test_an_unreadable_state_file_counts_as_none(home: Path, text: str) -> None:
    home.mkdir()
    (home / STATE_FILE).write_bytes(text.encode(errors="surrogateescape"))
    assert server_status(home).state is ServerState.NEVER_STARTED
    assert read_state(home) is None


def test_a_frozen_server_is_named_and_can_be_stopped(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = ensure_server(home)
    os.kill(info.pid, signal.SIGSTOP)
    wait(lambda: state_of(info.pid) == "T")
    monkeypatch.setattr(server, "START_LIMIT", 0.5)
    with pytest.raises(TemporaryError, match=rf"pid {info.pid}\) runs but does not answer"):
        ensure_server(home)
    assert server_status(home).state is ServerState.NOT_ANSWERING
    assert servers_of(home) == [info.pid]
    monkeypatch.undo()
    assert stop_server(home)
    assert servers_of(home) == []


# -- ports


@contextlib.contextmanager
def occupied(port: int = 0) -> Iterator[int]:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        yield taken.getsockname()[1]


@pytest.mark.parametrize("option", ["port", "ui_port"])
def test_a_wanted_port_that_is_taken_is_refused_with_the_remedy(home: Path, option: str) -> None:
    with occupied() as port, pytest.raises(PermanentError, match=f"port {port} is used .* 0` takes a free port"):
        ensure_server(home, **{option: port})
    assert servers_of(home) == []


def test_a_remembered_port_that_is_taken_is_refused_and_zero_takes_a_new_one(home: Path) -> None:
    first = ensure_server(home)
    kill(first)
    with occupied(first.port):
        with pytest.raises(PermanentError, match=f"port {first.port} is used"):
            ensure_server(home)
        assert ensure_server(home, port=0).port != first.port


def test_a_running_server_does_not_move_to_other_ports(home: Path) -> None:
    info = ensure_server(home)
    assert ensure_server(home, port=info.port, ui_port=info.ui_port).pid == info.pid
    with pytest.raises(PermanentError, match=r"already runs at .* stop it first"):
        ensure_server(home, port=info.port + 1)
    assert is_alive(info)


def test_a_port_lost_at_the_last_moment_is_chosen_anew(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with occupied() as port:
        choices = iter([(port, *more) for more in [free_ports(3)]])
        real = server._choose_ports
        monkeypatch.setattr(server, "_choose_ports", lambda *args: next(choices, None) or real(*args))
        info = ensure_server(home)
    assert info.port != port
    assert servers_of(home) == [info.pid]


def free_ports(count: int) -> tuple[int, ...]:
    taken: set[int] = set()
    while len(taken) < count:
        taken.add(server._free_port(taken))
    return tuple(taken)


# -- surroundings


def test_the_callers_temporal_settings_do_not_reach_the_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "somewhere:1")
    monkeypatch.setenv("TEMPORAL_API_KEY", "ours")
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("HOME", str(home.parent))
    broken = home.parent / ".config" / "temporalio" / "temporal.yaml"
    broken.parent.mkdir(parents=True)
    broken.write_text("{")
    info = ensure_server(home)
    assert b"TEMPORAL_" not in Path(f"/proc/{info.pid}/environ").read_bytes()


def test_the_directory_is_private(home: Path) -> None:
    ensure_server(home)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / STATE_FILE).stat().st_mode) == 0o600


def test_a_directory_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PermanentError, match="set GPU_RUNBOOKS_HOME"):
        ensure_server(tmp_path / "file" / "home")


def test_a_start_that_fails_shows_the_servers_own_words(home: Path) -> None:
    with pytest.raises(TemporaryError, match="ended while it started") as told:
        ensure_server(home, values={"no value": "{"})
    assert "no value" in str(told.value)
    assert servers_of(home) == []
    assert ensure_server(home).started_here


def test_a_missing_binary_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.importlib.metadata, "files", lambda _name: None)
    monkeypatch.setattr(server.sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PermanentError, match="uv sync"):
        server.temporal_binary()


@pytest.mark.skipif(os.geteuid() != 0, reason="as a normal user every other test here shows it")
def test_a_normal_user_can_start_and_stop_it() -> None:
    program = (
        "import os, sys, encodings.idna; from workers.server import *; from workers import server\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "info = ensure_server(sys.argv[1])\n"
        "print(os.stat(f'/proc/{info.pid}').st_uid, stop_server(sys.argv[1]))"
    )
    with tempfile.TemporaryDirectory() as place:  # pytest's own folders are closed to other users
        os.chown(place, 65534, 65534)
        argv = [sys.executable, "-c", program, place]
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd="/")
    assert (ended.stdout.split(), ended.stderr) == (["65534", "True"], "")


# -- what it is configured for


def test_every_search_attribute_is_registered(temporal_server: ServerInfo) -> None:
    assert search_attributes(temporal_server) == attributes.ATTRIBUTES.keys()


async def test_search_attributes_find_workflows(temporal_client: Client) -> None:
    pairs: list[SearchAttributePair[str]] = [
        SearchAttributePair(SearchAttributeKey.for_keyword(name), f"{name}-value")
        for name, kind in attributes.ATTRIBUTES.items()
        if kind == "Keyword"
    ]
    needs_human = SearchAttributePair(SearchAttributeKey.for_bool(attributes.NEEDS_HUMAN), True)
    handle = await temporal_client.start_workflow(
        Waiter.run,
        id="node/alpha/n1",
        task_queue="nobody",
        search_attributes=TypedSearchAttributes([*pairs, needs_human]),
    )
    query = " AND ".join(
        [
            *(f"{p.key.name} = '{p.value}'" for p in pairs),
            f"{attributes.NEEDS_HUMAN} = true",
            "ExecutionStatus='Running'",
        ]
    )
    async with asyncio.timeout(10):
        while [w.id async for w in temporal_client.list_workflows(query)] != [handle.id]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await handle.terminate()


async def test_virtual_time_passes_hours_at_once(time_skipper: TimeSkipper) -> None:
    begin = time.monotonic()
    async with Worker(time_skipper.client, task_queue="sleep", workflows=[Sleeper]):
        async with asyncio.timeout(20):
            slept = await time_skipper.client.execute_workflow(Sleeper.run, 48, id="sleeper", task_queue="sleep")
    assert slept >= 48 * 3600
    assert time.monotonic() - begin < 20


def test_the_process_start_tells_a_process_from_a_later_one() -> None:
    mine = process_start(os.getpid())
    assert mine
    assert mine == process_start(os.getpid())
    other = subprocess.Popen(["/bin/sleep", "60"])
    assert process_start(other.pid) not in {None, mine}
    other.kill()
    wait(lambda: process_start(other.pid) is None)  # a zombie is no running process
    other.wait()
