"""The report of a job: the value that is kept and the text that a tired person reads."""

import pytest

from fleet.ettr import wall_clock
from fleet.faults.evidence import FaultClass
from fleet.ledger import Ledger, Rung, Span, Stage
from fleet.model import FenceReceipt, NodeReceipt, ReceiptGrade
from fleet.report import Report, job_report, lasting, moment, render_text
from tests.fleet.make import T0, attempt, ledger, steps, verdict


def recovered() -> Ledger:
    """Steps 1 to 101, XID 79, power off, back from step 81 without alpha2."""
    receipts = (
        NodeReceipt(node="alpha1", grade=ReceiptGrade.DAEMON_GONE, detail="slurmd says so", at=T0 + 125),
        NodeReceipt(node="alpha2", grade=ReceiptGrade.POWER_OFF, detail="reads off", at=T0 + 124),
    )
    lost = attempt(
        1,
        start=0,
        end=130,
        progress=steps(1, 101, 0, 100),
        verdict=verdict(FaultClass.HARDWARE, "xid-79", "alpha2", "GPU fell off the bus"),
        receipt=FenceReceipt(cluster="alpha", native_id="7", generation=1, nodes=receipts),
    )
    spans = (
        Span(stage=Stage.FENCE, start=T0 + 118, end=T0 + 125, note="alpha2 is off"),
        Span(stage=Stage.DETECT, start=T0 + 100, end=T0 + 118),
    )
    again = attempt(
        2,
        Rung.IN_CLUSTER,
        start=130,
        running_at=T0 + 131.5,
        cause="xid-79",
        nodes=("alpha1", "alpha3"),
        progress=steps(82, 132, 140, 190, 81),
        spans=spans,
    )
    return ledger(lost, again)


def test_a_report_holds_the_whole_story() -> None:
    book = recovered()
    report = job_report(book, T0 + 200, ("08:02:10 moved",))

    assert (report.kind, report.subject, report.job, report.cluster) == ("job", "job/train", "train", "alpha")
    assert (report.title, report.rule) == ("GPU fell off the bus", "xid-79")
    assert (report.started_at, report.ended_at, report.made_at) == (T0, None, T0 + 200)
    assert [row.generation for row in report.attempts] == [1, 2]
    assert (report.attempts[0].ran, report.attempts[0].proof) == (130, ReceiptGrade.DAEMON_GONE)
    assert (report.attempts[1].queued, report.attempts[1].ran) == (1.5, 68.5)
    assert [(row.stage, row.seconds) for row in report.timeline] == [(Stage.DETECT, 18), (Stage.FENCE, 7)]
    assert report.steps_lost == 20
    assert sum(report.buckets.values()) == wall_clock(book, T0 + 200)
    assert report.ettr == pytest.approx(140 / 200)
    assert report.lines == ("08:02:10 moved",)


def test_a_report_survives_json() -> None:
    report = job_report(recovered(), T0 + 200, ("x",))

    assert Report.model_validate_json(report.model_dump_json()) == report


def test_a_finished_job_is_reported_up_to_its_end() -> None:
    book = recovered().with_last(ended_at=T0 + 195).model_copy(update={"done_at": T0 + 196})
    report = job_report(book, T0 + 9999)

    assert report.ended_at == T0 + 196
    assert sum(report.buckets.values()) == 196
    assert "until 2027-01-15 08:03:16 UTC, 3m16s" in render_text(report)


def test_the_last_hour_is_the_last_hour_of_the_job() -> None:
    long = ledger(attempt(1, start=0, progress=steps(1, 3600, 3600, 7200)))

    report = job_report(long, T0 + 7200)
    assert (report.ettr, report.ettr_hour) == (0.5, 1.0)


def test_a_job_without_an_attempt_has_a_report() -> None:
    report = job_report(ledger(), T0 + 60)

    assert (report.attempts, report.rule, report.ettr) == ((), "", 0.0)
    assert "Attempts" not in render_text(report)


TEXT = """\
Report
  subject     job/train
  cluster     alpha
  cause       GPU fell off the bus (xid-79)
  time        2027-01-15 08:00:00 UTC, still going on, 3m20s
  ETTR        0.700, over the last hour 0.700
  steps lost  20

Attempts
  #  how         cluster  nodes          steps      queued  ran    ended by              proof it is gone
  1  first       alpha    alpha1,alpha2  ? to 101   0.0s    2m10s  GPU fell off the bus  daemon gone
  2  in cluster  alpha    alpha1,alpha3  81 to 132  1.5s    1m08s  -                     -

Recovery, stage by stage
  attempt  stage   at                       took
  2        detect  2027-01-15 08:01:40 UTC  18.0s
  2        fence   2027-01-15 08:01:58 UTC  7.0s   alpha2 is off

Where the time went
  bucket      time   share
  productive  2m20s  70.0%
  rework      20.0s  10.0%
  queue       1.5s   0.8%
  detect      23.0s  11.5%
  fence       7.0s   3.5%
  load        8.5s   4.2%
  together    3m20s

Story
  08:02:10 fenced alpha2
  08:02:20 trains again
"""


def test_the_text_is_aligned_and_plain() -> None:
    report = job_report(recovered(), T0 + 200, ("08:02:10 fenced alpha2", "08:02:20 trains again"))

    assert render_text(report) == TEXT


def test_a_stage_that_lasts_says_so() -> None:
    open_span = Span(stage=Stage.PERSON, start=T0 + 131, note="")
    report = job_report(recovered().with_last(spans=(open_span,)), T0 + 200)

    assert "wait for person  2027-01-15 08:02:11 UTC  lasts" in render_text(report)


def test_many_nodes_are_counted() -> None:
    nodes = tuple(f"alpha{n}" for n in range(1, 65))
    text = render_text(job_report(ledger(attempt(1, start=0, nodes=nodes)), T0 + 9))

    assert "alpha1,alpha2,alpha3,alpha4 and 60 more" in text


def test_foreign_text_moves_no_terminal() -> None:
    evil = "\x1b[2J\x07\u202egone\r\nfake line"
    book = recovered()
    first = book.attempts[0].model_copy(update={"verdict": verdict(FaultClass.USER, "r", title=evil)})
    text = render_text(job_report(book.model_copy(update={"attempts": (first,)}), T0 + 200, (evil,)))

    assert "gone fake line" in text
    assert not any(c in text for c in "\x1b\x07\u202e\r")
    assert not any(line.startswith("fake") for line in text.splitlines())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0.0s"),
        (4.25, "4.2s"),
        (59.94, "59.9s"),
        (59.96, "1m00s"),
        (60, "1m00s"),
        (123, "2m03s"),
        (3599.9, "1h00m"),
        (3720, "1h02m"),
        (86_399, "23h59m"),
        (86_400, "1d00h"),
        (273_600, "3d04h"),
    ],
)
def test_durations_are_short(seconds: float | None, text: str) -> None:
    assert lasting(seconds) == text


def test_moments_are_utc() -> None:
    assert moment(T0) == "2027-01-15 08:00:00 UTC"
