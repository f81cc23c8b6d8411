"""The heartbeats of a step: what a try remembers, and which steps beat at all."""

import asyncio
import dataclasses
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities import api, registry
from activities.registry import implements, remember, remembered


class Steps:
    """Steps that do nothing but beat."""

    def __init__(self) -> None:
        self.saw: tuple[Any, ...] = ()
        self.beaten = asyncio.Event()

    async def check_freeze(self, cluster: str) -> None:
        """Never frozen."""

    @implements(api.READ_JOB)
    async def waits(self, arg: api.OnJob) -> Any:
        """Until a beat was made."""
        self.saw = remembered()
        await self.beaten.wait()

    @implements(api.READ_NODE)
    async def ends_at_once(self, arg: api.OnNode) -> Any:
        """Nothing to wait for."""

    @implements(api.READ_LOG)
    async def keeps(self, arg: api.OnJob) -> Any:
        """Replaces what the try before kept."""
        remember("new")
        self.beaten.clear()
        await self.beaten.wait()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    monkeypatch.setattr(registry, "BEAT_SECONDS", 0.01)
    return Steps()


def environment(steps: Steps, beats: list[tuple[Any, ...]], *kept: Any) -> ActivityEnvironment:
    """The second try of a step whose first one kept these details."""
    env = ActivityEnvironment()
    env.info = dataclasses.replace(ActivityEnvironment.default_info(), attempt=2, heartbeat_details=list(kept))

    def on_heartbeat(*details: Any) -> None:
        beats.append(details)
        steps.beaten.set()

    env.on_heartbeat = on_heartbeat
    return env


async def test_a_try_that_keeps_nothing_new_hands_on_what_the_one_before_kept(steps: Steps) -> None:
    beats: list[tuple[Any, ...]] = []
    await environment(steps, beats, 5, "five").run(steps.waits, api.OnJob(cluster="alpha", native_id="1"))
    assert steps.saw == (5, "five")
    assert beats
    assert set(beats) == {(5, "five")}


async def test_what_a_try_keeps_itself_replaces_it(steps: Steps) -> None:
    beats: list[tuple[Any, ...]] = []
    await environment(steps, beats, "old").run(steps.keeps, api.OnJob(cluster="alpha", native_id="1"))
    assert len(beats) >= 2
    assert set(beats) == {("new",)}


async def test_a_step_that_is_over_at_once_costs_no_heartbeat(steps: Steps) -> None:
    beats: list[tuple[Any, ...]] = []
    await environment(steps, beats).run(steps.ends_at_once, api.OnNode(cluster="alpha", node="alpha1"))
    assert beats == []
