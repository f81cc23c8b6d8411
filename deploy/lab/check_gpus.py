#!/usr/bin/env python3
"""Quick check of a lab node: does it have its GPUs, and has no test asked it to fail?

Run on the node as a Slurm step, for example ``srun -w alpha1 --gres=gpu:8 check_gpus.py --expect 8``.
It prints one JSON line ``{"ok": bool, "gpus": int, "detail": str}`` and exits with 0 (passed),
1 (failed) or 2 (could not run, so nothing is known about the node).

GPUs are those that Slurm gave to the step (``CUDA_VISIBLE_DEVICES``), or all of the node's where the
step asked for none; one without its device file in ``<cluster>/dev/<node>/`` does not count.
The file ``<cluster>/health/check-fail-<node>`` stands in for any other failure: its text is the reason.
"""

import argparse
import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

PASSED, FAILED, COULD_NOT_RUN = 0, 1, 2


class Result(NamedTuple):
    """What the check found; ``gpus`` counts those that can be used."""

    ok: bool
    gpus: int
    detail: str


class CannotRunError(Exception):
    """The check's own surroundings are missing: no verdict about the node."""


def cluster_folder(given: Path | None, env: Mapping[str, str]) -> Path:
    """Find the lab cluster's folder: as given, else two above ``SLURM_CONF``."""
    if given is None and "SLURM_CONF" not in env:
        raise CannotRunError("neither --cluster-folder nor SLURM_CONF is set")
    folder = given or Path(env["SLURM_CONF"]).parent.parent
    if not (folder / "lab.env").is_file():
        raise CannotRunError(f"{folder} is not a cluster of the lab")
    return folder


def visible_gpus(devices: Path, env: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the names of the GPUs that are there and of those that are missing."""
    present = {path.name for path in devices.glob("gpu*")}
    given = env.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return sorted(present), []
    names = [f"gpu{index.strip()}" for index in given.split(",") if index.strip().isdigit()]
    return [name for name in names if name in present], [name for name in names if name not in present]


def check(folder: Path, node: str, expect: int, env: Mapping[str, str]) -> Result:
    """Judge one node: enough GPUs, and no failure planted."""
    found, missing = visible_gpus(folder / "dev" / node, env)
    try:
        planted = (folder / "health" / f"check-fail-{node}").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        planted = None
    if planted is not None:
        return Result(False, len(found), planted.strip() or "failed on request")
    detail = f"{len(found)} of {expect} GPUs on {node}"
    if missing:
        detail += f", no device file for {', '.join(missing)}"
    return Result(len(found) == expect, len(found), detail)


def main(argv: list[str], env: Mapping[str, str]) -> int:
    """Run the check and print its line."""
    parser = argparse.ArgumentParser(description="Quick GPU check of a lab node.")
    parser.add_argument("--expect", type=int, required=True, help="number of GPUs the node must show")
    parser.add_argument("--cluster-folder", type=Path, help="default: found from SLURM_CONF")
    args = parser.parse_args(argv)
    node = env.get("SLURMD_NODENAME") or socket.gethostname()
    try:
        result = check(cluster_folder(args.cluster_folder, env), node, args.expect, env)
        code = PASSED if result.ok else FAILED
    except (CannotRunError, OSError) as error:
        result, code = Result(False, 0, f"could not run: {error}"), COULD_NOT_RUN
    print(json.dumps(result._asdict()), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
