"""Becomes another program that dies with the process that started it. Run by path: `tied.py PARENT-PID PROGRAM ...`.

A worker that is killed with -9 can end nothing any more; without this its rclone would write on beside the next try's
(prctl(2), PR_SET_PDEATHSIG; it outlives the exec). On systems other than Linux there is no such thing, and the next
try is kept apart by the owner's token only.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ties this process to its parent and becomes the program."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(sys.argv[1]):  # it died before the tie was made
            os._exit(1)
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - no shell on purpose


main()
