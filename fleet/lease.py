"""The launcher's lease: how long the ranks of an attempt may run after our server's last word to their launcher.

`runbook-launch` starts ranks under a lease and renews it. Each renewal that the server acknowledged lets them run for
`term` seconds from the moment it was *sent*; then they get TERM, and KILL after `grace` seconds. Our side first takes
the lease back (no later renewal succeeds) and then waits `lapse_after` seconds by a clock that nobody sets. What that
is worth, and when it is worth nothing, is judged here (docs/launcher.md).
"""

from collections.abc import Iterator
from enum import StrEnum

from pydantic import Field

from fleet.ledger import Attempt
from fleet.model import FenceReceipt, Name, NodeReceipt, Progress, ReceiptGrade, Value

MARGIN = 30.0
"""Seconds from the KILL until a rank is gone: the kernel gives back its memory and GPU contexts first."""
CLOCK_RATE = 0.01
"""Part by which two clocks may differ over one interval: ten times what NTP may slew (0.05 % each)."""
RENEWALS = 6
"""Renewals in one term: so many in a row must fail before the ranks are stopped."""
LONGEST_PAUSE = 30.0
"""Seconds between two renewals at most."""
NOTICED_LATE = 130.0
"""Seconds after which a lost cluster is noticed at the latest: a look a minute, a minute for its answer, and a call
to a busy server. A launcher that was cut off together with it may seem silent for so long before."""
STEPS_MISSED = 3
"""Steps that an attempt may be late with, by its own pace, before its nodes count as hung."""
SHORT_TERM = 120.0
"""Seconds; a restart of a Temporal server takes longer than a shorter term, and would stop the training."""
LEASE_LOST = 75
"""Exit code of a launcher that stopped its ranks, or never started them, for want of a lease (EX_TEMPFAIL)."""


class LeaseTerms(Value):
    """How long ranks may run without a word of the server; told by the launcher when it takes a seat."""

    term: float = Field(default=900.0, ge=1, le=86400)
    """Seconds from the sending of a renewal that was acknowledged to the TERM of the ranks."""
    grace: float = Field(default=30.0, ge=0, le=3600)
    """Seconds from the TERM to the KILL."""

    @property
    def every(self) -> float:
        """Seconds between two renewals."""
        return min(self.term / RENEWALS, LONGEST_PAUSE)

    @property
    def lapse_after(self) -> float:
        """Seconds from the taking back of the lease until no rank of it can run, by another clock."""
        return (self.term + self.grace) * (1 + CLOCK_RATE) + MARGIN


class LeaseKey(Value):
    """The attempt that a lease is for, in words that its ranks know too."""

    cluster: Name
    native_id: str
    restarts: int = Field(ge=0)


class Seat(Value):
    """One launcher's place in a lease."""

    node: Name
    who: str = Field(pattern=r"^[0-9a-f]{12}$")
    """Tells the launchers of one node apart: one a rank, or one after the other."""
    terms: LeaseTerms = LeaseTerms()

    @property
    def id(self) -> str:
        """Unique within a lease."""
        return f"{self.node}#{self.who}"


class SeatState(StrEnum):
    """What is known of a launcher."""

    HELD = "held"  # its ranks may run
    LEFT = "left"  # it said that nothing of it runs any more
    SILENT = "silent"  # no renewal for `lapse_after` seconds by the server's clock


class SeatSeen(Value):
    """A seat at one reading."""

    seat: Seat
    state: SeatState
    since: float
    """When it got into this state, by the server's clock (epoch seconds)."""
    renewed_at: float | None = None
    """Its last renewal, by the server's clock; None when it never renewed, so its ranks were never started."""
    text: str = ""
    """How it left, in the launcher's words."""


class LeaseState(Value):
    """A lease at one reading."""

    seats: tuple[SeatSeen, ...] = ()
    revoked_at: float | None = None
    """When it was taken back: no renewal succeeds after that."""
    revoked_for: str = ""


class LeaseLapse(Value):
    """What became of a lease after it was taken back."""

    key: LeaseKey
    found: bool = True
    """False: no launcher ever asked for a lease of this attempt."""
    refused: tuple[str, ...] = ()
    """Why it was not taken back: the lease could prove nothing. Nothing was stopped then."""
    seats: tuple[SeatSeen, ...] = ()
    revoked_at: float | None = None
    waited: float = 0.0
    """Seconds since it was taken back, by a clock that counts a suspended machine's time and that nobody sets."""
    seen_at: float = 0.0


class ClusterLoss(Value):
    """What is known of the old cluster when its job is to go elsewhere."""

    reachable: bool
    """Something there still answers for its nodes: controller, apiserver, a node's daemon, a power hook."""
    answered_at: float
    """When it was seen to answer last, or not to answer first (epoch seconds)."""
    hung: tuple[str, ...] = ()
    """Nodes that were silent, frozen or had a hung driver before the cluster was lost."""


def hung_before(attempt: Attempt, lost_at: float) -> tuple[str, ...]:
    """Nodes of an attempt that may have hung before its cluster was lost at `lost_at` (epoch seconds).

    Those that a verdict on the attempt blames; all of them where it blames none, or where the attempt's steps had
    stopped for longer than a lost cluster is noticed late and `STEPS_MISSED` of its own steps last.
    """
    if attempt.verdict is not None:
        blamed = attempt.verdict.culprit.node
        return (blamed,) if blamed in attempt.nodes else attempt.nodes
    quiet = lost_at - max(attempt.progress.seen_at or 0.0, attempt.running_at or attempt.ordered_at)
    return attempt.nodes if quiet > NOTICED_LATE + STEPS_MISSED * _pace(attempt.progress) else ()


