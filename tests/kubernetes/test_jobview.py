"""Where a job stands by its objects and pods, and what an attempt's number is."""

from activities.backends.kubernetes import marks
from activities.backends.kubernetes.jobview import job_record
from fleet.model import NativeJob, Phase
from tests.kubernetes.making import Raw, a_job, a_pod, an_object, ended, nodes

FAILED = [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]


def seen(*jobs: Raw, pods: tuple[object, ...] = (), lost: tuple[str, ...] = ()) -> NativeJob:
    return job_record("gamma", [an_object(j) for j in jobs], pods, nodes(*lost)).job  # type: ignore[arg-type]


def test_a_job_runs_when_all_its_ranks_have_started() -> None:
    half = seen(a_job(), pods=(a_pod(index=0),))
    whole = seen(a_job(), pods=(a_pod(index=1), a_pod(index=0)))
    assert half.phase is Phase.PENDING
    assert (whole.phase, whole.nodes, whole.restarts, whole.held) == (Phase.RUNNING, ("n0", "n1"), 0, False)
    assert (whole.native_id, whole.gpus_per_node) == ("job/training/llm", 8)


def test_a_suspended_job_stops_until_its_kubelets_have_spoken() -> None:
    job = a_job(suspend=True)
    assert seen(job, pods=(a_pod(deleted=True),)).phase is Phase.STOPPING
    over = seen(job, pods=(a_pod(phase="Failed", state=ended(143)),))
    assert (over.phase, over.held, over.nodes) == (Phase.PENDING, True, ())


def test_a_pod_on_a_lost_node_keeps_nobody_waiting_and_a_phase_that_no_kubelet_set_is_no_end() -> None:
    job = a_job(suspend=True)
    assert seen(job, pods=(a_pod(deleted=True),), lost=("n0",)).phase is Phase.PENDING
    assert seen(job, pods=(a_pod(phase="Failed", deleted=True),)).phase is Phase.STOPPING


def test_the_number_grows_with_each_suspend_of_a_job_that_ran_whoever_did_it() -> None:
    assert seen(a_job(suspend=True)).restarts == 1
    never = a_job(suspend=True)
    never["status"] = {}
    assert seen(never).restarts == 0
    ours = a_job(suspend=True, notes={marks.RESTARTS: "1", marks.HELD: "true"})
    assert seen(ours).restarts == 1
    ours["status"] = {}
    assert seen(ours).restarts == 1


def test_pods_of_an_older_attempt_do_not_count_for_the_new_one() -> None:
    job = a_job(notes={marks.RESTARTS: "1"})
    job["spec"]["template"]["metadata"]["annotations"][marks.GENERATION] = "1"
    old = [a_pod(index=i, phase="Failed", state=ended(143)) for i in (0, 1)]
    assert seen(job, pods=tuple(old)).phase is Phase.PENDING
    new = [a_pod(index=i, generation=1, node=f"n{i + 1}") for i in (0, 1)]
    running = seen(job, pods=(*old, *new))
    assert (running.phase, running.nodes, running.restarts) == (Phase.RUNNING, ("n1", "n2"), 1)


def test_a_failure_shows_the_code_of_the_rank_that_failed_first() -> None:
    job = a_job()
    job["status"]["conditions"] = FAILED
    first = a_pod(index=1, phase="Failed", state=ended(7))
    later = {"terminated": {"exitCode": 143, "finishedAt": "2026-11-30T12:40:00Z"}}
    found = seen(job, pods=(a_pod(index=0, phase="Failed", state=later), first))
    assert (found.phase, found.exit_code, found.held) == (Phase.FAILED, 7, False)


def test_a_failure_because_a_node_was_given_up_is_told_apart() -> None:
    job = a_job()
    job["status"]["conditions"] = FAILED
    gone = [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]
    assert seen(job, pods=(a_pod(phase="Failed", conditions=gone),)).phase is Phase.NODE_LOST


def test_a_successor_is_the_same_job_and_waits_for_what_its_predecessor_left_alive() -> None:
    first = a_job()
    first["status"]["conditions"] = [{"type": "FailureTarget", "status": "True", "reason": "PodFailed"}]
    next_one = a_job(
        "llm-g1",
        suspend=True,
        notes={marks.RESTARTS: "1", marks.FIRST_UID: "uid-llm", marks.HELD: "true"},
    )
    next_one["metadata"]["labels"][marks.FIRST] = "llm"
    next_one["status"] = {}
    alive = a_pod(index=0)
    one, both = seen(first, pods=(alive,)), seen(first, next_one, pods=(alive,))
    assert one.phase is both.phase is Phase.STOPPING
    assert one.fingerprint == both.fingerprint
    assert both.restarts == 1
    after = seen(first, next_one, pods=(a_pod(index=0, phase="Failed", state=ended(1)),))
    assert (after.phase, after.held, after.native_id) == (Phase.PENDING, True, "job/training/llm")


def test_a_cancelled_job_says_so_only_when_its_ranks_are_gone_and_counts_no_attempt() -> None:
    job = a_job(suspend=True, notes={marks.CANCELLED: "2026-11-30T12:30:00Z"})
    assert seen(job, pods=(a_pod(deleted=True),)).phase is Phase.STOPPING
    over = seen(job, pods=(a_pod(phase="Failed", state=ended(143)),))
    assert (over.phase, over.restarts, over.held) == (Phase.CANCELLED, 0, False)


def test_tokens_are_read_from_labels_and_annotations_and_ours_are_no_tokens() -> None:
    notes = {"gpu-runbooks.io/checkpoint-signal": "USR1", "gpu-runbooks.io/job": "big", marks.HELD: "true"}
    waiting = seen(a_job(notes=notes))
    running = seen(a_job(notes=notes), pods=(a_pod(index=0), a_pod(index=1)))
    assert waiting.tokens.supervise
    assert (waiting.tokens.job, waiting.tokens.checkpoint_signal) == ("big", "USR1")
    assert (waiting.held, running.held) == (False, True), "what was released waits for nodes, not for us"
