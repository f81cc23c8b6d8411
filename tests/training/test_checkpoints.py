"""Which checkpoint a start of the training program resumes from, and who may write it."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[2] / "deploy/lab/training/train.py"


@pytest.fixture(scope="module")
def train() -> Iterator[ModuleType]:
    """Load the program, which is no package of ours, as a module."""
    spec = importlib.util.spec_from_file_location("lab_train", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def store(train: ModuleType, tmp_path: Path) -> "Stores":
    """Give access to one checkpoint folder."""
    return Stores(train, tmp_path)


class Stores:
    """One checkpoint folder as starts of several generations see it."""

    def __init__(self, train: ModuleType, root: Path) -> None:
        self.train, self.root = train, root

    def seen_by(self, epoch: int, restart: int, *, checked: bool = True) -> Any:
        """Return the store of one generation."""
        return self.train.Checkpoints(self.root, self.train.Generation(epoch, restart), checked=checked)

    def saved(self, step: int, epoch: int, restart: int, *, checked: bool = True) -> None:
        """Write a complete checkpoint of one rank."""
        writer = self.seen_by(epoch, restart, checked=checked)
        writer.save_shard(step, 0, {"session": "s", "step": step, "generation": f"{epoch}.{restart}"})
        writer.complete(step, 1, "s")


def test_the_highest_step_of_one_generation_is_taken(store: Stores) -> None:
    store.saved(10, 0, 0)
    store.saved(20, 0, 0)

    assert store.seen_by(0, 1).newest().name == "step_00000020.g0.0"


def test_a_newer_generation_wins_over_a_higher_step_of_an_older_one(store: Stores) -> None:
    store.saved(20, 0, 1)
    store.saved(90, 0, 0)
    store.saved(30, 1, 0)
    store.saved(80, 0, 9)

    assert store.seen_by(1, 1).newest().name == "step_00000030.g1.0"


def test_what_a_newer_generation_wrote_is_not_resumed_by_an_older_one(store: Stores) -> None:
    store.saved(10, 0, 0)
    store.saved(20, 0, 2)

    assert store.seen_by(0, 1).newest().name == "step_00000010.g0.0"


def test_nothing_complete_means_a_fresh_start_that_says_what_it_passed_over(
    store: Stores, capsys: pytest.CaptureFixture[str]
) -> None:
    store.seen_by(0, 0).save_shard(10, 0, {"session": "s"})

    assert store.seen_by(0, 1).newest() is None
    assert capsys.readouterr().out == "skipping step_00000010.g0.0: no COMPLETE marker\n"


def test_a_claim_of_a_higher_generation_stops_shards_and_markers_of_a_lower_one(store: Stores) -> None:
    old = store.seen_by(0, 0)
    old.claim()
    old.save_shard(10, 0, {"session": "s"})
    store.seen_by(1, 0).claim()

    with pytest.raises(store.train.StaleGenerationError, match=r"\(0,0\) is older than \(1,0\)"):
        old.complete(10, 1, "s")
    with pytest.raises(store.train.StaleGenerationError):
        old.save_shard(20, 0, {"session": "s"})
    assert store.seen_by(1, 0).newest() is None


def test_a_writer_that_passed_its_check_too_early_spoils_nothing(store: Stores) -> None:
    store.saved(20, 0, 1)
    store.saved(20, 0, 0)  # nobody has claimed anything, so the late one is not refused

    assert store.seen_by(0, 2).newest().name == "step_00000020.g0.1"


def test_writers_that_do_not_check_spoil_each_others_checkpoints(store: Stores) -> None:
    store.saved(10, 0, 1, checked=False)
    store.saved(20, 0, 1, checked=False)
    late = store.seen_by(0, 0, checked=False)

    late.save_shard(20, 0, {"session": "other"})

    assert store.seen_by(0, 2, checked=False).newest().name == "step_00000010"
