"""Waiting for foreign processes, which tell no event."""

import time
from collections.abc import Callable
from pathlib import Path


def wait(condition: Callable[[], bool], limit: float = 15.0) -> None:
    """Polls the condition; fails the test after `limit` seconds."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def state_of(pid: int) -> str:
    """One letter of proc(5): T is stopped, Z a zombie."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
