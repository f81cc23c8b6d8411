"""One read for everybody, and live reads that are never older than their call."""

import asyncio

import pytest

from activities.backends.polling import Shared
from fleet.errors import TemporaryError


class Source:
    """Counts its reads; each waits until it is let go."""

    def __init__(self) -> None:
        self.reads = 0
        self.go = asyncio.Event()
        self.fail = False

    async def read(self) -> int:
        self.reads += 1
        mine = self.reads
        await self.go.wait()
        if self.fail:
            raise TemporaryError("down")
        return mine


async def test_many_callers_share_one_read() -> None:
    source = Source()
    shared = Shared(source.read)
    calls = [asyncio.create_task(shared.cached(60)) for _ in range(50)]
    await asyncio.sleep(0)
    source.go.set()
    assert set(await asyncio.gather(*calls)) == {1}
    assert await shared.cached(60) == 1
    assert source.reads == 1


async def test_a_value_that_is_too_old_is_read_again() -> None:
    source = Source()
    source.go.set()
    shared = Shared(source.read)
    assert await shared.cached(60) == 1
    assert await shared.cached(-1) == 2


async def test_a_live_read_never_takes_one_that_began_before_the_call() -> None:
    source = Source()
    shared = Shared(source.read)
    first = asyncio.create_task(shared.fresh())
    await asyncio.sleep(0)
    later = [asyncio.create_task(shared.fresh()) for _ in range(20)]
    await asyncio.sleep(0)
    source.go.set()
    assert await first == 1
    assert set(await asyncio.gather(*later)) == {2}
    assert source.reads == 2


async def test_a_failed_read_fails_its_callers_and_is_not_remembered() -> None:
    source = Source()
    source.go.set()
    source.fail = True
    shared = Shared(source.read)
    with pytest.raises(TemporaryError):
        await shared.cached(60)
    source.fail = False
    assert await shared.cached(60) == 2


async def test_a_cancelled_caller_does_not_end_the_read_of_the_others() -> None:
    source = Source()
    shared = Shared(source.read)
    impatient, patient = asyncio.create_task(shared.fresh()), asyncio.create_task(shared.cached(60))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.sleep(0)
    source.go.set()
    assert await patient == 1
    with pytest.raises(asyncio.CancelledError):
        await impatient
    await shared.close()
