"""`list`, `describe`, `watch`, `cancel`."""

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from clients.options import COMMON, Common, Reason, Timeout, run

if TYPE_CHECKING:
    from temporalio.client import Client

Kind = Literal[
    "job",
    "place",
    "restart",
    "failover",
    "transfer",
    "node",
    "ask",
    "watch",
    "guard",
    "lease",
    "lemons",
    "preflight",
    "replicas",
]
CANCEL_WAIT = 120.0
"""Seconds that `cancel` waits for the described, safe state by default."""


def list_(
    *,
    kind: tuple[Kind, ...] = (),
    all_: Annotated[bool, Parameter(name=["--all", "-a"])] = False,
    needs_human: bool = False,
    cluster: str | None = None,
    limit: int = 200,
    common: Common = COMMON,
) -> int:
    """List runbooks, newest first.

    Parameters
    ----------
    kind
        Only these kinds; may be repeated.
    all_
        Ended ones too.
    needs_human
        Only those that wait for a person.
    cluster
        Only of this cluster.
    limit
        At most so many.
    """
    from clients import names, render, runs

    kinds = [runs.KINDS[word] for word in kind] or list(runs.KINDS.values())
    wanted = names.name(cluster, "cluster") if cluster is not None else None
    query = runs.query_text(kinds=kinds, closed=all_, needs_human=needs_human, cluster=wanted)
    screen = common.screen

    async def work(client: "Client") -> int:
        rows = await runs.list_runs(client, query, max(1, limit))
        empty = "no such runbook" + ("" if all_ else " under way; --all shows the ended ones too")
        screen.rows(rows, [row.id for row in rows], render.run_table(rows), empty=empty)
        return 0

    return run(common, work)


def describe(subject: str, /, *, common: Common = COMMON) -> int:
    """Show one runbook: step, verdict, attempts, question, story; ended ones too.

    Parameters
    ----------
    subject
        A job (fleet name, CLUSTER/NATIVEID, CLUSTER/NAME, CLUSTER/NAMESPACE/NAME), CLUSTER/NODE, or a whole id.
    """
    from clients import render, reports, subjects

    screen = common.screen

    async def work(client: "Client") -> int:
        seen = await reports.describe(client, await subjects.resolved(client, subject))
        screen.one(seen, name=seen.run.id if seen.run else subject, page=render.description(seen))
        return 0

    return run(common, work)


def watch(
    subject: str,
    /,
    *,
    until_question: bool = False,
    timeout: Timeout = None,
    common: Common = COMMON,
) -> int:
    """Follow one runbook to its end; Ctrl-C only detaches. Exit 0 when it ended well, 1 when not.

    Parameters
    ----------
    subject
        A job (fleet name, CLUSTER/NATIVEID, CLUSTER/NAME, CLUSTER/NAMESPACE/NAME), CLUSTER/NODE, or a whole id.
    until_question
        End with exit 8 as soon as it waits for a person.
    """
    from clients import runs, subjects
    from clients.commands.following import follow_up, run_following

    screen = common.screen

    async def work(client: "Client") -> int:
        found = await runs.needed(client, await subjects.resolved(client, subject))
        return await follow_up(
            client, found.row.id, screen, page=True, timeout=timeout, until_question=until_question
        )

    return run_following(common, screen, work)


def cancel(subject: str, /, *, reason: Reason, timeout: Timeout = CANCEL_WAIT, common: Common = COMMON) -> int:
    """End one runbook in a described, safe state. Nothing destructive follows; nothing is given back.

    Parameters
    ----------
    subject
        A job (fleet name, CLUSTER/NATIVEID, CLUSTER/NAME, CLUSTER/NAMESPACE/NAME), CLUSTER/NODE, or a whole id.
    """
    from clients import names, runs, subjects
    from clients.errors import CliError, Exit
    from clients.shapes import Ended

    screen, why = common.screen, f"{names.caller()}: {reason}"

    async def work(client: "Client") -> int:
        meant = await subjects.resolved(client, subject)
        try:
            end = await runs.cancel(client, meant, why, CANCEL_WAIT if timeout is None else timeout)
        except runs.StillRunning as error:
            raise CliError(str(error), Exit.TIMEOUT) from error
        except runs.Unattended as asked:
            open_end = Ended(id=asked.identity, status="running", ok=False, result=str(asked))
            screen.answer(open_end, name=asked.identity, text=f"{asked.identity} {asked}")
            return Exit.TIMEOUT
        screen.answer(end, name=end.id, text=f"{end.id} {end.status}: {end.result or 'nothing was left to say'}")
        return 0

    return run(common, work)
