"""The node's quick check, through the real pynvml, against a stand-in driver library built here."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml_standin.c")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the stand-in `libnvidia-ml.so.1`."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler: apt-get install gcc libc6-dev")
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)], check=True)
    return folder


def run_check(library: Path | None, **values: str) -> tuple[int, dict[str, object]]:
    environment = {**os.environ, **values}
    if library is not None:
        environment["LD_LIBRARY_PATH"] = str(library)
    done = subprocess.run(
        [sys.executable, "-m", "agents.check", "--expect", "8"], env=environment, capture_output=True, text=True
    )
    return done.returncode, json.loads(done.stdout)


def test_all_gpus_answering_pass(library: Path) -> None:
    uuids = [f"GPU-{number}" for number in range(1, 9)]
    assert run_check(library) == (0, {"ok": True, "gpus": 8, "uuids": uuids, "detail": "8 of 8 GPUs answer"})


def test_a_missing_gpu_fails(library: Path) -> None:
    code, said = run_check(library, STANDIN_GPUS="7")

    assert (code, said["ok"], said["gpus"]) == (1, False, 7)


def test_a_gpu_that_is_listed_and_lost_fails(library: Path) -> None:
    code, said = run_check(library, STANDIN_LOST="3")

    assert (code, said["gpus"]) == (1, 7)
    assert "GPU-4" not in str(said["uuids"])
    assert "GPU 3: GPU is lost" in str(said["detail"])


def test_a_dead_driver_is_no_verdict_on_the_node(library: Path) -> None:
    code, said = run_check(library, STANDIN_BROKEN="1")

    assert (code, said["gpus"]) == (2, None)
    assert "Driver Not Loaded" in str(said["detail"])
