"""The world's file: one SQLite database in WAL mode, one IMMEDIATE transaction an operation, one clock for all.

The simulated clock is `sim + (wall - wall0) * scale`, kept in the file, so every process reads the same time;
at scale 1 without a jump it equals the wall clock.
"""

import json
import queue
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from activities.backends.sim.settings import ClusterShape
from fleet.errors import NotFoundError, PermanentError, UnreadableError

BUSY_TIMEOUT = 60.0
"""Real seconds to wait for another process's transaction (one takes milliseconds)."""

SCHEMA = """
create table clock (wall real not null, sim real not null, scale real not null);
create table clusters (
  name text primary key, shape text not null, controller text not null default 'up',
  awake_since real not null default 0, frozen_writes integer not null default 0);
create table nodes (
  cluster text not null, name text not null, place integer not null,
  gpus_lost integer not null default 0, gpu_dead integer not null default 0,
  power text not null default 'on', up integer not null default 1, frozen integer not null default 0,
  daemon integer not null default 1, quiet_since real,
  boots integer not null default 1, booted_at real not null,
  boot_back_at real, boot_deadline real, boot_broken integer not null default 0,
  reboot_asked integer not null default 0,
  drained integer not null default 0, down integer not null default 0, reason text not null default '',
  stale_kill_at real, check_text text, next_at real,
  primary key (cluster, name)) without rowid;
create index nodes_next on nodes (cluster, next_at) where next_at is not null;
create table jobs (
  id integer primary key autoincrement, cluster text not null, name text not null, key text, user text not null,
  comment text not null, script text not null, plan text not null, storage text not null,
  phase text not null, held integer not null, held_by text not null default '', reason text not null default '',
  restarts integer not null default 0, attempt integer not null default 0,
  own_excluded text not null, excluded text not null, required text not null default '[]',
  priority integer not null default 0, submitted_at real not null, eligible_at real not null,
  started_at real, stop_at real, after_stop text, exit_code integer, exit_signal integer,
  max_ranks integer not null default 0, max_attempts integer not null default 0, next_at real);
create index jobs_next on jobs (cluster, next_at) where next_at is not null;
create index jobs_key on jobs (cluster, key);
create index jobs_phase on jobs (cluster, phase, held);
create index jobs_storage on jobs (storage);
create table attempts (
  job integer not null, restarts integer not null, cluster text not null, nodes text not null,
  started_at real not null, ended_at real, resumed integer, step integer not null, at real not null,
  saving integer not null default 0, save_asked integer not null default 0, stalled_since real,
  saved integer, first_step_at real, done integer not null default 0, next_at real,
  primary key (job, restarts)) without rowid;
create index attempts_next on attempts (cluster, next_at) where next_at is not null;
create table ranks (
  job integer not null, restarts integer not null, node text not null, cluster text not null,
  alive integer not null default 1, frozen integer not null default 0, hung integer not null default 0,
  primary key (job, restarts, node)) without rowid;
create index ranks_alive on ranks (cluster, node) where alive = 1;
create table placements (
  cluster text not null, node text not null, job integer not null, primary key (cluster, node)) without rowid;
create index placements_job on placements (job);
create table checkpoints (
  id integer primary key, storage text not null, job integer not null, step integer not null,
  epoch integer not null, restarts integer not null, complete integer not null, at real not null);
create index checkpoints_newest on checkpoints (storage, complete, epoch, restarts, step);
create table late_writes (
  id integer primary key, job integer not null, restarts integer not null, step integer not null,
  at real not null, refused integer not null);
create table log (
  id integer primary key, job integer not null, restarts integer not null, step integer not null, line text not null);
create index log_job on log (job, restarts);
create table effects (
  id integer primary key, at real not null, cluster text not null, op text not null, target text not null,
  detail text not null);
create table lost_answers (cluster text not null, op text not null);
"""


