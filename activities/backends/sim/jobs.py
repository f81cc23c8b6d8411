"""Orders about jobs, each read, decide, write, read back inside one transaction."""

import json
import sqlite3

from activities.backends.sim.attempts import ask_save, plan_of
from activities.backends.sim.engine import settle
from activities.backends.sim.scheduler import begin_stop, exit_with
from activities.backends.sim.store import Tx
from activities.backends.sim.training import TrainingPlan, parse_script
from fleet.errors import InvalidInputError, NotFoundError, RefusedError, TemporaryError
from fleet.identity import parse_tokens, with_epoch
from fleet.model import NativeJob, Phase
from fleet.orders import CHECKPOINT_ENV, AdoptedJob, JobSpec, StartOrder, check_env

OURS = "gpu-runbooks"
OWNER = "owner"
"""Who holds a job (`held_by`)."""
_REVIVABLE = {Phase.FAILED, Phase.NODE_LOST}
"""Ends that no person chose."""


def view(tx: Tx, row: sqlite3.Row) -> NativeJob:
    """A row as the port's value."""
    plan, phase = plan_of(row), Phase(row["phase"])
    placed = phase in {Phase.RUNNING, Phase.STOPPING}
    nodes = tx.value("select nodes from attempts where job = ? and restarts = ?", row["id"], row["attempt"])
    return NativeJob(
        cluster=tx.cluster,
        native_id=str(row["id"]),
        name=row["name"],
        key=row["key"],
        user=row["user"],
        phase=phase,
        held=bool(row["held"]) and not phase.ended,
        reason=_reason(tx, row, phase),
        restarts=row["restarts"],
        nodes=tuple(json.loads(nodes)) if nodes and (placed or phase.ended) else (),
        nodes_wanted=plan.nodes,
        gpus_per_node=plan.gpus,
        excluded=tuple(json.loads(row["excluded"])),
        own_excluded=tuple(json.loads(row["own_excluded"])),
        required=tuple(json.loads(row["required"])),
        exit_code=row["exit_code"],
        exit_signal=row["exit_signal"],
        priority=row["priority"],
        submitted_at=row["submitted_at"],
        started_at=row["started_at"],
        eligible_at=row["eligible_at"],
        tokens=parse_tokens(row["comment"]),
        adopted=bool(row["held"]) and row["held_by"] == OURS,
        requeueable=plan.requeue,
    )


def _reason(tx: Tx, row: sqlite3.Row, phase: Phase) -> str:
    if phase is not Phase.PENDING:
        return str(row["reason"])
    if row["held"]:
        return "JobHeldUser" if row["held_by"] == OWNER else "JobHeldAdmin"
    return "BeginTime" if row["eligible_at"] > tx.now else "Resources"


def read(tx: Tx, job_id: int) -> NativeJob:
    """Reads back after a write."""
    settle(tx)
    return view(tx, tx.job(job_id))


def find(tx: Tx, native_id: str) -> sqlite3.Row:
    """Raises NotFoundError for an id that the cluster never gave."""
    if not native_id.isdecimal():
        raise NotFoundError(f"cluster {tx.cluster} knows no job {native_id!r}; nothing was changed")
    return tx.job(int(native_id))


def _alive(row: sqlite3.Row, order: str) -> Phase:
    """The job's phase; raises RefusedError when it has ended."""
    phase = Phase(row["phase"])
    if phase.ended:
        raise RefusedError(f"job {row['id']} has ended ({phase}); {order} would revive it, so nothing was done")
    return phase


def submit(tx: Tx, spec: JobSpec) -> NativeJob:
    """One job per `spec.job` and epoch, whatever became of it."""
    for known in tx.all(
        "select id, comment from jobs where cluster = ? and key = ? order by id", tx.cluster, spec.job
    ):
        if parse_tokens(known["comment"]).epoch == spec.epoch:
            return read(tx, known["id"])
    job_id = insert(tx, spec, key=spec.job)
    tx.effect("submit", job_id, spec.job)
    return read(tx, job_id)


def plan_for(tx: Tx, spec: JobSpec) -> TrainingPlan:
    """What the script asks for, its epoch counted on. Raises InvalidInputError for one that cannot be read or that
    fits no node, and as `check_env`."""
    check_env(spec)
    plan = parse_script(spec.script, spec.options)
    if plan.gpus > tx.shape.gpus:
        raise InvalidInputError(
            f"{plan.gpus} GPUs a node were asked for and the nodes have {tx.shape.gpus}; nothing was submitted"
        )
    return plan.model_copy(update={"epoch": plan.epoch + spec.epoch})


