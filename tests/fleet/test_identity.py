"""Which of several submissions of one job is the job."""

from typing import Any

from fleet.identity import newest_submissions, parse_tokens, with_epoch
from fleet.model import JobTokens, NativeJob, Phase


def native(native_id: str, job: str | None = "llm", epoch: int = 0, phase: Phase = Phase.RUNNING) -> NativeJob:
    tokens = JobTokens(job=job, epoch=epoch)
    return NativeJob(cluster="alpha", native_id=native_id, name="run", phase=phase, tokens=tokens)


def ids(jobs: Any) -> list[str]:
    return [job.native_id for job in jobs]


def test_the_highest_epoch_is_the_job_even_when_it_ended_and_an_older_one_lives() -> None:
    older, newest = native("9", epoch=1), native("3", epoch=2, phase=Phase.FAILED)
    assert ids(newest_submissions([older, newest, native("8")])) == ["3"]


def test_jobs_of_other_names_and_of_no_name_stay_as_they_are() -> None:
    others = [native("1", "a"), native("2", "b", epoch=4), native("3", None), native("4", None)]
    assert ids(newest_submissions(others)) == ["1", "2", "3", "4"]


def test_two_of_one_epoch_are_both_shown_for_nobody_knows_which() -> None:
    assert ids(newest_submissions([native("1", epoch=1), native("2", epoch=1), native("3")])) == ["1", "2"]


def test_a_comment_has_one_epoch_and_keeps_its_text() -> None:
    text = "two  spaces gpu-runbooks.io/job=llm"
    assert with_epoch(text, 0) == text
    assert with_epoch("", 0) == ""
    once = with_epoch(text, 3)
    assert once.startswith(text)
    assert parse_tokens(with_epoch(once, 12)).epoch == 12
    assert parse_tokens(with_epoch(once, 0)) == parse_tokens(text)


def test_an_epoch_that_is_no_plain_number_is_none() -> None:
    for word in ("0", "-1", "1.5", "x", "", "01", "9" * 30, "\u0663"):
        assert parse_tokens(f"gpu-runbooks.io/epoch={word}").epoch == 0
