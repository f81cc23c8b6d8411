"""`approve`, `deny`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from clients.errors import CliError, Exit, usage
from clients.options import COMMON, As, Common, Reason, Yes, run
from clients.output import Screen

if TYPE_CHECKING:
    from temporalio.client import Client

    from fleet.people import Choice, Question

Word = Literal["approve", "deny", "retry", "skip", "abort", "take_over", "attest"]


def approve(
    subject: str | None = None,
    /,
    *,
    reason: Reason,
    choice: Word | None = None,
    key: Path | None = None,
    plan_hash: str | None = None,
    as_: As = None,
    yes: Yes = False,
    common: Common = COMMON,
) -> int:
    """Answer an open question with yes, after showing what is asked, why, and the plan.

    Parameters
    ----------
    subject
        The question, or the job, CLUSTER/NODE or runbook that asks; the only open one by default.
    choice
        Another of the question's options.
    key
        Your SSH key to sign with (a private key, or a .pub that your agent holds); else $GPU_RUNBOOKS_KEY.
    plan_hash
        Answer only if the plan still has this hash.
    """
    return _answer(True, subject, reason, choice, key, plan_hash, as_, yes, common)


def deny(
    subject: str | None = None,
    /,
    *,
    reason: Reason,
    choice: Word | None = None,
    key: Path | None = None,
    plan_hash: str | None = None,
    as_: As = None,
    yes: Yes = False,
    common: Common = COMMON,
) -> int:
    """Answer an open question with no.

    Parameters
    ----------
    subject
        The question, or the job, CLUSTER/NODE or runbook that asks; the only open one by default.
    choice
        Another of the question's options.
    key
        Your SSH key to sign with (a private key, or a .pub that your agent holds); else $GPU_RUNBOOKS_KEY.
    plan_hash
        Answer only if the plan still has this hash.
    """
    return _answer(False, subject, reason, choice, key, plan_hash, as_, yes, common)


def _answer(
    yes_or_no: bool,
    subject: str | None,
    reason: str,
    choice: Word | None,
    key: Path | None,
    plan_hash: str | None,
    as_: str | None,
    yes: bool,
    common: Common,
) -> int:
    from clients import questions, subjects
    from clients.names import caller
    from fleet.people import Choice

    screen, by = common.screen, caller(as_)
    given = Choice(choice) if choice else None

    async def work(client: "Client") -> int:
        meant = await subjects.resolved(client, subject) if subject is not None else None
        found = await questions.open_questions(client, meant)
        if len(found) != 1:
            return _choose(found, subject, screen)
        question = found[0]
        if plan_hash is not None and plan_hash != question.plan.digest:
            raise CliError(
                f"the plan is {question.plan.digest} now, not {plan_hash}; read it again, nothing was answered"
            )
        wanted = questions.choice_for(question, yes_or_no, given)
        _confirm(question, wanted, by, yes, screen)
        answer = questions.make_answer(question, wanted, by, reason)
        outcome = await questions.give(client, question, answer, questions.configured_key(key))
        how = "signed" if outcome.signed else "unsigned, which only the embedded server takes"
        screen.answer(
            outcome, name=question.id, text=f"{question.id} answered {outcome.choice} by {outcome.by} ({how})"
        )
        return Exit.DONE

    return run(common, work)


def _choose(found: "list[Question]", subject: str | None, screen: Screen) -> int:
    """None is open, or several are: a person must say which."""
    from clients import render
    from clients.shapes import OpenQuestion

    if not found:
        where = f" of {subject}" if subject else ""
        raise CliError(f"no question{where} is open; `runbook list --needs-human` shows who waits")
    rows = [OpenQuestion.of(question) for question in found]
    screen.rows(rows, [row.id for row in rows], render.question_table(rows), empty="")
    screen.note(f"{len(rows)} questions are open; choose one and name it")
    return Exit.WAITING


def _confirm(question: "Question", wanted: "Choice", by: str, yes: bool, screen: Screen) -> None:
    """Shows what is answered, and asks. Raises CliError for a no, or where nobody can be asked."""
    from clients import render

    page = render.question_page(question)
    if screen.form == "table":
        screen.show(page)
    if not question.signers:
        screen.note("UNSIGNED: this fleet lists no approvers; only the embedded server takes such an answer")
    if yes:
        return
    if not sys.stdin.isatty():
        raise usage("nobody can be asked here: give --yes (and --plan-hash of the plan you have read)")
    screen.err.print(f"Answer '{wanted}' as {by}? [y/N] ", end="")
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise CliError("not answered")
