"""The cluster's power hook: commands of `fleet.yaml` with `{node}`; off is what reads off."""

from activities.backends.slurm.commands import Commands, Finished, run_argv
from activities.backends.slurm.view import ClusterView
from activities.backends.slurm.writes import read_back
from activities.presence import check_presence
from fleet.errors import PermanentError, RefusedError, TemporaryError, UnreadableError
from fleet.model import NodeReceipt, ReceiptGrade

LIMIT = 60.0
"""Seconds that one hook call may take; a BMC answers in 1 to 11 s (measured on an emulator)."""
OFF_WITHIN = 90.0
"""Seconds within which an ordered power-off must read off; 6.1 s were measured with fence_redfish."""


class PowerHooks:
    """Power of one cluster's nodes."""

    def __init__(self, commands: Commands, view: ClusterView) -> None:
        self.commands = commands
        self.view = view
        self.settings = commands.settings

    @property
    def has_power(self) -> bool:
        return self.settings.has_power

    @property
    def has_status(self) -> bool:
        return self.settings.power_status is not None

    async def is_off(self, node: str) -> bool:
        """Raises TemporaryError when the hook fails, UnreadableError when it says neither on nor off."""
        done = await self._call(self.settings.power_status, node)
        if done.rc != 0 or done.timed_out:
            raise TemporaryError(f"power status of {node}: {done.text}; it is asked again", delay=5.0)
        word = (done.out.split() or [""])[0].lower()
        if word not in {"on", "off"}:
            raise UnreadableError(f"the power hook says {done.out[:100]!r} of {node}; it must say on or off")
        return word == "off"

    async def power_off(self, node: str) -> NodeReceipt:
        """Off and read back as off. Only an isolated node is switched off: its jobs' runbooks asked for it."""
        facts = await self.view.node(node)
        if not await self.is_off(node):
            if not facts.drained and facts.responding:
                raise RefusedError(f"{node} is in service; isolate it before its power is taken away")
            check_presence()
            done = await self._call(self.settings.power_off, node)
            if done.rc != 0 and not done.timed_out:
                raise TemporaryError(f"power off of {node}: {done.text}; it is tried again", delay=5.0)
            await read_back(f"power off {node}", done, lambda: self.is_off(node), bool, OFF_WITHIN)
        at = (await self.view.node(node)).read_at
        self.view.steadiness.saw(node, good=False, at=at)
        return NodeReceipt(node=node, grade=ReceiptGrade.POWER_OFF, detail="the power hook reads off", at=at)

    async def power_on(self, node: str) -> None:
        await self.view.node(node)
        if not await self.is_off(node):
            return
        check_presence()
        done = await self._call(self.settings.power_on, node)
        if done.rc != 0 and not done.timed_out:
            raise TemporaryError(f"power on of {node}: {done.text}; it is tried again", delay=5.0)
        await read_back(f"power on {node}", done, lambda: self.is_off(node), lambda off: not off, OFF_WITHIN)

    async def _call(self, argv: tuple[str, ...] | None, node: str) -> Finished:
        if argv is None:
            raise PermanentError(
                "this cluster has no power hook; set `power` in fleet.yaml, or ask a person to attest"
            )
        words = [word.replace("{node}", node) for word in argv]
        return await run_argv(words, self.commands.environment(), LIMIT)
