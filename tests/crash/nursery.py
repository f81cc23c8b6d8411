"""Workers by fork from one process that has imported everything: a start costs milliseconds instead of seconds.

`python -m tests.crash.nursery` reads folders from standard input, one a line, and answers each with the pid of the
worker that it made for it (`tests/crash/worker_main.py`). When its input ends, it ends them all.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path

from tests.crash.worker_main import work
from workers.logs import configure_logs

REPOSITORY = Path(__file__).resolve().parents[2]


class Nursery:
    """The parent of all workers of a test run; safe in several threads."""

    def __init__(self, bytecode: Path) -> None:
        """`bytecode`: where compiled modules are kept, for each new runbook loads its modules anew in its sandbox."""
        self._lock = threading.Lock()
        env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.nursery"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=env | {"PYTHONPYCACHEPREFIX": str(bytecode)},
        )

    def start_worker(self, folder: Path) -> int:
        """Pid of a new worker for `folder`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(f"{folder}\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())

    def close(self) -> None:
        """Ends it and every worker that still lives."""
        self._process.communicate(timeout=30)


def lives(pid: int) -> bool:
    """Neither gone nor waiting to be collected."""
    return state_of(pid) not in {"", "Z", "X"}


def state_of(pid: int) -> str:
    """The kernel's letter, T for a stopped one; empty when there is no such process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _be_worker(folder: Path) -> None:
    os.setsid()
    log = os.open(folder / "worker.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, place in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, place)
    configure_logs()
    asyncio.run(work(folder))


def _main() -> None:
    pids: set[int] = set()
    while line := sys.stdin.readline():
        pids -= {pid for pid in pids if os.waitpid(pid, os.WNOHANG)[0]}
        pid = os.fork()
        if pid == 0:
            try:
                _be_worker(Path(line.strip()))
            except BaseException:  # noqa: BLE001 - the edge: the log says why it died
                traceback.print_exc()
            finally:
                os._exit(1)  # a worker ends by a signal only
        pids.add(pid)
        print(pid, flush=True)  # noqa: T201 - the answer
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    _main()
