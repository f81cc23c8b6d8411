"""The simulated scheduler: places jobs, starts attempts, ends them with grace and requeues by itself."""

import json
import sqlite3

from activities.backends.sim.attempts import (
    attempt_row,
    generation,
    kill_ranks,
    newest_checkpoint,
    plan_of,
    refresh,
    say,
    sync,
)
from activities.backends.sim.store import Tx

_TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "train.py", line 88, in train_step',
    "RuntimeError: simulated failure of the user's program",
)


def reachable(node: sqlite3.Row) -> bool:
    """The node's daemon would answer now (live, not the scheduler's delayed opinion)."""
    return node["quiet_since"] is None


def placed_nodes(tx: Tx, job: int) -> list[sqlite3.Row]:
    return tx.all(
        "select n.* from placements p join nodes n on n.cluster = p.cluster and n.name = p.node"
        " where p.job = ? order by n.place",
        job,
    )


def free_nodes(tx: Tx) -> list[str]:
    """Nodes that could take work now, in their order."""
    rows = tx.all(
        "select name from nodes n where cluster = ? and drained = 0 and down = 0 and quiet_since is null"
        " and reboot_asked = 0 and boot_back_at is null"
        " and not exists (select 1 from placements p where p.cluster = n.cluster and p.node = n.name) order by place",
        tx.cluster,
    )
    return [row["name"] for row in rows]


def gpus_left(tx: Tx) -> int | None:
    """GPUs that the cluster's quota leaves for one more job; None without a quota."""
    if tx.shape.quota_gpus is None:
        return None
    holders = tx.all("select distinct job from placements where cluster = ?", tx.cluster)
    plans = [plan_of(tx.job(row["job"])) for row in holders]
    return tx.shape.quota_gpus - sum(plan.nodes * plan.gpus for plan in plans)


def schedule(tx: Tx) -> None:
    """Starts pending, released, eligible jobs on free nodes: priority first, then age; smaller ones may pass."""
    waiting = tx.all(
        "select * from jobs where cluster = ? and phase = 'pending' and held = 0 and eligible_at <= ?"
        " order by priority desc, submitted_at, id",
        tx.cluster,
        tx.now,
    )
    if not waiting:
        return
    free, left = free_nodes(tx), gpus_left(tx)
    for job in waiting:
        if not free:
            return
        required = json.loads(job["required"])
        excluded = set(json.loads(job["excluded"]))
        plan = plan_of(job)
        wanted = plan.nodes
        if set(required) - set(free) or (left is not None and wanted * plan.gpus > left):
            continue
        others = [node for node in free if node not in excluded and node not in required]
        chosen = (required + others)[:wanted]
        if len(chosen) == wanted and not set(chosen) & excluded:
            start(tx, job, sorted(chosen, key=free.index))
            free = [node for node in free if node not in chosen]
            left = gpus_left(tx)


def start(tx: Tx, job: sqlite3.Row, nodes: list[str]) -> None:
    """Starts the job's next attempt there; it resumes from the newest checkpoint of its storage."""
    job_id, restarts, plan = job["id"], job["restarts"], plan_of(job)
    for old in tx.all(
        "select distinct r.job, r.restarts from ranks r join jobs j on j.id = r.job"
        " where j.storage = ? and r.alive = 1",
        job["storage"],
    ):
        sync(
            tx, tx.must("select * from jobs where id = ?", old["job"]), old["restarts"]
        )  # what an orphan wrote until now counts
    resumed = newest_checkpoint(tx, job, restarts)
    tx.set_job(job_id, phase="running", attempt=restarts, started_at=tx.now, next_at=None, exit_code=None)
    tx.run(
        "insert into attempts (job, restarts, cluster, nodes, started_at, resumed, step, at)"
        " values (?, ?, ?, ?, ?, ?, ?, ?)",
        job_id,
        restarts,
        tx.cluster,
        json.dumps(nodes),
        tx.now,
        resumed,
        resumed or 0,
        tx.now + plan.load_time,
    )
    for node in nodes:
        tx.run("insert into placements (cluster, node, job) values (?, ?, ?)", tx.cluster, node, job_id)
        tx.run(
            "insert into ranks (job, restarts, node, cluster, hung) values (?, ?, ?, ?, ?)",
            job_id,
            restarts,
            node,
            tx.cluster,
            int(tx.node(node)["gpus_lost"] > 0),
        )
    name = generation(plan, restarts)
    opening = f"starting at step 0 gen={name}" if resumed is None else f"resumed from step {resumed} gen={name}"
    say(tx, job_id, restarts, resumed or 0, opening)
    refresh(tx, job_id, restarts)
    count_living(tx, job_id)
    tx.effect("attempt", job_id, f"restarts={restarts} nodes={','.join(nodes)}")


def count_living(tx: Tx, job_id: int) -> None:
    """Keeps the most ranks and the most attempts of the job that ever lived at once (split brain shows here)."""
    row = tx.must(
        "select count(*) as ranks, count(distinct restarts) as attempts from ranks where job = ? and alive = 1",
        job_id,
    )
    tx.run(
        "update jobs set max_ranks = max(max_ranks, ?), max_attempts = max(max_attempts, ?) where id = ?",
        row["ranks"],
        row["attempts"],
        job_id,
    )


