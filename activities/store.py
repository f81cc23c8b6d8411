"""The history store: what must outlive Temporal's retention. Append-only; SQLite by default, PostgreSQL by URL.

Saved specs of adopted jobs, evidence, verdicts and finished reports. Everything is redacted before it is written.
The methods of `HistoryStore` block; async callers use `AsyncHistoryStore`, which runs them in threads. Several
processes may share one SQLite file: each write is one statement, so nothing is read first and changed later.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    Index,
    Insert,
    Integer,
    MetaData,
    Select,
    String,
    Table,
    Text,
    create_engine,
    event,
    func,
    insert,
    literal,
    or_,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.sql.dml import ReturningInsert

from fleet.errors import InvalidInputError, PermanentError, TemporaryError
from fleet.faults.evidence import Evidence, Verdict
from fleet.model import Value
from fleet.redact import redact, redact_tree

SCHEMA_VERSION = 1
BUSY_LIMIT = 10.0
"""Seconds that a write waits for another process's write before it fails (SQLite)."""
CHUNK = 500
"""Evidence rows per statement; SQLite takes 32 766 bound values in one."""

_META = MetaData()
_ID = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself for INTEGER only

_VERSION = Table(
    "history_schema",
    _META,
    Column("id", Integer, primary_key=True),
    Column("version", Integer, nullable=False),
)
_SPECS = Table(
    "specs",
    _META,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("job", String(200), nullable=False),
    Column("cluster", String(200), nullable=False),
    Column("native_id", String(200), nullable=False),
    Column("script", Text),
    Column("spec_text", Text, nullable=False),
    Column("redacted", Boolean, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("at", Float, nullable=False),
    Index("specs_by_job", "job", "id"),
)
_EVIDENCE = Table(
    "evidence",
    _META,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("key", String(32), nullable=False, unique=True),
    Column("cluster", String(200), nullable=False),
    Column("node", String(200)),
    Column("job", String(200)),
    Column("kind", String(40), nullable=False),
    Column("seen_at", Float, nullable=False),
    Column("body", Text, nullable=False),  # every field, as JSON
    Index("evidence_by_node", "cluster", "node", "seen_at"),
    Index("evidence_by_job", "cluster", "job", "seen_at"),
)
_REPORTS = Table(
    "reports",
    _META,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("subject", String(400), nullable=False),
    Column("kind", String(60), nullable=False),
    Column("body", Text, nullable=False),
    Column("digest", String(64), nullable=False, unique=True),
    Column("at", Float, nullable=False),
    Index("reports_by_subject", "subject", "id"),
)
_VERDICTS = Table(
    "verdicts",
    _META,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("subject", String(400), nullable=False),
    Column("body", Text, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("at", Float, nullable=False),
    Index("verdicts_by_subject", "subject", "id"),
)


class SavedSpec(Value):
    """What a job was when it was adopted, for a resubmission or a person."""

    job: str
    cluster: str
    native_id: str
    script: str | None
    spec_text: str
    redacted: bool
    """True: a secret was taken out, so the script is no longer what the user wrote and must not be resubmitted."""
    at: float


class SavedReport(Value):
    """A finished report; `report` is the JSON text of a `fleet.ettr.Report`."""

    subject: str
    kind: str
    report: str
    at: float


class StoreSize(Value):
    """Rows per table, and bytes of the SQLite file with its log (None for another database)."""

    specs: int
    evidence: int
    reports: int
    verdicts: int
    bytes: int | None = None


def sqlite_url(path: str | Path) -> str:
    """URL of a SQLite file."""
    return f"sqlite:///{Path(path).absolute()}"


class HistoryStore:
    """Blocking access. Raises PermanentError for a URL or schema that cannot be used, TemporaryError when the
    database is busy or away; a write that raised may be repeated, it lands once."""

    def __init__(self, url: str) -> None:
        """Opens the store and creates what is missing. `url` is SQLAlchemy's; `sqlite_url` makes one of a path."""
        self._url = _checked_url(url)
        self._dialect = self._url.get_backend_name()
        try:
            self._engine = _engine(self._url)
        except (ModuleNotFoundError, NoSuchModuleError) as error:
            raise PermanentError(f"no driver for the history store ({self._shown}): install it; {error}") from error
        with self._guarded(), self._engine.begin() as connection:
            self._create(connection)

    @property
    def _shown(self) -> str:
        return self._url.render_as_string(hide_password=True)

    # -- writes

    def save_spec(
        self, *, job: str, cluster: str, native_id: str, script: str | None, spec_text: str, at: float | None = None
    ) -> bool:
        """Appends a job's spec, redacted; False when the job's newest saved spec is the same one."""
        clean = redact(script) if script is not None else None
        text = redact(spec_text)
        row = {
            "job": job,
            "cluster": cluster,
            "native_id": native_id,
            "script": clean,
            "spec_text": text,
            "redacted": clean != script or text != spec_text,
            "digest": _digest(cluster, native_id, str(clean), text),
            "at": _now(at),
        }
        return self._append_if_new(_SPECS, row, _SPECS.c.job == job)

    def add_evidence(self, evidence: Iterable[Evidence]) -> int:
        """Appends what is not known yet (by `Evidence.key`); returns how many were new."""
        rows = [_evidence_row(e) for e in evidence]
        new = 0
        with self._guarded(), self._engine.begin() as connection:
            for start in range(0, len(rows), CHUNK):
                statement = self._insert_or_ignore(_EVIDENCE, rows[start : start + CHUNK], "key")
                new += len(connection.execute(statement.returning(_EVIDENCE.c.id)).all())
        return new

    def save_report(self, subject: str, kind: str, report: str, at: float | None = None) -> bool:
        """Appends a finished report (JSON text); False when exactly this one is stored already.

        InvalidInputError when `report` is no JSON.
        """
        try:
            body = json.dumps(redact_tree(json.loads(report)), separators=(",", ":"))
        except ValueError as error:
            raise InvalidInputError(f"the report of {subject} is no JSON: {error}") from error
        digest = _digest(subject, kind, body)
        row = {"subject": subject, "kind": kind, "body": body, "digest": digest, "at": _now(at)}
        with self._guarded(), self._engine.begin() as connection:
            statement = self._insert_or_ignore(_REPORTS, [row], "digest").returning(_REPORTS.c.id)
            return bool(connection.execute(statement).all())

    def save_verdict(self, subject: str, verdict: Verdict, at: float | None = None) -> bool:
        """Appends a verdict on a job, a node or a runbook; False when the subject's newest verdict is the same."""
        with self._guarded(), self._engine.begin() as connection:
            return bool(connection.execute(self._verdict_row(subject, verdict, at)).all())

    def _verdict_row(self, subject: str, verdict: Verdict, at: float | None) -> ReturningInsert[Any]:
        body = json.dumps(redact_tree(verdict.model_dump(mode="json")), separators=(",", ":"))
        row = {"subject": subject, "body": body, "digest": _digest(subject, body), "at": _now(at)}
        return self._if_new(_VERDICTS, row, _VERDICTS.c.subject == subject)

    def save_verdicts(self, verdicts: Mapping[str, Verdict], at: float | None = None) -> None:
        """`save_verdict` for many subjects, in one transaction: each commit waits for the disk."""
        with self._guarded(), self._engine.begin() as connection:
            for subject, verdict in verdicts.items():
                connection.execute(self._verdict_row(subject, verdict, at))

    # -- reads

    def spec_of(self, job: str) -> SavedSpec | None:
        """The newest saved spec of a job; None when it was never saved."""
        found = self._rows(select(_SPECS).where(_SPECS.c.job == job).order_by(_SPECS.c.id.desc()).limit(1))
        return SavedSpec.model_validate(found[0]) if found else None

    def evidence_for(
        self,
        cluster: str,
        node: str | None = None,
        job: str | None = None,
        since: float | None = None,
        limit: int = 10_000,
    ) -> tuple[Evidence, ...]:
        """Evidence of a cluster in the order it was seen, the newest `limit` of it.

        With a node and a job: what is about either, for a node's fault is the job's too. `since` is an epoch time,
        compared with `seen_at`.
        """
        query = select(_EVIDENCE.c.body).where(_EVIDENCE.c.cluster == cluster)
        about = [c for c, wanted in ((_EVIDENCE.c.node == node, node), (_EVIDENCE.c.job == job, job)) if wanted]
        if about:
            query = query.where(or_(*about))
        if since is not None:
            query = query.where(_EVIDENCE.c.seen_at >= since)
        rows = self._rows(query.order_by(_EVIDENCE.c.seen_at.desc(), _EVIDENCE.c.id.desc()).limit(limit))
        return tuple(Evidence.model_validate_json(row["body"]) for row in reversed(rows))

    def evidence_of_nodes(
        self, cluster: str, nodes: Sequence[str], since: float
    ) -> Mapping[str, tuple[Evidence, ...]]:
        """Evidence about each of the nodes that has some, in the order it was seen."""
        query = select(_EVIDENCE.c.node, _EVIDENCE.c.body).where(
            _EVIDENCE.c.cluster == cluster, _EVIDENCE.c.node.in_(nodes), _EVIDENCE.c.seen_at >= since
        )
        found: dict[str, list[Evidence]] = {}
        for row in self._rows(query.order_by(_EVIDENCE.c.seen_at, _EVIDENCE.c.id)):
            found.setdefault(row["node"], []).append(Evidence.model_validate_json(row["body"]))
        return {node: tuple(told) for node, told in found.items()}

    def reports(self, subject: str | None = None, limit: int = 100) -> tuple[SavedReport, ...]:
        """The newest reports, newest first."""
        query = select(_REPORTS.c.subject, _REPORTS.c.kind, _REPORTS.c.body.label("report"), _REPORTS.c.at)
        if subject is not None:
            query = query.where(_REPORTS.c.subject == subject)
        rows = self._rows(query.order_by(_REPORTS.c.id.desc()).limit(limit))
        return tuple(SavedReport.model_validate(row) for row in rows)

    def last_verdict(self, subject: str) -> Verdict | None:
        """The newest verdict on the subject."""
        query = (
            select(_VERDICTS.c.body).where(_VERDICTS.c.subject == subject).order_by(_VERDICTS.c.id.desc()).limit(1)
        )
        rows = self._rows(query)
        return Verdict.model_validate_json(rows[0]["body"]) if rows else None

    def size(self) -> StoreSize:
        """How much is stored."""
        counts = {
            table.name: int(self._rows(select(func.count().label("n")).select_from(table))[0]["n"])
            for table in (_SPECS, _EVIDENCE, _REPORTS, _VERDICTS)
        }
        return StoreSize(**counts, bytes=_file_bytes(self._url))

    def close(self) -> None:
        """Closes every connection; the store can be used again afterwards."""
        self._engine.dispose()

    # -- inside

    def _create(self, connection: Connection) -> None:
        for table in _META.sorted_tables:
            connection.execute(CreateTable(table, if_not_exists=True))
            for index in table.indexes:
                connection.execute(CreateIndex(index, if_not_exists=True))
        connection.execute(self._insert_or_ignore(_VERSION, [{"id": 1, "version": SCHEMA_VERSION}], "id"))
        version = connection.execute(select(_VERSION.c.version).where(_VERSION.c.id == 1)).scalar_one()
        if version > SCHEMA_VERSION:
            raise PermanentError(
                f"the history store {self._shown} was written by a newer release (schema {version}, this one knows "
                f"{SCHEMA_VERSION}): upgrade this program, or give it another store"
            )

    def _insert_or_ignore(self, table: Table, rows: Sequence[dict[str, Any]], unique: str) -> Insert:
        if self._dialect == "postgresql":
            return postgresql.insert(table).values(list(rows)).on_conflict_do_nothing(index_elements=[unique])
        return sqlite.insert(table).values(list(rows)).on_conflict_do_nothing(index_elements=[unique])

    def _append_if_new(self, table: Table, row: dict[str, Any], same_subject: Any) -> bool:
        with self._guarded(), self._engine.begin() as connection:
            return bool(connection.execute(self._if_new(table, row, same_subject)).all())

    def _if_new(self, table: Table, row: dict[str, Any], same_subject: Any) -> ReturningInsert[Any]:
        """One statement: appends unless the newest row of the subject has the same digest."""
        newest = select(table.c.digest).where(same_subject).order_by(table.c.id.desc()).limit(1).scalar_subquery()
        values = [literal(value, type_=table.c[name].type) for name, value in row.items()]
        source = select(*values).where(func.coalesce(newest, "") != row["digest"])
        return insert(table).from_select(list(row), source).returning(table.c.id)

    def _rows(self, query: Select[Any]) -> list[dict[str, Any]]:
        with self._guarded(), self._engine.connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Driver errors as ours. Text of the statement and its values stays out: it may be long and private."""
        try:
            yield
        except OperationalError as error:
            raise TemporaryError(
                f"the history store {self._shown} cannot be used now: {error.orig}", delay=5
            ) from None
        except DBAPIError as error:
            raise PermanentError(f"the history store {self._shown} refused: {error.orig}") from None


class AsyncHistoryStore:
    """The same calls for async code, each in a thread."""

    def __init__(self, store: HistoryStore) -> None:
        self._store = store

    @classmethod
    async def open(cls, url: str) -> "AsyncHistoryStore":
        """See `HistoryStore`."""
        return cls(await asyncio.to_thread(HistoryStore, url))

    async def save_spec(
        self, *, job: str, cluster: str, native_id: str, script: str | None, spec_text: str, at: float | None = None
    ) -> bool:
        return await asyncio.to_thread(
            self._store.save_spec,
            job=job,
            cluster=cluster,
            native_id=native_id,
            script=script,
            spec_text=spec_text,
            at=at,
        )

    async def add_evidence(self, evidence: Iterable[Evidence]) -> int:
        return await asyncio.to_thread(self._store.add_evidence, tuple(evidence))

    async def save_report(self, subject: str, kind: str, report: str, at: float | None = None) -> bool:
        return await asyncio.to_thread(self._store.save_report, subject, kind, report, at)

    async def save_verdict(self, subject: str, verdict: Verdict, at: float | None = None) -> bool:
        return await asyncio.to_thread(self._store.save_verdict, subject, verdict, at)

    async def save_verdicts(self, verdicts: Mapping[str, Verdict]) -> None:
        await asyncio.to_thread(self._store.save_verdicts, verdicts)

    async def spec_of(self, job: str) -> SavedSpec | None:
        return await asyncio.to_thread(self._store.spec_of, job)

    async def evidence_for(
        self,
        cluster: str,
        node: str | None = None,
        job: str | None = None,
        since: float | None = None,
        limit: int = 10_000,
    ) -> tuple[Evidence, ...]:
        return await asyncio.to_thread(self._store.evidence_for, cluster, node, job, since, limit)

    async def evidence_of_nodes(
        self, cluster: str, nodes: Sequence[str], since: float
    ) -> Mapping[str, tuple[Evidence, ...]]:
        return await asyncio.to_thread(self._store.evidence_of_nodes, cluster, nodes, since)

    async def reports(self, subject: str | None = None, limit: int = 100) -> tuple[SavedReport, ...]:
        return await asyncio.to_thread(self._store.reports, subject, limit)

    async def last_verdict(self, subject: str) -> Verdict | None:
        return await asyncio.to_thread(self._store.last_verdict, subject)

    async def size(self) -> StoreSize:
        return await asyncio.to_thread(self._store.size)

    async def close(self) -> None:
        await asyncio.to_thread(self._store.close)


def _checked_url(url: str) -> URL:
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
    return parsed


def _engine(url: URL) -> Any:
    if url.get_backend_name() != "sqlite":
        return create_engine(url, pool_pre_ping=True)
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


def _evidence_row(evidence: Evidence) -> dict[str, Any]:
    """`key` is of the evidence as it was seen; what is stored is redacted."""
    limit = 2000  # of `Evidence.detail`; a redacted text can be longer than the secret was
    body = redact_tree(evidence.model_dump(mode="json", exclude={"detail"}))
    assert isinstance(body, dict)  # noqa: S101 - a tree of a mapping is a mapping
    body["detail"] = redact(evidence.detail)[:limit]
    return {
        "key": evidence.key,
        "cluster": evidence.cluster,
        "node": evidence.node,
        "job": evidence.job,
        "kind": str(evidence.kind),
        "seen_at": evidence.seen_at,
        "body": json.dumps(body, separators=(",", ":")),
    }


def _digest(*parts: str) -> str:
    return hashlib.sha256("\x1f".join(parts).encode(errors="surrogatepass")).hexdigest()


def _now(at: float | None) -> float:
    return time.time() if at is None else at


def _file_bytes(url: URL) -> int | None:
    if url.get_backend_name() != "sqlite":
        return None
    file = Path(url.database or "")
    parts = (file, file.with_name(file.name + "-wal"))
    return sum(part.stat().st_size for part in parts if part.exists())
