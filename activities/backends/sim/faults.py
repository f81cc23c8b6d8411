"""What goes wrong in a simulated world, what people do there, and the truth that no scheduler tells.

For tests, drills and the demo: plain blocking calls of a few milliseconds on the same file.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from activities.backends.sim import jobs, machines, nodes
from activities.backends.sim.attempts import refresh, sync
from activities.backends.sim.engine import advance, settle
from activities.backends.sim.scheduler import begin_stop, exit_with
from activities.backends.sim.store import Store, Tx, clock
from fleet.model import Value
from fleet.orders import JobSpec

T = TypeVar("T")


class Effect(Value):
    """One mutation that really happened. `attempt` is the scheduler's own: a start of a job's attempt."""

    at: float
    op: str
    target: str
    detail: str = ""


class LateWrite(Value):
    """A checkpoint write by an attempt while a newer one had started; `refused` by the writer's own check."""

    job: str
    restarts: int
    step: int
    at: float
    refused: bool


class Faults:
    """Faults and people of one cluster. Unknown nodes and jobs raise NotFoundError, as in the port."""

    def __init__(self, path: Path, cluster: str) -> None:
        self.cluster = cluster
        self._store = Store(path)

    def _do(self, fn: Callable[[Tx], T]) -> T:
        with self._store.operate(self.cluster) as tx:
            advance(tx)
            result = fn(tx)
            settle(tx)
            return result

    def close(self) -> None:
        self._store.close()

    # -- time

    def now(self) -> float:
        """The world's clock."""
        with self._store.begin() as db:
            return clock(db)[0]

    def jump(self, seconds: float) -> None:
        """Moves the clock of the whole world forward; what falls due happens at its own time."""
        with self._store.begin() as db:
            db.execute("update clock set sim = sim + ?", (seconds,))
        self._do(lambda tx: None)

    # -- nodes

    def crash_node(self, node: str) -> None:
        """Every process of the node is gone and it stays off the net; its power still reads on."""
        self._on(node, lambda tx: machines.die(tx, node))

    def freeze_node(self, node: str) -> None:
        """Nothing on it moves and nothing dies; the scheduler gives it up later."""
        self._on(node, lambda tx: machines.set_frozen(tx, node, True))

    def thaw_node(self, node: str) -> None:
        """It goes on, the old ranks too, until its daemon kills them 2.3 s later."""
        self._on(node, lambda tx: machines.set_frozen(tx, node, False))

    def kill_daemon(self, node: str) -> None:
        """The ranks go on, also after the scheduler gave them up (split brain)."""
        self._on(node, lambda tx: machines.go_quiet(tx, node, daemon=0))

    def start_daemon(self, node: str) -> None:
        def go(tx: Tx) -> None:
            tx.set_node(node, daemon=1)
            machines.answer_again(tx, node)

        self._on(node, go)

    def gpu_lost(self, node: str) -> str:
        """XID 79: one GPU less until a reboot, and every job on the node hangs. Returns the kernel's line."""

        def go(tx: Tx) -> None:
            tx.set_node(node, gpus_lost=tx.node(node)["gpus_lost"] + 1)
            _hang(tx, node)

        self._on(node, go)
        return "NVRM: Xid (PCI:0000:ab:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."

    def gpu_dead(self, node: str) -> str:
        """The same for good: a reboot does not bring the GPU back."""
        line = self.gpu_lost(node)
        self._on(node, lambda tx: tx.set_node(node, gpu_dead=tx.node(node)["gpu_dead"] + 1))
        return line

    def break_boot(self, node: str) -> None:
        """Its next boot never comes back."""
        self._on(node, lambda tx: tx.set_node(node, boot_broken=1))

    def mend_boot(self, node: str) -> None:
        self._on(node, lambda tx: tx.set_node(node, boot_broken=0))

    def fail_check(self, node: str, text: str) -> None:
        """Every check of the node fails with this text, until `pass_check`."""
        self._on(node, lambda tx: tx.set_node(node, check_text=text))

    def pass_check(self, node: str) -> None:
        self._on(node, lambda tx: tx.set_node(node, check_text=None))

    def health_drain(self, node: str, reason: str) -> None:
        """A health check drains it; the drain stays the check's own, and overwrites a reason that was there."""
        self._on(node, lambda tx: tx.set_node(node, drained=1, reason=f"healthcheck: {reason}"))

    def person_drain(self, node: str, reason: str) -> None:
        """A person drains it; the last writer of a reason wins, as on Slurm."""
        self._on(node, lambda tx: tx.set_node(node, drained=1, reason=reason))

    def person_undrain(self, node: str) -> None:
        def go(tx: Tx) -> None:
            tx.set_node(node, drained=0, reason="")
            tx.dirty = True

        self._on(node, go)

    def _on(self, node: str, fn: Callable[[Tx], None]) -> None:
        def go(tx: Tx) -> None:
            tx.node(node)
            fn(tx)

        self._do(go)

    # -- the controller

    def controller_freeze(self) -> None:
        """Reads fail as temporary; every second write happens, none is answered."""
        self._controller("frozen")

    def controller_thaw(self) -> None:
        self._controller("up")

    def controller_kill(self) -> None:
        """Nothing is answered and nothing happens."""
        self._controller("dead")

    def controller_start(self) -> None:
        self._controller("up")

    def _controller(self, state: str) -> None:
        def go(tx: Tx) -> None:
            sql = "update clusters set controller = ?, awake_since = ? where name = ?"
            tx.run(sql, state, tx.now, tx.cluster)
            tx.controller, tx.awake_since, tx.dirty = state, tx.now, state == "up"

        self._do(go)
        self._do(lambda tx: None)  # what fell due meanwhile happens now

    def lose_next_answer(self, op: str = "*") -> None:
        """The next write of that port method (any by default) happens, and its caller gets AmbiguousError."""
        self._do(lambda tx: tx.run("insert into lost_answers values (?, ?)", tx.cluster, op))

    # -- jobs and people

    def person_submit(self, spec: JobSpec) -> str:
        """A user's own submit: no key of ours. Returns the native id."""
        return str(self._do(lambda tx: jobs.insert(tx, spec, key=None)))

    def preempt(self, native_id: str) -> None:
        """The scheduler takes the nodes away and requeues; a hold survives it."""
        self._do(lambda tx: jobs.requeue(tx, native_id))

    def person_requeue(self, native_id: str) -> None:
        self._do(lambda tx: jobs.requeue(tx, native_id))

    def person_cancel(self, native_id: str) -> None:
        self._do(lambda tx: jobs.cancel(tx, native_id))

    def person_hold(self, native_id: str) -> None:
        """The owner's own hold; ours on the same job becomes the owner's."""
        self._do(lambda tx: tx.set_job(jobs.find(tx, native_id)["id"], held=1, held_by=jobs.OWNER, next_at=None))

    def person_release(self, native_id: str) -> None:
        """Somebody releases the job, whoever held it."""
        self._do(lambda tx: jobs.unhold(tx, jobs.find(tx, native_id)))

    def end_job(self, native_id: str, exit_code: int, lines: tuple[str, ...] = ()) -> None:
        """The program ends by itself with that code after these last words."""

        def go(tx: Tx) -> None:
            job = jobs.find(tx, native_id)
            exit_with(tx, job, job["attempt"], exit_code, lines)

        self._do(go)

    def lose_job(self, native_id: str) -> None:
        """The scheduler ends it as NODE_LOST, as Slurm does with a job that may not be requeued."""
        self._do(lambda tx: begin_stop(tx, jobs.find(tx, native_id)["id"], "node_lost"))

    # -- the truth

    def ranks_alive(self, native_id: str) -> int:
        """Ranks of any attempt of the job that live now, whatever the scheduler believes."""
        return int(self._count("select count(*) from ranks where job = ? and alive = 1", native_id))

    def most_attempts_alive(self, native_id: str) -> int:
        """The most attempts of the job that ever lived at once; above 1 is a split brain that happened."""
        return int(self._count("select max_attempts from jobs where id = ?", native_id))

    def most_ranks_alive(self, native_id: str) -> int:
        return int(self._count("select max_ranks from jobs where id = ?", native_id))

    def _count(self, sql: str, native_id: str) -> int:
        return self._do(lambda tx: int(tx.value(sql, jobs.find(tx, native_id)["id"])))

    def checkpoints(self, native_id: str) -> tuple[tuple[int, int], ...]:
        """(restarts, step) of each complete checkpoint in the job's storage, in the order of writing."""

        def go(tx: Tx) -> tuple[tuple[int, int], ...]:
            job = jobs.find(tx, native_id)
            _sync_all(tx, job)
            sql = "select restarts, step from checkpoints where storage = ? and complete = 1 order by at, id"
            return tuple((r["restarts"], r["step"]) for r in tx.all(sql, job["storage"]))

        return self._do(go)

    def late_writes(self, native_id: str) -> tuple[LateWrite, ...]:
        def go(tx: Tx) -> tuple[LateWrite, ...]:
            job = jobs.find(tx, native_id)
            _sync_all(tx, job)
            rows = tx.all("select * from late_writes where job = ? order by id", job["id"])
            return tuple(
                LateWrite(
                    job=native_id, restarts=r["restarts"], step=r["step"], at=r["at"], refused=bool(r["refused"])
                )
                for r in rows
            )

        return self._do(go)

    def native_ids(self, key: str) -> tuple[str, ...]:
        """Ids of all jobs with that idempotency key."""
        sql = "select id from jobs where cluster = ? and key = ? order by id"
        return self._do(lambda tx: tuple(str(r["id"]) for r in tx.all(sql, tx.cluster, key)))

    def effects(self, op: str | None = None, target: str | None = None) -> tuple[Effect, ...]:
        """The journal of this cluster, oldest first, of one kind or one target where given."""
        sql = "select at, op, target, detail from effects where cluster = ? order by id"
        rows = self._do(lambda tx: tx.all(sql, tx.cluster))
        found = (Effect(at=r["at"], op=r["op"], target=r["target"], detail=r["detail"]) for r in rows)
        return tuple(e for e in found if op in {None, e.op} and target in {None, e.target})

    def power_status(self, node: str) -> str:
        """`on` or `off`, as the node's power control reads it."""
        return self._do(lambda tx: str(tx.node(node)["power"]))

    def boot(self, node: str) -> str:
        return self._do(lambda tx: nodes.boot_id(tx.node(node)))


def _hang(tx: Tx, node: str) -> None:
    """The living ranks of the node make no further step, and so their whole job makes none."""
    rows = tx.all("select job, restarts from ranks where cluster = ? and node = ? and alive = 1", tx.cluster, node)
    for row in rows:
        sync(tx, tx.job(row["job"]), row["restarts"])
        tx.run(
            "update ranks set hung = 1 where job = ? and restarts = ? and node = ?", row["job"], row["restarts"], node
        )
        refresh(tx, row["job"], row["restarts"])


def _sync_all(tx: Tx, job: sqlite3.Row) -> None:
    """What every attempt of the job wrote until now is in the file afterwards."""
    for row in tx.all("select restarts from attempts where job = ?", job["id"]):
        sync(tx, job, row["restarts"])
