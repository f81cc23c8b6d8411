"""Small makers of ledgers, verdicts and policies; every time is in seconds after `T0`."""

from base64 import b64encode
from typing import Any

from fleet.decision import Action, DecisionInput
from fleet.faults.evidence import Culprit, FaultClass, Verdict
from fleet.ledger import Attempt, Ledger, Rung
from fleet.model import Progress
from fleet.policy import Policy
from fleet.policy_file import parse_policy

T0 = 1_800_000_000.0
"""2027-01-15 08:00 UTC."""

POLICY_HEAD = "version: 1\nclusters: {alpha: {kind: sim, path: fleet.sqlite}}\n"


def policy(more: str = "") -> Policy:
    return parse_policy(POLICY_HEAD + more, "fleet.yaml")


def public_key(letter: str = "k") -> str:
    blob = b"\0\0\0\x0bssh-ed25519\0\0\0 " + letter.encode() * 32
    return f"ssh-ed25519 {b64encode(blob).decode()}"


def verdict(fault: FaultClass, rule: str = "r1", node: str | None = None, title: str = "") -> Verdict:
    return Verdict(fault=fault, rule=rule, culprit=Culprit(node=node), title=title)


def attempt(
    generation: int, rung: Rung = Rung.FIRST, *, start: float, end: float | None = None, **more: Any
) -> Attempt:
    """Runs `start` to `end` on alpha1 and alpha2; keyword arguments are fields of Attempt."""
    fields: dict[str, Any] = {"ordered_at": T0 + start, "running_at": T0 + start, "nodes": ("alpha1", "alpha2")}
    fields |= {"ended_at": None if end is None else T0 + end, **more}
    return Attempt(
        generation=generation, cluster="alpha", native_id="7", restarts=generation - 1, rung=rung, **fields
    )


def ledger(*attempts: Attempt, **more: Any) -> Ledger:
    return Ledger(job="train", submitted_at=T0, attempts=attempts, **more)


def steps(first: int, last: int, start: float, end: float, resumed: int | None = None) -> Progress:
    """Steps `first` to `last` finished between `start` and `end`."""
    return Progress(
        first_step=first, step=last, first_step_at=T0 + start, seen_at=T0 + end, resumed_from=resumed, total=10_000
    )


def decision_input(
    what: Verdict, book: Ledger, *, at: float, want: Action | None = None, **more: Any
) -> DecisionInput:
    return DecisionInput(
        cluster="alpha", verdict=what, ledger=book, at=T0 + at, want=want, **{"nodes_wanted": 2, **more}
    )
