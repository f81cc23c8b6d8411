"""The record of nodes and GPUs: what gets onto it, what is forgotten and what never; older files, backups."""

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from activities.store import Ages, HistoryStore, sqlite_url
from fleet.errors import PermanentError, TemporaryError
from fleet.faults.evidence import Evidence, FaultClass, Kind, Source, Verdict
from fleet.strikes import Inventory, Run, Strike, StrikeKind
from tests.postgresql import Cluster
from workers import doctor_fleet
from workers.doctor_checks import Grade
from workers.worker import store_url

DAY = 86400.0
UUID = "GPU-6c4a1b9e-0000-4000-8000-000000000001"
MONTH = Ages(evidence=30 * DAY, reports=30 * DAY, specs=30 * DAY, record=30 * DAY)
OLD_FILE = Path(__file__).parents[1] / "data" / "history-v1.sql"
"""A store as release 0.1.0 wrote it (schema 1)."""


@pytest.fixture
def store(url: str) -> Iterator[HistoryStore]:
    opened = HistoryStore(url)
    yield opened
    opened.close()


def seen(kind: Kind, code: str, at: float, *, node: str = "a1", gpu: str | None = None, **more: object) -> Evidence:
    return Evidence.model_validate(
        {"source": Source.KERNEL, "kind": kind, "cluster": "alpha", "node": node, "gpu": gpu, "code": code}
        | {"seen_at": at + 1, "happened_at": at, **more}
    )


def strike(kind: StrikeKind, at: float, node: str = "a1", cluster: str = "alpha") -> Strike:
    return Strike(kind=kind, cluster=cluster, node=node, at=at, source=f"op{at}")


def test_evidence_puts_its_strikes_and_figures_on_record_once(store: HistoryStore) -> None:
    told = [
        seen(Kind.XID, "79", 100.0, gpu=UUID),
        seen(Kind.XID, "31", 200.0, gpu="0000:3b:00", pci="0000:3b:00"),
        seen(Kind.NODE_DOWN, "down", 300.0),
        seen(Kind.MEASURED, "hbm_gb_s", 400.0, gpu=UUID, value=2900.5),
        seen(Kind.LOG_TEXT, "oom", 500.0),
    ]
    store.add_evidence(told)
    again = told[0].model_copy(update={"seen_at": 9000.0, "detail": "told by somebody else"})
    store.add_evidence([again, *told])
    strikes = store.record(since=0).strikes
    assert [(s.kind, s.gpu, s.pci, s.code, s.at) for s in strikes] == [
        (StrikeKind.XID, UUID, None, "79", 100.0),
        (StrikeKind.XID, None, "0000:3b:00", "31", 200.0),
        (StrikeKind.TAKEN_OUT, None, None, "down", 300.0),
    ]
    (figure,) = store.samples(since=0)
    assert (figure.measure, figure.value, figure.gpu, figure.at) == ("hbm_gb_s", 2900.5, UUID, 400.0)
    assert store.samples(since=0, measure="nccl_gb_s") == ()
    assert store.samples(since=401.0) == ()
    assert store.samples(since=0, cluster="alpha", node="a1") == (figure,)


def test_the_record_is_of_the_fleet_a_cluster_or_a_node_since_a_time(store: HistoryStore) -> None:
    first, later = strike(StrikeKind.REPAIR, 10.0), strike(StrikeKind.REPAIR, 20.0, node="a2")
    far = strike(StrikeKind.REPAIR, 30.0, cluster="beta")
    run = Run(cluster="alpha", node="a1", source="7:train#0", at=15.0)
    assert store.add_strikes([later, first, far], [run]) == 4
    assert store.add_strikes([first, far], [run]) == 0
    assert store.record(since=0).strikes == (first, later, far)
    assert store.record(since=0, cluster="alpha").strikes == (first, later)
    assert store.record(since=0, cluster="alpha", node="a1").strikes == (first,)
    assert store.record(since=15.0).strikes == (later, far)
    assert store.record(since=15.0).runs == (run,)


def test_an_inventory_is_appended_when_the_gpus_changed(store: HistoryStore) -> None:
    def told(at: float, *gpus: str, node: str = "a1") -> bool:
        return store.save_inventory(Inventory(cluster="alpha", node=node, gpus=gpus, at=at))

    assert [told(1, "GPU-b", "GPU-a"), told(2, "GPU-a", "GPU-b"), told(3, "GPU-c"), told(4, "GPU-c", node="a2")] == [
        True,
        False,
        True,
        True,
    ]
    kept = store.record(since=100.0).inventories
    assert [(i.node, i.gpus, i.at) for i in kept] == [
        ("a1", ("GPU-a", "GPU-b"), 1.0),
        ("a1", ("GPU-c",), 3.0),
        ("a2", ("GPU-c",), 4.0),
    ]


