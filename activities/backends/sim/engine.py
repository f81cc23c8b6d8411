"""Time: brings a cluster to the present moment, one due event after the other. There is no daemon."""

from activities.backends.sim.attempts import refresh, sync
from activities.backends.sim.machines import node_due, reboot_when_idle
from activities.backends.sim.scheduler import finish_stop, schedule, training_ended
from activities.backends.sim.store import Tx

_DUE = """
select at, kind, a, b from (
  select * from (select next_at as at, 'node' as kind, name as a, 0 as b from nodes
    where cluster = :c and next_at <= :t order by next_at limit 1)
  union all select * from (select next_at, 'job', id, 0 from jobs
    where cluster = :c and next_at <= :t order by next_at limit 1)
  union all select * from (select next_at, 'attempt', job, restarts from attempts
    where cluster = :c and next_at <= :t order by next_at limit 1))
order by at limit 1
"""


def advance(tx: Tx) -> None:
    """Handles everything that is due until now, in its order and at its own time.

    While the controller is frozen or dead nothing is decided; what fell due meanwhile happens when it is back.
    """
    present = tx.now
    if tx.controller == "up":
        while True:
            due = tx.db.execute(_DUE, {"c": tx.cluster, "t": present}).fetchone()
            if due is None:
                break
            tx.now = max(due["at"], tx.awake_since)
            _handle(tx, due["kind"], due["a"], due["b"])
            settle(tx)
    tx.now = present


def _handle(tx: Tx, kind: str, a: str | int, b: int) -> None:
    if kind == "node":
        node_due(tx, str(a))
    elif kind == "job":
        job = tx.job(int(a))
        if job["phase"] == "stopping":
            finish_stop(tx, job["id"])
        else:  # a waiting time is over
            tx.set_job(job["id"], next_at=None)
            tx.dirty = True
    else:
        job = tx.job(int(a))
        _, ended = sync(tx, job, b)
        if ended is None:
            refresh(tx, job["id"], b)
        else:
            training_ended(tx, job["id"], b, ended)


def settle(tx: Tx) -> None:
    """Lets the scheduler look again after something became free."""
    if not tx.dirty or tx.controller != "up":
        return
    tx.dirty = False
    reboot_when_idle(tx)
    schedule(tx)
