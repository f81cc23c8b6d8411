"""What `runbook-launch` understands of its words and of its surroundings, before it starts anything."""

from pathlib import Path

import pytest

from clients.errors import CliError, Exit
from fleet.faults.evidence import FaultClass
from fleet.faults.tables import load_tables
from fleet.lease import LEASE_LOST, LeaseKey
from workers.launch import launch, whose

SLURM = {
    "GPU_RUNBOOKS_CLUSTER": "north",
    "SLURM_JOB_ID": "77",
    "SLURMD_NODENAME": "gpu-3",
    "SLURM_RESTART_COUNT": "2",
}
POD = {
    "GPU_RUNBOOKS_CLUSTER": "south",
    "GPU_RUNBOOKS_NATIVE_ID": "job/training/llama",
    "GPU_RUNBOOKS_RESTART": "1",
    "NODE_NAME": "k8s-7",
}


@pytest.mark.parametrize(
    ("environment", "key", "node"),
    [
        (SLURM, LeaseKey(cluster="north", native_id="77", restarts=2), "gpu-3"),
        (
            SLURM | {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "0"},
            LeaseKey(cluster="north", native_id="70_0", restarts=2),
            "gpu-3",
        ),
        (POD, LeaseKey(cluster="south", native_id="job/training/llama", restarts=1), "k8s-7"),
    ],
)
def test_the_attempt_and_the_node_are_what_the_cluster_says(
    environment: dict[str, str], key: LeaseKey, node: str
) -> None:
    assert whose(environment, None, None, None, None) == (key, node)


def test_words_of_the_command_line_come_first() -> None:
    given = whose(SLURM, "east", "78", 0, "gpu-4")
    assert given == (LeaseKey(cluster="east", native_id="78", restarts=0), "gpu-4")


@pytest.mark.parametrize(("left_out", "named"), [("GPU_RUNBOOKS_CLUSTER", "--cluster"), ("SLURM_JOB_ID", "--job-id")])
def test_what_nobody_says_is_asked_for(left_out: str, named: str) -> None:
    rest = {name: value for name, value in SLURM.items() if name != left_out}
    with pytest.raises(CliError, match=named) as told:
        whose(rest, None, None, None, None)
    assert told.value.code is Exit.USAGE


@pytest.mark.parametrize(
    "changed", [{"SLURM_RESTART_COUNT": "two"}, {"SLURM_JOB_ID": "7 7"}, {"SLURMD_NODENAME": "a/b"}]
)
def test_words_that_cannot_be_are_refused(changed: dict[str, str]) -> None:
    with pytest.raises(CliError) as told:
        whose(SLURM | changed, None, None, None, None)
    assert told.value.code is Exit.USAGE


@pytest.mark.parametrize("program", ["srun", "/usr/bin/mpirun", "ssh"])
def test_a_program_whose_ranks_are_not_its_children_is_refused(program: str) -> None:
    with pytest.raises(CliError, match="put the launcher inside"):
        launch(program, "python", "train.py", cluster="north", job_id="77")


@pytest.mark.parametrize("option", [{"term": "0.5s"}, {"grace": "2d"}, {"wait": "soon"}, {"term": "600"}])
def test_times_that_cannot_be_are_refused_before_anything_starts(option: dict[str, str], tmp_path: Path) -> None:
    mark = tmp_path / "started"
    with pytest.raises(CliError, match=f"--{next(iter(option))}"):
        launch("touch", str(mark), cluster="north", job_id="77", **option)
    assert not mark.exists()


def test_without_a_command_it_says_how_to_write_one() -> None:
    with pytest.raises(CliError, match="-- COMMAND"):
        launch(cluster="north", job_id="77")


def test_its_own_exit_code_is_known_as_worth_another_try() -> None:
    assert load_tables().exits[LEASE_LOST].fault is FaultClass.TRANSIENT
