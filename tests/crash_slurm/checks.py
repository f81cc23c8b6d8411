"""What every disturbed run on real Slurm must show."""

from tests.crash.boundary import Case, Fault
from tests.crash_slurm.play import STEPS, Played

AFTER_THE_LAST_WRITE = ("wait_step", "the runbook")
"""After these the failover writes no more, so an answer of it cannot be lost."""


def assert_ends_alike(played: Played, calm: Played, case: Case) -> None:
    """Same final state, no effect twice, no step lost, and the fault was real."""
    assert played.hit, "the fault never happened"
    assert played.ending.model_dump() == calm.ending.model_dump()
    assert played.failed_tasks == ()
    assert played.generations_at_once == 1
    assert_no_rank_meets_another(played.order)
    assert_no_step_is_lost(played)
    assert_the_fault_took_its_toll(played, case)


def assert_no_rank_meets_another(order: tuple[str, ...]) -> None:
    """Both nodes of the first attempt ended it before a node of the second began."""
    assert [line.split()[0] for line in order] == ["prolog"] * 2 + ["epilog"] * 2 + ["prolog"] * 2 + ["epilog"] * 2


def assert_no_step_is_lost(played: Played) -> None:
    """The second attempt goes on from the first one's last checkpoint; each attempt makes each of its steps once."""
    output, saved = played.output, played.saved
    assert f"resumed from step {saved[-1]} gen=0.1" in output
    assert steps_of(output, "0.0") == list(range(1, len(steps_of(output, "0.0")) + 1))
    assert steps_of(output, "0.1") == list(range(saved[-1] + 1, STEPS + 1))
    first_of_new = next(i for i, line in enumerate(output) if "gen=0.1" in line)
    assert not [line for line in output[first_of_new:] if "gen=0.0" in line]


def steps_of(output: tuple[str, ...], generation: str) -> list[int]:
    """Numbers of the steps that a generation printed, in order."""
    return [
        int(line.split()[1].split("/")[0])
        for line in output
        if line.startswith("step ") and f" gen={generation} " in line
    ]


def assert_the_fault_took_its_toll(played: Played, case: Case) -> None:
    """A fault that nobody felt proves nothing."""
    assert played.servers == (2 if case.fault is Fault.SERVER_KILLED else 1)
    kept = case.fault in {Fault.SERVER_KILLED, Fault.ANSWER_LOST}
    assert played.workers == 1 if kept else played.workers >= 2, played.told  # one that cannot start is started again
    boundary = case.boundary
    assert boundary is not None
    if boundary.side == "before the command":
        assert played.refused  # without that the late command is only stopped by a race with its cancellation
    late = boundary.side == "after" and boundary.step in AFTER_THE_LAST_WRITE
    if case.fault is Fault.ANSWER_LOST and not late:
        assert played.lost