@dataclass
class Tx:
    """One operation on one cluster: the open transaction and the moment that is being handled."""

    db: sqlite3.Connection
    cluster: str
    shape: ClusterShape
    controller: str
    awake_since: float
    now: float
    scale: float
    dirty: bool = field(default=False)
    """A node or a job became free: the scheduler has to look again."""

    def one(self, sql: str, *args: object) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self.db.execute(sql, args).fetchone()
        return row

    def must(self, sql: str, *args: object) -> sqlite3.Row:
        """A row that our own writes put there; UnreadableError when the file was changed by something else."""
        row = self.one(sql, *args)
        if row is None:
            raise UnreadableError(
                f"the world's file lacks a row that belongs there ({sql}, {args}); make a new world"
            )
        return row

    def all(self, sql: str, *args: object) -> list[sqlite3.Row]:
        return self.db.execute(sql, args).fetchall()

    def value(self, sql: str, *args: object) -> Any:
        row = self.db.execute(sql, args).fetchone()
        return None if row is None else row[0]

    def run(self, sql: str, *args: object) -> None:
        self.db.execute(sql, args)

    def set_job(self, job: int, **columns: object) -> None:
        names = ", ".join(f"{name} = ?" for name in columns)  # names are ours, never from outside
        self.db.execute(f"update jobs set {names} where id = ?", (*columns.values(), job))  # noqa: S608

    def set_node(self, node: str, **columns: object) -> None:
        names = ", ".join(f"{name} = ?" for name in columns)  # names are ours, never from outside
        sql = f"update nodes set {names} where cluster = ? and name = ?"  # noqa: S608
        self.db.execute(sql, (*columns.values(), self.cluster, node))

    def job(self, job: int) -> sqlite3.Row:
        row = self.one("select * from jobs where id = ? and cluster = ?", job, self.cluster)
        if row is None:
            raise NotFoundError(f"cluster {self.cluster} knows no job {job}; look with `runbook list`")
        return row

    def node(self, node: str) -> sqlite3.Row:
        row = self.one("select * from nodes where cluster = ? and name = ?", self.cluster, node)
        if row is None:
            raise NotFoundError(f"cluster {self.cluster} has no node {node!r}; nothing was changed")
        return row

    def effect(self, op: str, target: object, detail: str = "") -> None:
        """Journals a mutation that really happens in this transaction."""
        self.run(
            "insert into effects (at, cluster, op, target, detail) values (?, ?, ?, ?, ?)",
            self.now,
            self.cluster,
            op,
            str(target),
            detail,
        )


class Store:
    """Connections to one world's file, reused; safe to call from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._idle: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()

    def connect(self) -> sqlite3.Connection:
        """Raises PermanentError when there is no world in that place."""
        if not self.path.is_file():
            raise PermanentError(f"no simulated world at {self.path}; make one with create_world first")
        db = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)
        db.row_factory = sqlite3.Row
        db.execute("pragma synchronous = off")  # a simulated world need not survive a power loss
        return db

    @contextmanager
    def begin(self) -> Iterator[sqlite3.Connection]:
        """One IMMEDIATE transaction: committed at the end, rolled back by an exception."""
        try:
            db = self._idle.get_nowait()
        except queue.Empty:
            db = self.connect()
        try:
            db.execute("begin immediate")
            try:
                yield db
            except BaseException:
                db.execute("rollback")
                raise
            db.execute("commit")
        finally:
            self._idle.put(db)

    @contextmanager
    def operate(self, cluster: str) -> Iterator[Tx]:
        """A transaction on one cluster at the present moment; nothing is advanced yet."""
        with self.begin() as db:
            now, scale = clock(db)
            row = db.execute("select * from clusters where name = ?", (cluster,)).fetchone()
            if row is None:
                known = ", ".join(r[0] for r in db.execute("select name from clusters order by name"))
                raise NotFoundError(f"the world {self.path} has no cluster {cluster!r}; it has: {known}")
            shape = ClusterShape.model_validate(json.loads(row["shape"]))
            yield Tx(db, cluster, shape, row["controller"], row["awake_since"], now, scale)

    def close(self) -> None:
        while True:
            try:
                self._idle.get_nowait().close()
            except queue.Empty:
                return


def clock(db: sqlite3.Connection) -> tuple[float, float]:
    """(simulated seconds since the epoch, simulated seconds per real second)."""
    wall, sim, scale = db.execute("select wall, sim, scale from clock").fetchone()
    return sim + (time.time() - wall) * scale, scale