def fill(store: HistoryStore, at: float) -> None:
    """One of everything about job `llm` and node `alpha/a1`, and about `other` and `alpha/a2`."""
    for job, node in (("llm", "a1"), ("other", "a2")):
        store.save_spec(job=job, cluster="alpha", native_id=job, script=f"run at {at}", spec_text="", at=at)
        store.add_evidence(
            [
                seen(Kind.XID, "79", at, node=node),
                seen(Kind.MEASURED, "hbm_gb_s", at, node=node, value=1.0),
                Evidence(source=Source.JOB, kind=Kind.LOG_TEXT, cluster="alpha", job=job, seen_at=at, happened_at=at),
            ]
        )
        store.add_strikes(
            [strike(StrikeKind.REPAIR, at, node)], [Run(cluster="alpha", node=node, source=f"{at}", at=at)]
        )
        for subject in (f"job/{job}", f"node/alpha/{node}"):
            store.save_report(subject, "job", json.dumps({"at": at}), at=at)
            store.save_verdict(subject, Verdict(fault=FaultClass.UNKNOWN, rule=f"at {at}"), at=at)
        store.save_inventory(Inventory(cluster="alpha", node=node, gpus=(f"GPU-{at}",), at=at))


def test_what_is_older_than_its_age_is_forgotten_and_nothing_else(
    store: HistoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.store.history.AT_ONCE", 2)  # in several transactions
    fill(store, 1 * DAY)
    fill(store, 20 * DAY)
    gone = store.forget(MONTH, (), at=40 * DAY)
    half = {"specs": 2, "evidence": 6, "reports": 4, "verdicts": 4, "strikes": 4, "runs": 2, "samples": 2}
    assert gone == {**half, "inventories": 2}
    left = store.size()
    assert {name: getattr(left, name) for name in gone} == gone
    assert left.oldest == 20 * DAY
    assert store.forget(MONTH, (), at=40 * DAY) == {}
    assert store.forget(MONTH.model_copy(update={"reports": 15 * DAY}), (), at=40 * DAY) == {
        "reports": 4,
        "verdicts": 4,
    }


def test_nothing_that_an_open_runbook_needs_is_forgotten(store: HistoryStore) -> None:
    fill(store, 1 * DAY)
    store.forget(MONTH, ("job/llm", "node/alpha/a1", "guard/fleet", "node/beta/a2"), at=1000 * DAY)
    spec = store.spec_of("llm")
    assert spec is not None
    assert store.spec_of("other") is None
    assert {e.node or e.job for e in store.evidence_for("alpha")} == {"a1", "llm"}
    assert {r.subject for r in store.reports()} == {"job/llm", "node/alpha/a1"}
    assert store.last_verdict("node/alpha/a1") is not None
    assert store.last_verdict("job/other") is None
    record = store.record(since=0)
    assert {s.node for s in record.strikes} == {r.node for r in record.runs} == {"a1"}
    assert {s.node for s in store.samples(since=0)} == {"a1"}
    assert {i.node for i in record.inventories} == {"a1", "a2"}, "where a GPU is stays known"


def test_a_job_that_begins_anew_with_its_old_spec_saves_it_anew(store: HistoryStore) -> None:
    def save(at: float) -> bool:
        return store.save_spec(job="llm", cluster="alpha", native_id="7", script="run", spec_text="", at=at)

    assert [save(0), save(0.9 * DAY), save(100 * DAY), save(100.5 * DAY)] == [True, False, True, False]
    store.forget(MONTH, (), at=100 * DAY)  # its runbook is too young for the list of open ones
    assert store.spec_of("llm") is not None


def test_texts_that_a_database_does_not_take_are_kept_as_far_as_it_does(store: HistoryStore) -> None:
    odd = "a\x00b\ud800c"
    store.save_spec(job="llm", cluster="alpha", native_id=odd, script=odd, spec_text=odd, at=1.0)
    store.add_evidence([seen(Kind.XID, "79", 1.0, node="n" * 500)])
    saved = store.spec_of("llm")
    assert saved is not None
    assert saved.script is not None
    assert (saved.script[0], saved.script[2]) == ("a", "b")
    assert len(store.evidence_for("alpha", node="n" * 500)) == 1


def test_the_size_grows_with_what_is_stored(store: HistoryStore) -> None:
    empty = store.size()
    assert (empty.strikes, empty.oldest) == (0, None)
    store.add_evidence(seen(Kind.XID, "31", float(n), detail="x" * 500) for n in range(1, 400))
    full = store.size()
    assert (full.strikes, full.evidence, full.oldest) == (399, 399, 1.0)
    assert full.bytes - empty.bytes > 399 * 500


def test_doctor_shows_the_size_and_since_when(store: HistoryStore, url: str) -> None:
    fill(store, 20 * DAY)
    check = doctor_fleet.store(url)
    assert check.grade is Grade.OK
    assert "2 specs, 6 pieces of evidence" in check.text
    assert "4 strikes, 2 runs, 2 figures, 2 inventories" in check.text
    assert " MB, the oldest of 1970-01-21 00:00:00 UTC in " in check.text


def test_a_worker_opens_the_postgresql_that_its_policy_names(postgresql: Cluster, tmp_path: Path) -> None:
    url = postgresql.new_database()
    policy = tmp_path / "fleet.yaml"
    policy.write_text(f"version: 1\nclusters: {{alpha: {{kind: sim, path: world.sqlite}}}}\nstore: '{url}'\n")
    opened = HistoryStore(store_url(policy, tmp_path))
    opened.add_evidence([seen(Kind.XID, "79", 1.0)])
    opened.close()
    again = HistoryStore(url)
    assert len(again.record(since=0).strikes) == 1
    again.close()


def test_a_server_that_is_away_is_temporary(tmp_path: Path) -> None:
    with pytest.raises(TemporaryError, match="cannot be used now"):
        HistoryStore(f"postgresql://nobody@/history?host={tmp_path}")


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(PermanentError, match=r"install gpu-runbooks\[postgresql\]"):
        HistoryStore("postgresql://nobody@/history")


def test_a_refused_password_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(TemporaryError) as caught:
        HistoryStore(f"postgresql://nobody:s3cr3t@/history?host={tmp_path}")
    assert "s3cr3t" not in str(caught.value)


# -- older files


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    path = tmp_path / "history.sqlite"
    with sqlite3.connect(path) as raw:
        raw.executescript(OLD_FILE.read_text())
    raw.close()
    return path


def test_a_file_of_the_first_release_opens_with_its_record_made_of_its_evidence(old_file: Path) -> None:
    for _ in range(2):  # and again
        store = HistoryStore(sqlite_url(old_file))
        strikes = store.record(since=0).strikes
        assert [(s.kind, s.node, s.gpu, s.code) for s in strikes] == [
            (StrikeKind.XID, "alpha1", UUID, "79"),
            (StrikeKind.XID, "alpha1", None, "31"),
            (StrikeKind.TAKEN_OUT, "alpha1", None, "drained"),
        ]
        spec = store.spec_of("llm")
        assert spec is not None
        assert spec.script == "#!/bin/sh\nsrun train\n"
        assert len(store.evidence_for("alpha")) == 4
        assert [r.subject for r in store.reports()] == ["job/llm"]
        assert store.last_verdict("node/alpha/alpha1") == Verdict(
            fault=FaultClass.HARDWARE, rule="xid-79", title="GPU lost"
        )
        store.close()


def test_a_migration_that_was_killed_is_done_again(old_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.store.history.AT_ONCE", 2)
    code = (
        "import os, sys\n"
        "from activities.store import database, history\n"
        "history.AT_ONCE = 2\n"
        "record = history.HistoryStore._record_evidence\n"
        "def once(*arguments):\n"
        "    record(*arguments)\n"
        "    history.HistoryStore._record_evidence = lambda *a: os._exit(9)\n"
        "history.HistoryStore._record_evidence = once\n"
        "history.HistoryStore(sys.argv[1])\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, sqlite_url(old_file)])
    assert killed.returncode == 9
    store = HistoryStore(sqlite_url(old_file))
    assert len(store.record(since=0).strikes) == 3
    store.close()


# -- backups, as docs/history.md says


def test_a_sqlite_backup_made_while_it_is_written_to_is_whole(tmp_path: Path) -> None:
    store = HistoryStore(sqlite_url(tmp_path / "history.sqlite"))
    fill(store, 1 * DAY)
    copy = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).backup(sqlite3.connect(sys.argv[2]))"
    subprocess.run(
        [sys.executable, "-c", copy, str(tmp_path / "history.sqlite"), str(tmp_path / "backup.sqlite")], check=True
    )
    before = store.size()
    fill(store, 2 * DAY)  # its later life is not in the backup
    store.close()
    for file in tmp_path.glob("history.sqlite*"):
        file.unlink()
    shutil.copy(tmp_path / "backup.sqlite", tmp_path / "history.sqlite")
    store = HistoryStore(sqlite_url(tmp_path / "history.sqlite"))
    assert store.size().model_copy(update={"bytes": 0}) == before.model_copy(update={"bytes": 0})
    fill(store, 3 * DAY)
    assert store.size().specs == before.specs + 2
    store.close()


def test_a_postgresql_dump_restores_into_an_empty_database(postgresql: Cluster, tmp_path: Path) -> None:
    url = postgresql.new_database()
    store = HistoryStore(url)
    fill(store, 1 * DAY)
    before = store.size()
    dump = tmp_path / "history.dump"
    postgresql.tool("pg_dump", "--format=custom", f"--file={dump}", _name(url))
    fill(store, 2 * DAY)
    store.close()
    other = postgresql.new_database()
    postgresql.tool("pg_restore", "--exit-on-error", f"--dbname={_name(other)}", str(dump))
    restored = HistoryStore(other)
    assert restored.size().model_copy(update={"bytes": 0}) == before.model_copy(update={"bytes": 0})
    fill(restored, 3 * DAY)  # and numbers its rows on from there
    assert restored.size().specs == before.specs + 2
    restored.close()


def _name(url: str) -> str:
    return url.partition("@/")[2].partition("?")[0]
