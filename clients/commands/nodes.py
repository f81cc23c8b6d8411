"""`start heal`, `evidence`, `why`, `lemons`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from clients.options import COMMON, As, Common, DryRunFlag, Fleet, Reason, run

if TYPE_CHECKING:
    from temporalio.client import Client


def heal(
    node: str,
    /,
    *,
    reason: Reason,
    dry_run: DryRunFlag = False,
    as_: As = None,
    fleet: Fleet = None,
    common: Common = COMMON,
) -> int:
    """Isolate, evacuate, repair, check and return a node. Limits and modes of the policy still hold.

    Parameters
    ----------
    node
        CLUSTER/NODE.
    """
    from clients import dry_runs, nodes, render
    from clients.fleet_file import needed_policy, policy
    from clients.names import caller

    by, screen = caller(as_), common.screen
    found = needed_policy(fleet) if dry_run else policy(fleet)

    async def work(client: "Client") -> int:
        if dry_run and found is not None:
            plan = await dry_runs.heal(client, node, by, reason, found)
            screen.one(plan, name=plan.id, page=render.dry_run_page(plan))
            return 0
        started = await nodes.heal(client, node, by, reason, found)
        screen.answer(started, name=started.id, text=f"{started.id} started")
        screen.note(f"follow it with `runbook watch {node}`")
        return 0

    return run(common, work)


def evidence(
    node: str,
    file: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    fleet: Fleet = None,
    common: Common = COMMON,
) -> int:
    """Hand in what was seen on a node. It is judged; it orders nothing.

    Parameters
    ----------
    node
        CLUSTER/NODE; CLUSTER alone for a log of many nodes, each line with its node's name (a central syslog).
    file
        A kernel log, a report of DCGM or nccl-tests, metrics of dcgm-exporter, node conditions, events of NVSentinel,
        or evidence as JSON; `-` for standard input.
    """
    from clients import nodes
    from clients.fleet_file import policy

    found, raw, screen = policy(fleet), _read(file), common.screen

    async def work(client: "Client") -> int:
        sent = await nodes.send_evidence(client, node, raw, found)
        screen.answer(
            sent, name=sent.id, text=f"{sent.sent} pieces of evidence from {sent.lines} lines sent to {sent.id}"
        )
        for why, count in sorted(sent.dropped.items()):
            screen.note(f"{count} dropped: {why}")
        return 0

    return run(common, work)


def _read(file: str) -> bytes:
    from clients.errors import usage

    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise usage(f"{file} cannot be read: {error.strerror}") from error


def why(node: str, /, *, fleet: Fleet = None, common: Common = COMMON) -> int:
    """Say what is thought of a node, by which rule, and from what evidence.

    Parameters
    ----------
    node
        CLUSTER/NODE.
    """
    from clients import nodes, render
    from clients.fleet_file import policy

    found, screen = policy(fleet), common.screen

    async def work(client: "Client") -> int:
        said = await nodes.why(client, node, found)
        screen.one(said, name=said.verdict.rule if said.verdict else "", page=render.why_page(said))
        return 0

    return run(common, work)


def lemons(*, common: Common = COMMON) -> int:
    """List nodes and GPUs that came back with trouble over 28 days, more than the fleet has; worst first.

    The runbook FindLemons proposes their quarantine once a day; this only looks.
    """
    from clients import lemons as lemon
    from clients import render

    screen = common.screen

    async def work(client: "Client") -> int:
        rows, failed = await lemon.lemons(client)
        screen.rows(rows, [row.subject for row in rows], render.lemon_table(rows), empty="no lemons")
        for why_not in failed.values():
            screen.note(why_not)
        return 0

    return run(common, work)
