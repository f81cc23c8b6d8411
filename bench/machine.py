"""The machine and the versions that a figure belongs to."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path

from fleet.model import Value


class Machine(Value):
    """Without it a figure says nothing."""

    cores: int
    memory_gib: float
    cpu: str
    kernel: str
    python: str
    temporal_server: str
    """What the `temporal` program says of itself."""
    temporal_sdk: str
    slurm: str
    """Release of slurmctld; empty where there is none."""
    load_before: float
    """Load average of the last minute before the bench began: above 0.5 a core somebody else was at work."""

    def line(self) -> str:
        """For people."""
        slurm = f", {self.slurm}" if self.slurm else ""
        return (
            f"{self.cores} cores ({self.cpu}), {self.memory_gib:.0f} GiB, Linux {self.kernel}, Python {self.python}, "
            f"temporalio {self.temporal_sdk}, {self.temporal_server}{slurm}; load before {self.load_before:.2f}"
        )


def this_machine() -> Machine:
    """Reads it; asks the programs for their versions."""
    from workers.server import temporal_binary

    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(int((_field("/proc/meminfo", "MemTotal") or "0").split()[0]) / 2**20, 1),
        cpu=_field("/proc/cpuinfo", "model name") or platform.machine(),
        kernel=platform.release(),
        python=platform.python_version(),
        temporal_server=_said(str(temporal_binary()), "--version"),
        temporal_sdk=importlib.metadata.version("temporalio"),
        slurm=_said(shutil.which("slurmctld", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or "", "-V"),
        load_before=os.getloadavg()[0],
    )


def cpu_seconds(pid: int) -> float:
    """Processor time that the process has used so far, the kernel's work for it included. OSError when it is gone."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Resident memory of the process in MiB. Raises OSError when it is gone."""
    return int((_field(f"/proc/{pid}/status", "VmRSS") or "0").split()[0]) / 1024


def _field(path: str, name: str) -> str:
    """The first `name: value` line of a file of /proc; empty when there is none."""
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _said(program: str, option: str) -> str:
    """First line of what it answers; empty when it is not there."""
    if not program:
        return ""
    done = subprocess.run([program, option], capture_output=True, text=True, timeout=20, check=False)
    return done.stdout.strip().partition("\n")[0]
