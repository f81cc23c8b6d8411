"""The history store: what must outlive Temporal's retention. SQLite by default, PostgreSQL by URL.

Saved specs of adopted jobs, evidence, verdicts, finished reports; and on the record of each node and GPU: strikes,
runs, measured figures and which GPUs a node held. Append-only: what is written is never changed, and only
`HistoryStore.forget` takes rows away, by the policy's ages. Everything is redacted before it is written.
"""

from activities.store.asynchronous import AsyncHistoryStore
from activities.store.database import sqlite_url
from activities.store.history import HistoryStore
from activities.store.values import Ages, Record, SavedReport, SavedSpec, StoreSize

__all__ = [
    "Ages",
    "AsyncHistoryStore",
    "HistoryStore",
    "Record",
    "SavedReport",
    "SavedSpec",
    "StoreSize",
    "sqlite_url",
]
