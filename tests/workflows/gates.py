"""Gates around activities: a test stops a step exactly before or after its effect, and lets it go on."""

import asyncio
import time
from typing import Any, Literal

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

When = Literal["before", "after"]
PATIENCE = 120.0
"""Seconds after which a test that waits at a gate, or a step that nobody lets pass, fails."""


class Gate:
    """Stops one try of one activity; a later try passes."""

    def __init__(self, *, deaf: bool = False) -> None:
        self.deaf = deaf
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        self.passed = asyncio.Event()

    async def wait(self) -> None:
        """Until the activity stands at the gate."""
        await asyncio.wait_for(self.reached.wait(), PATIENCE)

    def open(self) -> None:
        self.opened.set()


class Gates(Interceptor):
    """Given to the stage's worker. A gate belongs to an activity of a workflow id."""

    def __init__(self) -> None:
        self._set: dict[tuple[str, str, When], Gate] = {}

    def set(self, workflow_id: str, activity_name: str, when: When, *, deaf: bool = False) -> Gate:
        """The next try of that activity stops there. A deaf one hears no cancel, as a frozen process does not."""
        gate = self._set[(workflow_id, activity_name, when)] = Gate(deaf=deaf)
        return gate

    def open_all(self) -> None:
        for gate in self._set.values():
            gate.open()

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - SDK
        return _Guarded(next, self)

    async def pass_through(self, when: When) -> None:
        info = activity.info()
        gate = self._set.get((info.workflow_id or "", info.activity_type, when))
        if gate is None or gate.reached.is_set():
            return
        gate.reached.set()
        deadline = time.monotonic() + PATIENCE
        while not gate.opened.is_set():
            try:
                await asyncio.wait_for(gate.opened.wait(), PATIENCE)
            except asyncio.CancelledError:
                if not gate.deaf or time.monotonic() > deadline:
                    raise
        gate.passed.set()


class _Guarded(ActivityInboundInterceptor):
    def __init__(self, inner: ActivityInboundInterceptor, gates: Gates) -> None:
        super().__init__(inner)
        self._gates = gates

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - SDK
        await self._gates.pass_through("before")
        result = await super().execute_activity(input)
        await self._gates.pass_through("after")
        return result
