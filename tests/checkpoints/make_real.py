"""Writes small checkpoints with the real libraries, and asks the libraries what they think of broken ones.

Not a test: the libraries need gigabytes. Run it in an environment of its own, with this checkout on PYTHONPATH:

    uv venv /somewhere/libraries
    uv pip install -p /somewhere/libraries/bin/python torch numpy accelerate deepspeed jax lightning \
        megatron-core orbax-checkpoint transformers "pydantic>=2.14" setuptools
    PYTHONPATH=. /somewhere/libraries/bin/python -m tests.checkpoints.make_real --write
    PYTHONPATH=. /somewhere/libraries/bin/python -m tests.checkpoints.make_real --verify

`--write` makes `tests/data/checkpoints/real.tar.xz` anew; the tests need only that archive. `--verify` breaks each
root as the tests do, lets its library load the newest entry of each, and fails where it disagrees with us.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from tests.checkpoints.libraries import LIBRARIES, PACKAGES
from tests.checkpoints.real import ARCHIVE, unpack


def child(action: str, library: str, place: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Each library in a process of its own: they set global state, and one that crashes is an answer, too."""
    argv = [sys.executable, "-m", "tests.checkpoints.libraries", action, library, str(place), *more]
    quiet = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    return subprocess.run(argv, env=os.environ | quiet, capture_output=True, text=True, timeout=600)


def write(libraries: Sequence[str]) -> None:
    """The roots of these libraries, beside those that the archive has, with the versions that wrote them."""
    with tempfile.TemporaryDirectory() as folder:
        place = unpack(Path(folder)) if ARCHIVE.exists() else Path(folder)
        for library in libraries:
            shutil.rmtree(place / library, ignore_errors=True)
            done = child("write", library, place / library)
            if done.returncode:
                sys.exit(f"{library}: {done.stdout}\n{done.stderr}")
        versions = {package: version(package) for package in PACKAGES}
        (place / "versions.json").write_text(json.dumps(versions, indent=1) + "\n")
        ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(ARCHIVE, "w:xz") as archive:
            for path in sorted(place.rglob("*")):
                archive.add(path, path.relative_to(place).as_posix(), recursive=False, filter=nameless)
    print(f"{ARCHIVE}: {ARCHIVE.stat().st_size} bytes")


def nameless(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Nobody's name and no time of this machine."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--write", nargs="*", metavar="LIBRARY", help=f"make these anew, or all: {', '.join(LIBRARIES)}"
    )
    parser.add_argument(
        "--verify", nargs="?", const="", metavar="WORD", help="compare with the libraries; only WORD's"
    )
    options = parser.parse_args()
    if options.write is not None:
        write(options.write or LIBRARIES)
    if options.verify is not None:
        from tests.checkpoints.verify import verify

        sys.exit(verify(child, options.verify))


if __name__ == "__main__":
    main()
