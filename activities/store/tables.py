"""The tables of the history store, and how an older one becomes today's.

Schema 1: specs, evidence, reports, verdicts. Schema 2: strikes, runs, samples, inventories.
"""

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, MetaData, String, Table, Text

SCHEMA_VERSION = 2

META = MetaData()
_ID = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself for INTEGER only
_WORD = String()
"""A name. Without a length, for SQLite keeps none and PostgreSQL would refuse what SQLite took."""


def _id() -> Column[int]:
    return Column("id", _ID, primary_key=True, autoincrement=True)


VERSION = Table(
    "history_schema",
    META,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
)
SPECS = Table(
    "specs",
    META,
    _id(),
    Column("job", _WORD, nullable=False),
    Column("cluster", _WORD, nullable=False),
    Column("native_id", _WORD, nullable=False),
    Column("script", Text),
    Column("spec_text", Text, nullable=False),
    Column("redacted", Boolean, nullable=False),
    Column("digest", _WORD, nullable=False),
    Column("at", Float(53), nullable=False),
    Index("specs_by_job", "job", "id"),
)
EVIDENCE = Table(
    "evidence",
    META,
    _id(),
    Column("key", _WORD, nullable=False, unique=True),
    Column("cluster", _WORD, nullable=False),
    Column("node", _WORD),
    Column("job", _WORD),
    Column("kind", _WORD, nullable=False),
    Column("seen_at", Float(53), nullable=False),
    Column("body", Text, nullable=False),  # every field, as JSON
    Index("evidence_by_node", "cluster", "node", "seen_at"),
    Index("evidence_by_job", "cluster", "job", "seen_at"),
)
REPORTS = Table(
    "reports",
    META,
    _id(),
    Column("subject", _WORD, nullable=False),
    Column("kind", _WORD, nullable=False),
    Column("body", Text, nullable=False),
    Column("digest", _WORD, nullable=False, unique=True),
    Column("at", Float(53), nullable=False),
    Index("reports_by_subject", "subject", "id"),
)
VERDICTS = Table(
    "verdicts",
    META,
    _id(),
    Column("subject", _WORD, nullable=False),
    Column("body", Text, nullable=False),
    Column("digest", _WORD, nullable=False),
    Column("at", Float(53), nullable=False),
    Index("verdicts_by_subject", "subject", "id"),
)
STRIKES = Table(
    "strikes",
    META,
    _id(),
    Column("key", _WORD, nullable=False, unique=True),
    Column("kind", _WORD, nullable=False),
    Column("cluster", _WORD, nullable=False),
    Column("node", _WORD, nullable=False),
    Column("gpu", _WORD),
    Column("pci", _WORD),
    Column("code", _WORD, nullable=False),
    Column("job", _WORD),
    Column("source", _WORD, nullable=False),
    Column("at", Float(53), nullable=False),
    Index("strikes_by_time", "at"),
    Index("strikes_by_node", "cluster", "node", "at"),
    Index("strikes_by_gpu", "gpu", "at"),
)
RUNS = Table(
    "runs",
    META,
    _id(),
    Column("key", _WORD, nullable=False, unique=True),
    Column("cluster", _WORD, nullable=False),
    Column("node", _WORD, nullable=False),
    Column("source", _WORD, nullable=False),
    Column("at", Float(53), nullable=False),
    Index("runs_by_time", "at"),
)
SAMPLES = Table(
    "samples",
    META,
    _id(),
    Column("key", _WORD, nullable=False, unique=True),
    Column("measure", _WORD, nullable=False),
    Column("value", Float(53), nullable=False),
    Column("cluster", _WORD, nullable=False),
    Column("node", _WORD, nullable=False),
    Column("gpu", _WORD),
    Column("source", _WORD, nullable=False),
    Column("at", Float(53), nullable=False),
    Index("samples_by_measure", "measure", "at"),
    Index("samples_by_time", "at"),
)
INVENTORIES = Table(
    "inventories",
    META,
    _id(),
    Column("cluster", _WORD, nullable=False),
    Column("node", _WORD, nullable=False),
    Column("gpus", Text, nullable=False),  # uuids, as JSON
    Column("digest", _WORD, nullable=False),
    Column("at", Float(53), nullable=False),
    Index("inventories_by_node", "cluster", "node", "id"),
)

TIMES = {
    SPECS: SPECS.c.at,
    EVIDENCE: EVIDENCE.c.seen_at,
    REPORTS: REPORTS.c.at,
    VERDICTS: VERDICTS.c.at,
    STRIKES: STRIKES.c.at,
    RUNS: RUNS.c.at,
    SAMPLES: SAMPLES.c.at,
    INVENTORIES: INVENTORIES.c.at,
}
"""Every table that grows, and the column that says how old a row is."""
