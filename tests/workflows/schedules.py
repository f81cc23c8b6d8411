"""Schedules that a worker makes once it is ready."""

from temporalio.client import ScheduleHandle
from temporalio.service import RPCError

from tests.workflows.stage import Stage


async def schedule_of(stage: Stage, name: str) -> ScheduleHandle:
    """The schedule, as soon as the stage's worker has made it."""
    handle = stage.client.get_schedule_handle(name)

    async def made() -> bool:
        try:
            return bool((await handle.describe()).schedule)
        except RPCError:
            return False

    await stage.until(made, f"the worker has made the schedule {name}")
    return handle