def insert(tx: Tx, spec: JobSpec, key: str | None) -> int:
    """Puts a job into the queue; returns its id. Raises InvalidInputError as `plan_for`."""
    plan, comment = plan_for(tx, spec), with_epoch(spec.comment, spec.epoch)
    excluded = json.dumps(sorted(plan.exclude))
    job_id: int = tx.value(
        "insert into jobs (cluster, name, key, user, comment, script, plan, storage, phase, held, held_by,"
        " own_excluded, excluded, submitted_at, eligible_at)"
        " values (?,?,?,?,?,?,?,?,'pending',?,?,?,?,?,?) returning id",
        tx.cluster,
        f"{spec.name}.{key}" if key else spec.name,
        key,
        spec.user or "user",
        comment,
        spec.script,
        plan.model_dump_json(),
        "",
        int(plan.hold),
        OWNER if plan.hold else "",
        excluded,
        excluded,
        tx.now,
        tx.now,
    )
    named = spec.env.get(CHECKPOINT_ENV) or parse_tokens(comment).checkpoint
    storage = named or f"{tx.cluster}/{job_id}"
    tx.set_job(job_id, storage=storage)
    tx.dirty = True
    return job_id


def adopt(tx: Tx, native_id: str) -> AdoptedJob:
    """Holds it, running or pending; an owner's own hold stays the owner's."""
    row = find(tx, native_id)
    phase = _alive(row, "adoption")
    if phase is Phase.STOPPING and not row["held"]:
        raise TemporaryError(f"job {native_id} is just stopping; adoption waits for the outcome")
    if not plan_of(row).requeue:
        raise RefusedError(
            f"job {native_id} was submitted with --no-requeue, so no new attempt can follow; it stays its owner's"
        )
    _hold(tx, row, "adopt")
    job = read(tx, row["id"])
    return AdoptedJob(job=job, script=row["script"], spec_text=job.model_dump_json(indent=1))


def _hold(tx: Tx, row: sqlite3.Row, op: str) -> None:
    if not row["held"]:
        tx.set_job(row["id"], held=1, held_by=OURS, next_at=row["next_at"] if row["phase"] != "pending" else None)
        tx.effect(op, row["id"])


def hold(tx: Tx, native_id: str) -> NativeJob:
    row = find(tx, native_id)
    _alive(row, "a hold")
    _hold(tx, row, "hold")
    return read(tx, row["id"])


def give_back(tx: Tx, native_id: str) -> NativeJob:
    """Takes back our hold and our pins; an owner's hold stays. An ended job is returned as it is."""
    row = find(tx, native_id)
    if row["held_by"] == OURS and not Phase(row["phase"]).ended:
        unhold(tx, row)
        tx.set_job(row["id"], required="[]")
        tx.effect("give_back", row["id"])
    return read(tx, row["id"])


def unhold(tx: Tx, row: sqlite3.Row) -> None:
    """A pending job may start as soon as its waiting time is over."""
    tx.set_job(row["id"], held=0, held_by="")
    if row["phase"] == "pending":
        tx.set_job(row["id"], next_at=row["eligible_at"] if row["eligible_at"] > tx.now else None)
        tx.dirty = True


def request_checkpoint(tx: Tx, native_id: str, signal: str) -> None:
    """Delivers the signal; any but the one that the program handles kills it, as on a real system."""
    row = find(tx, native_id)
    phase = _alive(row, "a signal")
    if phase is not Phase.RUNNING:
        raise RefusedError(f"job {native_id} is {phase} and has no ranks to save; go on without a newer checkpoint")
    tx.effect("signal", native_id, signal)
    if signal == plan_of(row).signal:
        ask_save(tx, row)
    else:
        exit_with(tx, row, row["attempt"], 138, (f"killed by SIG{signal}",))


def stop(tx: Tx, native_id: str, restarts: int) -> NativeJob:
    """Ends attempt `restarts` and leaves the job held; an older attempt than the present one ended already.

    A supervised job that failed goes back into the queue, held, as `scontrol requeuehold` does it on Slurm.
    """
    row = find(tx, native_id)
    if Phase(row["phase"]) in _REVIVABLE and restarts == row["restarts"] and parse_tokens(row["comment"]).supervise:
        return _revive(tx, row)
    phase = _alive(row, "a stop with requeue")
    if row["after_stop"] == "cancelled":
        raise RefusedError(f"job {native_id} is being cancelled; it stays ended")
    if restarts > row["restarts"]:
        raise RefusedError(f"job {native_id} has restart count {row['restarts']}, not {restarts}; read it again")
    if phase is Phase.RUNNING and restarts == row["restarts"]:
        if not plan_of(row).requeue:
            raise RefusedError(f"job {native_id} was submitted with --no-requeue; it runs on")
        tx.set_job(row["id"], held=1, held_by=row["held_by"] if row["held"] else OURS)
        begin_stop(tx, row["id"], "hold")
        tx.effect("stop", native_id, f"restarts={restarts}")
    elif phase is not Phase.RUNNING:
        _hold(tx, row, "hold")
    return read(tx, row["id"])


