"""The quick check of a node: are all its GPUs there, and does the driver answer for each of them?

Run on the node, inside the job that a check suite is: `python -m agents.check --expect 8`. Prints one JSON line
`{"ok": bool, "gpus": n, "uuids": [...], "detail": text}`. Exit code 0 passed, 1 failed, 2 could not
run: a checker that cannot run says nothing about the node. Needs the extra `node` (nvidia-ml-py) and NVIDIA's driver
library.
"""

import argparse
import json
import sys
from typing import Any

PASSED, FAILED, COULD_NOT_RUN = 0, 1, 2


def main(argv: list[str] | None = None) -> int:
    """Parses, checks, prints."""
    parser = argparse.ArgumentParser(prog="agents.check", description="quick check of a node's GPUs")
    parser.add_argument("--expect", type=int, required=True, help="how many GPUs the node should have")
    expect = parser.parse_args(argv).expect
    code, uuids, detail = check(expect)
    gpus = None if uuids is None else len(uuids)
    print(json.dumps({"ok": code == PASSED, "gpus": gpus, "uuids": uuids or [], "detail": detail}))
    return code


def check(expect: int) -> tuple[int, list[str] | None, str]:
    """Exit code, uuids of the GPUs that answer (None when nobody could count), and one line for a person."""
    try:
        import pynvml
    except ImportError:
        return COULD_NOT_RUN, None, "pynvml is missing: install gpu-runbooks[node] on the node"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return COULD_NOT_RUN, None, f"the driver does not answer: {error}"
    try:
        return _count(pynvml, expect)
    finally:
        pynvml.nvmlShutdown()


def _count(nvml: Any, expect: int) -> tuple[int, list[str] | None, str]:
    count = nvml.nvmlDeviceGetCount()
    answering, lost = [], []
    for index in range(count):
        try:
            answering.append(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)))
        except nvml.NVMLError as error:
            lost.append(f"GPU {index}: {error}")
    detail = f"{len(answering)} of {expect} GPUs answer" + (f"; {'; '.join(lost)}" if lost else "")
    return (PASSED if len(answering) == expect and not lost else FAILED), answering, detail


if __name__ == "__main__":
    sys.exit(main())
