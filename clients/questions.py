"""Questions and answers: finding the one that is open, and answering it as oneself."""

import os
import secrets
import time
from pathlib import Path

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from clients import runs, talk
from clients.errors import CliError, Exit, usage
from clients.names import is_workflow_id, workflow_id
from fleet.people import Answer, Choice, Outcome, Question, Refusal, refusal
from fleet.runbooks import Runbook, Update

KEY_VARIABLE = "GPU_RUNBOOKS_KEY"
ANSWER_LIFE = 600.0
"""Seconds that a signed statement counts: long enough for a passphrase, too short to be of use when it is found."""


async def open_questions(client: Client, subject: str | None = None) -> list[Question]:
    """Those that wait for an answer, oldest first: all, those of a job, node or runbook, or the one named."""
    if subject is not None and is_question(subject):
        return [await _named(client, subject)]
    under = None if subject is None else workflow_id(subject)
    found: list[Question] = []
    for row in await runs.list_runs(client, runs.query_text(kinds=[Runbook.ASK], under=under)):
        view, note = await talk.view_of(client.get_workflow_handle(row.id))
        if view is None:
            raise CliError(f"{row.id} is open and cannot be read: {note}")
        if view.question is not None and view.outcome is None:
            found.append(view.question)
    return sorted(found, key=lambda question: question.asked_at)


def is_question(text: str) -> bool:
    """A question's own id, `…/ask/<n>`."""
    return is_workflow_id(text) and text.split("/")[-2] == "ask"


async def _named(client: Client, identity: str) -> Question:
    """The question of this id. Raises CliError with its outcome when it has ended."""
    found = await runs.find(client, identity)
    if found is None:
        raise usage(f"no question {identity}; `runbook list --kind ask` shows the open ones")
    view, note = await talk.view_of(found.handle)
    if found.row.status != "running":
        outcome = view.outcome if view is not None else None
        raise CliError(over(identity, outcome))
    if view is None or view.question is None:
        raise CliError(f"{identity} is open and cannot be read: {note}")
    return view.question


def over(identity: str, outcome: Outcome | None) -> str:
    """What to tell somebody who comes late."""
    if outcome is None:
        return f"{identity} is closed; nothing was changed by this answer"
    return f"{identity} was answered already by {outcome.by}: {outcome.choice}; nothing was changed by this answer"


def choice_for(question: Question, approve: bool, given: Choice | None) -> Choice:
    """What `approve` or `deny` means here. Raises CliError (usage) where the question needs a `--choice`."""
    if given is not None:
        if given not in question.options:
            raise usage(f"{given} is no option here; choose one of {', '.join(question.options)}")
        return given
    wanted = Choice.APPROVE if approve else Choice.DENY
    if wanted in question.options:
        return wanted
    if not approve and question.default in {Choice.ABORT, Choice.TAKE_OVER}:
        return question.default  # the safe one: what an expiry would do
    raise usage(f"this question is no yes or no: give --choice {'|'.join(question.options)}")


def configured_key(given: Path | None) -> Path | None:
    """`--key`, else $GPU_RUNBOOKS_KEY."""
    if given is not None:
        return given
    return Path(configured) if (configured := os.environ.get(KEY_VARIABLE)) else None


def make_answer(question: Question, choice: Choice, by: str, reason: str) -> Answer:
    """The statement, unsigned: bound to the plan as it was read, good for ten minutes, usable once."""
    return Answer(
        question=question.id,
        plan_hash=question.plan.digest,
        op=question.plan.op,
        choice=choice,
        approver=by,
        expires_at=time.time() + ANSWER_LIFE,
        nonce=secrets.token_hex(16),
        reason=reason,
    )


async def give(client: Client, question: Question, answer: Answer, key: Path | None) -> Outcome:
    """Signs the answer where the fleet lists signers, and gives it. Raises CliError with the whole refusal."""
    signed = _signed(question, answer, key)
    handle: runs.Handle = client.get_workflow_handle(question.id)
    try:
        return await talk.update(handle, Update.ANSWER, signed, Outcome, identity=f"answer-{signed.nonce}")
    except talk.Refused as refused:
        raise _refused(Refusal(str(refused), refused.not_allowed)) from refused
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        view, _ = await talk.view_of(handle)
        raise CliError(over(question.id, view.outcome if view is not None else None)) from error


def _signed(question: Question, answer: Answer, key: Path | None) -> Answer:
    if not question.signers or key is None:
        why = refusal(question, answer, now=time.time(), answered=None)
        if why is not None:
            raise _refused(why)
        return answer
    stand_in = answer.model_copy(update={"signature": "to be made"})
    why = refusal(question, stand_in, now=time.time(), answered=None)
    if why is not None:  # before a passphrase is asked for
        raise _refused(why)
    from clients.signing import sign

    return sign(answer, key)


def _refused(why: Refusal) -> CliError:
    return CliError(why.text, Exit.NOT_ALLOWED if why.not_allowed else Exit.FAILED)
