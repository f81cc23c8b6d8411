"""One connection pool to SQLite or PostgreSQL: its URL, its errors as ours, and inserts that repeat without harm."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Connection,
    Insert,
    Select,
    Table,
    bindparam,
    case,
    create_engine,
    event,
    func,
    insert,
    literal,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.sql.dml import ReturningInsert

from activities.store.tables import META, SCHEMA_VERSION, TIMES, VERSION
from fleet.errors import InvalidInputError, PermanentError, TemporaryError

BUSY_LIMIT = 10.0
"""Seconds that a write waits for another process's write before it fails (SQLite)."""
CONNECT_LIMIT = 10
"""Seconds until a PostgreSQL server that does not answer counts as away."""
_OURS = 0x6770752D72756E62  # "gpu-runb"; PostgreSQL's advisory locks have numbers
_LOCK_SCHEMA = text("SELECT pg_advisory_xact_lock(:n)").bindparams(n=_OURS)


def sqlite_url(path: str | Path) -> str:
    """URL of a SQLite file."""
    return f"sqlite:///{Path(path).absolute()}"


class Database:
    """Blocking. Raises PermanentError for a URL or a schema that cannot be used, TemporaryError when the database is
    busy or away."""

    def __init__(self, url: str) -> None:
        self.url = _checked(url)
        self.postgresql = self.url.get_backend_name() == "postgresql"
        try:
            self._engine = _engine(self.url)
        except (ModuleNotFoundError, NoSuchModuleError) as error:
            fix = "install gpu-runbooks[postgresql]" if self.postgresql else "install it"
            raise PermanentError(f"no driver for the history store ({self.shown}): {fix}; {error}") from error

    @property
    def shown(self) -> str:
        """The URL without a password."""
        return self.url.render_as_string(hide_password=True)

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction: all of it lands, or nothing."""
        with self._guarded(), self._engine.begin() as connection:
            yield connection

    def rows(self, query: Select[*tuple[Any, ...]]) -> list[dict[str, Any]]:
        """What a query finds, a mapping for each row."""
        with self._guarded(), self._engine.connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def append(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], unique: str) -> int:
        """Appends the rows whose `unique` column is not there yet; returns how many were new."""
        if not rows:
            return 0
        statement = self._or_ignore(table, unique).returning(table.c[unique])
        return len(connection.execute(statement, [_clean(row) for row in rows]).all())

    def append_if_new(
        self,
        connection: Connection,
        table: Table,
        rows: Sequence[Mapping[str, Any]],
        same: Sequence[str],
        stale_before: float | None = None,
    ) -> int:
        """Appends each row unless the newest one that equals it in the columns `same` has the same digest and is not
        older than `stale_before`. Returns how many were appended.

        One statement for each row, so that two processes never both append; PostgreSQL would let them, and so is told
        to take one at a time.
        """
        if not rows:
            return 0
        if self.postgresql:
            connection.execute(text(f'LOCK TABLE "{table.name}" IN SHARE ROW EXCLUSIVE MODE'))
        statement = _if_new(table, tuple(rows[0]), same, stale_before)
        return sum(len(connection.execute(statement, _clean(row)).all()) for row in rows)

    def prepare(self) -> int:
        """Creates what is missing and returns the schema's version as it was found; today's for a new store.

        PermanentError for a newer one. The caller brings older rows over, then calls `adopted`.
        """
        with self.writing() as connection:
            if self.postgresql:
                connection.execute(_LOCK_SCHEMA)  # CREATE IF NOT EXISTS of two sessions at once collides there
            for table in META.sorted_tables:
                connection.execute(CreateTable(table, if_not_exists=True))
                for index in table.indexes:
                    connection.execute(CreateIndex(index, if_not_exists=True))
            connection.execute(self._or_ignore(VERSION, "id"), {"id": 1, "version": SCHEMA_VERSION})
            version: int = connection.execute(select(VERSION.c.version).where(VERSION.c.id == 1)).scalar_one()
        if version > SCHEMA_VERSION:
            raise PermanentError(
                f"the history store {self.shown} was written by a newer release (schema {version}, this one knows "
                f"{SCHEMA_VERSION}): upgrade this program, or give it another store"
            )
        return version

    def adopted(self) -> None:
        """Everything in it is of today's schema now; an older release refuses it from here on."""
        with self.writing() as connection:
            connection.execute(VERSION.update().where(VERSION.c.id == 1).values(version=SCHEMA_VERSION))

    def bytes(self) -> int:
        """Bytes on the disk."""
        if self.postgresql:
            tables = [func.pg_total_relation_size(literal(table.name).op("::")(text("regclass"))) for table in TIMES]
            return sum(int(self.rows(select(size.label("n")))[0]["n"]) for size in tables)
        file = Path(self.url.database or "")
        parts = (file, file.with_name(file.name + "-wal"))
        return sum(part.stat().st_size for part in parts if part.exists())

    def close(self) -> None:
        """Closes every connection; the database can be used again afterwards."""
        self._engine.dispose()

    def _or_ignore(self, table: Table, unique: str) -> Insert:
        if self.postgresql:
            return postgresql.insert(table).on_conflict_do_nothing(index_elements=[unique])
        return sqlite.insert(table).on_conflict_do_nothing(index_elements=[unique])

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Driver errors as ours. Text of the statement and its values stays out: it may be long and private."""
        try:
            yield
        except OperationalError as error:
            raise TemporaryError(
                f"the history store {self.shown} cannot be used now: {_first_line(error)}", delay=5
            ) from None
        except DBAPIError as error:
            raise PermanentError(f"the history store {self.shown} refused: {_first_line(error)}") from None


def _first_line(error: DBAPIError) -> str:
    """PostgreSQL adds lines that quote the statement."""
    return str(error.orig).strip().partition("\n")[0]


def _if_new(
    table: Table, names: Sequence[str], same: Sequence[str], stale_before: float | None
) -> ReturningInsert[Any]:
    """For rows of these columns: made once, whatever their number."""
    given = {name: bindparam(name, type_=table.c[name].type) for name in names}
    newest = select(table.c.digest if stale_before is None else case((table.c.at >= stale_before, table.c.digest)))
    newest = newest.where(*(table.c[name] == given[name] for name in same)).order_by(table.c.id.desc()).limit(1)
    source = select(*given.values()).where(func.coalesce(newest.scalar_subquery(), "") != given["digest"])
    return insert(table).from_select(list(names), source).returning(table.c.id)


def _clean(row: Mapping[str, Any]) -> dict[str, Any]:
    """Texts as both databases take them: no NUL, no half of a character."""
    return {name: _text(value) if isinstance(value, str) else value for name, value in row.items()}


def _text(value: str) -> str:
    return value.replace("\x00", "\ufffd").encode(errors="replace").decode()


def _checked(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise InvalidInputError(
            "the history store's URL cannot be read; give sqlite:////path/to/history.db"
        ) from error
    backend = parsed.get_backend_name()
    if backend not in {"sqlite", "postgresql"}:
        raise InvalidInputError(f"the history store is kept in SQLite or PostgreSQL, not in {backend}")
    if backend == "sqlite" and parsed.database in {None, "", ":memory:"}:
        raise InvalidInputError("the history store needs a file: an in-memory one would be lost with the process")
    return parsed.set(drivername="postgresql+psycopg") if backend == "postgresql" else parsed


def _engine(url: URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        return create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": CONNECT_LIMIT})
    file = Path(url.database or "")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch(mode=0o600)  # the database inherits this mode: scripts and specs are private
    except OSError as error:
        raise PermanentError(f"cannot write the history store {file}: {error.strerror}") from error
    engine = create_engine(url, connect_args={"timeout": BUSY_LIMIT})

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=wal")  # readers and one writer at a time, from several processes
        cursor.execute("PRAGMA synchronous=full")  # a spec that was saved must survive a power cut
        cursor.close()

    return engine
