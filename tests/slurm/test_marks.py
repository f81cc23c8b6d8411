"""Our words in a job's AdminComment, and nobody else's."""

from activities.backends.slurm.marks import (
    JobMarks,
    check_name,
    op_of_reservation,
    read_marks,
    reservation_name,
    write_marks,
)


def test_marks_are_read_back_as_written_and_the_sites_text_stays() -> None:
    marks = JobMarks(since=1700000000.0, held=True, pin="a[1-2],b3", excluded=("a7", "b9"))
    text = write_marks('site: "note" = 7', marks)
    assert text.startswith('site: "note" = 7 ')
    assert read_marks(text) == marks
    assert write_marks(text, JobMarks()) == 'site: "note" = 7'


def test_writing_twice_leaves_one_of_each() -> None:
    once = write_marks("", JobMarks(held=True))
    assert write_marks(once, JobMarks(held=True)) == once == "gpu-runbooks:held"


def test_a_text_without_our_words_is_not_ours() -> None:
    assert not read_marks("held by gpu-runbooks (not ours) since=3").ours
    assert read_marks("gpu-runbooks:held").ours


def test_only_reservations_with_an_op_id_are_ours() -> None:
    assert op_of_reservation(reservation_name("abcdefg")) == "abcdefg"
    assert op_of_reservation("gpu-runbooks_abc") is None
    assert op_of_reservation("maintenance") is None
    assert check_name("abcdefg") == "gpu-runbooks-check.abcdefg"
