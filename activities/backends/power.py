"""The cluster's power hook: commands of `fleet.yaml` with `{node}`; off is what reads off."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from activities.backends.programs import Ended, run_program
from activities.backends.steady import Steadiness
from activities.presence import check_presence
from fleet.errors import AmbiguousError, PermanentError, RefusedError, TemporaryError, UnreadableError
from fleet.model import NodeFacts, NodeReceipt, ReceiptGrade, Value

LIMIT = 60.0
"""Seconds that one hook call may take; a BMC answers in 1 to 11 s (measured on an emulator)."""
OFF_WITHIN = 90.0
"""Seconds within which an ordered power-off must read off; 6.1 s were measured with fence_redfish."""


class Hooks(Value):
    """Argument lists with `{node}`, or None where the cluster has none."""

    off: tuple[str, ...] | None = None
    on: tuple[str, ...] | None = None
    status: tuple[str, ...] | None = None

    @property
    def complete(self) -> bool:
        return self.off is not None and self.on is not None and self.status is not None


class Power:
    """Power of one cluster's nodes."""

    def __init__(
        self,
        hooks: Hooks,
        environment: Callable[[], Mapping[str, str]],
        node: Callable[[str], Awaitable[NodeFacts]],
        steadiness: Steadiness,
    ) -> None:
        self.hooks = hooks
        self._environment = environment
        self._node = node
        self._steadiness = steadiness

    @property
    def has_power(self) -> bool:
        return self.hooks.complete

    @property
    def has_status(self) -> bool:
        return self.hooks.status is not None

    async def is_off(self, node: str) -> bool:
        """Raises TemporaryError when the hook fails, UnreadableError when it says neither on nor off."""
        done = await self._call(self.hooks.status, node)
        if done.rc != 0 or done.timed_out:
            raise TemporaryError(f"power status of {node}: {done.text}; it is asked again", delay=5.0)
        word = (done.out.split() or [""])[0].lower()
        if word not in {"on", "off"}:
            raise UnreadableError(f"the power hook says {done.out[:100]!r} of {node}; it must say on or off")
        return word == "off"

    async def power_off(self, node: str) -> NodeReceipt:
        """Off and read back as off. Only an isolated node is switched off: its jobs' runbooks asked for it."""
        facts = await self._node(node)
        if not await self.is_off(node):
            if not facts.drained and facts.responding:
                raise RefusedError(f"{node} is in service; isolate it before its power is taken away")
            check_presence()
            done = await self._call(self.hooks.off, node)
            if done.rc != 0 and not done.timed_out:
                raise TemporaryError(f"power off of {node}: {done.text}; it is tried again", delay=5.0)
            await self._reads("off", node, done)
        at = (await self._node(node)).read_at
        self._steadiness.saw(node, good=False, at=at)
        return NodeReceipt(node=node, grade=ReceiptGrade.POWER_OFF, detail="the power hook reads off", at=at)

    async def power_on(self, node: str) -> None:
        """On and read back as on; nothing for one that is on."""
        await self._node(node)
        if not await self.is_off(node):
            return
        check_presence()
        done = await self._call(self.hooks.on, node)
        if done.rc != 0 and not done.timed_out:
            raise TemporaryError(f"power on of {node}: {done.text}; it is tried again", delay=5.0)
        await self._reads("on", node, done)

    async def _reads(self, wanted: str, node: str, done: Ended) -> None:
        """Success is what the hook reads, whatever the order's own answer was."""
        end, pause = time.monotonic() + OFF_WITHIN, 0.02
        while await self.is_off(node) != (wanted == "off"):
            if time.monotonic() >= end:
                text = f"power {wanted} of {node} ({done.text}): it does not read {wanted} after {OFF_WITHIN:.0f} s"
                raise AmbiguousError(text) if done.timed_out else TemporaryError(text, delay=5.0)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.5)

    async def _call(self, argv: tuple[str, ...] | None, node: str) -> Ended:
        if argv is None:
            raise PermanentError(
                "this cluster has no power hook; set `power` in fleet.yaml, or ask a person to attest"
            )
        words = [word.replace("{node}", node) for word in argv]
        return await run_program(words, self._environment(), LIMIT)
