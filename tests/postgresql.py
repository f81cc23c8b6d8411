"""A PostgreSQL server of the tests' own: Debian's programs, a cluster in a temporary folder, a Unix socket, no port.

PostgreSQL refuses to run as root; there it runs as `nobody`.
"""

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.require import missing

PROGRAMS = ("postgres", "initdb", "pg_isready", "createdb", "pg_dump", "pg_restore")
START_LIMIT = 30.0
"""Seconds; it takes a fraction of one."""
QUICK = ("fsync=off", "full_page_writes=off", "shared_buffers=16MB", "max_connections=40", "log_min_messages=fatal")


def programs() -> Path:
    """Folder of the newest PostgreSQL of Debian, else of the one on the PATH. Ends the test where there is none."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parts[-2]), reverse=True)
    on_path = shutil.which("postgres")
    folders = (*debian, *([Path(on_path).parent] if on_path else []))
    whole = [folder for folder in folders if all((folder / program).exists() for program in PROGRAMS)]
    if whole:
        return whole[0]
    return missing("postgresql", "there is no whole PostgreSQL server: deploy/lab/postgresql_packages.sh")


class Cluster:
    """A running server."""

    def __init__(self, bin_dir: Path, folder: Path) -> None:
        self.bin_dir = bin_dir
        self.folder = folder
        self._numbers = itertools.count(1)

    def url(self, database: str) -> str:
        return f"postgresql://history@/{database}?host={self.folder}"

    def new_database(self) -> str:
        """URL of an empty database."""
        name = f"history{next(self._numbers)}"
        self.tool("createdb", name)
        return self.url(name)

    def tool(self, program: str, *arguments: str) -> str:
        """Runs one of its client programs; returns what it printed."""
        command = [str(self.bin_dir / program), "-h", str(self.folder), "-U", "history", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextmanager
def running() -> Iterator[Cluster]:
    """A server that is gone afterwards, its folder with it."""
    bin_dir = programs()
    folder = Path(tempfile.mkdtemp(prefix="pg-"))  # short: a Unix socket's path has 108 bytes
    who = _somebody(folder)
    try:
        data = folder / "data"
        init = [str(bin_dir / "initdb"), "-D", str(data), "-U", "history", "-A", "trust"]
        init += ["-E", "UTF8", "--locale=C", "--no-sync"]
        subprocess.run(init, check=True, capture_output=True, cwd=folder, **who)
        values = (*QUICK, "listen_addresses=", f"unix_socket_directories={folder}")
        server = [str(bin_dir / "postgres"), "-D", str(data), *(w for v in values for w in ("-c", v))]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(server, stdout=log, stderr=log, cwd=folder, **who)
        try:
            cluster = Cluster(bin_dir, folder)
            _await(process, cluster)
            yield cluster
        finally:
            process.send_signal(signal.SIGQUIT)  # at once: nothing of it is needed any more
            process.wait(START_LIMIT)
    finally:
        shutil.rmtree(folder)


def _somebody(folder: Path) -> dict[str, Any]:
    """Arguments for a process that is not root's, and owns the folder."""
    if os.getuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": ()}


def _await(process: "subprocess.Popen[bytes]", cluster: Cluster) -> None:
    deadline = time.monotonic() + START_LIMIT
    ready = [str(cluster.bin_dir / "pg_isready"), "-q", "-h", str(cluster.folder)]
    while subprocess.run(ready, check=False).returncode:
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError((cluster.folder / "log").read_text())
        time.sleep(0.02)
