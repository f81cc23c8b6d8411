"""`freeze`, `unfreeze`, `release`."""

import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from clients.errors import CliError, Exit, usage
from clients.options import COMMON, As, Common, ErrorUnchanged, Fleet, OptionalReason, Reason, Yes, run

if TYPE_CHECKING:
    from temporalio.client import Client

    from clients.shapes import GivenBack


def freeze(
    cluster: str | None = None,
    /,
    *,
    reason: Reason,
    error_unchanged: ErrorUnchanged = False,
    as_: As = None,
    fleet: Fleet = None,
    common: Common = COMMON,
) -> int:
    """Stop every new change within 5 s, in the fleet or in one cluster. Runbooks wait; nothing is undone.

    Parameters
    ----------
    cluster
        Only this cluster; the whole fleet by default.
    """
    return _set(True, cluster, reason, error_unchanged, as_, fleet, common)


def unfreeze(
    cluster: str | None = None,
    /,
    *,
    reason: Reason,
    error_unchanged: ErrorUnchanged = False,
    as_: As = None,
    fleet: Fleet = None,
    common: Common = COMMON,
) -> int:
    """Let changes go on.

    Parameters
    ----------
    cluster
        Only this cluster; the whole fleet's freeze by default.
    """
    return _set(False, cluster, reason, error_unchanged, as_, fleet, common)


def _set(
    on: bool,
    cluster: str | None,
    reason: str,
    error_unchanged: bool,
    as_: str | None,
    fleet: Fleet,
    common: Common,
) -> int:
    from clients import guards
    from clients.fleet_file import policy
    from clients.names import caller

    found, by, screen = policy(fleet), caller(as_), common.screen

    async def work(client: "Client") -> int:
        scope = await guards.scope_of(client, cluster, found)
        done, changed = await (guards.freeze if on else guards.unfreeze)(client, scope, by, reason)
        screen.answer(done, name=done.id, text=done.text)
        return Exit.NOTHING if error_unchanged and not changed else Exit.DONE

    return run(common, work)


def release(
    subject: str | None = None,
    /,
    *,
    all_: Annotated[bool, Parameter(name="--all")] = False,
    reason: OptionalReason = "",
    yes: Yes = False,
    error_unchanged: ErrorUnchanged = False,
    as_: As = None,
    fleet: Fleet = None,
    common: Common = COMMON,
) -> int:
    """Give back holds, marks and reservations of ours: of a job, a node, or all of them.

    Parameters
    ----------
    subject
        A job (fleet name, `job/NAME`), or CLUSTER/NODE, or CLUSTER/NATIVEID of a job.
    all_
        Cancel every job's and node's runbook, then give back everything in every cluster.
    """
    from clients import giving_back
    from clients.fleet_file import policy
    from clients.names import caller

    if (subject is None) != all_:
        raise usage("give a job, CLUSTER/NODE, or --all")
    found, by = policy(fleet), caller(as_)
    if all_:
        _confirm_all(yes)
    why = f"{by}: {reason or 'released'}"

    async def work(client: "Client") -> int:
        if subject is None:
            given = await giving_back.release_all(client, why, found)
        else:
            given = await giving_back.release(client, subject, by, reason or "released", found)
        _print(given, common)
        if given.failed:
            return Exit.FAILED
        return Exit.NOTHING if error_unchanged and not given.changed else Exit.DONE

    return run(common, work)


def _confirm_all(yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise usage("this ends every runbook; without a terminal say so with --yes")
    sys.stderr.write("End every job's and node's runbook and give back everything of ours? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise CliError("nothing was released")


def _print(given: "GivenBack", common: Common) -> None:
    screen = common.screen
    if screen.form == "json":
        screen.data(given)
    elif screen.form == "name":
        screen.line(given.subject)
    else:
        for identity in given.cancelled:
            screen.line(f"{identity} cancelled")
        for line in given.lines:
            screen.line(line)
    for line in given.failed:
        screen.note(f"FAILED {line}")
