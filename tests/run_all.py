"""`make test`: every group of tests in a process of its own, so that none can disturb another; any failure fails.

Three lanes run side by side, for most tests wait more than they compute; each takes the next group, two of them from
those on Kubernetes first, whose control planes compute most. What a group said is printed when it has ended, and at
the end how long each one took and what failed, once more.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from tests.kubernetes import used_rights

WAITING = tuple(
    f"tests/workflows/test_{name}.py" for name in ("lease", "nodes", "place", "stock", "transfer", "waves")
)
"""About half of the time of that folder."""
MOVES = tuple(f"tests/runbooks_kubernetes/test_{name}.py" for name in ("disturbed_move", "mixed_fleet"))
GROUPS = {
    "contract on kubernetes": ("tests/contract", "-m", "kubernetes"),
    "runbooks on slurm": ("tests/runbooks_slurm",),
    "workflows": ("tests/workflows", *(f"--ignore={file}" for file in WAITING)),
    "workflows that wait": WAITING,
    "kubernetes": ("tests/kubernetes",),
    "crash on slurm": ("tests/crash_slurm",),
    "kinds on kubernetes": ("tests/runbooks_kubernetes/test_kinds.py",),
    "runbooks on kubernetes": (
        "tests/runbooks_kubernetes",
        *(f"--ignore={file}" for file in ("tests/runbooks_kubernetes/test_kinds.py", *MOVES)),
    ),
    "moves to kubernetes": MOVES,
    "crash": ("tests/crash",),
    "workers": ("tests/workers",),
    "contract": ("tests/contract", "-m", "not kubernetes"),
    "slurm": ("tests/slurm",),
    "frame": ("tests/temporal", "tests/clients", "tests/bench", "tests/training", "tests/fuzz"),
    "copying": ("tests/copying",),
    "fast": ("tests/fleet", "tests/faults", "tests/checkpoints", "tests/agents", "tests/activities", "tests/sim"),
}
"""The longest first, so that all lanes end at about the same time whatever a group takes."""
LANES = 3
"""The groups compute for a third of the time that they take, on average; two cores are busy with three. With four,
tests waited in vain for what had no processor (load 13 to 22)."""
LIMIT = 1800.0
"""Seconds for one group; several times what it takes."""
FAREWELL = 60.0
"""Seconds that a group has to take down what it started."""


ERRORS_SHOWN = 40
"""Lines of a failed group that are shown again at the end."""


class Done(NamedTuple):
    """One group that has ended."""

    name: str
    seconds: float
    code: int
    failures: tuple[str, ...]
    """Names of the tests that failed, and the lines of pytest that say why."""


class Run:
    """All groups; a Ctrl-C or SIGTERM is passed on to those that run, and nothing more is started."""

    def __init__(self) -> None:
        self.done: list[Done] = []
        self.stopping = False
        self._waiting = list(GROUPS)
        self._running: set[subprocess.Popen[str]] = set()
        self._printing, self._choosing = threading.Lock(), threading.Lock()

    def lane(self, *, kubernetes: bool) -> None:
        """One group after the other, while any waits; those on Kubernetes first, or the others first."""
        while (name := self._next(kubernetes)) is not None:
            self._group(name, GROUPS[name])

    def _next(self, kubernetes: bool) -> str | None:
        with self._choosing:
            if self.stopping or not self._waiting:
                return None
            mine = (name for name in self._waiting if on_kubernetes(name) is kubernetes)
            name = next(mine, self._waiting[0])
            self._waiting.remove(name)
            return name

    def stop(self, *_: object) -> None:
        """Asks the groups to end."""
        self.stopping = True
        for process in tuple(self._running):
            os.killpg(process.pid, signal.SIGINT)

    def _group(self, name: str, folders: tuple[str, ...]) -> None:
        start = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *folders],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._running.add(process)
        said = _said_until(process, LIMIT)
        self._running.discard(process)
        self.done.append(Done(name, time.monotonic() - start, process.returncode, failures_in(said)))
        with self._printing:
            print(f"\n== {name}: {' '.join(folders)}\n{said}", flush=True)


def on_kubernetes(group: str) -> bool:
    """Whether its tests raise a Kubernetes lab."""
    return "kubernetes" in group


def failures_in(said: str) -> tuple[str, ...]:
    """The lines of pytest's output that name a failed test or its error."""
    told = (line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR ", "E  ", "____", "killed: ")))
    return tuple(line[:300] for line in told)[-ERRORS_SHOWN:]


def _said_until(process: subprocess.Popen[str], limit: float) -> str:
    """Its output once it has ended; told to end at the limit, killed when it does not."""
    for wait, then in ((limit, signal.SIGINT), (FAREWELL, signal.SIGKILL)):
        try:
            return process.communicate(timeout=wait)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, then)
    return process.communicate()[0] + f"\nkilled: it did not end in {limit:.0f} s"


def rights_left_over(run: Run, used: Path) -> tuple[str, ...]:
    """Says whether each right of deploy/kubernetes/rbac.yaml was used by a test, and names those that were not."""
    groups = {name for name in GROUPS if on_kubernetes(name)}
    passed = {done.name for done in run.done if done.code == 0}
    if groups - passed or not used.exists():
        why = f"not passed: {', '.join(sorted(groups - passed))}" if groups - passed else "no Kubernetes lab ran"
        print(f"\n== rights that no test uses: not judged ({why})")
        return ()
    left, unseen = used_rights.judge(used, used_rights.lab_release())
    print(f"\n== rights that no test uses: {'none' if not left else ''}")
    print("".join(f"{line}: take it out of rbac.yaml, or test what needs it\n" for line in left), end="")
    if unseen:
        print(f"not judged, for no cluster had them: {', '.join(unseen)}")
    return left


def main() -> int:
    """Runs all lanes, says what took longest, and judges the rights that were used."""
    run = Run()
    with tempfile.TemporaryDirectory(prefix="rights-") as folder:
        used = Path(folder) / "used"
        os.environ[used_rights.VARIABLE] = str(used)
        return _main(run, used)


def _main(run: Run, used: Path) -> int:
    signal.signal(signal.SIGINT, run.stop)
    signal.signal(signal.SIGTERM, run.stop)
    lanes = [threading.Thread(target=run.lane, kwargs={"kubernetes": n > 0}) for n in range(LANES)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    print(f"\n== what took longest, {LANES} lanes side by side")
    for done in sorted(run.done, key=lambda d: -d.seconds):
        print(f"{done.seconds:6.0f} s  {done.name:20} {'passed' if done.code == 0 else f'FAILED ({done.code})'}")
    for done in run.done:
        if done.code:
            print("\n".join((f"\n== failed in {done.name}", *done.failures)))
    missing = len(GROUPS) - len(run.done)
    if missing:
        print(f"{missing} groups were not run")
    left = rights_left_over(run, used)
    return 1 if missing or left or any(done.code for done in run.done) else 0


if __name__ == "__main__":
    sys.exit(main())
