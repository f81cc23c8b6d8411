"""Both releases say the same thing after normalisation; each golden file is one state of a real cluster."""

import json
from pathlib import Path
from typing import Any

import pytest

from activities.backends.slurm.normalise import (
    JobRecord,
    NodeRecord,
    entries,
    exit_of,
    gpus_in,
    job_record,
    node_record,
    number,
    phase_of,
    states_of,
)
from activities.backends.slurm.view import is_drained, is_responding, state_of
from fleet.errors import TemporaryError, UnreadableError
from fleet.model import NodeState, Phase

GOLDEN = Path(__file__).parents[1] / "data" / "slurm"
RELEASES = ("22.05", "25.11")
both = pytest.mark.parametrize("release", RELEASES)


def load(release: str, name: str) -> Any:
    return json.loads((GOLDEN / release / f"{name}.json").read_text())


def job(release: str, name: str) -> JobRecord:
    return job_record(entries(load(release, name), "jobs")[0], "gold")


def node(release: str, name: str) -> NodeRecord:
    return node_record(entries(load(release, name), "nodes")[0])


JOBS: dict[str, tuple[Phase, bool, int]] = {
    "job-pending": (Phase.PENDING, False, 0),
    "job-pending-begin": (Phase.PENDING, False, 0),
    "job-pending-dependency": (Phase.PENDING, False, 0),
    "job-held": (Phase.PENDING, True, 0),
    "job-running": (Phase.RUNNING, False, 0),
    "job-running-held": (Phase.RUNNING, True, 0),
    "job-requeuehold-completing": (Phase.STOPPING, True, 1),
    "job-requeued-held": (Phase.PENDING, True, 1),
    "job-requeued-held-excluded": (Phase.PENDING, True, 1),
    "job-requeue-completing": (Phase.STOPPING, False, 1),
    "job-requeued-pending": (Phase.PENDING, False, 1),
    "job-running-restarted": (Phase.RUNNING, False, 1),
    "job-cancel-completing": (Phase.STOPPING, False, 1),
    "job-requeued-by-node-failure": (Phase.PENDING, True, 1),
    "job-launch-failed-held": (Phase.PENDING, True, 1),
    "job-completed": (Phase.SUCCEEDED, False, 0),
    "job-failed-exit": (Phase.FAILED, False, 0),
    "job-failed-signal": (Phase.FAILED, False, 0),
    "job-failed-rank-signal": (Phase.FAILED, False, 0),
    "job-cancelled": (Phase.CANCELLED, False, 0),
    "job-cancelled-pending": (Phase.CANCELLED, False, 0),
    "job-timeout": (Phase.TIMED_OUT, False, 0),
    "job-node-fail": (Phase.NODE_LOST, False, 0),
    "job-suspended": (Phase.RUNNING, False, 0),
    "job-excluded-nodes": (Phase.RUNNING, False, 0),
    "job-required-nodes": (Phase.PENDING, False, 0),
    "job-required-nodes-running": (Phase.RUNNING, False, 0),
    "job-comment-text": (Phase.PENDING, False, 0),
    "job-array-held": (Phase.PENDING, True, 0),
    "job-array-running": (Phase.RUNNING, False, 0),
}


@both
@pytest.mark.parametrize("name", JOBS)
def test_each_job_state_has_one_phase_one_hold_and_one_count_in_both_releases(release: str, name: str) -> None:
    seen = job(release, name).job
    assert (seen.phase, seen.held, seen.restarts) == JOBS[name]


@both
def test_every_golden_job_and_node_is_covered(release: str) -> None:
    names = {path.stem for path in (GOLDEN / release).glob("*.json")}
    extra = {"scontrol-job-running", "scontrol-job-unknown", "sinfo-idle"}
    assert names - extra == set(JOBS) | set(NODES)


