"""What this machine must have: Python, the packages, the programs, a state folder, the catalogue."""

import importlib.metadata
import os
import re
import shutil
import sys
from pathlib import Path

from clients.embedded import home
from fleet.errors import PermanentError
from fleet.faults.tables import load_tables
from workers.doctor_checks import Area, Check
from workers.server import ServerState, server_status, temporal_binary

PYTHON = (3, 11)
"""Oldest Python that runs this (pyproject.toml)."""
PACKAGE = "gpu-runbooks"
_here = Area("here")


def look_here(state: str | None, *, embedded: bool) -> tuple[Check, ...]:
    """`embedded`: the embedded server is the one in use, so its program is needed and not merely useful."""
    return (
        python(sys.version_info[:2]),
        packages(),
        temporal_program(embedded),
        ssh_keygen(),
        state_folder(home(state)),
        embedded_server(state, embedded=embedded),
        _here.ok("catalogue", f"fault catalogue {load_tables().version}"),
    )


def python(version: tuple[int, int]) -> Check:
    text = f"{'.'.join(map(str, version))} at {sys.executable}"
    if version < PYTHON:
        return _here.fail("python", text, f"run it with Python {PYTHON[0]}.{PYTHON[1]} or newer")
    return _here.ok("python", text)


def packages() -> Check:
    """Each package that ours asks for is there, in the release asked for."""
    try:
        wanted = importlib.metadata.requires(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return _here.fail("packages", f"{PACKAGE} is not installed as a package", "uv sync")
    missing = [why for text in wanted if (why := missing_package(text))]
    if missing:
        return _here.fail("packages", "; ".join(missing), "uv sync (or pip install with the lock file's releases)")
    shown = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("temporalio", "pydantic", "sqlalchemy")
    )
    return _here.ok("packages", f"all there: {shown} and {len(wanted) - 3} more")


def missing_package(requirement: str) -> str:
    """Why `name>=1.2` is not met; empty when it is, or when it belongs to an extra."""
    found = re.match(r"([A-Za-z0-9_.-]+)\s*(?:>=\s*([0-9.]+))?", requirement)
    if found is None or "extra ==" in requirement:
        return ""
    name, least = found[1], found[2] or "0"
    try:
        have = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return f"{name} is missing"
    return "" if _numbers(have) >= _numbers(least) else f"{name} is {have}, {least} is needed"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def temporal_program(needed: bool) -> Check:
    try:
        return _here.ok("temporal program", str(temporal_binary()))
    except PermanentError as error:
        text, _, todo = str(error).partition(": ")
        if needed:
            return _here.fail("temporal program", text, todo)
        return _here.warn("temporal program", f"{text}; only the embedded server needs it", todo)


def ssh_keygen() -> Check:
    where = shutil.which("ssh-keygen")
    if where is None:
        return _here.warn(
            "ssh-keygen", "missing: no answer can be signed or verified", "apt-get install openssh-client"
        )
    return _here.ok("ssh-keygen", where)


def state_folder(place: Path) -> Check:
    there = place
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK):
        return _here.fail("state folder", f"{place} cannot be written", "set GPU_RUNBOOKS_HOME to a folder of yours")
    return _here.ok("state folder", f"{place}{'' if place.is_dir() else ' (not there yet)'}")


def embedded_server(state: str | None, *, embedded: bool) -> Check:
    """Silent about a server that nobody uses, unless it hangs."""
    seen = server_status(state)
    if seen.state is ServerState.NOT_ANSWERING:
        return _here.fail("embedded server", seen.text, "runbook dev --stop, then runbook dev")
    if seen.state is ServerState.RUNNING or not embedded:
        return _here.ok("embedded server", seen.text)
    return _here.fail("embedded server", seen.text, "runbook dev")
