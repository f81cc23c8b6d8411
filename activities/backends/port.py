"""The port: what a runbook may ask of a cluster, in one protocol. Three adapters, one contract suite.

Rules every adapter keeps (the contract suite holds them):

* Each write is read, decide, write, read back. What comes back is the state *seen* afterwards.
* Each write carries an operation: asking twice has the effect of asking once.
* Live reads raise `TemporaryError` when the cluster cannot be asked; "cannot read" is never "empty".
* `PermanentError` (not found, refused, invalid), `TemporaryError` with a delay, `AmbiguousError` for a write
  whose outcome is unknown *after* the adapter tried to read it back.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Protocol, runtime_checkable

from fleet.evacuation import EvacuationOrder, EvacuationState
from fleet.faults.sources.flight_recorder import Dump
from fleet.model import (
    Capacity,
    CheckResult,
    ClusterFacts,
    NativeJob,
    NodeFacts,
    NodeReceipt,
    OpId,
    Progress,
    Room,
    Value,
)
from fleet.orders import AdoptedJob, JobSpec, StartOrder, StopProof, StopQuery


class Change(Value):
    """Something the watch saw. A full picture comes first and after each loss (`resync` True)."""

    jobs: tuple[NativeJob, ...] = ()
    nodes: tuple[NodeFacts, ...] = ()
    resync: bool = False
    at: float = 0.0


class Isolations(Value):
    """What came of isolating many nodes."""

    marked: tuple[str, ...] = ()
    """They carry the mark that was asked for."""
    left: Mapping[str, str] = {}
    """node -> why it was left as it is: others drained it, another runbook's mark, not in the cluster."""


GoOn = Callable[[int], Awaitable[None]]
"""Asked before each write of a bulk call, with the number of nodes done: what it raises ends the call at once, and
what was done stays."""


@runtime_checkable
class ClusterBackend(Protocol):
    """One cluster. Every method may raise the errors of `fleet.errors`."""

    cluster: str
    kind: str

    # -- reads
    async def probe(self) -> ClusterFacts:
        """Refuses (PermanentError) a wrong cluster name or an unreadable configuration, at once."""

    async def jobs(self, max_age: float = 2.0) -> tuple[NativeJob, ...]:
        """All jobs in the controller, from the poll shared by all runbooks; at most `max_age` seconds old."""

    async def nodes(self, max_age: float = 2.0) -> tuple[NodeFacts, ...]:
        """All nodes, likewise."""

    async def job(self, native_id: str) -> NativeJob:
        """Live. Phase ABSENT when the controller does not know it: unknown, neither done nor failed."""

    async def node(self, node: str) -> NodeFacts:
        """Live. NotFoundError for a node that the cluster does not have."""

    async def capacity(self) -> Capacity:
        """Nodes that could take work now."""

    async def room(self) -> Room:
        """What a placement weighs, live: GPU models, topology domains, quotas, and who waits. What the cluster does
        not say is empty, never guessed."""

    async def progress(self, native_id: str, restarts: int) -> Progress:
        """Last step of that attempt from its own output; empty Progress when it has said nothing yet."""

    async def log_tail(self, native_id: str, lines: int = 100) -> tuple[str, ...]:
        """Last lines of the job's output; empty when there is none."""

    # -- a job
    async def submit(self, spec: JobSpec) -> NativeJob:
        """Idempotent by `spec.job`: look up, else create held, read back, drop late doubles, release."""

    async def try_submit(self, spec: JobSpec) -> tuple[str, ...]:
        """Asks whether the cluster would take the job, and creates nothing: one line for each thing that it refuses.
        Whether it has room is not asked."""

    async def adopt(self, native_id: str) -> AdoptedJob:
        """Holds a running job, so that only we start its next attempt, and marks it (`NativeJob.adopted`).
        Refuses what it cannot hold, with the fix in the text."""

    async def hold(self, native_id: str) -> NativeJob:
        """Holds it again after a new attempt started; no effect on running ranks."""

    async def give_back(self, native_id: str) -> NativeJob:
        """Releases our hold (a pending job may start; a running one is the scheduler's again)."""

    async def request_checkpoint(self, native_id: str, signal: str) -> None:
        """Sends the signal that the job declared for saving, to its ranks and its batch shell."""

    async def stop(self, native_id: str, restarts: int) -> NativeJob:
        """Ends the attempt with the scheduler's grace and leaves the job held in the queue, never ended.

        Returns at once when acknowledged; the caller waits until the phase is PENDING. Does nothing when the
        attempt already ended (restart count grew and held). A supervised job that failed by itself goes back into
        the queue, held. RefusedError when it ended in any other way: done, cancelled by a person, out of time.
        """

    async def prove_stopped(self, query: StopQuery) -> StopProof:
        """Live readings only. Never takes the scheduler's DOWN for a proof."""

    async def start_attempt(self, order: StartOrder) -> NativeJob:
        """Excludes, pins, releases, moves to the front and drops the scheduler's own requeue delay."""

    async def settle_attempt(self, native_id: str) -> NativeJob:
        """Once it runs: hold again and clear what pinned it to nodes."""

    async def cancel(self, native_id: str) -> NativeJob:
        """Ends the job for good (a duplicate of ours, or a person's order)."""

    # -- a node
    async def holders(self, node: str) -> tuple[NativeJob, ...]:
        """Jobs that hold the node or its GPUs, live."""

    async def evacuate(self, node: str, order: EvacuationOrder) -> EvacuationState:
        """One pass over what is on the node beside the supervised jobs, which their own runbooks move.

        Asked again and again until nobody is there. Nothing is written while the node's daemon does not answer,
        unless the order carries a receipt. Empty where all that holds a node is a job.
        """

    async def isolate(self, node: str, op: OpId, text: str) -> NodeFacts:
        """No new work; running work is untouched. A foreign drain stays as it is and is returned as such."""

    async def isolate_many(self, ops: Mapping[str, OpId], text: str, go_on: GoOn) -> Isolations:
        """`isolate` for many nodes, each with its own op; one that cannot be isolated holds up no other.

        Raises what `go_on` raises, and TemporaryError when the cluster cannot be asked; called again it goes on.
        """

    async def release(self, node: str, op: OpId) -> NodeFacts:
        """Takes back our isolation and reservation. RefusedError when the mark is not `op`'s."""

    async def reboot(self, node: str, op: OpId) -> NodeFacts:
        """Asks for a reboot into a state that takes no work. Asked is not done: wait for a newer boot.

        RefusedError when the node's daemon does not answer (`scontrol reboot` would say 0 and do nothing).
        """

    async def run_check(self, node: str, op: OpId, suite: str) -> CheckResult:
        """Runs a check suite on the isolated node where no other work can land; leaves it isolated."""

    # -- marks
    async def give_back_all(self) -> tuple[str, ...]:
        """Gives back every hold, mark and reservation of ours; returns one line for each thing given back."""

    def watch(self) -> AsyncIterator[Change]:
        """Changes as they are seen, the full picture first. Ends with an error when the cluster is lost."""

    async def close(self) -> None:
        """Ends child processes and connections."""


