"""Orders about nodes, each read, decide, write, read back inside one transaction."""

import sqlite3
import zlib
from collections.abc import Iterable

from activities.backends.sim.attempts import plan_of
from activities.backends.sim.engine import settle
from activities.backends.sim.jobs import OURS, unhold
from activities.backends.sim.machines import boot, die
from activities.backends.sim.scheduler import free_nodes, gpus_left, reachable
from activities.backends.sim.store import Tx
from fleet.capacity import NodeRoom, grouped
from fleet.errors import RefusedError
from fleet.identity import op_of_reason, reason_text
from fleet.model import CheckResult, NodeFacts, NodeReceipt, NodeState, Phase, Quota, ReceiptGrade, Room
from fleet.orders import StopProof, StopQuery


def boot_id(row: sqlite3.Row) -> str:
    return f"{row['name']}#{row['boots']}"


def view(tx: Tx, row: sqlite3.Row, jobs: Iterable[int]) -> NodeFacts:
    """A row as the port's value."""
    held = tuple(str(job) for job in jobs)
    booting = row["boot_deadline"] is not None
    answers = reachable(row) or (not booting and tx.now - row["quiet_since"] < tx.shape.no_answer_after)
    return NodeFacts(
        cluster=tx.cluster,
        node=row["name"],
        state=_state(row, bool(held), booting),
        responding=answers,
        boot=boot_id(row),
        booted_at=row["booted_at"],
        gpus=tx.shape.gpus - row["gpus_lost"],
        gpus_expected=tx.shape.gpus,
        reason=row["reason"],
        op=op_of_reason(row["reason"]) if row["drained"] else None,
        drained=bool(row["drained"]),
        jobs=held,
        read_at=tx.now,
    )


def _state(row: sqlite3.Row, busy: bool, booting: bool) -> NodeState:
    if row["down"]:
        return NodeState.DOWN
    if booting:
        return NodeState.REBOOTING
    if row["drained"]:
        return NodeState.DRAINING if busy else NodeState.DRAINED
    return NodeState.UP


def read(tx: Tx, name: str) -> NodeFacts:
    """Reads back after a write."""
    settle(tx)
    jobs = tx.all("select job from placements where cluster = ? and node = ?", tx.cluster, name)
    return view(tx, tx.node(name), [r["job"] for r in jobs])


def read_all(tx: Tx) -> tuple[NodeFacts, ...]:
    jobs: dict[str, list[int]] = {}
    for row in tx.all("select node, job from placements where cluster = ?", tx.cluster):
        jobs.setdefault(row["node"], []).append(row["job"])
    rows = tx.all("select * from nodes where cluster = ? order by place", tx.cluster)
    return tuple(view(tx, row, jobs.get(row["name"], ())) for row in rows)


def read_room(tx: Tx) -> Room:
    """Every node with its model and switch; who waits; what the quota leaves."""
    free, left, shape = set(free_nodes(tx)), gpus_left(tx), tx.shape
    rows = tx.all("select name, place, gpus_lost from nodes where cluster = ? order by place", tx.cluster)
    rooms = (
        NodeRoom(
            free=row["name"] in free,
            gpus=shape.gpus - row["gpus_lost"],
            gpu_model=shape.gpu_model,
            domain=f"switch{(row['place'] - 1) // shape.switch_nodes + 1}" if shape.switch_nodes else "",
        )
        for row in rows
    )
    waits = tx.all("select * from jobs where cluster = ? and phase = 'pending' and held = 0", tx.cluster)
    return Room(
        cluster=tx.cluster,
        groups=grouped(rooms),
        quotas=(Quota(name=f"the quota of {tx.cluster}", gpus_left=left),) if left is not None else (),
        waiting=tuple(sorted((plan_of(row).nodes for row in waits), reverse=True)),
        read_at=tx.now,
    )


def isolate(tx: Tx, name: str, op: str, text: str) -> NodeFacts:
    """Drains it with our mark; a drain that is there already stays whose it is."""
    row = tx.node(name)
    if not row["drained"]:
        tx.set_node(name, drained=1, reason=reason_text(op, text))
        tx.effect("isolate", name, op)
    return read(tx, name)


def release(tx: Tx, name: str, op: str) -> NodeFacts:
    row = tx.node(name)
    if row["drained"]:
        _must_be_ours(row, op, "release")
        _undrain(tx, row)
        tx.effect("release", name, op)
    return read(tx, name)


def _undrain(tx: Tx, row: sqlite3.Row) -> None:
    asked = 0 if row["reboot_asked"] == 1 else row["reboot_asked"]  # one that has begun goes on
    tx.set_node(row["name"], drained=0, reason="Not responding" if row["down"] else "", reboot_asked=asked)
    tx.dirty = True


def _must_be_ours(row: sqlite3.Row, op: str, order: str) -> None:
    mark = op_of_reason(row["reason"])
    if mark != op:
        whose = "somebody else's drain" if mark is None else f"the mark of operation {mark}"
        raise RefusedError(
            f"{row['name']} carries {whose} ({row['reason']!r}), not {op}'s; no {order}: ask the one who set it"
        )


