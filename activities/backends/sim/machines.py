"""The simulated machines: power, boots, daemons, and what the scheduler believes about them."""

import sqlite3

from activities.backends.sim.attempts import kill_ranks, refresh
from activities.backends.sim.scheduler import lose_node, node_answers
from activities.backends.sim.store import Tx


def plan_next(tx: Tx, name: str) -> None:
    """Stores when the node has to be looked at next."""
    node = tx.node(name)
    times = [node["stale_kill_at"], node["boot_back_at"]]
    if node["boot_deadline"] is not None and not node["down"]:
        times.append(node["boot_deadline"])
    elif node["quiet_since"] is not None and not node["down"]:
        times.append(node["quiet_since"] + tx.shape.node_down_after)
    due = [t for t in times if t is not None]
    tx.set_node(name, next_at=min(due) if due else None)


def node_due(tx: Tx, name: str) -> None:
    """Handles whatever is due on the node now."""
    node = tx.node(name)
    if node["boot_back_at"] is not None and node["boot_back_at"] <= tx.now:
        _booted(tx, node)
    elif node["stale_kill_at"] is not None and node["stale_kill_at"] <= tx.now:
        _kill_stale(tx, name)
    else:
        _declare_down(tx, node)
    plan_next(tx, name)


def _booted(tx: Tx, node: sqlite3.Row) -> None:
    """A new boot: empty, all GPUs back unless one is dead for good. A drain survives; so does a foreign one."""
    name = node["name"]
    tx.set_node(
        name,
        up=1,
        daemon=1,
        frozen=0,
        quiet_since=None,
        boots=node["boots"] + 1,
        booted_at=tx.now,
        boot_back_at=None,
        boot_deadline=None,
        reboot_asked=0,
        gpus_lost=node["gpu_dead"],
        down=0,
        reason=node["reason"] if node["drained"] else "",
    )
    tx.dirty = True
    for row in _jobs_on(tx, name):
        lose_node(tx, row)


def _declare_down(tx: Tx, node: sqlite3.Row) -> None:
    """The scheduler's opinion after a node's silence; nothing on the node itself changes."""
    timed_out = node["boot_deadline"] is not None
    text = "reboot timed out" if timed_out else "Not responding"
    reason = f"{node['reason']} : {text}" if node["reason"] else text
    tx.set_node(node["name"], down=1, reason=reason, boot_deadline=None, reboot_asked=0)
    for job in _jobs_on(tx, node["name"]):
        lose_node(tx, job)


def _kill_stale(tx: Tx, name: str) -> None:
    """The daemon is back and ends ranks that the scheduler has given up."""
    tx.set_node(name, stale_kill_at=None)
    rows = tx.all(
        "select r.job, r.restarts from ranks r join jobs j on j.id = r.job left join placements p"
        " on p.cluster = r.cluster and p.node = r.node and p.job = r.job"
        " where r.cluster = ? and r.node = ? and r.alive = 1 and (p.job is null or j.attempt != r.restarts)",
        tx.cluster,
        name,
    )
    for row in rows:
        kill_ranks(tx, name, row["job"], row["restarts"])


def _jobs_on(tx: Tx, name: str) -> list[int]:
    return [r["job"] for r in tx.all("select job from placements where cluster = ? and node = ?", tx.cluster, name)]


def go_quiet(tx: Tx, name: str, **columns: object) -> None:
    """From now on the daemon does not answer."""
    node = tx.node(name)
    since = tx.now if node["quiet_since"] is None else node["quiet_since"]
    tx.set_node(name, quiet_since=since, **columns)
    plan_next(tx, name)


def answer_again(tx: Tx, name: str) -> None:
    """The daemon answers: the node returns to service unless drained; stale ranks are killed a little later."""
    node = tx.node(name)
    if not (node["up"] and node["daemon"]) or node["frozen"] or node["quiet_since"] is None:
        return
    reason = node["reason"] if node["drained"] else ""
    stale_at = tx.now + tx.shape.stale_kill_after
    tx.set_node(name, quiet_since=None, down=0, reason=reason, stale_kill_at=stale_at)
    plan_next(tx, name)
    for job in _jobs_on(tx, name):
        node_answers(tx, job)
    tx.dirty = True


def die(tx: Tx, name: str) -> None:
    """Every process of the node is gone at once."""
    kill_ranks(tx, name)
    go_quiet(tx, name, up=0, daemon=0, frozen=0, stale_kill_at=None, boot_back_at=None, boot_deadline=None)


def boot(tx: Tx, name: str) -> None:
    """The machine starts; it answers `reboot_seconds` later, or never when its boot is broken."""
    node = tx.node(name)
    back = None if node["boot_broken"] else tx.now + tx.shape.reboot_seconds
    tx.set_node(name, boot_back_at=back, boot_deadline=tx.now + tx.shape.boot_timeout)
    plan_next(tx, name)


def reboot_when_idle(tx: Tx) -> None:
    """Reboots that were asked for begin as soon as no job is on the node."""
    for row in tx.all("select name from nodes where cluster = ? and reboot_asked = 1", tx.cluster):
        if not _jobs_on(tx, row["name"]):
            tx.set_node(row["name"], reboot_asked=2)
            die(tx, row["name"])
            boot(tx, row["name"])


def set_frozen(tx: Tx, name: str, frozen: bool) -> None:
    """Stops or continues every process of the node."""
    rows = tx.all("select job, restarts from ranks where cluster = ? and node = ? and alive = 1", tx.cluster, name)
    for row in rows:
        refresh(tx, row["job"], row["restarts"])
    tx.run("update ranks set frozen = ? where cluster = ? and node = ? and alive = 1", int(frozen), tx.cluster, name)
    for row in rows:
        refresh(tx, row["job"], row["restarts"])
    if frozen:
        go_quiet(tx, name, frozen=1)
    else:
        tx.set_node(name, frozen=0)
        answer_again(tx, name)
