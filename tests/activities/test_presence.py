"""A try of a step that was away for longer than its heartbeats may miss writes no more."""

from collections.abc import Callable, Iterator

import pytest

from activities import presence
from activities.presence import AWAY, begin, check_presence
from fleet.errors import TemporaryError


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """No presence is left behind: the next test in this process would be "away" since then."""
    token = presence._PRESENT.set(None)
    yield
    presence._PRESENT.reset(token)


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = 1000.0

    def go(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(presence, "_clock", lambda: now)
    return go


def test_outside_a_step_nothing_is_refused(pass_time: Callable[[float], None]) -> None:
    pass_time(1e6)
    check_presence()


def test_a_step_that_beats_may_write_for_ever(pass_time: Callable[[float], None]) -> None:
    present = begin()
    for _ in range(1000):
        pass_time(AWAY - 0.1)
        present.beat()
    check_presence()


def test_a_step_that_was_away_may_not_write(pass_time: Callable[[float], None]) -> None:
    begin()
    pass_time(AWAY + 0.1)
    with pytest.raises(TemporaryError, match="another one may have its step"):
        check_presence()


def test_a_beat_after_the_absence_does_not_heal_it(pass_time: Callable[[float], None]) -> None:
    present = begin()
    pass_time(AWAY + 0.1)
    for _ in range(10):
        present.beat()
        pass_time(1)
    with pytest.raises(TemporaryError):
        check_presence()


def test_the_next_try_may_write(pass_time: Callable[[float], None]) -> None:
    begin()
    pass_time(AWAY + 0.1)
    begin()
    check_presence()
