"""The lab's training program, which hurries once a file named `hurry` lies in its checkpoint folder.

`python3 paced_train.py TRAIN_PY OPTION...`: slow while faults are awaited, so that it cannot end before they come.
"""

import runpy
import sys
import time
from pathlib import Path

HURRY = "hurry"
"""Name of the file."""


def main() -> None:
    """Runs the program of the first argument with the others, its sleeps cut short once it may hurry."""
    sys.argv = sys.argv[1:]
    sign = Path(sys.argv[sys.argv.index("--checkpoint-dir") + 1]) / HURRY
    sleep = time.sleep

    def paced(seconds: float, /) -> None:
        end = time.monotonic() + seconds
        sleep(min(seconds, 0.002))
        while not sign.exists() and (left := end - time.monotonic()) > 0:
            sleep(min(left, 0.1))

    time.sleep = paced
    sys.path.insert(0, str(Path(sys.argv[0]).parent))  # as Python does for a program
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
