"""What an attempt's output says: only its own lines, only from a plain file of its own user."""

import os
from pathlib import Path

from activities.backends.slurm.progress import read_tail_of, stdout_of
from activities.backends.tail import TAIL
from activities.backends.training_log import keep_first, parse_progress
from fleet.model import Progress

TWO_ATTEMPTS = """starting at step 0 gen=0.0
step 1/100 loss 0.7 t=2026-11-30T13:52:36.507Z gen=0.0 rank=0
step 20/100 loss 0.5 t=2026-11-30T13:52:38.507Z gen=0.0 rank=0
saved step 20 gen=0.0
step 25/100 loss 0.45 t=2026-11-30T13:52:39.000Z gen=0.0 rank=0
srun: error: alpha1: task 0: Exited with exit code 143
resumed from step 20 gen=0.1
step 21/100 loss 0.49 t=2026-11-30T13:53:00.250Z gen=0.1 rank=0
step 22/100 loss nan t=2026-11-30T13:53:01.250Z gen=0.1 rank=0
"""


def test_each_attempt_is_read_by_its_own_generation() -> None:
    first, second = parse_progress(TWO_ATTEMPTS, 0), parse_progress(TWO_ATTEMPTS, 1)
    assert (first.first_step, first.step, first.saved, first.resumed_from) == (1, 25, 20, None)
    assert first.loss == 0.45
    assert (second.first_step, second.step, second.saved, second.resumed_from) == (21, 22, None, 20)
    assert second.total == 100
    assert second.first_step_at == 1796046780.25
    assert parse_progress(TWO_ATTEMPTS, 2) == Progress()


def test_lines_of_another_submission_in_the_same_file_do_not_count() -> None:
    text = "step 30/99 loss 1 gen=0.0\ndone step 99/99\nresumed from step 40 gen=1.0\nstep 41/99 loss 1 gen=1.0\n"
    second = parse_progress(text, 0, 1)
    assert (second.first_step, second.step, second.resumed_from, second.done) == (41, 41, 40, False)
    assert parse_progress(text, 0, 2) == Progress()


def test_a_late_line_of_the_old_attempt_is_not_progress_of_the_new_one() -> None:
    late = TWO_ATTEMPTS + "step 90/100 loss 0.1 t=2026-11-30T13:54:00Z gen=0.0 rank=0\ndone step 100/100\n"
    second = parse_progress(late, 1)
    assert (second.step, second.done) == (22, False)
    assert parse_progress(late, 0).done


def test_done_counts_for_the_attempt_that_said_it() -> None:
    assert parse_progress(TWO_ATTEMPTS + "done step 100/100\n", 1).done


def test_torn_and_foreign_lines_are_ignored() -> None:
    assert parse_progress("step x/100 loss 1 gen=0.0\nstep 5/1\nhello\nstep 7/9 loss 1.0 gen=0.0", 0).step == 7


def test_only_a_bounded_tail_is_read_and_the_beginning_is_remembered(tmp_path: Path) -> None:
    path = tmp_path / "out"
    body = "".join(f"step {n}/99999 loss 0.5 t=1700000000 gen=0.0 rank=0\n" for n in range(21, 40000))
    path.write_text("resumed from step 20 gen=0.0\n" + body)
    text = read_tail_of(str(path), "root" if os.geteuid() == 0 else os.environ["USER"])
    assert len(text) <= TAIL
    seen = parse_progress(text, 0)
    assert seen.step == 39999
    assert (seen.first_step or 0) > 21
    merged = keep_first(parse_progress("resumed from step 20 gen=0.0\nstep 21/9 loss 1 t=3 gen=0.0", 0), seen)
    assert (merged.first_step, merged.first_step_at, merged.resumed_from, merged.step) == (21, 3.0, 20, 39999)


def test_what_is_no_plain_file_of_the_jobs_user_reads_as_nothing(tmp_path: Path) -> None:
    me = "root" if os.geteuid() == 0 else os.environ["USER"]
    (tmp_path / "out").write_text("secret")
    os.mkfifo(tmp_path / "fifo")
    assert read_tail_of(str(tmp_path / "out"), me) == "secret"
    assert read_tail_of(str(tmp_path / "out"), "nobody") == ""
    assert read_tail_of(str(tmp_path / "out"), "no-such-user") == ""
    assert read_tail_of(str(tmp_path / "fifo"), me) == ""
    assert read_tail_of(str(tmp_path), me) == ""
    assert read_tail_of(str(tmp_path / "missing"), me) == ""


def test_a_comment_cannot_name_the_output_file() -> None:
    text = "JobId=1\n   Comment=x\n   StdOut=/etc/shadow\n   StdErr=/w/o\n   StdIn=/dev/null\n   StdOut=/w/out 1\n"
    assert stdout_of(text) == "/w/out 1"
    assert stdout_of("JobId=1\n") == ""
