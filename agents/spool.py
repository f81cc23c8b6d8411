"""What waits to be sent, and what must be remembered over restarts: one SQLite file, so both change together or not.

Bounded: the oldest piece goes first, and is counted. A file that cannot be used (a full or read-only disk is a fault
of nodes too) is replaced by memory: the agent goes on and forgets at its end.
"""

import contextlib
import json
import logging
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fleet.faults.evidence import EARLIER_BOOT, Evidence

MOST = 5000
"""Pieces that wait at most, about 5 MB: days of a sick node without Temporal."""
FILE = "agent.sqlite"
_DROPPED = "dropped"
_TABLES = """
CREATE TABLE IF NOT EXISTS waiting (id INTEGER PRIMARY KEY AUTOINCREMENT, boot TEXT NOT NULL, piece TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS memo (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
log = logging.getLogger("runbook-agent")


class Spool:
    """One process at a time."""

    def __init__(self, folder: Path, boot: str, most: int = MOST) -> None:
        """`boot`: the kernel's own id of the present boot."""
        self.boot = boot
        self.most = most
        self._memory: dict[str, str] = {}
        self._db = self._opened(folder)

    def close(self) -> None:
        """Ends it."""
        self._db.close()

    def add(self, pieces: Iterable[Evidence] = (), memo: Mapping[str, Any] | None = None) -> int:
        """Keeps both or, when the process dies now, neither. Returns how many old pieces had to go."""
        lines = [(self.boot, piece.model_dump_json(exclude_none=True)) for piece in pieces]
        words = [(name, json.dumps(value)) for name, value in (memo or {}).items()]
        try:
            return self._add(lines, words)
        except sqlite3.Error as error:
            log.error("the spool's file cannot be written (%s); evidence waits in memory from now on", error)
            self._into_memory()
            return self._add(lines, words)

    def _add(self, lines: list[tuple[str, str]], words: list[tuple[str, str]]) -> int:
        with self._db:
            self._db.executemany("INSERT INTO waiting (boot, piece) VALUES (?, ?)", lines)
            over = max(0, self._count() - self.most) if lines else 0
            if over:
                self._db.execute(
                    "DELETE FROM waiting WHERE id IN (SELECT id FROM waiting ORDER BY id LIMIT ?)", (over,)
                )
                words = [*words, (_DROPPED, json.dumps(self.dropped + over))]
            self._db.executemany("INSERT OR REPLACE INTO memo VALUES (?, ?)", words)
        self._memory.update(words)
        return over

    def remembered(self, name: str) -> Any:
        """What `add` was given under the name; None for nothing."""
        text = self._memory.get(name)
        return None if text is None else json.loads(text)

    @property
    def dropped(self) -> int:
        """Pieces that were never sent, since the file was made."""
        return int(self.remembered(_DROPPED) or 0)

    @property
    def waiting(self) -> int:
        """Pieces that are not sent yet."""
        return self._count()

    def oldest(self, most: int) -> list[tuple[int, Evidence]]:
        """The first ones with their numbers. A piece of an earlier boot says so: it is void, and still history."""
        found: list[tuple[int, Evidence]] = []
        for number, boot, text in self._db.execute("SELECT * FROM waiting ORDER BY id LIMIT ?", (most,)).fetchall():
            try:
                piece = Evidence.model_validate_json(text)
            except ValidationError:  # of another release
                log.error("a waiting piece cannot be read by this release and is dropped: %.300s", text)
                self.done([number])
                continue
            found.append((number, piece if boot == self.boot else piece.model_copy(update={"boot": EARLIER_BOOT})))
        return found

    def done(self, numbers: Sequence[int]) -> None:
        """They are sent."""
        try:
            with self._db:
                self._db.executemany("DELETE FROM waiting WHERE id = ?", [(number,) for number in numbers])
        except sqlite3.Error as error:
            log.error("the spool's file cannot be written (%s); evidence waits in memory from now on", error)
            self._into_memory(without=set(numbers))

    def _count(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM waiting").fetchone()[0])

    def _opened(self, folder: Path) -> sqlite3.Connection:
        path = folder / FILE
        for last in (False, True):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                db = sqlite3.connect(path, timeout=5)
                db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;" + _TABLES)
                self._memory = dict(db.execute("SELECT name, value FROM memo"))
                return db
            except (OSError, sqlite3.Error) as error:
                broken = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
                if broken and not last:
                    log.error("%s is broken (%s); it is kept as %s.broken and a new one is begun", path, error, FILE)
                    with contextlib.suppress(OSError):
                        path.replace(path.with_name(f"{FILE}.broken"))
                    continue
                log.error("%s cannot be used (%s); what waits is lost when the agent ends", path, error)
                break
        return _in_memory()

    def _into_memory(self, without: set[int] | None = None) -> None:
        """Goes on with what can still be read of the file."""
        rows: list[tuple[int, str, str]] = []
        with contextlib.suppress(sqlite3.Error):
            rows = self._db.execute("SELECT * FROM waiting ORDER BY id").fetchall()
        with contextlib.suppress(sqlite3.Error):
            self._db.close()
        self._db = _in_memory()
        with self._db:
            self._db.executemany(
                "INSERT INTO waiting VALUES (?, ?, ?)", [row for row in rows if row[0] not in (without or ())]
            )


def _in_memory() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:")
    db.executescript(_TABLES)
    return db