class Dumps(Value):
    """What the ranks of a job left in the folder that it names, as far as it can be read."""

    dumps: Mapping[int, Dump] = {}
    """By rank; without what no judgement needs."""
    left: Mapping[str, str] = {}
    """File -> why it was not read."""


@runtime_checkable
class DumpReader(Protocol):
    """Optional: files of a job can be read. Asked for by name."""

    async def dumps(self, native_id: str, since: float) -> Dumps:
        """Flight Recorder dumps that were written at `since` (epoch seconds) or later; empty when the job names no
        folder (`gpu-runbooks.io/dumps`)."""


@runtime_checkable
class PowerControl(Protocol):
    """Optional: the cluster's power hook. Asked for by name: `isinstance(backend, PowerControl)`."""

    has_power: bool

    async def power_off(self, node: str, op: OpId) -> NodeReceipt:
        """Off and read back as off; TemporaryError until it reads off."""

    async def power_on(self, node: str, op: OpId) -> None:
        """On, idempotent; the boot identity tells when it is done."""


class MissingRights(Value):
    """What an account lacks of the rights that runbooks need."""

    rights: Mapping[str, str] = {}
    """Right -> what does not work without it."""
    observes: bool = False
    """It may see everything and change nothing, so all that it lacks is meant to be lacking."""


@runtime_checkable
class RightsControl(Protocol):
    """Optional: the cluster can say which of the rights that runbooks need its account lacks."""

    async def missing_rights(self) -> MissingRights:
        """Asks the cluster itself. Raises TemporaryError when it cannot be asked."""


@runtime_checkable
class JobAdvice(Protocol):
    """Optional: the cluster can say what in a job's own description will trouble a later attempt of it."""

    async def advice(self, native_id: str) -> tuple[str, ...]:
        """One sentence for each thing that its owner should change; none of it keeps it from being supervised."""


@runtime_checkable
class NodeNotes(Protocol):
    """Optional: what a person reads on a node can be written apart from its isolation."""

    async def tell_isolated(self, ops: Mapping[str, OpId], text: str) -> None:
        """Says on each node why it was isolated. For people: one that cannot be written stops nothing."""
