"""What `sbatch` is given for a submission."""

import getpass

import pytest

from activities.backends.slurm.submit import arguments, check_spec, comment_of, environment
from fleet.errors import InvalidInputError
from fleet.identity import parse_tokens
from fleet.orders import EPOCH_ENV, JobSpec


def spec(*, epoch: int = 0, script: str = "#!/bin/sh\n", **more: object) -> JobSpec:
    made = JobSpec(job="llm", name="my run", script=script, comment="my  words", epoch=epoch)
    return made.model_copy(update=more)


def test_a_first_submission_is_what_it_always_was() -> None:
    own = spec()
    assert comment_of(own) == "my  words gpu-runbooks.io/supervise gpu-runbooks.io/job=llm"
    assert environment(own, 0).keys() == {"HOME", "USER", "LC_ALL", EPOCH_ENV}
    assert environment(own, 0)[EPOCH_ENV] == "0"


def test_a_later_submission_has_the_same_name_and_its_epoch_in_the_comment() -> None:
    first, second = arguments(spec()), arguments(spec(epoch=2))
    differ = [(a, b) for a, b in zip(first, second, strict=True) if a != b]
    assert differ == [(f"--comment={comment_of(spec())}", f"--comment={comment_of(spec(epoch=2))}")]
    assert parse_tokens(comment_of(spec(epoch=2))).epoch == 2


def test_the_epoch_of_a_comment_that_was_read_from_a_job_is_not_the_new_ones() -> None:
    old = comment_of(spec(epoch=2))
    assert parse_tokens(comment_of(spec(epoch=3, comment=old))).epoch == 3
    assert parse_tokens(comment_of(spec(comment=old))).epoch == 0


def test_a_later_epoch_is_greater_whatever_the_first_one_is_counted_from() -> None:
    told = [int(environment(spec(epoch=n), 5)[EPOCH_ENV]) for n in range(4)]
    assert told == [5, 6, 7, 8]


def test_the_environment_reaches_the_job_and_what_is_ours_in_it_stays_ours() -> None:
    given = environment(spec(env={"GPU_RUNBOOKS_CHECKPOINT": "/ckpt/a,b 'c'"}), 0)
    assert given["GPU_RUNBOOKS_CHECKPOINT"] == "/ckpt/a,b 'c'"
    assert given["USER"] == getpass.getuser()
    for name in ("HOME", "PATH", "SLURM_CONF", "SBATCH_ACCOUNT", "LD_PRELOAD", EPOCH_ENV, "lower", "1A", "A-B"):
        with pytest.raises(InvalidInputError, match=name):
            check_spec(spec(env={name: "x"}))


@pytest.mark.parametrize("words", ["--export=NONE", "--export=A,B=1", "--export NONE"])
def test_a_job_that_would_not_see_its_epoch_is_refused_with_the_fix(words: str) -> None:
    script = f"#!/bin/sh\n#SBATCH {words}\ntrue\n"
    for bad in (spec(epoch=1, script=script), spec(env={"A": "b"}, options=("--export=NONE",))):
        with pytest.raises(InvalidInputError, match="--export=ALL"):
            check_spec(bad)
    check_spec(spec(script=script))
    check_spec(spec(epoch=1, script="#!/bin/sh\n#SBATCH --export=ALL,A=1\n", options=("--export=ALL",)))
