"""`report`."""

from typing import TYPE_CHECKING

from clients.errors import CliError
from clients.options import COMMON, Common, Fleet, run

if TYPE_CHECKING:
    from temporalio.client import Client


def report(
    subject: str | None = None,
    /,
    *,
    kind: str | None = None,
    limit: int = 1,
    fleet: Fleet = None,
    common: Common = COMMON,
) -> int:
    """Print the report of a job or a node: timeline with stage times, attempts, ETTR.

    Parameters
    ----------
    subject
        A job (fleet name, CLUSTER/NATIVEID, CLUSTER/NAME, CLUSTER/NAMESPACE/NAME) or CLUSTER/NODE; the newest report
        of all by default.
    kind
        Only reports of this kind (job, incident, node).
    limit
        How many of the newest.
    """
    from clients import reports, subjects
    from clients.fleet_file import policy
    from fleet.report import render_text

    known, screen = policy(fleet), common.screen

    async def work(client: "Client") -> int:
        meant = await subjects.resolved(client, subject, known) if subject is not None else None
        found = (await reports.reports(client, meant, kind, max(limit, 50), known))[-max(1, limit) :]
        if screen.form == "json":
            screen.data(found)
        elif screen.form == "name":
            for one in found:
                screen.line(one.subject)
        else:
            screen.out.out("\n".join(render_text(one) for one in found), end="", highlight=False)
        if not found:
            where = f" of {subject}" if subject else ""
            raise CliError(f"no report{where} yet; it is stored when an incident or the job ends")
        return 0

    return run(common, work)
