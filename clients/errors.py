"""Exit codes of `runbook`, and how every error that can reach a person becomes one of them and a sentence."""

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # at run time only when an error is explained: `--help` needs none of it
    from temporalio.service import RPCError


class Exit(IntEnum):
    """Documented in docs/cli.md and in `runbook --help`; a promise."""

    DONE = 0
    FAILED = 1
    """It failed, the runbook failed, or it was refused."""
    USAGE = 2
    """Wrong words: an unknown command, option, cluster, node or job."""
    NOTHING = 3
    """Nothing to do, only with `--error-unchanged`."""
    NOT_ALLOWED = 4
    """Not an approver, a bad signature, or Temporal refused the credentials."""
    WAITING = 8
    """A person is needed: it waits for an answer, or several questions are open and one must be chosen."""
    TIMEOUT = 124
    """`--timeout` was reached, or nobody is there to do what was asked: it is asked all the same."""
    INTERRUPTED = 130
    """Ctrl-C. What runs in Temporal goes on."""


class CliError(Exception):
    """Ends the command with a code and a text that says what to do next."""

    def __init__(self, text: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(text)
        self.code = code


def usage(text: str) -> CliError:
    """The caller's words are off."""
    return CliError(text, Exit.USAGE)


def explained(error: Exception) -> CliError | None:
    """The error as a person should see it; None for one that nobody expected."""
    from pydantic import ValidationError
    from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError
    from temporalio.service import RPCError

    from fleet.errors import FleetError, InvalidInputError, NotFoundError

    if isinstance(error, CliError):
        return error
    if isinstance(error, InvalidInputError | NotFoundError):
        return usage(str(error))
    if isinstance(error, FleetError):
        return CliError(str(error))
    if isinstance(error, RPCError):
        return _rpc(error)
    if isinstance(error, WorkflowUpdateRPCTimeoutOrCancelledError | TimeoutError):
        return CliError("Temporal did not answer in time; is it up? `runbook doctor` looks")
    if isinstance(error, ValidationError):
        where = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False))
        return CliError(f"an answer of another release cannot be read ({where}); use one release everywhere")
    return None


def _rpc(error: "RPCError") -> CliError:
    from temporalio.service import RPCStatusCode

    text = error.message
    if error.status in {RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED}:
        return CliError(
            f"Temporal refused the credentials: {text}; check the API key or certificate", Exit.NOT_ALLOWED
        )
    if error.status is RPCStatusCode.NOT_FOUND:
        return usage(f"Temporal does not know it: {text}")
    if error.status is RPCStatusCode.INVALID_ARGUMENT and "Runbook" in text:
        return CliError(f"this namespace lacks our search attributes ({text}); `runbook doctor --fix` registers them")
    if error.status in {RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED}:
        return CliError(f"Temporal did not answer: {text}; is it up? `runbook doctor` looks")
    return CliError(f"Temporal refused it: {text}")
