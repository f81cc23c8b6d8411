"""Slurm programs that carry a write out and then lose its answer, once, when a file in their folder says so."""

import shutil
from pathlib import Path

from activities.backends.slurm.settings import SlurmSettings
from tests.crash.worker_main import LOSE

WRITERS = ("scontrol", "scancel", "sbatch")
LOST = "lost-answer"
"""What the file is called once an answer was lost."""
READS = ("show", "write", "ping")
"""First words of `scontrol` that change nothing."""


def write_forgetful_programs(folder: Path) -> Path:
    """A folder for `bin_dir`: the real programs, the writing ones behind a wrapper."""
    real = Path(SlurmSettings.model_fields["bin_dir"].default)
    made = folder / "bin"
    made.mkdir()
    for program in ("squeue", "sinfo", "srun", "sacct", *WRITERS):
        found = shutil.which(program, path=str(real))
        if found is None:
            continue
        if program in WRITERS:
            (made / program).write_text(_wrapper(Path(found), folder))
            (made / program).chmod(0o755)
        else:
            (made / program).symlink_to(found)
    return made


def _wrapper(program: Path, folder: Path) -> str:
    reads = "|".join(READS)
    return (
        "#!/bin/bash\n"
        'word=; for w in "$@"; do if [[ $w != -* ]]; then word=$w; break; fi; done\n'
        f"[[ -n $word && ! $word =~ ^({reads})$ ]] && mv {folder}/{LOSE} {folder}/{LOST} 2>/dev/null || "
        f'exec {program} "$@"\n'
        f'{program} "$@" >/dev/null 2>&1\n'
        'echo "slurm_update error: Socket timed out on send/recv operation" >&2\n'
        "exit 1\n"
    )