@both
def test_a_running_job_shows_its_nodes_gpus_and_user(release: str) -> None:
    seen = job(release, "job-running").job
    assert (seen.native_id, seen.name, seen.user) == ("3", "train-a", "root")
    assert seen.nodes == ("gold1", "gold2")
    assert (seen.nodes_wanted, seen.gpus_per_node) == (2, 8)
    assert (seen.batch, seen.requeueable, seen.key) == (True, True, None)
    assert seen.exit_code is None
    assert seen.started_at is not None
    assert seen.started_at > seen.submitted_at > 1e9


@both
def test_a_waiting_job_has_no_start_and_no_exit(release: str) -> None:
    seen = job(release, "job-requeued-held").job
    assert (seen.started_at, seen.exit_code, seen.exit_signal) == (None, None, None)
    assert seen.nodes == ()
    assert seen.nodes_wanted == 2


@both
@pytest.mark.parametrize(
    ("name", "code", "signal"),
    [
        ("job-completed", 0, None),
        ("job-failed-exit", 3, None),
        ("job-failed-rank-signal", 139, None),
    ],
)
def test_exit_codes_are_equal_in_both_releases(release: str, name: str, code: int, signal: int | None) -> None:
    seen = job(release, name).job
    assert (seen.exit_code, seen.exit_signal) == (code, signal)


@both
@pytest.mark.parametrize(("name", "signal"), [("job-failed-signal", 9), ("job-timeout", 15), ("job-cancelled", 15)])
def test_a_death_by_signal_shows_the_signal(release: str, name: str, signal: int) -> None:
    assert job(release, name).job.exit_signal == signal


@both
def test_completing_keeps_its_nodes_and_hides_its_base_state_in_the_old_release(release: str) -> None:
    seen = job(release, "job-requeuehold-completing")
    assert seen.job.nodes == ("gold1", "gold2")
    assert seen.base == (None if release == "22.05" else "PENDING")
    ended = job(release, "job-cancel-completing")
    assert ended.base == (None if release == "22.05" else "CANCELLED")


@both
def test_exclusions_and_pins_are_expanded(release: str) -> None:
    assert job(release, "job-requeued-held-excluded").job.excluded == ("gold1",)
    assert job(release, "job-required-nodes-running").job.required == ("gold3", "gold4")


@both
def test_slurms_own_hold_after_a_failed_launch_is_told_from_a_persons(release: str) -> None:
    assert job(release, "job-launch-failed-held").job.reason == "launch failed requeued held"
    assert job(release, "job-held").job.reason == "JobHeldUser"


@both
def test_an_array_task_is_a_job_of_its_own_by_task_id(release: str) -> None:
    task = job(release, "job-array-running")
    assert task.job.native_id == "17_0"
    assert task.job.array_task == "0"
    assert task.called("17_0")
    assert task.called(task.job_id)
    common = job(release, "job-array-held")
    assert common.meta
    assert not common.job.tokens.supervise


@both
def test_text_of_users_survives(release: str) -> None:
    raw = entries(load(release, "job-comment-text"), "jobs")[0]
    assert job(release, "job-comment-text").job.name == raw["name"]
    assert "=" in raw["comment"]


def test_our_pin_is_not_taken_for_the_owners_while_the_job_runs() -> None:
    raw = dict(entries(load("22.05", "job-required-nodes-running"), "jobs")[0])
    raw["admin_comment"] = "site text gpu-runbooks:since=1700000000 gpu-runbooks:held gpu-runbooks:pin=none"
    seen = job_record(raw, "gold")
    assert seen.job.required == ()
    assert seen.pinned == ("gold3", "gold4")
    assert seen.job.submitted_at == 1700000000


def test_the_key_is_seen_only_where_name_and_comment_agree() -> None:
    raw = dict(entries(load("22.05", "job-running"), "jobs")[0])
    raw |= {"name": "train.key-1", "comment": "mine gpu-runbooks.io/supervise gpu-runbooks.io/job=key-1"}
    assert job_record(raw, "gold").job.key == "key-1"
    raw["name"] = "train"
    assert job_record(raw, "gold").job.key is None


