"""The demo as a person starts it, and what it must tell."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

RUNBOOK = (sys.executable, "-c", "from workers.main import main; main()")
LIMIT = 180.0
"""Seconds: what the demo promises; alone it takes about 35."""


def processes_of(folder: Path) -> list[str]:
    """Command lines of everything that names the folder, but this test's own process."""
    shown = subprocess.run(["ps", "-eww", "-o", "pid=,stat=,args="], check=True, capture_output=True, text=True)  # noqa: S607
    lines = [line.strip() for line in shown.stdout.splitlines() if str(folder) in line]
    return [line for line in lines if line.split()[1][0] != "Z" and not line.startswith(f"{os.getpid()} ")]


@contextlib.contextmanager
def started(folder: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """The demo as a process; one that is left at the end of the test is ended politely, so that it cleans up."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TEMPORAL_", "GPU_RUNBOOKS_", "SLURM_"))}
    demo = subprocess.Popen(
        [*RUNBOOK, "demo", "--state", str(folder), *words],
        env={**kept, "TERM": "dumb", "COLUMNS": "80"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield demo
    finally:
        if demo.poll() is None:
            demo.terminate()
            demo.communicate(timeout=60)


def check_told(out: str, cluster: str = "alpha", node: str = "alpha2", nodes: str = r"alpha\d") -> None:
    """The acts in their order, and a report of a job that lost a GPU and was trained to its end. `nodes` matches the
    name of any node, `node` is the one that breaks."""
    acts = (
        rf"a researcher submits demo-train to {cluster}",
        r"job/demo-train: adopted: held",
        rf"a GPU of {node} breaks: NVRM: Xid \(PCI:0000:ab:00\): 79",
        r"job/demo-train: decision: failover_in_cluster",
        r"job/demo-train/failover/2: fenced",
        r"job/demo-train: training again: step \d+, resumed from step \d+",
        r"job/demo-train: done",
        r"^Report",
        r"^Recovery, stage by stage",
        r"^Where the time went",
    )
    at = 0
    for act in acts:
        found = re.compile(act, re.MULTILINE).search(out, at)
        assert found, f"{act} is not told (in its order):\n{out}"
        at = found.end()
    assert f"node/{cluster}/{node}: repaired, checked and back at work" in out
    second = re.search(rf"2 +in cluster +{cluster} +({nodes}),({nodes}) ", out)
    assert second, out
    assert node not in second.groups(), "the second attempt avoids the sick node"
