"""pyslurm on a real cluster of its own release. One visible skip where no child can import it.

GPU_RUNBOOKS_PYSLURM_PYTHON names a Python that has pyslurm; SLURM_PREFIX names the Slurm that the lab runs.
"""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from activities.backends.slurm.commands import Commands
from activities.backends.slurm.pyslurm_reads import CHILD, ChosenReads, PyslurmChild, PyslurmReads, interpreter
from activities.backends.slurm.reads import CliReads, release_of
from activities.backends.slurm.settings import SlurmSettings
from fleet.errors import TemporaryError
from tests.slurm.lab import LAB, port_block

PREFIX = os.environ.get("SLURM_PREFIX", "")
PATH = f"{PREFIX}/bin:{PREFIX}/sbin:{os.environ['PATH']}:/usr/sbin" if PREFIX else f"{os.environ['PATH']}:/usr/sbin"


def why_not() -> str | None:
    """None when everything is here. A child is asked: an import in this process could end it."""
    asked = subprocess.run(
        [interpreter(), "-I", str(CHILD)],
        input='{"id":1,"call":"hello"}\n',
        capture_output=True,
        text=True,
        timeout=30,
    )
    if asked.returncode:
        return f"{asked.stderr.strip()} (in {interpreter()}); see docs/pyslurm.md"
    lab = subprocess.run([str(LAB), "check"], capture_output=True, text=True)
    if lab.returncode:
        return lab.stderr.strip()
    slurmctld = shutil.which("slurmctld", path=PATH)
    assert slurmctld is not None  # the lab has looked for it
    server = subprocess.run([slurmctld, "-V"], capture_output=True, text=True).stdout.strip()
    if release_of(asked.stdout.split('"version":')[1]) != release_of(server):
        return f"pyslurm {asked.stdout.strip()} and {server} are of different releases; see docs/pyslurm.md"
    return None


if (reason := why_not()) is not None:
    pytest.skip(reason, allow_module_level=True)


