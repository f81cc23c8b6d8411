"""One private Slurm cluster of the lab for tests: started and removed by `deploy/lab/slurm_lab.sh`."""

import asyncio
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from activities.backends.slurm.backend import SlurmBackend
from activities.backends.slurm.settings import SlurmSettings
from fleet.orders import JobSpec

REPOSITORY = Path(__file__).resolve().parents[2]
LAB = REPOSITORY / "deploy" / "lab" / "slurm_lab.sh"
TRAIN = REPOSITORY / "deploy" / "lab" / "training" / "train.py"
CHECK = REPOSITORY / "deploy" / "lab" / "check_gpus.py"
PORTS = range(17000, 17980, 10)
"""First ports of blocks of ten."""
SETTLE = 8.0
"""KillWait of the lab (5 s) and three: the least that the adapter accepts."""
QUICK = ("-o", "KillWait=2", "-o", "SlurmdTimeout=6")
"""Waits of Slurm that most tests would only sit out."""
QUICK_SETTLE = 5.0
"""`SETTLE` of a quick cluster."""


def why_not() -> str | None:
    """One sentence when the lab cannot start here; None when it can."""
    missing = [
        p for p in ("slurmctld", "slurmd", "sbatch", "munged", "unshare") if shutil.which(p, path=_path()) is None
    ]
    if missing:
        return f"not installed: {', '.join(missing)} (apt-get install slurmctld slurmd slurm-client munge util-linux)"
    if os.geteuid() != 0:
        return "the Slurm lab needs root"
    return None


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


@contextmanager
def port_block() -> Iterator[int]:
    """First port of a block in which nobody listens, kept from every other test on the machine until the end."""
    locks = Path(tempfile.gettempdir()) / "slurm-lab-ports"
    locks.mkdir(exist_ok=True)
    for port in PORTS:
        with (locks / str(port)).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if all(_free(port + at) for at in range(8)):
                yield port
                return
    raise AssertionError(f"no free block of ports from {PORTS.start} on")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Cluster:
    """A running cluster: its backend, faults, and the truth about its processes."""

    def __init__(self, name: str, root: Path, settings: SlurmSettings) -> None:
        self.name = name
        self.root = root
        self.settings = settings
        self.backend = SlurmBackend(name, settings)
        self.work = root / name / "work"
        self.work.mkdir(exist_ok=True)

    async def lab(self, *words: str) -> str:
        """One verb of the lab."""
        return await _call(str(LAB), "--root", str(self.root), *words)

    async def slurm(self, program: str, *words: str) -> str:
        """A person's command on this cluster; raises AssertionError when it fails."""
        return await _call(program, *words, env={**os.environ, "SLURM_CONF": self.settings.conf, "LC_ALL": "C"})

    def another_backend(self, **changes: object) -> SlurmBackend:
        """A second worker's view of the same cluster."""
        return SlurmBackend(self.name, self.settings.model_copy(update=changes))

    def training_spec(
        self,
        name: str,
        *,
        nodes: int = 2,
        steps: int = 100_000,
        checkpoint_every: int = 20,
        fail_at: int | None = None,
        exit_code: int = 3,
        generation_check: bool = False,
        tokens: str = "",
        options: str = "",
    ) -> JobSpec:
        """A training in the lab's own program; its key is `key-NAME`, its files lie under `work/NAME`."""
        folder = self.work / f"key-{name}"
        words = [f"--steps {steps} --step-time 0.1 --checkpoint-every {checkpoint_every} --checkpoint-dir {folder}"]
        if not generation_check:
            words.append("--no-generation-check")
        if fail_at is not None:
            words.append(f"--raise-at-step {fail_at}")
        end = f"(( $? == 0 )) || exit {exit_code}" if fail_at is not None else "exit $?"
        declared = (
            f"gpu-runbooks.io/supervise gpu-runbooks.io/checkpoint-signal=USR1 gpu-runbooks.io/total-steps={steps}"
        )
        if generation_check:
            declared += " gpu-runbooks.io/generation-check=yes"
        run = f"srun --kill-on-bad-exit=1 python3 {TRAIN}"
        return JobSpec(
            job=f"key-{name}",
            name=name,
            script="\n".join(("#!/bin/bash", "trap ':' USR1", f"{run} {' '.join(words)} {options}", end, "")),
            workdir=str(self.work),
            comment=f"my run {declared} {tokens}".strip(),
            options=(f"--nodes={nodes}", "--ntasks-per-node=1", "--gres=gpu:8", "--output=%x-%j.out"),
        )

    async def person_submit(self, spec: JobSpec) -> str:
        """A plain `sbatch` of the same job, without a key of ours."""
        script = self.work / f"{spec.job}.sh"
        script.write_text(spec.script)
        words = [
            "--parsable",
            *spec.options,
            "--open-mode=append",
            f"--chdir={spec.workdir}",
            f"--comment={spec.comment}",
        ]
        return (await self.slurm("sbatch", *words, f"--job-name={spec.name}", str(script))).strip()

    async def quick_job(self, name: str, command: str, *words: str) -> str:
        """A small job of a person; returns its id."""
        out = await self.slurm(
            "sbatch", "--parsable", "-J", name, "-o", "/dev/null", f"--chdir={self.work}", *words, f"--wrap={command}"
        )
        return out.strip()

    async def ranks_alive(self, native_id: str) -> int:
        """The truth: processes of the training program whose environment names that job, frozen ones too."""
        return len(await asyncio.to_thread(rank_pids, native_id, self.settings.conf))

    async def newest_complete_checkpoint(self, job: str) -> int | None:
        steps = [int(p.parent.name[5:13]) for p in (self.work / job).glob("step_*/COMPLETE")]
        return max(steps, default=None)