def _pace(seen: Progress) -> float:
    """Seconds that one of its steps takes; 0 where fewer than two were seen."""
    if seen.step is None or seen.first_step is None or seen.seen_at is None or seen.first_step_at is None:
        return 0.0
    steps = seen.step - seen.first_step
    return (seen.seen_at - seen.first_step_at) / steps if steps > 0 else 0.0


class LeaseVerdict(Value):
    """Whether a lapse proves that an attempt runs nowhere any more."""

    receipt: FenceReceipt | None = None
    why_not: tuple[str, ...] = ()
    """Empty with a receipt; else each reason, with what would prove it."""


def objections(
    attempt: Attempt, lease: LeaseState | None, *, checks_generation: bool, loss: ClusterLoss
) -> tuple[str, ...]:
    """Why a lease of this attempt can prove nothing, whatever becomes of it. Empty: taking it back is worth while."""
    return tuple(_objections(attempt, lease, checks_generation=checks_generation, loss=loss))


def lease_receipt(attempt: Attempt, lapse: LeaseLapse, *, checks_generation: bool, loss: ClusterLoss) -> LeaseVerdict:
    """The weakest receipt there is, or why there is none. `lapse` must be of this very attempt."""
    key = LeaseKey(cluster=attempt.cluster, native_id=attempt.native_id, restarts=attempt.restarts)
    if lapse.key != key:
        return LeaseVerdict(why_not=(f"the lapse is of {_words(lapse.key)}, the attempt is {_words(key)}",))
    state = LeaseState(seats=lapse.seats, revoked_at=lapse.revoked_at) if lapse.found else None
    why = [*lapse.refused, *_objections(attempt, state, checks_generation=checks_generation, loss=loss)]
    if lapse.found and not lapse.refused:
        why += _still_open(lapse)
    if why:
        return LeaseVerdict(why_not=tuple(dict.fromkeys(why)))
    return LeaseVerdict(
        receipt=FenceReceipt(
            cluster=attempt.cluster,
            native_id=attempt.native_id,
            generation=attempt.generation,
            nodes=tuple(_node_receipt(node, lapse) for node in attempt.nodes),
        )
    )


def open_for(seats: tuple[SeatSeen, ...], waited: float) -> float:
    """Seconds that must still pass until every seat has left or lapsed."""
    return max((s.seat.terms.lapse_after - waited for s in seats if s.state is not SeatState.LEFT), default=0.0)


def _objections(
    attempt: Attempt, lease: LeaseState | None, *, checks_generation: bool, loss: ClusterLoss
) -> Iterator[str]:
    if loss.reachable:
        yield f"{attempt.cluster} can be reached: its own word on the ranks is asked for, not a lease"
    if not checks_generation:
        yield (
            "the job's writer does not say that it checks its generation (`gpu-runbooks.io/generation-check=yes`): "
            "a rank that outlives its lease could spoil the checkpoints; needed: a power-off or a person's word"
        )
    if lease is None:
        yield "no launcher holds a lease of this attempt: it was not started by `runbook-launch`"
        return
    if not attempt.nodes:
        yield "the nodes of the attempt are not known, so nobody can say that every one has a launcher"
    for node in attempt.nodes:
        yield from _of_node(node, [s for s in lease.seats if s.seat.node == node], loss)


def _of_node(node: str, seats: list[SeatSeen], loss: ClusterLoss) -> Iterator[str]:
    if node in loss.hung:
        yield (
            f"{node} was hung before the cluster was lost: a frozen machine stops nothing and may thaw; it needs a "
            "power-off, a new boot or a person's word"
        )
    if not seats:
        yield f"{node} has no launcher: its ranks hold no lease"
    for seen in seats:
        if seen.state is SeatState.LEFT or seen.renewed_at is None:
            continue
        silent_for = loss.answered_at - seen.renewed_at
        if silent_for > 2 * seen.seat.terms.every + NOTICED_LATE:
            yield (
                f"the launcher of {node} was silent for {silent_for:.0f} s while the cluster still answered: a hung "
                "node, not a lost cluster; it needs a power-off, a new boot or a person's word"
            )


def _still_open(lapse: LeaseLapse) -> Iterator[str]:
    if lapse.revoked_at is None:
        yield "the lease was not taken back, so its launchers may renew it"
    elif (left := open_for(lapse.seats, lapse.waited)) > 0:
        yield f"the lease may hold for another {left:.0f} s"


def _node_receipt(node: str, lapse: LeaseLapse) -> NodeReceipt:
    own = [s for s in lapse.seats if s.seat.node == node]
    left = sum(s.state is SeatState.LEFT for s in own)
    rest = len(own) - left
    said = [f"{left} of {len(own)} launchers said that nothing of them runs"] if left else []
    if rest:
        said.append(f"{rest} were silent for {lapse.waited:.0f} s after the lease was taken back")
    return NodeReceipt(node=node, grade=ReceiptGrade.LEASE_EXPIRED, detail=" and ".join(said), at=lapse.seen_at)


def _words(key: LeaseKey) -> str:
    return f"{key.cluster}/{key.native_id} with {key.restarts} restarts"