def _revive(tx: Tx, row: sqlite3.Row) -> NativeJob:
    if not plan_of(row).requeue:
        raise RefusedError(f"job {row['id']} was submitted with --no-requeue; it stays {row['phase']}")
    tx.set_job(
        row["id"],
        phase="pending",
        held=1,
        held_by=OURS,
        restarts=row["restarts"] + 1,
        eligible_at=tx.now + tx.shape.requeue_delay,
        started_at=None,
        exit_code=None,
        exit_signal=None,
        next_at=None,
    )
    tx.effect("stop", row["id"], f"restarts={row['restarts']}")
    return read(tx, row["id"])


def start_attempt(tx: Tx, order: StartOrder) -> NativeJob:
    """Releases the held job to the front of the queue, away from `exclude` or onto `require`, without a delay."""
    row = find(tx, order.native_id)
    phase = _alive(row, "a new attempt")
    if row["restarts"] != order.restarts:
        raise RefusedError(
            f"job {order.native_id} has restart count {row['restarts']} and the order was made at {order.restarts};"
            " somebody else moved it, so nothing was started; read it again"
        )
    if phase is Phase.STOPPING:
        raise TemporaryError(f"job {order.native_id} is still stopping; the start waits until it is pending")
    if phase is Phase.RUNNING or not row["held"]:
        return read(tx, row["id"])  # the same order was carried out before
    if row["held_by"] == OWNER:
        raise RefusedError(f"job {order.native_id} is held by its owner, who alone releases it; nothing was started")
    _check_nodes(tx, order)
    excluded = sorted({*json.loads(row["own_excluded"]), *order.exclude})
    front = tx.value("select max(priority) from jobs where cluster = ? and phase = 'pending'", tx.cluster) + 1
    tx.set_job(
        row["id"],
        excluded=json.dumps(excluded),
        required=json.dumps(sorted(order.require)),
        priority=front if order.front else row["priority"],
        eligible_at=tx.now,
        held=0,
        held_by="",
        next_at=None,
    )
    tx.dirty = True
    tx.effect("start_attempt", row["id"], f"restarts={order.restarts} exclude={','.join(order.exclude)}")
    return read(tx, row["id"])


def _check_nodes(tx: Tx, order: StartOrder) -> None:
    for node in (*order.exclude, *order.require):
        tx.node(node)
    both = sorted(set(order.exclude) & set(order.require))
    if both:
        raise InvalidInputError(f"{both[0]} is excluded and required; nothing was started")


def settle_attempt(tx: Tx, native_id: str) -> NativeJob:
    row = find(tx, native_id)
    phase = _alive(row, "settling")
    if phase is not Phase.RUNNING:
        raise RefusedError(f"job {native_id} is {phase}, not running; wait until it runs before it is settled")
    if json.loads(row["required"]):
        tx.set_job(row["id"], required="[]")
        tx.effect("unpin", native_id)
    _hold(tx, row, "hold")
    return read(tx, row["id"])


def cancel(tx: Tx, native_id: str) -> NativeJob:
    row = find(tx, native_id)
    phase = Phase(row["phase"])
    if not phase.ended and row["after_stop"] != "cancelled":
        tx.effect("cancel", native_id)
        if phase is Phase.PENDING:
            tx.set_job(row["id"], phase="cancelled", next_at=None)
        elif phase is Phase.RUNNING:
            begin_stop(tx, row["id"], "cancelled")
        else:
            tx.set_job(row["id"], after_stop="cancelled")
    return read(tx, row["id"])


def requeue(tx: Tx, native_id: str) -> None:
    """The scheduler's plain requeue, ordered by a person or a preemption: a hold survives it."""
    row = find(tx, native_id)
    if row["phase"] != "running":
        raise RefusedError(f"job {native_id} is {row['phase']}; only a running one can be requeued")
    begin_stop(tx, row["id"], "requeue")