def rank_pids(native_id: str | None, conf: str) -> list[int]:
    """Ranks of the job, or of any job, on that cluster; zombies do not count."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if len(words) < 2 or not words[1].endswith(b"train.py"):
                continue
            environment = (folder / "environ").read_bytes().split(b"\0")
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        meant = native_id is None or f"SLURM_JOB_ID={native_id}".encode() in environment
        ours = meant and f"SLURM_CONF={conf}".encode() in environment
        if ours and state != "Z":
            found.append(int(folder.name))
    return found


async def _call(*argv: str, env: dict[str, str] | None = None) -> str:
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=env,
        start_new_session=True,
    )
    out, _ = await process.communicate()
    text = out.decode(errors="replace")
    assert process.returncode == 0, f"{' '.join(argv)} -> {process.returncode}: {text}"
    return text


def short_folder() -> Path:
    """A new folder whose path is short enough for munge's socket and which every user may enter, as munge wants."""
    root = Path(tempfile.mkdtemp(prefix="gr", dir="/tmp"))
    root.chmod(0o755)
    return root


@asynccontextmanager
async def cluster(
    name: str = "alpha", *, nodes: int = 6, requeue: int = 5, words: tuple[str, ...] = (), **settings: object
) -> AsyncIterator[Cluster]:
    """A fresh cluster; every process of it is gone afterwards. `requeue` is cred_expire in seconds."""
    with port_block() as port:
        async with _cluster_on(port, name, nodes, requeue, words, settings) as made:
            yield made


@asynccontextmanager
async def _cluster_on(
    port: int, name: str, nodes: int, requeue: int, words: tuple[str, ...], settings: Mapping[str, object]
) -> AsyncIterator[Cluster]:
    root = short_folder()
    start = [
        str(LAB),
        "--root",
        str(root),
        "start",
        name,
        "-n",
        str(nodes),
        "-p",
        str(port),
        "-r",
        str(requeue),
        *words,
    ]
    try:
        await _call(*start)
        lab = (str(LAB), "--root", str(root))
        made = Cluster(
            name,
            root,
            SlurmSettings(
                conf=str(root / name / "etc" / "slurm.conf"),
                power_off=(*lab, "power-off", name, "{node}"),
                power_on=(*lab, "power-on", name, "{node}"),
                power_status=(*lab, "power-status", name, "{node}"),
                check=(sys.executable, str(CHECK), "--expect", "{gpus}"),
                poll_interval=0.5,
                settle=SETTLE,
            ).model_copy(update=settings),
        )
        try:
            yield made
        finally:
            await made.backend.close()
    finally:
        await _call(str(LAB), "--root", str(root), "rm", name)
        left = leftovers(root)
        shutil.rmtree(root, ignore_errors=True)
    assert not left, f"processes left behind by {name}: {left}"


def leftovers(root: Path) -> list[str]:
    """Command lines of processes that still name the lab's folder."""
    done = subprocess.run(["ps", "-ww", "-eo", "pid=,stat=,args="], check=True, capture_output=True, text=True)  # noqa: S607
    return [line for line in done.stdout.splitlines() if f"{root}/" in line and line.split()[1][0] != "Z"]
