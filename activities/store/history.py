"""The blocking store. Several processes may share it: each write is one transaction that lands once."""

import hashlib
import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, and_, delete, func, or_, select
from sqlalchemy.sql.elements import ColumnElement

from activities.store.database import Database
from activities.store.tables import (
    EVIDENCE,
    INVENTORIES,
    REPORTS,
    RUNS,
    SAMPLES,
    SCHEMA_VERSION,
    SPECS,
    STRIKES,
    TIMES,
    VERDICTS,
)
from activities.store.values import Ages, Record, SavedReport, SavedSpec, StoreSize
from fleet.errors import FleetError, InvalidInputError
from fleet.faults.evidence import Evidence, Kind, Verdict
from fleet.identity import job_workflow_id, node_workflow_id
from fleet.model import Value
from fleet.redact import redact, redact_tree
from fleet.strikes import Inventory, Run, Sample, Strike, samples_of, strikes_of

DAY = 86400.0
AT_ONCE = 5000
"""Rows forgotten in one transaction: some tens of milliseconds, for which other writers wait (SQLite)."""


class HistoryStore:
    """Raises PermanentError for a URL or schema that cannot be used, TemporaryError when the database is busy or
    away; a write that raised may be repeated, it lands once."""

    def __init__(self, url: str) -> None:
        """Opens the store, creates what is missing and brings an older one up to date. `url` is SQLAlchemy's;
        `sqlite_url` makes one of a path."""
        self._db = Database(url)
        try:
            if self._db.prepare() < SCHEMA_VERSION:
                self._distil_evidence()
                self._db.adopted()
        except FleetError:
            self._db.close()
            raise

    # -- writes

    def save_spec(
        self, *, job: str, cluster: str, native_id: str, script: str | None, spec_text: str, at: float | None = None
    ) -> bool:
        """Appends a job's spec, redacted; False when the job's newest saved spec is the same one and was saved within
        a day. An older one is saved again: `forget` must not find a job that begins anew with an old spec only."""
        clean = redact(script) if script is not None else None
        text, saved_at = redact(spec_text), _now(at)
        row = {
            "job": job,
            "cluster": cluster,
            "native_id": native_id,
            "script": clean,
            "spec_text": text,
            "redacted": clean != script or text != spec_text,
            "digest": _digest(cluster, native_id, str(clean), text),
            "at": saved_at,
        }
        with self._db.writing() as connection:
            return bool(self._db.append_if_new(connection, SPECS, [row], ["job"], stale_before=saved_at - DAY))

    def add_evidence(self, evidence: Iterable[Evidence]) -> int:
        """Appends what is not known yet (by `Evidence.key`), and what it puts on the record of nodes and GPUs;
        returns how many were new."""
        told = tuple(evidence)
        with self._db.writing() as connection:
            new = self._db.append(connection, EVIDENCE, [_evidence_row(e) for e in told], "key")
            self._record_evidence(connection, told)
        return new

    def add_strikes(self, strikes: Iterable[Strike], runs: Iterable[Run] = ()) -> int:
        """Appends strikes and runs that are not known yet (by key); returns how many were new."""
        with self._db.writing() as connection:
            new = self._db.append(connection, STRIKES, [_keyed(s) for s in strikes], "key")
            return new + self._db.append(connection, RUNS, [_keyed(r) for r in runs], "key")

    def save_inventory(self, inventory: Inventory) -> bool:
        """Appends which GPUs a node holds; False when they are the ones that are known."""
        gpus = json.dumps(sorted(inventory.gpus))
        row = {"cluster": inventory.cluster, "node": inventory.node, "gpus": gpus, "at": inventory.at}
        rows = [{**row, "digest": _digest(gpus)}]
        with self._db.writing() as connection:
            return bool(self._db.append_if_new(connection, INVENTORIES, rows, ["cluster", "node"]))

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
        with self._db.writing() as connection:
            return bool(self._db.append(connection, REPORTS, [row], "digest"))

    def save_verdict(self, subject: str, verdict: Verdict, at: float | None = None) -> bool:
        """Appends a verdict on a job, a node or a runbook; False when the subject's newest verdict is the same."""
        return bool(self.save_verdicts({subject: verdict}, at))

    def save_verdicts(self, verdicts: Mapping[str, Verdict], at: float | None = None) -> int:
        """`save_verdict` for many subjects, in one transaction, for each commit waits for the disk; returns how many
        were appended."""
        rows = []
        for subject, verdict in verdicts.items():
            body = json.dumps(redact_tree(verdict.model_dump(mode="json")), separators=(",", ":"))
            rows.append({"subject": subject, "body": body, "digest": _digest(subject, body), "at": _now(at)})
        with self._db.writing() as connection:
            return self._db.append_if_new(connection, VERDICTS, rows, ["subject"])

    # -- reads

    def spec_of(self, job: str) -> SavedSpec | None:
        """The newest saved spec of a job; None when it was never saved."""
        found = self._db.rows(select(SPECS).where(SPECS.c.job == job).order_by(SPECS.c.id.desc()).limit(1))
        return SavedSpec.model_validate(found[0]) if found else None

    def evidence_for(
        self,
        cluster: str,
        node: str | None = None,
        job: str | None = None,
        since: float | None = None,
        limit: int = 10_000,
        kind: Kind | None = None,
    ) -> tuple[Evidence, ...]:
        """Evidence of a cluster in the order it was seen, the newest `limit` of it; of one kind where it is given.

        With a node and a job: what is about either, for a node's fault is the job's too. `since` is an epoch time,
        compared with `seen_at`.
        """
        query = select(EVIDENCE.c.body).where(EVIDENCE.c.cluster == cluster)
        about = [c for c, wanted in ((EVIDENCE.c.node == node, node), (EVIDENCE.c.job == job, job)) if wanted]
        if about:
            query = query.where(or_(*about))
        if since is not None:
            query = query.where(EVIDENCE.c.seen_at >= since)
        if kind is not None:
            query = query.where(EVIDENCE.c.kind == kind.value)
        rows = self._db.rows(query.order_by(EVIDENCE.c.seen_at.desc(), EVIDENCE.c.id.desc()).limit(limit))
        return tuple(Evidence.model_validate_json(row["body"]) for row in reversed(rows))

    def evidence_of_nodes(
        self, cluster: str, nodes: Sequence[str], since: float
    ) -> Mapping[str, tuple[Evidence, ...]]:
        """Evidence about each of the nodes that has some, in the order it was seen."""
        query = select(EVIDENCE.c.node, EVIDENCE.c.body).where(
            EVIDENCE.c.cluster == cluster, EVIDENCE.c.node.in_(nodes), EVIDENCE.c.seen_at >= since
        )
        found: dict[str, list[Evidence]] = {}
        for row in self._db.rows(query.order_by(EVIDENCE.c.seen_at, EVIDENCE.c.id)):
            found.setdefault(row["node"], []).append(Evidence.model_validate_json(row["body"]))
        return {node: tuple(told) for node, told in found.items()}

    def reports(self, subject: str | None = None, limit: int = 100) -> tuple[SavedReport, ...]:
        """The newest reports, newest first."""
        query = select(REPORTS.c.subject, REPORTS.c.kind, REPORTS.c.body.label("report"), REPORTS.c.at)
        if subject is not None:
            query = query.where(REPORTS.c.subject == subject)
        rows = self._db.rows(query.order_by(REPORTS.c.id.desc()).limit(limit))
        return tuple(SavedReport.model_validate(row) for row in rows)

    def last_verdict(self, subject: str) -> Verdict | None:
        """The newest verdict on the subject."""
        query = select(VERDICTS.c.body).where(VERDICTS.c.subject == subject).order_by(VERDICTS.c.id.desc()).limit(1)
        rows = self._db.rows(query)
        return Verdict.model_validate_json(rows[0]["body"]) if rows else None

    def record(self, since: float, cluster: str | None = None, node: str | None = None) -> Record:
        """What is on the record of the fleet, a cluster or a node since then, oldest first."""

        def of(table: Table) -> list[dict[str, Any]]:
            wanted = [table.c.cluster == cluster] if cluster is not None else []
            wanted += [table.c.node == node] if node is not None else []
            wanted += [table.c.at >= since] if table is not INVENTORIES else []
            return self._db.rows(select(table).where(*wanted).order_by(table.c.at, table.c.id))

        return Record(
            strikes=tuple(Strike.model_validate(row) for row in of(STRIKES)),
            runs=tuple(Run.model_validate(row) for row in of(RUNS)),
            inventories=tuple(
                Inventory.model_validate({**row, "gpus": json.loads(row["gpus"])}) for row in of(INVENTORIES)
            ),
        )

    def samples(
        self, since: float, measure: str | None = None, cluster: str | None = None, node: str | None = None
    ) -> tuple[Sample, ...]:
        """Measured figures since then, oldest first; of one measure, cluster or node where they are given."""
        wanted = [SAMPLES.c.at >= since]
        given = ((SAMPLES.c.measure, measure), (SAMPLES.c.cluster, cluster), (SAMPLES.c.node, node))
        wanted += [column == value for column, value in given if value is not None]
        rows = self._db.rows(select(SAMPLES).where(*wanted).order_by(SAMPLES.c.at, SAMPLES.c.id))
        return tuple(Sample.model_validate(row) for row in rows)

    def size(self) -> StoreSize:
        """How much is stored, and since when."""
        counts, oldest = {}, []
        for table, time_of in TIMES.items():
            found = self._db.rows(select(func.count().label("n"), func.min(time_of).label("at")).select_from(table))[
                0
            ]
            counts[table.name] = int(found["n"])
            oldest += [found["at"]] if found["at"] is not None else []
        return StoreSize(**counts, bytes=self._db.bytes(), oldest=min(oldest, default=None))

    # -- retention

    def forget(self, ages: Ages, still_open: Collection[str], at: float | None = None) -> Mapping[str, int]:
        """Takes away what is older than its age; returns how many rows of each table that has lost some.

        `still_open` are the workflow ids of the open runbooks: nothing about their subjects goes, nor do the last
        known GPUs of a node. May be repeated, and stopped at any time.
        """
        now = _now(at)
        open_subject = sorted(still_open)
        jobs = [i.removeprefix(_JOB) for i in open_subject if i.startswith(_JOB)]
        places = [i for i in open_subject if i.startswith(_NODE)]
        last = select(func.max(INVENTORIES.c.id)).group_by(INVENTORIES.c.cluster, INVENTORIES.c.node)
        rules: tuple[tuple[Table, float, ColumnElement[bool]], ...] = (
            (SPECS, ages.specs, SPECS.c.job.not_in(jobs)),
            (EVIDENCE, ages.evidence, and_(_other_job(jobs), _elsewhere(EVIDENCE, places))),
            (REPORTS, ages.reports, REPORTS.c.subject.not_in(open_subject)),
            (VERDICTS, ages.reports, VERDICTS.c.subject.not_in(open_subject)),
            (STRIKES, ages.record, _elsewhere(STRIKES, places)),
            (RUNS, ages.record, _elsewhere(RUNS, places)),
            (SAMPLES, ages.record, _elsewhere(SAMPLES, places)),
            (INVENTORIES, ages.record, INVENTORIES.c.id.not_in(last)),
        )
        gone = {table.name: self._forget(table, and_(TIMES[table] < now - age, rule)) for table, age, rule in rules}
        return {name: count for name, count in gone.items() if count}

    def _forget(self, table: Table, old: ColumnElement[bool]) -> int:
        count = 0
        while True:
            with self._db.writing() as connection:
                some = select(table.c.id).where(old).limit(AT_ONCE)
                gone = connection.execute(delete(table).where(table.c.id.in_(some))).rowcount
            count += gone
            if gone < AT_ONCE:
                return count

    def close(self) -> None:
        """Closes every connection; the store can be used again afterwards."""
        self._db.close()

    # -- inside

    def _record_evidence(self, connection: Connection, told: Iterable[Evidence]) -> None:
        strikes, samples = [], []
        for one in told:
            strikes += [_keyed(s) for s in strikes_of(one)]
            samples += [_keyed(s) for s in samples_of(one)]
        self._db.append(connection, STRIKES, strikes, "key")
        self._db.append(connection, SAMPLES, samples, "key")

    def _distil_evidence(self) -> None:
        """Schema 1 to 2: the record that its evidence makes. Repeated after a crash it adds nothing twice."""
        last = 0
        while True:
            query = select(EVIDENCE.c.id, EVIDENCE.c.body).where(EVIDENCE.c.id > last).order_by(EVIDENCE.c.id)
            rows = self._db.rows(query.limit(AT_ONCE))
            if not rows:
                return
            last = rows[-1]["id"]
            with self._db.writing() as connection:
                self._record_evidence(connection, (Evidence.model_validate_json(row["body"]) for row in rows))


_JOB, _NODE = job_workflow_id(""), node_workflow_id("", "").rstrip("/") + "/"


def _other_job(jobs: Sequence[str]) -> ColumnElement[bool]:
    """True for evidence about none of the jobs."""
    return or_(EVIDENCE.c.job.is_(None), EVIDENCE.c.job.not_in(jobs))


def _elsewhere(table: Table, places: Sequence[str]) -> ColumnElement[bool]:
    """True for rows of no node that is one of the places (`node/CLUSTER/NODE`)."""
    here = _NODE + table.c.cluster + "/" + table.c.node
    return or_(table.c.node.is_(None), here.not_in(places))


def _keyed(value: Value) -> dict[str, Any]:
    return {"key": getattr(value, "key"), **value.model_dump(mode="json")}  # noqa: B009 - each of them has one


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
