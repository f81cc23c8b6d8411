"""Roots that the real libraries wrote, from the archive."""

import shutil
import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).parents[1] / "data/checkpoints/real.tar.xz"


def unpack(place: Path) -> Path:
    """Every root, below `place`."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(place, filter="data")
    return place


def copy_of(unpacked: Path, library: str, place: Path) -> Path:
    """One root, to be broken."""
    return Path(shutil.copytree(unpacked / library, place / library))
