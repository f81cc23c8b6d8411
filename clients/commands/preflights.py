"""`preflight`."""

from typing import TYPE_CHECKING

from clients.options import COMMON, Common, Fleet, Timeout, run

if TYPE_CHECKING:
    from temporalio.client import Client

WAIT = 600.0
"""Seconds that `--now` waits by default."""


def preflight(
    job: str | None = None,
    /,
    *,
    now: bool = False,
    timeout: Timeout = WAIT,
    fleet: Fleet = None,
    common: Common = COMMON,
) -> int:
    """Show the last preflights: could each cluster receive the job? Exit 1 where no other cluster could.

    The runbook PreflightTargets looks on a schedule (`limits.preflight_interval`); it changes nothing.

    Parameters
    ----------
    job
        A job (fleet name, CLUSTER/NATIVEID, CLUSTER/NAME, CLUSTER/NAMESPACE/NAME); all under supervision by default.
    now
        Look now, and wait for it.
    """
    from clients import preflights, readiness
    from clients.errors import Exit
    from clients.fleet_file import policy

    found, screen = policy(fleet), common.screen

    async def work(client: "Client") -> int:
        if now:
            await preflights.now(client, job, found, WAIT if timeout is None else timeout)
        rows, unseen = await preflights.last(client, job, found)
        shown = readiness.pages(rows) if job is not None else readiness.table_of(rows)
        screen.rows(rows, [row.job for row in rows], shown, empty="no preflight yet; `--now` makes one")
        for name in unseen if rows else ():
            screen.note(f"{name} was never looked at; `runbook preflight {name} --now` does")
        return Exit.DONE if all(row.ready for row in rows) else Exit.FAILED

    return run(common, work)
