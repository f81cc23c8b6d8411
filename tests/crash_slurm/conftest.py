"""Two private clusters, each used by one case after the other; every test looks at the ending of its own case."""

import asyncio
import queue
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.crash.boundary import Case
from tests.crash.conftest import nursery
from tests.crash.nursery import Nursery
from tests.crash_slurm.play import Played, play
from tests.require import missing
from tests.slurm.lab import Cluster, cluster, why_not

__all__ = ["nursery"]
pytest.register_assert_rewrite("tests.crash_slurm.checks")
NODES = 4
DEFAULT_REQUEUE = 120
"""Slurm's default cred_expire, seconds: its own requeue would wait one second more."""
LANES = ("alpha", "beta")

Ended = Callable[[Case], Played]
Work = queue.SimpleQueue[tuple[int, Case, "Future[Played]"]]


@pytest.fixture(scope="session")
def ended(request: pytest.FixtureRequest, temporal_binary_found: None, nursery: Nursery) -> Iterator[Ended]:
    """Plays the undisturbed case and every case that a selected test of this folder names."""
    if (why := why_not()) is not None:
        missing("slurm", why)
    here = Path(__file__).parent
    selected = (getattr(item, "callspec", None) for item in request.session.items if item.path.parent == here)
    cases = dict.fromkeys(
        [Case(), *(found.params["case"] for found in selected if found is not None and "case" in found.params)]
    )
    playing: dict[Case, Future[Played]] = {case: Future() for case in cases}
    work: Work = queue.SimpleQueue()
    for number, (case, future) in enumerate(playing.items()):
        work.put((number, case, future))
    folder = Path(tempfile.mkdtemp(prefix="crash"))
    with ThreadPoolExecutor(len(LANES)) as pool:
        lanes = [pool.submit(asyncio.run, _lane(name, work, folder, nursery)) for name in LANES[: len(cases)]]
        yield lambda case: playing[case].result()
        while not work.empty():
            work.get()
        for lane in lanes:
            lane.result()
    shutil.rmtree(folder)


async def _lane(name: str, work: Work, folder: Path, nursery: Nursery) -> None:
    """One cluster, and a fresh one after each case that did not end well."""
    while not work.empty():
        async with cluster(name, nodes=NODES, requeue=DEFAULT_REQUEUE) as lab:
            await lab.backend.probe()
            while await _next(lab, work, folder, nursery):
                pass


async def _next(lab: Cluster, work: Work, folder: Path, nursery: Nursery) -> bool:
    """Plays the next case; False when there is none or it left the cluster in a bad state."""
    try:
        number, case, future = work.get_nowait()
    except queue.Empty:
        return False
    place = folder / str(number)
    place.mkdir()
    try:
        future.set_result(await play(lab, place, case, number, nursery))
    except Exception as error:  # noqa: BLE001 - the edge: the case's own test raises it
        future.set_exception(error)
    return future.exception() is None
