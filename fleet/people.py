"""Questions to people and their answers. What is asked, what was answered, by whom, and whether it counts."""

import hashlib
import json
from enum import StrEnum
from typing import NamedTuple

from pydantic import Field

from fleet.model import Value


class Choice(StrEnum):
    """What a person may answer."""

    APPROVE = "approve"
    DENY = "deny"
    RETRY = "retry"
    SKIP = "skip"
    ABORT = "abort"
    TAKE_OVER = "take_over"
    ATTEST = "attest"  # "I have seen that the ranks are gone"


class Plan(Value):
    """What would be done, in order; its hash is what is approved."""

    title: str
    steps: tuple[str, ...]
    subject: str
    """Workflow id of the runbook."""
    op: str = ""

    @property
    def digest(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of its canonical JSON."""
        return hashlib.sha256(
            json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":")).encode()
        ).hexdigest()[:16]


class Signer(Value):
    """Someone whose answers count. `key` is an OpenSSH public key line."""

    name: str
    key: str | None = None


class Question(Value):
    """A question with everything a person needs at night."""

    id: str
    """Workflow id of the question, `<parent>/ask/<n>`."""
    plan: Plan
    why: str
    """What happened and why a person is needed, in one or two sentences."""
    evidence: tuple[str, ...] = ()
    options: tuple[Choice, ...]
    default: Choice
    """What happens when nobody answers in time: the safe one."""
    asked_at: float
    expires_at: float
    signers: tuple[Signer, ...] = ()
    """Empty: no signature can be checked; only the embedded server takes such an answer, and says so."""
    requester: str = ""
    wide: bool = False
    """A wide step: the approver must differ from the requester."""
    escalation: tuple[str, ...] = ()


class Answer(Value):
    """A signed statement. `signature` is an SSH signature (armored) over `statement`."""

    question: str
    plan_hash: str
    op: str
    choice: Choice
    approver: str
    expires_at: float
    nonce: str = Field(min_length=8, max_length=64)
    reason: str = Field(default="", max_length=1000)
    signature: str | None = None

    @property
    def statement(self) -> str:
        """The text that is signed: every field but the signature, canonical."""
        return json.dumps(self.model_dump(exclude={"signature"}), sort_keys=True, separators=(",", ":"))


class Outcome(Value):
    """How a question ended."""

    question: str
    choice: Choice
    by: str
    """Approver, or `nobody (expired)`."""
    signed: bool
    at: float
    reason: str = ""


class Refusal(NamedTuple):
    """Why an answer does not count."""

    text: str
    not_allowed: bool = False
    """It concerns the person or the signature, not the question."""


def refusal(question: Question, answer: Answer, *, now: float, answered: Outcome | None) -> Refusal | None:
    """Why the answer does not count, in words that say what to do next; None when it may be verified.

    This is the pure part of the check (update validator); the signature is verified in an activity afterwards.
    """
    if answered is not None:
        return Refusal(f"already answered by {answered.by}: {answered.choice}; nothing was changed by this answer")
    if now >= question.expires_at:
        return Refusal(f"the question expired and its safe default ({question.default}) was taken")
    if now >= answer.expires_at:
        return Refusal("the signed statement has expired; answer again")
    if answer.question != question.id:
        return Refusal(f"the answer is for {answer.question}, this question is {question.id}")
    if answer.plan_hash != question.plan.digest or answer.op != question.plan.op:
        return Refusal(f"the plan changed: it is {question.plan.digest} now; read it again before you answer")
    if answer.choice not in question.options:
        return Refusal(f"{answer.choice} is no option here; choose one of {', '.join(question.options)}")
    names = {s.name for s in question.signers}
    if names and answer.approver not in names:
        return Refusal(
            f"{answer.approver} is no approver here; approvers are {', '.join(sorted(names))}", not_allowed=True
        )
    if names and answer.signature is None:
        return Refusal("this fleet lists signers, so an answer must be signed: give --key", not_allowed=True)
    if question.wide and answer.choice is Choice.APPROVE and answer.approver == question.requester:
        return Refusal(f"{answer.approver} asked for this step; somebody else must approve it", not_allowed=True)
    return None
