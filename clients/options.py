"""Options that all commands share, and how a command runs its asynchronous part."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter, Token

from clients.output import Color, Format, Screen

if TYPE_CHECKING:
    from temporalio.client import Client


def _duration(_hint: object, tokens: Sequence[Token]) -> float:
    from fleet.units import parse_duration

    return parse_duration(tokens[0].value)


def _not_empty(_hint: object, text: str) -> None:
    if not text.strip():
        raise ValueError("say why")


_CONNECTION = Group("Connection", sort_key=90)
_OUTPUT = Group("Output", sort_key=80)


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """Output and connection."""

    output: Annotated[Format, Parameter(name=["--output", "-o"], group=_OUTPUT)] = "table"
    """table for people, json with stable keys, name for scripts."""
    color: Annotated[Color, Parameter(group=_OUTPUT)] = "auto"
    """Over NO_COLOR, over FORCE_COLOR, over what the terminal can do."""
    address: Annotated[str | None, Parameter(group=_CONNECTION)] = None
    """HOST:PORT of Temporal; else TEMPORAL_ADDRESS, else a profile, else the embedded server."""
    namespace: Annotated[str | None, Parameter(group=_CONNECTION)] = None
    """Temporal namespace; else TEMPORAL_NAMESPACE, else the profile's, else default."""
    profile: Annotated[str | None, Parameter(group=_CONNECTION)] = None
    """Profile of Temporal's own configuration file."""

    @property
    def screen(self) -> Screen:
        return Screen(self.output, self.color)


Fleet = Annotated[
    Path | None,
    Parameter(help="Policy file; else $GPU_RUNBOOKS_FLEET, ./fleet.yaml or fleet.yaml in the state folder."),
]
Reason = Annotated[str, Parameter(help="Why; it stays in the history.", validator=_not_empty)]
OptionalReason = Annotated[str, Parameter(help="Why; it stays in the history.")]
As = Annotated[str | None, Parameter(name="--as", help="Who acts; else $GPU_RUNBOOKS_AS, else your login name.")]
DryRunFlag = Annotated[bool, Parameter(name="--dry-run", help="Print the decision and the plan, change nothing.")]
Yes = Annotated[bool, Parameter(name=["--yes", "-y"], help="Do not ask.")]
ErrorUnchanged = Annotated[bool, Parameter(name="--error-unchanged", help="Exit 3 when there was nothing to do.")]
Timeout = Annotated[
    float | None,
    Parameter(converter=_duration, metavar="DURATION", help="Longest wait, e.g. 90s or 15m; then exit 124."),
]

COMMON = Common()
"""Default of every command's `common`."""


def run(common: Common, work: "Callable[[Client], Awaitable[int]]") -> int:
    """Connects, does the work, and gives back its exit code."""

    async def go() -> int:
        from clients.connection import connect

        client = await connect(common.address, common.namespace, profile=common.profile)
        return await work(client)

    return asyncio.run(go())
