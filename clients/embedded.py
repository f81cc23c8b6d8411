"""Where the embedded Temporal server is: its state file, read without starting anything.

`workers/server.py` writes the file and starts the server; everything that only wants to talk to it reads here.
"""

import http.client
import json
import os
import subprocess
from pathlib import Path

from pydantic import Field, ValidationError

from fleet.model import Value

HOME_VARIABLE = "GPU_RUNBOOKS_HOME"
DEFAULT_HOME = ".runbook"
STATE_FILE = "server.json"
HOST = "127.0.0.1"


class ServerInfo(Value):
    """One embedded server. Ports survive a restart, so that workers and open UI pages find it again."""

    port: int
    """gRPC port of the frontend on 127.0.0.1."""
    ui_port: int
    http_port: int
    """Port of Temporal's HTTP API; we ask there whether it is ready."""
    metrics_port: int
    pid: int
    pid_started: str
    """Start of the process in the system's own words; a pid that was given to another process differs here."""
    db: str
    """Path of the SQLite file."""
    log: str
    started_here: bool = Field(default=False, exclude=True)
    """True for the call that started it, False when it was found running."""

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def ui(self) -> str:
        return f"http://{HOST}:{self.ui_port}"


def home(state_dir: str | Path | None = None) -> Path:
    """The state directory: the given one, else `$GPU_RUNBOOKS_HOME`, else `./.runbook`. Absolute; may not exist."""
    return Path(state_dir or os.environ.get(HOME_VARIABLE) or DEFAULT_HOME).absolute()


def read_state(state_dir: str | Path | None = None) -> ServerInfo | None:
    """The last server of this directory, running or not; None when there was none or the file is unreadable."""
    try:
        return ServerInfo.model_validate_json((home(state_dir) / STATE_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def process_start(pid: int) -> str | None:
    """What tells this process from a later one with the same pid; None when it is gone or a zombie."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            fields = stat.read_text().rpartition(")")[2].split()  # the name before `)` may hold anything
        except OSError:
            return None
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return None if fields[0] in "ZX" else f"{boot}/{fields[19]}"  # proc(5): field 22 is the start time
    shown = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)],  # noqa: S607 - POSIX asks for ps on PATH; its place differs
        capture_output=True,
        text=True,
        timeout=5,
        check=False,
    )
    return shown.stdout.strip() or None


def is_alive(info: ServerInfo) -> bool:
    """Its process runs (it may still not answer)."""
    return process_start(info.pid) == info.pid_started


def is_apart(info: ServerInfo) -> bool:
    """Its process is in another network namespace than ours; False where nobody can tell."""
    try:
        return Path(f"/proc/{info.pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
    except OSError:
        return False


def running(state_dir: str | Path | None = None) -> ServerInfo | None:
    """The server of this directory if its process runs."""
    info = read_state(state_dir)
    return info if info is not None and is_alive(info) else None


def search_attributes(info: ServerInfo, timeout: float = 1.0) -> frozenset[str] | None:
    """Custom search attributes of the default namespace; None while the server does not answer."""
    connection = http.client.HTTPConnection(HOST, info.http_port, timeout=timeout)
    try:
        connection.request("GET", "/api/v1/namespaces/default/search-attributes")
        answer = connection.getresponse()
        body = answer.read()
        return frozenset(json.loads(body).get("customAttributes", {})) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
