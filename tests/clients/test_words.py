"""The words of the command line: names, options, exit codes and the shape of what is printed. No server."""

import importlib
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from clients import names, runs, shapes
from clients.app import COMMANDS, RUN, START, Command, main, make_app
from clients.commands.following import new_lines
from clients.errors import CliError, Exit, explained
from clients.fleet_file import find_file, needed_policy
from clients.jobs import comment_of, new_job_name, read_script, script_comment
from clients.output import Screen, clean, wants_color
from clients.questions import choice_for, is_question, make_answer
from fleet.errors import InvalidInputError, NotFoundError, RefusedError, TemporaryError
from fleet.identity import parse_tokens
from fleet.model import JobTokens
from fleet.people import Choice, Plan, Question, refusal
from fleet.runbooks import Runbook

GOLDEN = Path(__file__).parent / "golden_keys.json"


class Stream(io.StringIO):
    def __init__(self, tty: bool) -> None:
        super().__init__()
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty


def question(*options: Choice, default: Choice = Choice.DENY) -> Question:
    return Question(
        id="job/x/ask/1",
        plan=Plan(title="t", steps=("a",), subject="job/x", op="abcdefg"),
        why="w",
        options=options,
        default=default,
        asked_at=0,
        expires_at=1e12,
    )


# -- subjects


@pytest.mark.parametrize(
    ("text", "identity"),
    [
        ("train-a", "job/train-a"),
        ("job/train-a", "job/train-a"),
        ("job/train-a/failover/2", "job/train-a/failover/2"),
        ("alpha/alpha1", "node/alpha/alpha1"),
        ("node/alpha1", "node/node/alpha1"),  # a cluster that is called node
        ("node/alpha/alpha1", "node/alpha/alpha1"),
        ("guard/fleet", "guard/fleet"),
        ("watch/alpha", "watch/alpha"),
        ("lemons-2026-12-01T10:00:00Z/ask/1", "lemons-2026-12-01T10:00:00Z/ask/1"),
        ("lemons-2026", "job/lemons-2026"),
    ],
)
def test_a_subject_is_a_job_a_node_or_a_whole_id(text: str, identity: str) -> None:
    assert names.workflow_id(text) == identity


@pytest.mark.parametrize(
    "text", ["", "a b", "a'b", "a/b/c", "/a", "a/", "job/", "-x", "a\n", "ä", "a" * 201, "job/x/'"]
)
def test_anything_else_is_refused_with_exit_2(text: str) -> None:
    with pytest.raises(CliError) as caught:
        names.workflow_id(text)
    assert caught.value.code is Exit.USAGE


def test_a_question_is_told_from_its_parent() -> None:
    assert is_question("job/x/ask/1")
    assert is_question("job/ask/failover/2/ask/1")
    assert not is_question("job/ask")
    assert not is_question("ask/1")


def test_a_query_keeps_a_quote_inside_its_string() -> None:
    assert names.literal("a'b\\") == "'a\\'b\\\\'"
    query = runs.query_text(kinds=[Runbook.ASK], needs_human=True, cluster="x", under="job/x")
    assert query == (
        "WorkflowType IN ('AskHuman') AND ExecutionStatus = 'Running' AND RunbookNeedsHuman = true "
        "AND RunbookCluster = 'x' AND WorkflowId STARTS_WITH 'job/x/'"
    )


def test_the_caller_is_named_by_flag_then_environment_then_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "sue")
    monkeypatch.delenv(names.AS_VARIABLE, raising=False)
    assert names.caller() == "sue"
    monkeypatch.setenv(names.AS_VARIABLE, "env")
    assert names.caller() == "env"
    assert names.caller("flag") == "flag"
    with pytest.raises(CliError, match="no name of a person"):
        names.caller("a\nb")


# -- exit codes


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInputError("x"), Exit.USAGE),
        (NotFoundError("x"), Exit.USAGE),
        (RefusedError("x"), Exit.FAILED),
        (TemporaryError("x"), Exit.FAILED),
        (CliError("x", Exit.NOT_ALLOWED), Exit.NOT_ALLOWED),
    ],
)
def test_each_error_has_its_exit_code(error: Exception, code: Exit) -> None:
    told = explained(error)
    assert told is not None
    assert (told.code, str(told)) == (code, "x")


