"""What PyTorch's Flight Recorder does, without PyTorch: it keeps a rank's last collectives, and writes them to a file
of the same shape when one waits too long, when another rank asks, or on SIGUSR2.

As there: one file a rank, `nccl_trace_rank_<r>`, a pickle of plain values; the first rank that waits too long makes
all others write, too. A rank that stands still as a whole writes nothing.
"""

import contextlib
import os
import pickle
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

KEPT = 2000  # records, PyTorch's own default
LOOK = 0.05  # seconds between two looks
GROUP = "0"  # PyTorch's name for the group of all ranks


class FlightRecorder:
    """One rank's record and the thread that watches it."""

    def __init__(
        self, folder: Path, rank: int, world: int, after: float, ask: Callable[[int], None], asked: Callable[[], int]
    ) -> None:
        """`after`: seconds that a collective may wait. `ask` makes all ranks write about the collective of a number,
        `asked` tells the newest that one asked about, 0 for none. What an earlier start has left here is removed."""
        self.file = folder / f"nccl_trace_rank_{rank}"
        self.world, self.after, self.ask, self.asked = world, after, ask, asked
        self.entries: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.enqueued = self.completed = 0
        self.since = float("inf")
        self.wanted = threading.Event()
        folder.mkdir(parents=True, exist_ok=True)
        self.file.unlink(missing_ok=True)
        threading.Thread(target=self._watch, daemon=True).start()

    @contextlib.contextmanager
    def collective(self, op: str, sizes: list[int]) -> Iterator[None]:
        """Record one, for as long as it takes."""
        self.enqueued += 1
        caller = sys._getframe(2)  # behind contextlib's own
        code = caller.f_code
        entry = {
            "record_id": self.enqueued - 1,
            "pg_id": 0,
            "process_group": (GROUP, "default_pg"),
            "collective_seq_id": self.enqueued,
            "p2p_seq_id": 0,
            "op_id": self.enqueued,
            "profiling_name": f"gloo:{op}",
            "input_sizes": [sizes],
            "output_sizes": [sizes],
            "input_dtypes": ["Double"],
            "output_dtypes": ["Double"],
            "state": "started",
            "time_created_ns": time.time_ns(),
            "time_discovered_started_ns": time.time_ns(),
            "time_discovered_completed_ns": None,
            "duration_ms": None,
            "timeout_ms": int(self.after * 1000),
            "retired": False,
            "is_p2p": False,
            "frames": [{"name": code.co_name, "filename": code.co_filename, "line": caller.f_lineno}],
        }
        self.entries.append(entry)
        self.since = time.monotonic()
        yield
        self.since = float("inf")
        self.completed = self.enqueued
        entry.update(state="completed", retired=True, time_discovered_completed_ns=time.time_ns())

    def _watch(self) -> None:
        told = 0
        while True:
            wanted = self.wanted.wait(LOOK)
            self.wanted.clear()
            if time.monotonic() - self.since > self.after and self.asked() < self.enqueued:
                self.ask(self.enqueued)
            asked = self.asked()
            if wanted or asked > told:
                told = max(told, asked)
                self.write()

    def write(self) -> None:
        """Put the dump in its place in one step."""
        status = {
            "last_enqueued_collective": self.enqueued,
            "last_started_collective": self.enqueued,
            "last_completed_collective": self.completed,
        }
        group = {"name": GROUP, "desc": "default_pg", "ranks": str(list(range(self.world)))}
        content = {
            "version": "2.4",
            "pg_config": {GROUP: group},
            "pg_status": {"0": status},
            "entries": [dict(entry) for entry in list(self.entries)],
        }
        temporary = self.file.with_name(f".{self.file.name}.{os.getpid()}.new")
        temporary.write_bytes(pickle.dumps(content, protocol=2))
        temporary.replace(self.file)
