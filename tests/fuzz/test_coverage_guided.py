"""libFuzzer looks for inputs that take new ways through our readers of bytes: a fixed seed and number, so that each
run does the same."""

import importlib.util
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.sources.dumps import torch_pickle
from tests.faults.test_fuzz import PIECES

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris has no wheel for this system or Python"
)
RUNS = {"kernel_log": 600, "report": 600, "flight_recorder": 4000, "checkpoint_pickle": 8000}
"""Inputs for each reader: a few seconds of a processor."""
TIMES = int(os.environ.get("GPU_RUNBOOKS_FUZZ", "1"))
"""So many times more, for a longer look: `make fuzz`."""
LONGEST = 4096
"""Bytes of an input."""
ONE_INPUT = 10
"""Seconds after which an input counts as one that a reader is stuck in."""


def seeds(reader: str) -> list[bytes]:
    """True inputs to begin with."""
    if reader == "checkpoint_pickle":
        value = {"state_dict_metadata": {"w": [1, 2.5, "x", 1 << 40]}, "n": (None, True, b"x", {2}, bytearray(b"y"))}
        return [pickle.dumps(value, protocol=protocol) for protocol in range(6)]
    if reader == "flight_recorder":
        entry = {"process_group": ("0", "default_pg"), "collective_seq_id": 9, "state": "started"}
        dump = {"version": "2.10", "entries": [entry], "pg_config": {"0": {"name": "0", "ranks": "[0, 1]"}}}
        return [torch_pickle(dump), json.dumps(dump).encode()]
    return ["\n".join(PIECES).encode(), *(piece.encode(errors="surrogatepass") for piece in PIECES)]


def fuzzed(reader: str, folder: Path, runs: int) -> subprocess.CompletedProcess[str]:
    """`runs` inputs for the reader."""
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds(reader)):
        (corpus / str(number)).write_bytes(seed)
    limits = (f"-runs={runs}", "-seed=1", f"-max_len={LONGEST}", f"-timeout={ONE_INPUT}")
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz.targets", reader, str(corpus), *limits, f"-artifact_prefix={folder}/"],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=300 * TIMES,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("reader", RUNS)
def test_no_input_that_is_found_makes_a_reader_raise_run_anything_or_take_long(reader: str, tmp_path: Path) -> None:
    runs = RUNS[reader] * TIMES
    done = fuzzed(reader, tmp_path, runs)
    left = {path.name: path.read_bytes()[:500] for path in tmp_path.glob("*-*")}
    assert done.returncode == 0, f"{left}\n{done.stderr[-3000:]}"
    assert f"Done {runs} runs" in done.stderr, done.stderr[-1000:]
