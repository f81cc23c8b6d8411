"""Which jobs that the watch sees get a runbook."""

from typing import Any, cast

import pytest
from temporalio.service import RPCError, RPCStatusCode

from activities.backends.port import Change
from activities.runtime import Runtime
from activities.watching import WatchActivities, _Told
from fleet.model import JobTokens, NativeJob, Phase


class NoRunbooks:
    """A Temporal client of a server that has none; notes what is started."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def get_workflow_handle(self, _id: str) -> "NoRunbooks":
        return self

    async def signal(self, *_args: object) -> None:
        raise RPCError("no such workflow", RPCStatusCode.NOT_FOUND, b"")

    async def describe(self) -> None:
        raise RPCError("no such workflow", RPCStatusCode.NOT_FOUND, b"")

    async def start_workflow(self, *_args: object, id: str, **_more: Any) -> None:  # noqa: A002 - the SDK's name
        self.started.append(id)


async def started_for(phase: Phase, *, supervise: bool = True) -> list[str]:
    client = NoRunbooks()
    runtime = cast("Runtime", type("OnlyAClient", (), {"client": client})())
    job = NativeJob(
        cluster="alpha", native_id="7", name="t", phase=phase, tokens=JobTokens(job="t", supervise=supervise)
    )
    await WatchActivities(runtime)._tell("alpha", Change(jobs=(job,)), _Told())
    return client.started


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.RUNNING, Phase.STOPPING])
async def test_a_job_that_asks_for_supervision_gets_a_runbook(phase: Phase) -> None:
    assert await started_for(phase) == ["job/t"]


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED, Phase.TIMED_OUT, Phase.ABSENT])
async def test_a_job_that_is_over_or_purged_gets_none_and_wakes_nobody(phase: Phase) -> None:
    assert await started_for(phase) == []


async def test_a_job_that_does_not_ask_is_left_alone() -> None:
    assert await started_for(Phase.RUNNING, supervise=False) == []
