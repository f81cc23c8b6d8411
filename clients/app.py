"""The command line, assembled. Commands are named by import path and imported when used, so `--help` is fast."""

import difflib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.exceptions import MissingArgumentError, UnknownCommandError, UnusedCliTokensError

from clients.errors import CliError, Exit, explained
from clients.output import Screen

DEBUG_VARIABLE = "GPU_RUNBOOKS_DEBUG"
EPILOGUE = """\
Exit codes: 0 done, 1 failed or refused, 2 usage or unknown target, 3 nothing to do (--error-unchanged), \
4 not allowed, 8 waiting for a person or choose one, 124 --timeout, 130 interrupted."""

_OURS = Parameter(negative=(), show_default=False)
"""A flag of ours is there or not; `--no-watch` and `--empty-kind` would only be noise."""

ACT = Group("Act", sort_key=10)
LOOK = Group("Look", sort_key=20)
ANSWER = Group("Answer", sort_key=30)
STOP = Group("Stop and give back", sort_key=40)
RUN = Group("Run it here", sort_key=50)


class Command(NamedTuple):
    """One row of the command table."""

    name: str
    """`doctor`, or `diagnose hang` for a command in a group of its own."""
    path: str
    help: str
    group: Group | None


COMMANDS = (
    Command(
        "submit",
        "clients.commands.jobs:submit",
        "Submit a job to a cluster, or to the best one.",
        ACT,
    ),
    Command("evidence", "clients.commands.nodes:evidence", "Hand in what was seen on a node.", ACT),
    Command("list", "clients.commands.runs:list_", "List runbooks.", LOOK),
    Command("describe", "clients.commands.runs:describe", "Show one runbook, running or ended.", LOOK),
    Command("watch", "clients.commands.runs:watch", "Follow one runbook to its end.", LOOK),
    Command("why", "clients.commands.nodes:why", "Say what is thought of a node, and from what.", LOOK),
    Command("classify", "clients.commands.faults:classify", "Judge one text here: a log, a report, a dump.", LOOK),
    Command("lemons", "clients.commands.nodes:lemons", "Nodes and GPUs that come back with trouble.", LOOK),
    Command("preflight", "clients.commands.preflights:preflight", "Could each cluster receive a job?", LOOK),
    Command("report", "clients.commands.reports:report", "Timeline, stage times and ETTR of a job or node.", LOOK),
    Command("logs", "clients.commands.jobs:logs", "Last lines of a job's own output.", LOOK),
    Command("approve", "clients.commands.questions:approve", "Answer an open question with yes.", ANSWER),
    Command("deny", "clients.commands.questions:deny", "Answer an open question with no.", ANSWER),
    Command("cancel", "clients.commands.runs:cancel", "End one runbook in a described, safe state.", STOP),
    Command("freeze", "clients.commands.guards:freeze", "Stop every new change within 5 s.", STOP),
    Command("unfreeze", "clients.commands.guards:unfreeze", "Let changes go on.", STOP),
    Command("release", "clients.commands.guards:release", "Give back holds, marks and reservations.", STOP),
)
START = (
    Command("restart", "clients.commands.jobs:restart", "Restart a job on the same nodes.", None),
    Command("failover", "clients.commands.jobs:failover", "Move a job to other nodes of its cluster.", None),
    Command("transfer", "clients.commands.jobs:transfer", "Move a job to another cluster.", None),
    Command("heal", "clients.commands.nodes:heal", "Isolate, repair, check and return a node.", None),
)


def make_app(more: Sequence[Command] = ()) -> App:
    """The app with the commands that need only Temporal, and those of the floor above."""
    app = App(
        name="runbook",
        help="Durable runbooks that keep GPU training alive across clusters.",
        help_epilogue=EPILOGUE,
        version=_version,
        help_format="plaintext",
        suppress_keyboard_interrupt=False,
        default_parameter=Parameter(show_default=False),
    )
    start = App(name="start", help="Start a restart, a move or a repair.", group=ACT, sort_key=0)
    add(start, START, default_parameter=_OURS)
    app.command(start)
    add(app, COMMANDS, default_parameter=_OURS)
    add(app, more)
    return app


def add(app: App, commands: Sequence[Command], **settings: Any) -> None:
    """Registers rows by their import path; nothing is imported yet."""
    for number, row in enumerate(commands, 1):
        outer, _, inner = row.name.rpartition(" ")
        home = app
        if outer:
            home = App(name=outer, help=row.help, group=row.group, sort_key=number)
            app.command(home)
        group = None if outer else row.group
        home.command(row.path, name=inner, help=row.help, group=group, sort_key=number, **settings)


def _version() -> str:
    from importlib.metadata import version

    return version("gpu-runbooks")


def main(app: App, argv: Sequence[str]) -> int:
    """Runs one command and gives back its exit code; every error becomes a sentence on standard error."""
    try:
        code = app(argv, exit_on_error=False, print_error=False, result_action="return_value")
        return int(code or Exit.DONE)
    except CycloptsError as error:
        return _tell(CliError(_words(error, app), Exit.USAGE))
    except KeyboardInterrupt:
        return _tell(CliError("interrupted; what runs in Temporal goes on", Exit.INTERRUPTED))
    except BrokenPipeError:  # `runbook list | head`
        return Exit.DONE
    except ImportError as error:
        why = error.__cause__ or error
        return _tell(CliError(f"this command is not part of this installation: {why}"))
    except Exception as error:  # noqa: BLE001 - the process edge
        return _tell(explained(error) or _unexpected(error))


def leave(code: int) -> None:
    """Ends the process at once: a cancelled long poll of Temporal's client can hang the interpreter's own end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (BrokenPipeError, ValueError):
            code = code or Exit.DONE
    os._exit(code)


def _words(error: CycloptsError, app: App) -> str:
    """What is wrong with the words. Unknown commands are explained here: cyclopts would import all to say it."""
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        word = error.unused_tokens[0]
        chain = error.command_chain or ()
        here = app
        for part in chain:
            here = here[part]
        close = difflib.get_close_matches(word, [name for name in here if not name.startswith("-")], 1)
        hint = f"did you mean {close[0]}? " if close else ""
        prefix = " ".join(["runbook", *chain])
        return f"no command {word!r}; {hint}`{prefix} --help` lists them"
    prefix = " ".join(["runbook", *(error.command_chain or ())])
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"{error.unused_tokens[0]!r} is one word too many; `{prefix} --help` shows what it takes"
    if isinstance(error, MissingArgumentError) and error.argument is not None and not error.tokens_so_far:
        return f"{error.argument.name} and its value are missing; `{prefix} --help` shows what it takes"
    return " ".join(str(error).split())


def _unexpected(error: Exception) -> CliError:
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exception(error)
    return CliError(f"unexpected {type(error).__name__}: {error}; {DEBUG_VARIABLE}=1 shows where. Please report it")


def _tell(error: CliError) -> int:
    screen = Screen()
    if error.code is Exit.INTERRUPTED:
        screen.note(str(error))
    else:
        for number, line in enumerate(str(error).splitlines() or [""]):
            screen.note(("error: " if number == 0 else "") + line)
    return error.code
