"""What starts by the clock: made once by a worker, and left as a person has set it."""

from datetime import timedelta

import structlog
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleCalendarSpec,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleRange,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.service import RPCError, RPCStatusCode

from activities.search import typed
from fleet import attributes
from fleet.identity import LEMONS, PREFLIGHT, REPLICAS, RUNBOOKS_QUEUE
from fleet.model import Value
from fleet.policy import Policy
from fleet.runbooks import LemonsInput, PreflightInput, ReplicateInput, Runbook

log = structlog.get_logger()

LEMONS_AT = 10
"""Hour of the day, UTC, of the search for lemons: what took weeks wakes nobody at night."""


async def make_schedules(client: Client, policy: Policy) -> None:
    """All of them. A namespace without the right to make schedules still heals its nodes: that is logged."""
    daily = ScheduleSpec(calendars=[ScheduleCalendarSpec(hour=[ScheduleRange(LEMONS_AT)])])
    await _make(client, LEMONS, Runbook.LEMONS, LemonsInput(), daily, "nodes and GPUs that come back with trouble")
    every = _every(policy.limits.preflight_interval)
    said = "could each cluster receive each protected job?"
    await _make(client, PREFLIGHT, Runbook.PREFLIGHT, PreflightInput(), every, said)
    if policy.copies.replicate_every:
        every = _every(policy.copies.replicate_interval)
        await _make(client, REPLICAS, Runbook.REPLICATE, ReplicateInput(), every, "checkpoints copied in advance")
    else:
        await _drop(client, REPLICAS)


async def _drop(client: Client, name: str) -> None:
    """The policy wants it no more."""
    try:
        await client.get_schedule_handle(name).delete()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            log.error("a schedule could not be taken away", schedule=name, error=error.message)


def _every(seconds: float) -> ScheduleSpec:
    return ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(seconds=seconds))])


async def _make(client: Client, name: str, runbook: Runbook, given: Value, spec: ScheduleSpec, said: str) -> None:
    """One that is there stays as it is, paused or not; only an interval follows the policy."""
    start = ScheduleActionStartWorkflow(
        runbook,
        given,
        id=name,
        task_queue=RUNBOOKS_QUEUE,
        static_summary=said,
        typed_search_attributes=typed({attributes.STEP: "starting", attributes.NEEDS_HUMAN: False}),
    )
    policy = SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=timedelta(hours=12))
    try:
        await client.create_schedule(name, Schedule(action=start, spec=spec, policy=policy))
    except ScheduleAlreadyRunningError:
        if spec.intervals:
            await _follow(client, name, spec)
    except RPCError as error:
        log.error("a schedule could not be made", schedule=name, error=error.message)


async def _follow(client: Client, name: str, spec: ScheduleSpec) -> None:
    """Its interval becomes the policy's; what a person noted or paused stays."""

    def changed(seen: ScheduleUpdateInput) -> ScheduleUpdate | None:
        schedule = seen.description.schedule
        if [i.every for i in schedule.spec.intervals] == [i.every for i in spec.intervals]:
            return None
        schedule.spec = spec
        return ScheduleUpdate(schedule=schedule)

    try:
        await client.get_schedule_handle(name).update(changed)
    except RPCError as error:
        log.error("the interval of a schedule could not be set", schedule=name, error=error.message)
