"""Ranks and what they write: moves an attempt's training forward, keeps its checkpoints and its log."""

import sqlite3
from functools import lru_cache

from activities.backends.sim.disk import Folder, root_of
from activities.backends.sim.store import Tx
from activities.backends.sim.training import Track, TrainingPlan, ends_at, loss_at, run_until, step_line
from fleet.identity import parse_tokens
from fleet.model import Progress

_MINIMUM_WAIT = 0.001
"""An end that is due but not reached (rounding) is looked at again that much later, in simulated seconds."""


@lru_cache(maxsize=4096)
def _parsed(plan: str) -> TrainingPlan:
    return TrainingPlan.model_validate_json(plan)


def plan_of(job: sqlite3.Row) -> TrainingPlan:
    return _parsed(job["plan"])


def generation(plan: TrainingPlan, restarts: int) -> str:
    return f"{plan.epoch}.{restarts}"


def attempt_row(tx: Tx, job: int, restarts: int) -> sqlite3.Row | None:
    return tx.one("select * from attempts where job = ? and restarts = ?", job, restarts)


def say(tx: Tx, job: int, restarts: int, step: int, line: str) -> None:
    """Appends a line to the job's output, after the line of `step`."""
    tx.run("insert into log (job, restarts, step, line) values (?, ?, ?, ?)", job, restarts, step, line)


def folder_of(job: sqlite3.Row, restarts: int) -> Folder | None:
    """Where that attempt's checkpoints are real files; None where they are rows only."""
    root = root_of(job["storage"])
    checked = parse_tokens(job["comment"]).generation_check
    return Folder(root, (plan_of(job).epoch, restarts), checked) if root is not None else None


def newest_checkpoint(tx: Tx, job: sqlite3.Row, restarts: int) -> int | None:
    """Step that a new attempt resumes from: that of real files, where its job names a folder.

    A program with a generation check takes the highest generation first; one without takes the file that was
    written last, which is how a late writer spoils it.
    """
    folder = folder_of(job, restarts)
    if folder is not None:
        return folder.newest()
    checked = parse_tokens(job["comment"]).generation_check
    order = "epoch desc, restarts desc, step desc" if checked else "at desc, id desc"
    sql = f"select step from checkpoints where storage = ? and complete = 1 order by {order} limit 1"  # noqa: S608
    step: int | None = tx.value(sql, job["storage"])
    return step


def _save(tx: Tx, job: sqlite3.Row, attempt: sqlite3.Row, step: int, at: float, *, stays: bool) -> bool:
    """Writes one checkpoint unless its writer sees a newer generation; True when it was written. `stays`: not so many
    were made after it by now that it is deleted again."""
    plan = plan_of(job)
    late = tx.one(
        "select 1 from attempts a join jobs j on j.id = a.job where j.storage = ? and a.started_at <= ?"
        " and (j.id > ? or (j.id = ? and a.restarts > ?)) limit 1",
        job["storage"],
        at,
        job["id"],
        job["id"],
        attempt["restarts"],
    )
    name = generation(plan, attempt["restarts"])
    refused = late is not None and parse_tokens(job["comment"]).generation_check
    if late is not None:
        tx.run(
            "insert into late_writes (job, restarts, step, at, refused) values (?, ?, ?, ?, ?)",
            job["id"],
            attempt["restarts"],
            step,
            at,
            int(refused),
        )
    if refused:
        say(tx, job["id"], attempt["restarts"], step, f"refused to save step {step} gen={name}: a newer one exists")
        return False
    try:
        folder = folder_of(job, attempt["restarts"])
        if folder is not None and stays:
            folder.save(step, plan.nodes)
            folder.keep(plan.keep)
    except OSError as error:
        say(tx, job["id"], attempt["restarts"], step, f"could not save step {step} gen={name}: {error.strerror}")
        return False
    tx.run(
        "insert into checkpoints (storage, job, step, epoch, restarts, complete, at) values (?, ?, ?, ?, ?, 1, ?)",
        job["storage"],
        job["id"],
        step,
        plan.epoch,
        attempt["restarts"],
        at,
    )
    say(tx, job["id"], attempt["restarts"], step, f"saved step {step} gen={name}")
    return True


def sync(tx: Tx, job: sqlite3.Row, restarts: int) -> tuple[sqlite3.Row, str | None]:
    """Brings the attempt's training up to the present moment; returns its row and how it ended, if it did."""
    attempt = tx.must("select * from attempts where job = ? and restarts = ?", job["id"], restarts)
    if attempt["stalled_since"] is not None or attempt["done"]:
        return attempt, None
    plan = plan_of(job)
    before = Track(attempt["step"], attempt["at"], bool(attempt["saving"]), bool(attempt["save_asked"]))
    moved = run_until(plan, before, tx.now)
    saved = attempt["saved"]
    for step, at in moved.saves:
        if _save(tx, job, attempt, step, at, stays=(step, at) in moved.saves[-plan.keep :]):
            saved = step
    first = attempt["first_step_at"]
    if first is None and moved.track.step > before.step:
        first = before.at + plan.step_time
    track = moved.track
    tx.run(
        "update attempts set step = ?, at = ?, saving = ?, save_asked = ?, saved = ?, first_step_at = ?"
        " where job = ? and restarts = ?",
        track.step,
        track.at,
        int(track.saving),
        int(track.save_asked),
        saved,
        first,
        job["id"],
        restarts,
    )
    return tx.must("select * from attempts where job = ? and restarts = ?", job["id"], restarts), moved.ended


