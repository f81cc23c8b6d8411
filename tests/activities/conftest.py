"""The history store's databases: every test of it runs on both."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from activities.store import sqlite_url
from tests.postgresql import Cluster, running


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Cluster]:
    """A server for the session; each test takes a database of its own."""
    with running() as cluster:
        yield cluster


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty history store."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "history.sqlite")
    cluster: Cluster = request.getfixturevalue("postgresql")
    return cluster.new_database()
