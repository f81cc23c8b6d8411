"""Following a runbook to its end: a live page on a terminal, lines elsewhere, nothing at all for `--wait`."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from clients.errors import CliError, Exit
from clients.options import Common, run
from clients.output import Screen

if TYPE_CHECKING:
    from temporalio.client import Client

    from clients.runs import Seen


def run_following(common: Common, screen: Screen, work: "Callable[[Client], Awaitable[int]]") -> int:
    """Like `run`; a Ctrl-C that was told as a detaching is not told twice."""
    try:
        return run(common, work)
    except KeyboardInterrupt:
        if not screen.detached:
            raise
        return Exit.INTERRUPTED


async def follow_up(
    client: "Client",
    identity: str,
    screen: Screen,
    *,
    page: bool,
    timeout: float | None = None,  # noqa: ASYNC109 - a person's `--timeout`, with an exit code of its own
    until_question: bool = False,
) -> int:
    """Follows until the runbook ends, and says how. Raises CliError for a timeout; Ctrl-C only detaches."""
    watcher = _pages if page and screen.live else _lines if page and screen.form != "json" else _silent
    try:
        async with asyncio.timeout(timeout):
            last = await watcher(client, identity, screen, until_question)
    except TimeoutError as error:
        raise CliError(f"{identity} goes on; `runbook watch {identity}` follows it", Exit.TIMEOUT) from error
    except asyncio.CancelledError:
        screen.detached = True
        screen.note(f"detached; {identity} goes on. `runbook watch {identity}` follows it again")
        raise
    return await _verdict(client, identity, last, screen)


async def _verdict(client: "Client", identity: str, last: "Seen", screen: Screen) -> int:
    from clients import runs
    from clients.shapes import Ended

    if last.row.status == "running":
        waiting = Ended(id=identity, status="waiting", ok=False, result=last.view.waits_for if last.view else "")
        text = f"{identity} waits for a person: `runbook approve {identity}` shows the question"
        screen.answer(waiting, name=identity, text=text)
        return Exit.WAITING
    found = await runs.find(client, identity)
    if found is None:
        raise CliError(f"{identity} has ended and Temporal knows it no more")
    end = await runs.ended(found)
    screen.answer(end, name=identity, text=f"{identity} {end.status}: {end.result or 'no result'}")
    return Exit.DONE if end.ok else Exit.FAILED


async def _silent(client: "Client", identity: str, screen: Screen, until_question: bool) -> "Seen":
    from clients import runs

    async for seen in runs.follow(client, identity):
        last = seen
        if until_question and seen.row.needs_human:
            break
    return last


async def _lines(client: "Client", identity: str, screen: Screen, until_question: bool) -> "Seen":
    """Each line of the story once, as it comes."""
    from clients import runs

    shown: list[str] = []
    note = ""
    async for seen in runs.follow(client, identity):
        last = seen
        if seen.note and seen.note != note:
            screen.note(seen.note)
        note = seen.note
        if seen.view is not None:
            for line in new_lines(shown, list(seen.view.story)):
                screen.line(line)
            shown = list(seen.view.story)
        if until_question and seen.row.needs_human:
            break
    return last


def new_lines(before: list[str], after: list[str]) -> list[str]:
    """What was added at the end of a story that drops its oldest lines."""
    for keep in range(min(len(before), len(after)), 0, -1):
        if before[-keep:] == after[:keep]:
            return after[keep:]
    return after


async def _pages(client: "Client", identity: str, screen: Screen, until_question: bool) -> "Seen":
    from rich.live import Live

    from clients import render, runs, talk
    from clients.shapes import Description

    ui = talk.link(client, identity)
    with Live(console=screen.out, auto_refresh=False, vertical_overflow="crop") as live:
        async for seen in runs.follow(client, identity):
            last = seen
            lines = max(3, screen.out.height - 24)
            page = Description(run=seen.row, view=seen.view, note=seen.note, ui=ui)
            live.update(render.description(page, lines), refresh=True)
            if until_question and seen.row.needs_human:
                break
    return last