def reboot(tx: Tx, name: str, op: str) -> NodeFacts:
    """Begins when no job is on the node; a node that is not isolated gets our mark first."""
    row = tx.node(name)
    if row["drained"]:
        _must_be_ours(row, op, "reboot")
    if row["reboot_asked"] or row["boot_deadline"] is not None:
        return read(tx, name)  # asked before and not over yet
    if not reachable(row):
        raise RefusedError(
            f"the daemon of {name} does not answer, so a reboot order would do nothing; use the power control"
        )
    if not row["drained"]:
        tx.set_node(name, drained=1, reason=reason_text(op, "reboot"))
    tx.set_node(name, reboot_asked=1)
    tx.dirty = True
    tx.effect("reboot", name, op)
    return read(tx, name)


def run_check(tx: Tx, name: str, op: str, suite: str) -> CheckResult:
    """Looks at the isolated, empty node; it stays isolated whatever the answer is."""
    row = tx.node(name)
    if not row["drained"]:
        raise RefusedError(f"{name} is not isolated; work could land on it during a check, so none was run")
    _must_be_ours(row, op, "check")
    if read(tx, name).jobs:
        raise RefusedError(f"{name} still has work; evacuate it before the check")
    if not reachable(row) or row["boot_deadline"] is not None:
        return CheckResult(node=name, suite=suite, ran=False, passed=False, detail="the node does not answer")
    tx.effect("check", name, suite)
    gpus = tx.shape.gpus - row["gpus_lost"]
    detail = row["check_text"] or f"{gpus} of {tx.shape.gpus} GPUs"
    passed = row["check_text"] is None and gpus == tx.shape.gpus
    uuids = tuple(f"GPU-{zlib.crc32(f'{tx.cluster}/{name}'.encode()):08x}-{number:04x}" for number in range(gpus))
    return CheckResult(node=name, suite=suite, ran=True, passed=passed, gpus=gpus, uuids=uuids, detail=detail)


def power_off(tx: Tx, name: str, op: str) -> NodeReceipt:
    row = tx.node(name)
    if row["power"] != "off":
        die(tx, name)
        tx.set_node(name, power="off", reboot_asked=0)
        tx.effect("power_off", name, op)
    return NodeReceipt(node=name, grade=ReceiptGrade.POWER_OFF, detail="reads off", at=tx.now)


def power_on(tx: Tx, name: str, op: str) -> None:
    """Boots a node that is off or crashed; nothing for one that runs or is booting."""
    row = tx.node(name)
    if row["up"] or (row["boot_deadline"] is not None and row["power"] == "on"):
        return
    tx.set_node(name, power="on", down=0)
    boot(tx, name)
    tx.effect("power_on", name, op)


def prove_stopped(tx: Tx, query: StopQuery) -> StopProof:
    """Power read as off, a newer boot, or a daemon that answers and runs nothing of the attempt any more."""
    receipts: list[NodeReceipt] = []
    unproven: dict[str, str] = {}
    for name, boot_then in query.boots.items():
        row = tx.one("select * from nodes where cluster = ? and name = ?", tx.cluster, name)
        grade, why = (
            (None, "the cluster has no such node any more") if row is None else _proof(tx, query, row, boot_then)
        )
        if grade is None:
            unproven[name] = why
        else:
            receipts.append(NodeReceipt(node=name, grade=grade, detail=why, at=tx.now))
    return StopProof(receipts=tuple(receipts), unproven=unproven)


def _proof(tx: Tx, query: StopQuery, row: sqlite3.Row, boot_then: str) -> tuple[ReceiptGrade | None, str]:
    if row["power"] == "off":
        return ReceiptGrade.POWER_OFF, "power reads off"
    if boot_id(row) != boot_then:
        return ReceiptGrade.BOOT_CHANGED, f"boot {boot_id(row)}, the attempt ran under {boot_then}"
    if not reachable(row):
        return None, "its daemon does not answer; only a power-off, a reboot or a person's word proves it"
    living = tx.value(
        "select count(*) from ranks where job = ? and node = ? and restarts <= ? and alive = 1",
        int(query.native_id) if query.native_id.isdecimal() else -1,
        row["name"],
        query.restarts,
    )
    if living:
        return None, "its daemon says that a rank still runs"
    settled = tx.now - query.since
    if not query.ordered and settled < tx.shape.settle:
        return None, f"ended by itself {settled:.0f} s ago; the daemon's word counts after {tx.shape.settle:.0f} s"
    return ReceiptGrade.DAEMON_GONE, "its daemon answers and runs nothing of the attempt"


def give_back_all(tx: Tx) -> tuple[str, ...]:
    """Every hold and mark of ours, and nothing that a person or a health check set."""
    lines: list[str] = []
    for job in tx.all("select * from jobs where cluster = ? and held_by = ? order by id", tx.cluster, OURS):
        if not Phase(job["phase"]).ended:
            unhold(tx, job)
            tx.set_job(job["id"], required="[]")
            tx.effect("give_back", job["id"])
            lines.append(f"job {job['id']} ({job['name']}): hold given back")
    for node in tx.all("select * from nodes where cluster = ? and drained = 1 order by place", tx.cluster):
        op = op_of_reason(node["reason"])
        if op is not None:
            _undrain(tx, node)
            tx.effect("release", node["name"], op)
            lines.append(f"node {node['name']}: isolation of operation {op} given back")
    settle(tx)
    return tuple(lines)