def _goes_on(tx: Tx, job: sqlite3.Row, attempt: sqlite3.Row) -> bool:
    """Does the training move? All living ranks must; under the scheduler's care none may be missing.

    An orphan (the scheduler gave it up, its daemon is dead) trains on alone, as seen on a real cluster.
    """
    ranks = tx.all(
        "select alive, frozen, hung from ranks where job = ? and restarts = ?", job["id"], attempt["restarts"]
    )
    living = [r for r in ranks if r["alive"]]
    if not living or any(r["frozen"] or r["hung"] for r in living):
        return False
    if attempt["ended_at"] is not None:
        return True
    return job["phase"] == "running" and len(living) == len(ranks)


def refresh(tx: Tx, job_id: int, restarts: int) -> None:
    """To be called after anything happened to the attempt's ranks: pauses or resumes its training."""
    job = tx.job(job_id)
    attempt, _ = sync(tx, job, restarts)
    goes = _goes_on(tx, job, attempt) and not attempt["done"]
    at, stalled = attempt["at"], attempt["stalled_since"]
    if goes and stalled is not None:
        at, stalled = at + tx.now - stalled, None
    elif not goes and stalled is None:
        stalled = tx.now
    next_at = None
    if goes:
        track = Track(attempt["step"], at, bool(attempt["saving"]), bool(attempt["save_asked"]))
        next_at = max(ends_at(plan_of(job), track), tx.now + _MINIMUM_WAIT)
    tx.run(
        "update attempts set at = ?, stalled_since = ?, next_at = ? where job = ? and restarts = ?",
        at,
        stalled,
        next_at,
        job_id,
        restarts,
    )


def kill_ranks(tx: Tx, node: str, job: int | None = None, restarts: int | None = None) -> None:
    """Ends living ranks on the node (all, or those of one attempt)."""
    rows = tx.all("select job, restarts from ranks where cluster = ? and node = ? and alive = 1", tx.cluster, node)
    for row in rows:
        if (job is None or row["job"] == job) and (restarts is None or row["restarts"] == restarts):
            sync(tx, tx.job(row["job"]), row["restarts"])
            tx.run(
                "update ranks set alive = 0 where job = ? and restarts = ? and node = ?",
                row["job"],
                row["restarts"],
                node,
            )
            refresh(tx, row["job"], row["restarts"])


def ask_save(tx: Tx, job: sqlite3.Row) -> None:
    """The checkpoint signal: saves after the next step."""
    sync(tx, job, job["attempt"])
    tx.run("update attempts set save_asked = 1 where job = ? and restarts = ?", job["id"], job["attempt"])
    refresh(tx, job["id"], job["attempt"])


def read_progress(tx: Tx, job: sqlite3.Row, restarts: int) -> Progress:
    """What the attempt's own output says by now."""
    if attempt_row(tx, job["id"], restarts) is None:
        return Progress()
    attempt, _ = sync(tx, job, restarts)
    plan = plan_of(job)
    resumed = attempt["resumed"]
    stepped = attempt["step"] > (resumed or 0)
    return Progress(
        step=attempt["step"] if stepped else None,
        first_step=(resumed or 0) + 1 if stepped else None,
        resumed_from=resumed,
        saved=attempt["saved"],
        loss=loss_at(attempt["step"]) if stepped else None,
        total=plan.steps,
        seen_at=attempt["at"] if stepped else None,
        first_step_at=attempt["first_step_at"],
        done=bool(attempt["done"]) and attempt["step"] >= plan.steps,
    )


def read_log(tx: Tx, job: sqlite3.Row, lines: int) -> tuple[str, ...]:
    """The last lines over all attempts, as one file that each attempt appends to."""
    plan = plan_of(job)
    found: list[str] = []
    for row in tx.all("select restarts from attempts where job = ? order by restarts desc", job["id"]):
        if len(found) >= lines:
            break
        attempt, _ = sync(tx, job, row["restarts"])
        name = generation(plan, attempt["restarts"])
        first = max(attempt["resumed"] or 0, attempt["step"] - lines) + 1
        steps = [
            ((k, 0, 0), step_line(plan, k, attempt["at"] - (attempt["step"] - k) * plan.step_time, name))
            for k in range(first, attempt["step"] + 1)
        ]
        told = tx.all(
            "select id, step, line from log where job = ? and restarts = ? order by id desc limit ?",
            job["id"],
            attempt["restarts"],
            lines,
        )
        steps += [((r["step"], 1, r["id"]), r["line"]) for r in told]
        found = [text for _, text in sorted(steps)] + found
    return tuple(found[-lines:]) if lines > 0 else ()
