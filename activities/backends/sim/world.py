"""Makes a simulated world: one file with its clusters, nodes and clock."""

import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path

from activities.backends.sim.settings import ClusterShape
from activities.backends.sim.store import SCHEMA, Store, clock
from fleet.errors import InvalidInputError, RefusedError


def create_world(path: Path, clusters: Mapping[str, ClusterShape], time_scale: float = 1.0) -> Path:
    """Creates the file with all nodes up and idle; returns its path.

    `time_scale`: simulated seconds per real second. The simulated clock starts at the wall clock.
    Raises RefusedError when the file is there already, InvalidInputError without a cluster or with a bad rate.
    """
    if not clusters or time_scale <= 0:
        raise InvalidInputError("a world needs at least one cluster and a time_scale above 0; nothing was made")
    if path.exists():
        raise RefusedError(f"{path} exists; open it, or remove it for a new world")
    path.parent.mkdir(parents=True, exist_ok=True)
    now = time.time()
    building = path.with_name(f"{path.name}.new")
    building.unlink(missing_ok=True)
    db = sqlite3.connect(building, isolation_level=None)
    try:
        db.executescript(SCHEMA)
        db.execute("begin")
        db.execute("insert into clock values (?, ?, ?)", (now, now, time_scale))
        for cluster, shape in clusters.items():
            db.execute("insert into clusters (name, shape) values (?, ?)", (cluster, shape.model_dump_json()))
            db.executemany(
                "insert into nodes (cluster, name, place, booted_at) values (?, ?, ?, ?)",
                [(cluster, f"{cluster}{i}", i, now - 3600) for i in range(1, shape.nodes + 1)],
            )
        db.execute("commit")
        db.execute("pragma journal_mode = wal")
    finally:
        db.close()
    building.rename(path)
    return path


def set_time_scale(path: Path, time_scale: float) -> None:
    """Changes how fast the world's time runs, for every process, from now on."""
    if time_scale <= 0:
        raise InvalidInputError("time_scale must be above 0")
    store = Store(path)
    try:
        with store.begin() as db:
            sim, _ = clock(db)
            db.execute("update clock set wall = ?, sim = ?, scale = ?", (time.time(), sim, time_scale))
    finally:
        store.close()