def begin_stop(tx: Tx, job_id: int, then: str) -> None:
    """SIGTERM to the attempt. `then`: hold, requeue, cancelled or node_lost, once its ranks are gone or given up.

    The restart count grows here, as Slurm's does while the job is still completing.
    """
    job = tx.job(job_id)
    sync(tx, job, job["attempt"])
    grows = then in {"hold", "requeue"}
    tx.set_job(job_id, phase="stopping", after_stop=then, restarts=job["restarts"] + int(grows))
    hung = tx.value(
        "select max(hung) from ranks where job = ? and restarts = ? and alive = 1", job_id, job["attempt"]
    )
    slow = bool(hung) or plan_of(job).ignores_term
    tx.set_job(job_id, stop_at=tx.now + (tx.shape.kill_wait if slow else tx.shape.term_takes))
    refresh(tx, job_id, job["attempt"])
    wait_for_stop(tx, job_id)


def wait_for_stop(tx: Tx, job_id: int) -> None:
    """A stop ends when its grace is over and no silent node is waited for any more."""
    job = tx.job(job_id)
    waits = any(not reachable(node) and not node["down"] for node in placed_nodes(tx, job_id))
    tx.set_job(job_id, next_at=None if waits else max(job["stop_at"], tx.now))


def finish_stop(tx: Tx, job_id: int) -> None:
    """The grace is over: ranks on answering nodes are gone, the others are given up, alive or not."""
    job = tx.job(job_id)
    then = job["after_stop"]
    end_attempt(tx, job)
    if then in {"hold", "requeue"}:
        eligible = tx.now + tx.shape.requeue_delay
        next_at = eligible if not job["held"] else None
        tx.set_job(job_id, phase="pending", eligible_at=eligible, next_at=next_at, started_at=None)
    elif then == "node_lost":
        tx.set_job(job_id, phase="node_lost", exit_signal=15)
    else:
        tx.set_job(job_id, phase="cancelled", exit_signal=15)


def end_attempt(tx: Tx, job: sqlite3.Row) -> None:
    """Frees the job's nodes. Ranks that no daemon can reach live on as orphans."""
    nodes = placed_nodes(tx, job["id"])
    now = tx.now
    tx.run("update attempts set ended_at = ? where job = ? and restarts = ?", now, job["id"], job["attempt"])
    tx.run("delete from placements where job = ?", job["id"])
    tx.set_job(job["id"], next_at=None, stop_at=None, after_stop=None)
    for node in nodes:
        if reachable(node):
            kill_ranks(tx, node["name"], job["id"], job["attempt"])
    refresh(tx, job["id"], job["attempt"])
    tx.dirty = True


def training_ended(tx: Tx, job_id: int, restarts: int, how: str) -> None:
    """The program came to its own end: `done` or `failed`."""
    job = tx.job(job_id)
    plan = plan_of(job)
    attempt = tx.must("select * from attempts where job = ? and restarts = ?", job_id, restarts)
    lines = (f"done step {attempt['step']}/{plan.steps}",) if how == "done" else _TRACEBACK
    exit_with(tx, job, restarts, 0 if how == "done" else plan.exit_code, lines)


def exit_with(tx: Tx, job: sqlite3.Row, restarts: int, code: int, lines: tuple[str, ...]) -> None:
    """All ranks of the attempt end by themselves with that code; the scheduler learns it from answering nodes."""
    attempt, _ = sync(tx, job, restarts)
    for line in lines:
        say(tx, job["id"], restarts, attempt["step"], line)
    tx.run("update ranks set alive = 0 where job = ? and restarts = ?", job["id"], restarts)
    tx.run("update attempts set done = 1, next_at = null where job = ? and restarts = ?", job["id"], restarts)
    if job["phase"] != "running" or job["attempt"] != restarts:
        return
    tx.set_job(job["id"], exit_code=code)
    collect_exit(tx, job["id"])


def collect_exit(tx: Tx, job_id: int) -> None:
    """The scheduler learns the exit code once every node of the job answers."""
    if all(reachable(node) for node in placed_nodes(tx, job_id)):
        job = tx.job(job_id)
        end_attempt(tx, job)
        tx.set_job(job_id, phase="succeeded" if job["exit_code"] == 0 else "failed")


def node_answers(tx: Tx, job_id: int) -> None:
    """A node of the job answers again: what waited for it goes on."""
    job = tx.job(job_id)
    if job["phase"] == "stopping":
        wait_for_stop(tx, job_id)
    elif job["phase"] == "running":
        attempt = attempt_row(tx, job_id, job["attempt"])
        if attempt is not None and attempt["done"]:
            collect_exit(tx, job_id)


def lose_node(tx: Tx, job_id: int) -> None:
    """The scheduler gave up a node of the job, or the node came back without the job's ranks."""
    job = tx.job(job_id)
    if job["phase"] == "running":
        begin_stop(tx, job_id, "requeue" if plan_of(job).requeue else "node_lost")
    elif job["phase"] == "stopping":
        wait_for_stop(tx, job_id)
