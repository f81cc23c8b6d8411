"""A private Temporal server with a real worker process over an embedded fleet, and the CLI run on both."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from activities.backends.sim import SimBackend, SimSettings
from activities.backends.sim.faults import Faults
from clients.app import main, make_app
from clients.embedded import HOME_VARIABLE, ServerInfo
from tests.temporal.waiting import wait
from workers.fleets import write_sim_fleet

SCRIPT = "#!/bin/sh\n#SIM nodes=2 gpus=8 steps=4000 step_time=0.1 checkpoint_every=10 save_time=0.1 load_time=0.1\n"
XID_79 = "[ 1234.5] NVRM: Xid (PCI:0000:ab:00): 79, pid=1234, GPU has fallen off the bus.\n"
CONTAINED = (
    "[ 1234.5] NVRM: Xid (PCI:0000:ab:00): 94, pid=1234, name=python3, Contained: SM (0x1). RST: No, D-RST: No\n"
)
"""A transient fault: the job may run again where it was."""
START_LIMIT = 120.0
"""Seconds; 2 s is usual, a machine that is full takes its time."""
RUNBOOK = (sys.executable, "-c", "from workers.main import main; main()")


@dataclass(frozen=True)
class Ran:
    """What one command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Stage:
    """The fleet, its worker, and the words to run the CLI."""

    def __init__(self, home: Path, server: ServerInfo) -> None:
        self.home = home
        self.server = server
        self.fleet = write_sim_fleet(home)
        self.auto = self.fleet.read_text()
        self.script = home / "train.sh"
        self.script.write_text(SCRIPT)
        self.worker: subprocess.Popen[bytes] | None = None

    def env(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TEMPORAL_", "GPU_RUNBOOKS_"))}
        return {**kept, HOME_VARIABLE: str(self.home), "GPU_RUNBOOKS_AS": "tester", "TERM": "dumb"}

    def start_worker(self) -> None:
        log = self.home / "worker.log"
        before = log.stat().st_size if log.exists() else 0
        with log.open("ab") as out:
            self.worker = subprocess.Popen(
                [*RUNBOOK, "worker"], cwd=self.home, env=self.env(), stdout=out, stderr=out, start_new_session=True
            )
        worker = self.worker
        wait(lambda: worker.poll() is not None or b"worker is ready" in log.read_bytes()[before:], START_LIMIT)
        assert worker.poll() is None, log.read_text()[-3000:]

    def stop_worker(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker.wait()
            self.worker = None

    def policy(self, **modes: str) -> None:
        """Writes the fleet file anew: everything auto but these modes."""
        text = self.auto
        for step, mode in modes.items():
            assert f"  {step}: auto" in text
            text = text.replace(f"  {step}: auto", f"  {step}: {mode}")
        self.fleet.write_text(text)

    def faults(self, cluster: str) -> Faults:
        return Faults(self.home / "world.sqlite", cluster)

    def backend(self, cluster: str) -> SimBackend:
        return SimBackend(cluster, SimSettings(path=self.home / "world.sqlite"))


Invoke = Callable[..., Ran]


def invoker(capsys: pytest.CaptureFixture[str]) -> Invoke:
    """Runs the CLI in this process, as `runbook` does up to the very exit."""

    def invoke(*argv: str) -> Ran:
        capsys.readouterr()
        code = main(make_app(), list(argv))
        shown = capsys.readouterr()
        return Ran(int(code), shown.out, shown.err)

    return invoke


def process(stage: Stage, argv: Sequence[str], stdin: int = subprocess.DEVNULL) -> "subprocess.Popen[str]":
    """Runs the CLI as a process of its own."""
    return subprocess.Popen(
        [*RUNBOOK, *argv],
        cwd=stage.home,
        env=stage.env(),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
