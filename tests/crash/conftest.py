"""Cases play several at a time, for each is mostly waiting; every test looks at the ending of its own."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from fleet.runbooks import Runbook
from tests.crash.boundary import Case
from tests.crash.nursery import Nursery
from tests.crash.play import Played, play
from tests.crash.play_transfer import Played as PlayedMove
from tests.crash.play_transfer import play_transfer

AT_ONCE = 8
"""A case keeps two cores busy for about 3 s of its 15 to 30."""

Ended = Callable[[Case], Played]
Moved = Callable[[Case], PlayedMove]


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    made = Nursery(tmp_path_factory.mktemp("bytecode"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def ended(request: pytest.FixtureRequest, temporal_binary_found: None, nursery: Nursery) -> Iterator[Ended]:
    """Plays the undisturbed case and every case that a selected test of this module names."""
    selected = (getattr(item, "callspec", None) for item in request.session.items if item.path == request.path)
    named = (found.params["case"] for found in selected if found is not None)
    cases = dict.fromkeys([Case(), *named])
    with tempfile.TemporaryDirectory(prefix="crash") as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        playing: dict[Case, Future[Played]] = {}
        for number, case in enumerate(cases):
            place = Path(folder) / str(number)
            place.mkdir()
            playing[case] = pool.submit(asyncio.run, play(place, case, nursery))
        yield lambda case: playing[case].result()
        for future in playing.values():
            future.cancel()


@pytest.fixture(scope="module")
def moved(request: pytest.FixtureRequest, temporal_binary_found: None, nursery: Nursery) -> Iterator[Moved]:
    """The same for moves to another cluster."""
    selected = (getattr(item, "callspec", None) for item in request.session.items if item.path == request.path)
    named = (found.params["move"] for found in selected if found is not None)
    cases = dict.fromkeys([Case(runbook=Runbook.TRANSFER), *named])
    with tempfile.TemporaryDirectory(prefix="crash") as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        playing: dict[Case, Future[PlayedMove]] = {}
        for number, case in enumerate(cases):
            place = Path(folder) / str(number)
            place.mkdir()
            playing[case] = pool.submit(asyncio.run, play_transfer(place, case, nursery))
        yield lambda case: playing[case].result()
        for future in playing.values():
            future.cancel()
