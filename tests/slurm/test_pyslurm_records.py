"""What the child makes of pyslurm's objects is, after the normaliser, what Slurm's own JSON gives."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from activities.backends.slurm import pyslurm_child as child
from activities.backends.slurm.normalise import job_record, node_record
from tests.slurm.pyslurm_doubles import pyslurm_job, pyslurm_node

GOLDEN = Path(__file__).parents[1] / "data" / "slurm" / "25.11"
JOBS = sorted(path.stem for path in GOLDEN.glob("job-*.json"))
NODES = sorted(path.stem for path in GOLDEN.glob("node-*.json"))


def golden(name: str, key: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())[key][0]
    return found


class Watched(dict[str, Any]):
    """Notes which keys were asked for and are not there."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.missed: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self.missed.add(key)
        return super().get(key, default)


def test_golden_files_are_found() -> None:
    assert len(JOBS) >= 25
    assert len(NODES) >= 15


@pytest.mark.parametrize("name", JOBS)
def test_a_job_by_pyslurm_equals_the_job_by_json(name: str) -> None:
    raw = golden(name, "jobs")
    ours = child.job_record(pyslurm_job(raw))
    assert json.loads(json.dumps(ours)) == ours
    got, wanted = job_record(ours, "gold"), job_record(raw, "gold")
    if name == "job-failed-rank-signal":  # 139 at Slurm, 11 in pyslurm: the parent asks the commands for it
        assert ours["unsure"] == ["exit_code"]
        assert (got.job.exit_code, wanted.job.exit_code) == (11, 139)
        got = got.model_copy(update={"job": got.job.model_copy(update={"exit_code": 139})})
    if "COMPLETING" in raw["job_state"]:  # pyslurm hides the base state, as 22.05 does
        assert got.base is None
        got = got.model_copy(update={"base": wanted.base})
    assert got == wanted


@pytest.mark.parametrize("name", NODES)
def test_a_node_by_pyslurm_equals_the_node_by_json(name: str) -> None:
    raw = golden(name, "nodes")
    assert node_record(child.node_record(pyslurm_node(raw))) == node_record(raw)


def test_the_child_sends_every_field_that_the_normaliser_reads() -> None:
    job = Watched(child.job_record(pyslurm_job(golden("job-running", "jobs"))))
    node = Watched(child.node_record(pyslurm_node(golden("node-idle", "nodes"))))
    job_record(job, "gold")
    node_record(node)
    assert job.missed == set()
    assert node.missed <= {"state_flags"}  # 22.05 only


def test_only_an_exit_code_that_may_have_lost_128_is_unsure() -> None:
    def of(state: str, code: int, signal: int) -> list[str]:
        return child.unsure(SimpleNamespace(state=state, exit_code=code, exit_code_signal=signal))

    assert of("FAILED", 1, 0) == ["exit_code"]
    assert of("COMPLETED", 0, 0) == []
    assert of("FAILED", 0, 9) == []
    assert of("RUNNING", 1, 0) == []


def test_text_that_is_no_utf8_hides_neither_itself_nor_the_other_jobs() -> None:
    class Latin:
        @property
        def comment(self) -> str:
            return b"Zo\xeb".decode()

    assert child.text(Latin(), "comment") == "Zo\ufffd"


def test_array_task_zero_is_told_from_the_arrays_common_entry() -> None:
    task = SimpleNamespace(array_id=17, array_task_id=None, array_tasks_waiting=None)
    common = SimpleNamespace(array_id=17, array_task_id=None, array_tasks_waiting="0-3")
    plain = SimpleNamespace(array_id=None, array_task_id=None, array_tasks_waiting=None)
    assert [child.array_task(job) for job in (task, common, plain)] == [0, None, None]