class Cluster:
    """A lab cluster with the reads of both transports."""

    def __init__(self, name: str, root: str) -> None:
        self.name = name
        self.env = {"PATH": PATH, "HOME": "/", "SLURM_LAB_ROOT": root, "SLURM_PREFIX": PREFIX, "LC_ALL": "C.UTF-8"}
        self.conf = f"{root}/{name}/etc/slurm.conf"
        squeue = shutil.which("squeue", path=PATH)
        assert squeue is not None
        self.settings = SlurmSettings(conf=self.conf, bin_dir=str(Path(squeue).parent))
        self.open()

    def open(self) -> None:
        self.commands = Commands(self.settings)
        self.commands.limit = 10.0
        self.cli = CliReads(self.name, self.commands)
        self.child = PyslurmChild(self.commands)
        self.reads = PyslurmReads(self.name, self.cli, self.child)

    def start(self, port: int) -> None:
        loopback = "CommunicationParameters=NoCtldInAddrAny"
        self.lab("start", self.name, "-n", "3", "-p", str(port), "-o", loopback)

    def lab(self, *argv: str) -> None:
        done = subprocess.run([str(LAB), *argv], env=self.env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    def slurm(self, *argv: str, stdin: str = "") -> str:
        env = self.env | {"SLURM_CONF": self.conf}
        done = subprocess.run(argv, env=env, input=stdin, capture_output=True, text=True, timeout=30, cwd="/")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def sbatch(self, *options: str, script: str = "sleep 600") -> str:
        fixed = ("sbatch", "--parsable", "--output=/dev/null", "--chdir=/")
        return self.slurm(*fixed, *options, stdin=f"#!/bin/bash\n{script}\n")


@pytest.fixture(scope="module")
def started() -> Iterator[tuple[Cluster, Cluster]]:
    root = tempfile.mkdtemp(prefix="gr", dir="/tmp")  # sockets want a short path
    Path(root).chmod(0o755)  # and munged a folder that all may enter
    made: list[Cluster] = []
    with port_block() as first, port_block() as second:
        try:
            for name, port in (("alpha", first), ("beta", second)):
                made.append(Cluster(name, root))
                made[-1].start(port)
            yield made[0], made[1]
        finally:
            for cluster in made:
                cluster.lab("rm", cluster.name)
            shutil.rmtree(root)


def exists(pid: int | None) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.fixture
async def clusters(started: tuple[Cluster, Cluster]) -> AsyncIterator[tuple[Cluster, Cluster]]:
    """Both clusters with a child each that is new for the test; afterwards no child is left."""
    for cluster in started:
        cluster.open()
    yield started
    for cluster in started:
        pid = cluster.child.pid
        await cluster.reads.close()
        assert pid is None or not exists(pid)


async def until(read: Callable[[], Awaitable[bool]], seconds: float = 40.0) -> None:
    end = time.monotonic() + seconds
    while not await read():
        assert time.monotonic() < end, "not seen in time"
        await asyncio.sleep(0.1)


async def test_both_transports_see_the_same_in_every_field(clusters: tuple[Cluster, Cluster]) -> None:
    alpha = clusters[0]
    train = ("-N2", "--ntasks-per-node=1", "--gres=gpu:8", '--comment=gpu-runbooks:supervise é "q"')
    running = alpha.sbatch(*train, "-w", "alpha[1-2]")
    held = alpha.sbatch("-H", *train)
    array = alpha.sbatch("-H", "--array=0-3%2", "-N1")
    later = alpha.sbatch("--begin=now+1hour", "-N1", "-x", "alpha2")
    wanted = {running: "running", held: "pending", array: "pending", later: "pending"}
    for script, phase in (
        ("exit 3", "failed"),
        ("kill -KILL $$", "failed"),
        ("exit 139", "failed"),
        ("true", "succeeded"),
    ):
        wanted[alpha.sbatch("-w", "alpha3", "-N1", script=script)] = phase

    async def arrived() -> bool:
        return {one.job_id: str(one.job.phase) for one in await alpha.cli.list_jobs()} == wanted

    await until(arrived)
    alpha.slurm("scontrol", "hold", running)
    alpha.slurm("scontrol", "update", "nodename=alpha3", "state=drain", 'reason=bad PSU, ask "Zoë" = slot 2')
    alpha.slurm("scontrol", "update", "nodename=alpha1", "state=drain", "reason=gpu-runbooks:abcdefg: xid 79")
    name = "reservationname=gpu-runbooks_abcdefg"
    options = ("starttime=now", "duration=60", "nodes=alpha3", "flags=maint,ignore_jobs", "users=root")
    alpha.slurm("scontrol", "create", "reservation", name, *options)

    async def settled() -> bool:
        nodes = {one.name: one for one in await alpha.cli.list_nodes()}
        return "MAINTENANCE" in nodes["alpha3"].flags and "DRAIN" in nodes["alpha1"].flags

    await until(settled)

    async def equal() -> bool:  # a boot time or a queue's reason may move between the two readings
        jobs, nodes = await alpha.reads.list_jobs(), await alpha.reads.list_nodes()
        return (jobs, nodes) == (await alpha.cli.list_jobs(), await alpha.cli.list_nodes())

    await until(equal, 15.0)
    codes = {one.job_id: (one.job.exit_code, one.job.exit_signal) for one in await alpha.reads.list_jobs()}
    assert {(3, None), (None, 9), (139, None), (0, None)} <= set(codes.values())
    assert len(codes) == len(wanted)
    reservations = await alpha.reads.list_reservations()
    assert reservations == await alpha.cli.list_reservations()
    assert [(one.name, one.nodes, one.maintenance) for one in reservations] == [
        ("gpu-runbooks_abcdefg", ("alpha3",), True)
    ]
    assert alpha.child.starts == 1


async def test_auto_takes_pyslurm_where_the_releases_are_equal(clusters: tuple[Cluster, Cluster]) -> None:
    beta = clusters[1]
    reads = ChosenReads("beta", beta.commands, beta.cli, "auto")
    try:
        assert {one.name for one in await reads.list_nodes()} == {"beta1", "beta2", "beta3"}
        assert isinstance(reads.reads, PyslurmReads)
    finally:
        await reads.close()


async def test_a_frozen_child_delays_its_own_cluster_only(clusters: tuple[Cluster, Cluster]) -> None:
    alpha, beta = clusters
    await alpha.reads.list_nodes()
    await beta.reads.list_nodes()
    frozen = alpha.child.pid
    assert frozen is not None
    os.kill(frozen, signal.SIGSTOP)
    alpha.commands.limit = 2.0
    waiting = asyncio.create_task(alpha.reads.list_nodes())
    served = 0
    while not waiting.done():
        assert len(await beta.reads.list_nodes()) == 3
        served += 1
    assert served > 20
    assert [one.name for one in await waiting] == ["alpha1", "alpha2", "alpha3"]
    assert not exists(frozen)
    starts = alpha.child.starts
    assert len(await alpha.reads.list_nodes()) == 3
    assert alpha.child.starts == starts + 1


async def test_a_frozen_controller_is_temporary_and_the_child_survives_it(clusters: tuple[Cluster, Cluster]) -> None:
    alpha, beta = clusters
    await alpha.reads.list_jobs()
    child = alpha.child.pid
    alpha.lab("ctld-freeze", "alpha")
    try:
        waiting = asyncio.create_task(alpha.reads.list_jobs())
        slowest = 0.0
        while not waiting.done():
            began = time.monotonic()
            await beta.reads.list_nodes()
            slowest = max(slowest, time.monotonic() - began)
        with pytest.raises(TemporaryError, match=re.compile("timed out", re.IGNORECASE)):
            await waiting
        assert slowest < 1.0
    finally:
        alpha.lab("ctld-thaw", "alpha")
    assert await alpha.reads.list_jobs()
    assert alpha.child.pid == child
