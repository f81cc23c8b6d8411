"""The history store keeps each thing once, from several processes, and nothing secret."""

import asyncio
import json
import multiprocessing
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from activities.store import AsyncHistoryStore, HistoryStore, sqlite_url
from fleet.errors import InvalidInputError, PermanentError, TemporaryError
from fleet.faults.evidence import Evidence, FaultClass, Kind, Source, Verdict


def xid(
    number: int, *, node: str = "n1", job: str | None = None, cluster: str = "alpha", detail: str = ""
) -> Evidence:
    return Evidence(
        source=Source.KERNEL,
        kind=Kind.XID,
        cluster=cluster,
        node=node,
        job=job,
        code="79",
        seen_at=1000.0 + number,
        happened_at=float(number),
        detail=detail,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A SQLite file: for what only a file can show."""
    return tmp_path / "history.sqlite"


@pytest.fixture
def store(url: str) -> Iterator[HistoryStore]:
    opened = HistoryStore(url)
    yield opened
    opened.close()


@pytest.fixture
def in_file(path: Path) -> Iterator[HistoryStore]:
    opened = HistoryStore(sqlite_url(path))
    yield opened
    opened.close()


def test_evidence_reported_twice_is_stored_once(store: HistoryStore) -> None:
    assert store.add_evidence([xid(1), xid(2), xid(1)]) == 2
    again = xid(1).model_copy(update={"seen_at": 5000.0, "detail": "told by somebody else"})
    assert store.add_evidence([again, xid(3)]) == 1
    assert [e.happened_at for e in store.evidence_for("alpha")] == [1.0, 2.0, 3.0]
    assert store.add_evidence([]) == 0


def test_evidence_comes_back_as_it_was_in_the_order_it_was_seen(store: HistoryStore) -> None:
    many = [xid(n, detail=f"Zeile {n} \u2713") for n in range(1200)]
    assert store.add_evidence(reversed(many)) == 1200
    assert list(store.evidence_for("alpha")) == many
    assert list(store.evidence_for("alpha", limit=3)) == many[-3:]
    assert list(store.evidence_for("alpha", since=1000.0 + 1198)) == many[-2:]


def test_evidence_is_found_by_cluster_and_by_node_or_job(store: HistoryStore) -> None:
    on_node, on_job = xid(1, node="n1"), xid(2, node="n2", job="llm")
    neither, elsewhere = xid(3, node="n3"), xid(4, node="n1", cluster="beta")
    store.add_evidence([on_node, on_job, neither, elsewhere])
    assert store.evidence_for("alpha", node="n1") == (on_node,)
    assert store.evidence_for("alpha", job="llm") == (on_job,)
    assert store.evidence_for("alpha", node="n1", job="llm") == (on_node, on_job)
    assert store.evidence_for("gamma") == ()


def test_a_spec_is_appended_only_when_it_changed(store: HistoryStore) -> None:
    def save(script: str, at: float) -> bool:
        return store.save_spec(job="llm", cluster="alpha", native_id="7", script=script, spec_text="JobId=7", at=at)

    assert [save("#!/bin/sh\na", 1), save("#!/bin/sh\na", 2), save("b", 3), save("#!/bin/sh\na", 4)] == [
        True,
        False,
        True,
        True,  # back to an older one is a change too
    ]
    newest = store.spec_of("llm")
    assert newest is not None
    assert (newest.script, newest.at, newest.redacted) == ("#!/bin/sh\na", 4.0, False)
    assert store.spec_of("other") is None
    assert store.size().specs == 3


def test_reports_and_verdicts_survive_a_repeated_write(store: HistoryStore) -> None:
    report = json.dumps({"subject": "job/a", "stages": [1, 2]})
    assert store.save_report("job/a", "failover", report, at=1)
    assert not store.save_report("job/a", "failover", report, at=2)
    assert store.save_report("job/b", "failover", report, at=3)
    assert [r.subject for r in store.reports()] == ["job/b", "job/a"]
    assert [json.loads(r.report) for r in store.reports("job/a")] == [json.loads(report)]
    assert [r.subject for r in store.reports(limit=1)] == ["job/b"]

    first = Verdict(fault=FaultClass.HARDWARE, rule="xid-79")
    second = Verdict(fault=FaultClass.UNKNOWN, rule="none")
    assert [store.save_verdict("node/alpha/n1", v) for v in (first, first, second, first)] == [
        True,
        False,
        True,
        True,
    ]
    assert store.last_verdict("node/alpha/n1") == first
    assert store.last_verdict("node/alpha/n2") is None


def test_a_report_that_is_no_json_is_refused(store: HistoryStore) -> None:
    with pytest.raises(InvalidInputError, match="job/a is no JSON"):
        store.save_report("job/a", "failover", "{")


def test_nothing_secret_reaches_the_file(in_file: HistoryStore, path: Path) -> None:
    store = in_file
    secret = "s3cr3t"  # noqa: S105 - the bait
    store.save_spec(
        job="llm",
        cluster="alpha",
        native_id="7",
        script=f"#!/bin/sh\nexport HF_TOKEN={secret}\nexport A_PASSWORD='{secret}'\nrun --api-key {secret}\n",
        spec_text=f"Comment=Bearer {secret}{secret}",
    )
    full = f"AWS_SECRET_ACCESS_KEY={secret} ".ljust(1999, "x")  # redacted it is longer than evidence may be
    store.add_evidence([xid(1, detail=full)])
    store.save_report("job/llm", "failover", json.dumps({"log": f"MY_SECRET={secret}", "password": secret}))
    store.save_verdict("job/llm", Verdict(fault=FaultClass.USER, rule="r", title=f"API_TOKEN={secret}"))

    saved = store.spec_of("llm")
    assert saved is not None
    assert saved.redacted
    assert len(store.evidence_for("alpha")) == 1
    store.close()
    kept = b"".join(p.read_bytes() for p in path.parent.iterdir())
    assert b"redacted" in kept
    assert secret.encode() not in kept


def test_the_file_is_private(in_file: HistoryStore, path: Path) -> None:
    in_file.add_evidence([xid(1)])
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()}
    assert set(modes.values()) == {0o600}, modes


def _write_many(url: str, first: int, results: "multiprocessing.Queue[int]") -> None:
    store = HistoryStore(url)  # both processes create the schema at once, too
    new = 0
    for number in range(first, first + 40):
        new += store.add_evidence([xid(number)])
        store.save_verdict(f"s/{number % 7}", Verdict(fault=FaultClass.UNKNOWN, rule=f"{os.getpid()}-{number}"))
    store.close()
    results.put(new)


def test_two_processes_write_at_once_and_each_thing_lands_once(url: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[int] = spawn.Queue()
    writers = [spawn.Process(target=_write_many, args=(url, first, results)) for first in (0, 20)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [w.exitcode for w in writers] == [0, 0]
    assert results.get(timeout=5) + results.get(timeout=5) == 60
    store = HistoryStore(url)
    assert len(store.evidence_for("alpha")) == 60
    assert store.size().verdicts == 80
    store.close()


def test_a_newer_schema_is_refused(store: HistoryStore, url: str) -> None:
    store.close()
    engine = create_engine(url)
    with engine.begin() as raw:
        raw.execute(text("UPDATE history_schema SET version = 99"))
    engine.dispose()
    with pytest.raises(PermanentError, match=r"newer release \(schema 99"):
        HistoryStore(url)


def test_a_locked_file_is_temporary(in_file: HistoryStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.store.database.BUSY_LIMIT", 0.1)
    impatient = HistoryStore(sqlite_url(path))
    holder = sqlite3.connect(path)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(TemporaryError, match="locked"):
        impatient.add_evidence([xid(1)])
    holder.rollback()
    holder.close()
    assert impatient.add_evidence([xid(1)]) == 1
    impatient.close()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://h/db", "no url"])
def test_a_url_that_cannot_keep_history_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError):
        HistoryStore(url)


def test_a_broken_file_is_a_clear_error(path: Path) -> None:
    path.write_bytes(b"this is no database, it only looks like a file" * 100)
    with pytest.raises(PermanentError, match="not a database"):
        HistoryStore(sqlite_url(path))


async def test_async_calls_do_the_same(url: str) -> None:
    store = await AsyncHistoryStore.open(url)
    await asyncio.gather(*(store.add_evidence([xid(n)]) for n in range(20)))
    assert len(await store.evidence_for("alpha", node="n1")) == 20
    assert await store.save_spec(job="a", cluster="alpha", native_id="1", script=None, spec_text="x")
    saved = await store.spec_of("a")
    assert saved is not None
    assert saved.script is None
    assert await store.save_report("job/a", "failover", "{}")
    assert len(await store.reports("job/a")) == 1
    verdict = Verdict(fault=FaultClass.TRANSIENT, rule="r")
    assert await store.save_verdict("job/a", verdict)
    assert await store.last_verdict("job/a") == verdict
    size = await store.size()
    assert (size.specs, size.evidence, size.reports, size.verdicts) == (1, 20, 1, 1)
    assert size.bytes
    await store.close()
