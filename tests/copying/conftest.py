"""Stores for the tests of copies."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from activities.copying.rclone import Rclone
from tests.copying.servers import s3, sftp


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An empty checkpoint root."""
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where a copy may make a root."""
    return tmp_path / "target"


class Bucket:
    """An S3 store, and the folder that it keeps its objects in."""

    def __init__(self, env: dict[str, str], folder: Path) -> None:
        self.env = env
        self.rclone = Rclone(env)
        self.root = "lab:bucket/root"
        self.folder = folder / "bucket" / "root"


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    """A real S3 server of rclone's."""
    with s3(tmp_path / "s3") as env:
        yield Bucket(env, tmp_path / "s3")


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[Bucket]:
    """A real SFTP server of rclone's."""
    with sftp(tmp_path / "sftp") as env:
        yield Bucket(env, tmp_path / "sftp")
