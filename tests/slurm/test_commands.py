"""How commands are run: our environment, our limit, whole groups ended, the configuration looked at first."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from activities.backends.slurm.commands import Commands, run_argv
from activities.backends.slurm.outcomes import Outcome
from activities.backends.slurm.settings import SlurmSettings
from fleet.errors import NotFoundError, PermanentError, TemporaryError


def programs(folder: Path, **scripts: str) -> Commands:
    """Commands whose programs are small shell scripts."""
    (folder / "slurm.conf").write_text("ClusterName=x\n")
    for name, body in scripts.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    return Commands(SlurmSettings(conf=str(folder / "slurm.conf"), bin_dir=str(folder)))


async def test_nothing_of_the_callers_slurm_environment_reaches_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_CLUSTERS", "SBATCH_PARTITION", "SQUEUE_STATES", "SCANCEL_INTERACTIVE", "SLURM_CONF"):
        monkeypatch.setenv(name, "poison")
    commands = programs(tmp_path, squeue="env")
    seen = dict(line.split("=", 1) for line in (await commands.read("squeue")).splitlines())
    assert seen["SLURM_CONF"] == str(tmp_path / "slurm.conf")
    assert (seen["LC_ALL"], seen["TZ"]) == ("C", "UTC")
    assert not any(name.startswith(("SBATCH_", "SQUEUE_", "SCANCEL_")) for name in seen)
    assert "poison" not in seen.values()


async def test_arguments_are_passed_as_they_are(tmp_path: Path) -> None:
    commands = programs(tmp_path, scontrol='for a; do printf "<%s>" "$a"; done')
    assert await commands.read("scontrol", "Reason=a b; $(touch x) 'q' \"é\"", "") == (
        "<Reason=a b; $(touch x) 'q' \"é\"><>"
    )
    assert not (tmp_path / "x").exists()


async def test_a_missing_configuration_is_refused_at_once_and_runs_nothing(tmp_path: Path) -> None:
    commands = programs(tmp_path, squeue=f"touch {tmp_path}/ran")
    (tmp_path / "slurm.conf").unlink()
    began = time.monotonic()
    with pytest.raises(PermanentError, match=r"slurm\.conf"):
        await commands.read("squeue")
    assert time.monotonic() - began < 1
    assert not (tmp_path / "ran").exists()


async def test_a_missing_program_says_which(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="squeue"):
        await programs(tmp_path).read("squeue")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(wanted: Callable[[], object]) -> None:
    """What other processes do has no event to wait for."""
    async with asyncio.timeout(10):
        while not wanted():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def said(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


async def test_at_its_limit_a_command_and_its_children_are_ended_and_the_outcome_is_unknown(tmp_path: Path) -> None:
    commands = programs(tmp_path, sbatch=f"sleep 300 & echo $! > {tmp_path}/child; wait")
    done = await commands.run("sbatch", limit=0.5)
    assert done.timed_out
    assert done.outcome is Outcome.UNKNOWN
    child = int(said(tmp_path / "child"))
    await until(lambda: not alive(child))


async def test_a_cancelled_call_leaves_no_process(tmp_path: Path) -> None:
    commands = programs(tmp_path, squeue=f"echo $$ > {tmp_path}/pid; sleep 300")
    task = asyncio.create_task(commands.read("squeue"))
    await until(lambda: said(tmp_path / "pid"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    pid = int(said(tmp_path / "pid"))
    await until(lambda: not alive(pid))


async def test_reads_fail_by_what_slurm_says(tmp_path: Path) -> None:
    commands = programs(
        tmp_path,
        squeue="echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1",
        scontrol="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
        sinfo="echo odd >&2; exit 1",
    )
    with pytest.raises(TemporaryError):
        await commands.read("squeue")
    with pytest.raises(NotFoundError):
        await commands.read("scontrol")
    with pytest.raises(PermanentError, match="odd"):
        await commands.read("sinfo")


async def test_standard_input_reaches_the_program() -> None:
    done = await run_argv(("/bin/cat",), {"PATH": os.defpath}, 5, stdin="#!/bin/sh\nécho\n")
    assert done.out == "#!/bin/sh\nécho\n"