def test_an_unknown_command_is_a_usage_error_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(make_app(), ["aprove"]) == 2
    assert "did you mean approve?" in capsys.readouterr().err
    assert main(make_app(), ["start", "heel"]) == 2
    assert "did you mean heal? `runbook start --help`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["cancel", "x"], "--reason and its value are missing; `runbook cancel --help` shows"),
        (["start", "heal", "alpha/a1"], "--reason and its value are missing; `runbook start heal --help` shows"),
        (["describe", "job", "x"], "'x' is one word too many; `runbook describe --help` shows"),
    ],
)
def test_a_missing_or_needless_word_is_named(argv: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(make_app(), argv) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ["list", "--kind", "foo"],
        ["list", "--nope"],
        ["cancel", "x"],
        ["submit", "alpha"],
        ["watch", "x", "--timeout", "5"],
        ["submit", "alpha", "x.sh", "--wait", "--watch"],
    ],
)
def test_wrong_options_are_usage_errors(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(make_app(), argv) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ")
    assert shown.out == ""


def test_nothing_to_connect_to_is_exit_1_and_says_what_starts_a_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPU_RUNBOOKS_HOME", str(tmp_path))
    monkeypatch.delenv("TEMPORAL_ADDRESS", raising=False)
    assert main(make_app(), ["list"]) == 1
    assert "`runbook dev` starts one" in capsys.readouterr().err


def test_a_missing_command_is_told_and_breaks_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    more = (Command("ghost", "no.such.module:ghost", "Not here.", RUN),)
    assert main(make_app(more), ["--help"]) == 0
    assert "ghost" in capsys.readouterr().out
    assert main(make_app(more), ["ghost"]) == 1
    assert "not part of this installation: No module named 'no'" in capsys.readouterr().err
    assert main(make_app(more), ["nope"]) == 2


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for chain in [[row.name] for row in COMMANDS] + [["start", row.name] for row in START]:
        assert main(make_app(), [*chain, "--help"]) == 0
        shown = capsys.readouterr().out
        assert f"Usage: runbook {' '.join(chain)}" in shown
        assert "Exit codes: 0 done" in shown


def test_help_loads_neither_temporal_nor_pydantic() -> None:
    code = (
        "import sys; from clients.app import *; from workers.main import COMMANDS as M\n"
        "main(make_app(M), ['--help'])\n"
        "sys.exit(str([m for m in ('temporalio', 'pydantic', 'clients.runs') if m in sys.modules]))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stderr.strip() == "[]"


def test_the_process_ends_with_the_command_code_and_everything_printed() -> None:
    code = "from workers.main import main; main()"
    ended = subprocess.run([sys.executable, "-c", code, "lsit"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "did you mean list?" in ended.stderr


# -- output


@pytest.mark.parametrize(
    ("flag", "env", "tty", "colored"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_color_is_decided_by_flag_then_environment_then_terminal(
    flag: str, env: dict[str, str], tty: bool, colored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert wants_color(flag, Stream(tty)) is colored  # type: ignore[arg-type]


def test_foreign_text_cannot_move_the_terminal_or_be_read_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    assert clean("a\x1b[2J\nb\u202ec") == "a [2J b c"
    Screen("table", "always").line("[red]x[/red] \x1b[31m :smile:")
    assert capsys.readouterr().out == "[red]x[/red]  [31m :smile:\n"


def test_long_lines_are_not_cut_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().line("x" * 3000)
    assert capsys.readouterr().out == "x" * 3000 + "\n"


def test_json_keys_are_only_ever_added_to() -> None:
    """The file is written by hand: a key that leaves it breaks somebody's script."""
    promised = json.loads(GOLDEN.read_text())
    for path, keys in promised.items():
        module, _, name = path.partition(":")
        shape = getattr(importlib.import_module(module), name)
        assert set(keys) <= set(shape.model_fields), path
    mine = [n for n, shape in vars(shapes).items() if getattr(shape, "__module__", "") == "clients.shapes"]
    assert {f"clients.shapes:{name}" for name in mine} <= set(promised)


def test_a_story_that_drops_its_oldest_lines_is_continued_not_repeated() -> None:
    assert new_lines([], ["a", "b"]) == ["a", "b"]
    assert new_lines(["a", "b"], ["a", "b"]) == []
    assert new_lines(["a", "b", "c"], ["b", "c", "d", "e"]) == ["d", "e"]
    assert new_lines(["a"], ["x", "y"]) == ["x", "y"]
    assert new_lines(["a", "a"], ["a", "a", "a"]) == ["a"]


# -- submitting and answering


def test_the_comment_is_read_back_as_the_same_words() -> None:
    tokens = JobTokens(
        supervise=True,
        job="j",
        checkpoint="/ckpt/j",
        checkpoint_signal="USR2",
        total_steps=7,
        generation_check=True,
        log="/log/j",
    )
    assert parse_tokens(comment_of(tokens)) == tokens
    for bad in ({"checkpoint": "rel"}, {"checkpoint": "/a b"}, {"total_steps": 0}, {"checkpoint_signal": "KILL"}):
        with pytest.raises(CliError):
            comment_of(tokens.model_copy(update=bad))


def test_two_submits_of_one_script_are_two_jobs() -> None:
    made = {new_job_name("my job!", "#!/bin/sh") for _ in range(20)}
    assert len(made) == 20
    assert all(name.startswith("my-job-") for name in made)


def test_yes_and_no_mean_what_the_question_offers() -> None:
    yes_no = question(Choice.APPROVE, Choice.DENY)
    assert choice_for(yes_no, True, None) is Choice.APPROVE
    assert choice_for(yes_no, False, None) is Choice.DENY
    parked = question(Choice.RETRY, Choice.ABORT, Choice.TAKE_OVER, default=Choice.ABORT)
    assert choice_for(parked, False, None) is Choice.ABORT
    assert choice_for(parked, True, Choice.RETRY) is Choice.RETRY
    with pytest.raises(CliError, match="--choice retry"):
        choice_for(parked, True, None)
    waiting = question(Choice.RETRY, Choice.ABORT, default=Choice.RETRY)
    with pytest.raises(CliError, match="--choice"):
        choice_for(waiting, False, None)  # its default goes on, which is no "no"
    with pytest.raises(CliError, match="no option"):
        choice_for(yes_no, True, Choice.ATTEST)


def test_an_answer_is_bound_to_the_plan_that_was_read_and_expires() -> None:
    asked = question(Choice.APPROVE, Choice.DENY)
    answer = make_answer(asked, Choice.APPROVE, "ada", "seen")
    now = answer.expires_at - 600
    assert refusal(asked, answer, now=now, answered=None) is None
    changed = asked.model_copy(update={"plan": asked.plan.model_copy(update={"steps": ("b",)})})
    assert "the plan changed" in str(refusal(changed, answer, now=now, answered=None))
    assert "expired" in str(refusal(asked, answer, now=answer.expires_at, answered=None))
    assert make_answer(asked, Choice.APPROVE, "ada", "seen").nonce != answer.nonce


# -- the policy file


def test_a_named_policy_file_that_is_missing_is_no_reason_to_take_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPU_RUNBOOKS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("GPU_RUNBOOKS_FLEET", raising=False)
    assert find_file() is None
    with pytest.raises(CliError, match="--fleet"):
        needed_policy()
    Path("fleet.yaml").write_text("version: 1\n")
    assert find_file() == Path("fleet.yaml")
    with pytest.raises(CliError, match="from --fleet"):
        find_file("other.yaml")
    monkeypatch.setenv("GPU_RUNBOOKS_FLEET", "gone.yaml")
    with pytest.raises(CliError, match="from GPU_RUNBOOKS_FLEET"):
        find_file()


def test_a_script_with_a_secret_is_refused_before_anything_keeps_it(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\nexport HF_TOKEN=hf_abcdefghijklmnopqrstuvwx\nsrun train\n")

    with pytest.raises(CliError, match=r"train.sh:2 looks like a secret") as refused:
        read_script(script)

    assert "hf_abc" not in str(refused.value)


def test_a_script_that_reads_its_secret_from_elsewhere_is_taken(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\nexport HF_TOKEN=$(cat /run/secrets/hf)\nsrun train\n")

    assert "HF_TOKEN" in read_script(script)


@pytest.mark.parametrize(
    ("script", "comment"),
    [
        (
            "#!/bin/sh\n#SBATCH --comment='gpu-runbooks.io/total-steps=900 mine' -N2\ntrue\n",
            "gpu-runbooks.io/total-steps=900 mine",
        ),
        ("#!/bin/sh\n#SBATCH -N 2 --comment words # more\n", "words"),
        ("#!/bin/sh\ntrue\n#SBATCH --comment=late\n", ""),
        ("#!/bin/sh\n#SBATCH --nodes=2\n", ""),
    ],
)
def test_a_scripts_own_comment_is_kept(script: str, comment: str) -> None:
    assert script_comment(script) == comment


def test_what_a_submit_says_wins_over_the_scripts_comment() -> None:
    said = comment_of(JobTokens(supervise=True, job="a", total_steps=5))
    both = parse_tokens(f"{said} gpu-runbooks.io/total-steps=900 gpu-runbooks.io/checkpoint-signal=USR1")
    assert (both.total_steps, both.checkpoint_signal) == (5, "USR1")
