"""One move with many faults on its way, each at a boundary of its own."""

from collections.abc import Mapping
from pathlib import Path

from tests.crash.boundary import SURROUNDINGS, Fault
from tests.crash.crew import Crew
from tests.crash.play_transfer import JOB, Person, end_fault
from tests.crash.worker_main import MARKER

LONG = 900.0
"""Seconds for a move with some forty deaths in it; half a minute is usual for the server's, four for the worker's."""


async def mended(made: Crew, folder: Path, faults: Mapping[str, Fault]) -> list[str]:
    """Ends each fault of the surroundings in its turn; what a person was asked and answered `retry` to."""
    person = Person(made)
    for at, fault in faults.items():
        if fault in SURROUNDINGS:
            await end_fault(made, folder, fault, person, (folder / f"{MARKER} {at}").exists, LONG)
    await made.until(person.sees_the_end, "the end of the move", LONG)
    return person.asked


def assert_says_what_is_safe(asked: list[str], faults: Mapping[str, Fault], target: str) -> None:
    """A storage that is away or full is a person's; nobody is asked about anything else."""
    stands = [fault for fault in faults.values() if fault in {Fault.SOURCE_GONE, Fault.TARGET_FULL}]
    assert bool(asked) is bool(stands), asked
    for question in asked:
        assert f"runbook release {JOB}" in question, question
        assert f"nothing was started in {target}" in question, question


def boundaries_met(folder: Path) -> set[str]:
    """Where something failed."""
    return {path.name.removeprefix(f"{MARKER} ") for path in folder.glob(f"{MARKER} *")}


def left_over(root: Path) -> list[str]:
    """Links and staging of ours in a checkpoint root."""
    return [path.name for path in root.glob(".gpu-runbooks/*") if path.name != "receipts"]