NODES: dict[str, tuple[NodeState, bool, bool]] = {
    "node-idle": (NodeState.UP, True, False),
    "node-mixed": (NodeState.UP, True, False),
    "node-allocated": (NodeState.UP, True, False),
    "node-draining": (NodeState.DRAINING, True, True),
    "node-completing": (NodeState.DRAINING, True, True),
    "node-drained-ours": (NodeState.DRAINED, True, True),
    "node-drained-foreign": (NodeState.DRAINED, True, True),
    "node-prolog-failed": (NodeState.DRAINED, True, True),
    "node-down": (NodeState.DOWN, True, True),
    "node-down-drained": (NodeState.DOWN, True, True),
    "node-not-responding": (NodeState.UP, False, False),
    "node-down-not-responding": (NodeState.DOWN, False, False),
    "node-down-not-responding-drained": (NodeState.DOWN, False, True),
    "node-resumed-not-ready": (NodeState.UP, False, False),
    "node-reboot-requested": (NodeState.DRAINING, True, True),
    "node-rebooting": (NodeState.REBOOTING, False, True),
    "node-rebooted": (NodeState.UP, True, False),
    "node-marked": (NodeState.UP, True, False),
    "node-maintenance": (NodeState.UP, True, False),
}


@both
@pytest.mark.parametrize("name", NODES)
def test_each_node_state_is_read_from_base_and_flags_in_both_releases(release: str, name: str) -> None:
    seen = node(release, name)
    state, responding, drained = NODES[name]
    assert (state_of(seen, busy=False), is_drained(seen)) == (state, drained)
    assert is_responding(seen) is (responding and seen.boot_time > 0)
    assert (seen.gpus, seen.gpus_expected) == (8, 8)


def test_a_node_without_a_boot_time_has_not_registered_and_does_not_answer() -> None:
    just_resumed = node("25.11", "node-drained-foreign")
    assert just_resumed.boot_time == 0
    assert "NOT_RESPONDING" not in just_resumed.flags
    assert not is_responding(just_resumed)


def test_the_grouped_answer_of_sinfo_is_not_taken_for_a_node_list() -> None:
    with pytest.raises(UnreadableError):
        entries(load("25.11", "sinfo-idle"), "nodes")


def test_an_empty_list_beside_errors_is_no_empty_cluster() -> None:
    with pytest.raises(TemporaryError):
        entries({"jobs": [], "errors": [{"description": "Failed while looking for jobs"}]}, "jobs")
    assert entries(load("25.11", "scontrol-job-unknown"), "jobs") == []


def test_a_state_that_nobody_has_described_is_unreadable_and_never_ended() -> None:
    with pytest.raises(UnreadableError):
        phase_of(*states_of("FROBNICATED"))
    with pytest.raises(UnreadableError):
        states_of([])


def test_fewer_gpus_than_configured_are_counted_from_slurms_reason() -> None:
    raw = dict(entries(load("22.05", "node-idle"), "nodes")[0])
    raw["reason"] = "gres/gpu count reported lower than configured (6 < 8)"
    assert (node_record(raw).gpus, node_record(raw).gpus_expected) == (6, 8)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, None),
        (5, 5),
        (True, None),
        ({"set": True, "infinite": False, "number": 7}, 7),
        ({"set": False, "infinite": False, "number": 0}, None),
        ({"set": True, "infinite": True, "number": 0}, None),
        ("x", None),
    ],
)
def test_numbers_of_both_shapes(value: object, wanted: int | None) -> None:
    assert number(value) == wanted


def test_a_raw_wait_status_is_split() -> None:
    assert exit_of(768) == (3, None)
    assert exit_of(9) == (0, 9)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("gres:gpu:8", 8),
        ("gres/gpu:h100=4", 4),
        ("gpu:h100:8(IDX:0-7)", 8),
        ("gpu:a:2,gpu:b:2", 4),
        ("", 0),
        ("mps:1", 0),
    ],
)
def test_gpus_are_counted_in_every_spelling(text: str, count: int) -> None:
    assert gpus_in(text) == count
