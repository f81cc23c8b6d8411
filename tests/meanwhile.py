"""Looking at the truth all the while that something happens."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable


@contextlib.asynccontextmanager
async def meanwhile(look: Callable[[], Awaitable[None]], every: float) -> AsyncIterator[None]:
    """Looks again and again, with a pause of `every` seconds, until the body has ended. Raises what a look raised."""

    async def looking() -> None:
        while True:
            await look()
            await asyncio.sleep(every)

    task = asyncio.create_task(looking())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
