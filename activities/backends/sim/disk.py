"""Checkpoints of a simulated training as real files, where its job names a folder that can be made.

In the format of the lab's training program (deploy/lab/training/train.py), always with the generation of the writer:
`step_00000010.g0.1/rank_0.json`, then `COMPLETE` with the hashes. So what reads, proves and copies checkpoints finds
here what it finds elsewhere, and a job resumes from what was copied to it.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARKER = "COMPLETE"
_FOLDER = re.compile(r"step_(\d{8})(?:\.g(\d{1,9})\.(\d{1,9}))?")
_SHARD = re.compile(r"rank_\d{1,6}\.json")

Generation = tuple[int, int]
"""Epoch and restart count of a start: a later one compares greater."""


@dataclass(frozen=True)
class Folder:
    """The checkpoint folder of a job, as one start of it reads and writes there."""

    root: Path
    own: Generation
    checked: bool
    """It compares generations: a higher one than its own is not its to read or to delete, and goes before no step of
    an older one. Without, the highest step is the newest."""

    def save(self, step: int, ranks: int) -> None:
        """Writes a checkpoint, its marker last; once more it writes the same bytes. Raises OSError."""
        self.root.mkdir(exist_ok=True)
        where = self.root / f"step_{step:08d}.g{self.own[0]}.{self.own[1]}"
        where.mkdir(exist_ok=True)
        named = f"{self.own[0]}.{self.own[1]}"
        shards = {
            f"rank_{rank}.json": json.dumps({"step": step, "rank": rank, "generation": named})
            for rank in range(ranks)
        }
        hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in shards.items()}
        marker = json.dumps({"step": step, "world": ranks, "generation": named, "shards": hashes}, indent=1)
        for name, text in {**shards, MARKER: marker}.items():
            unfinished = where / f".{name}.new"
            unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(where / name)

    def newest(self) -> int | None:
        """Step of the complete checkpoint to resume from; None when there is none."""
        return next((step for _, step, path in self._saved() if is_complete(path, step)), None)

    def keep(self, count: int) -> None:
        """Deletes all but the newest ones, as trainers do, each one's marker first."""
        for _, _, path in list(self._saved())[count:]:
            (path / MARKER).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)

    def _saved(self) -> Iterator[tuple[Generation, int, Path]]:
        """What is its to read, the one to resume from first."""
        found = []
        for path in self.root.iterdir() if self.root.is_dir() else ():
            match = _FOLDER.fullmatch(path.name)
            if match and path.is_dir():
                writer = (int(match[2] or -1), int(match[3] or -1))
                if not self.checked or writer <= self.own:
                    found.append((writer if self.checked else (0, 0), int(match[1]), path))
        yield from sorted(found, reverse=True)


def is_complete(path: Path, step: int) -> bool:
    """Its marker is there, of that step, and every shard is the file that was saved."""
    try:
        marker = json.loads((path / MARKER).read_bytes())
        shards = marker["shards"].items() if marker["step"] == step else ()
        return bool(shards) and all(
            _SHARD.fullmatch(name) and hashlib.sha256((path / name).read_bytes()).hexdigest() == digest
            for name, digest in shards
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


def root_of(storage: str) -> Path | None:
    """The folder, where the job names one that is there or can be made; None: its checkpoints are only told."""
    path = Path(storage)
    return path if path.is_absolute() and path.parent.is_dir() else None
