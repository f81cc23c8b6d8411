"""`runbook submit JOB.yaml` on a real server and worker, over the embedded fleet."""

from pathlib import Path

import pytest

from clients.errors import CliError
from clients.job_files import read_job
from fleet.errors import InvalidInputError
from tests.clients.stage import SCRIPT, Invoke, Stage
from tests.temporal.waiting import wait

HEAD = "version: 1\nnodes: 2\ngpu_models: [H100]\ntemplates: {sim: train.sh}\n"


def job_file(folder: Path, more: str = "", script: str = SCRIPT) -> str:
    (folder / "train.sh").write_text(script)
    (folder / "llama.yaml").write_text(HEAD + more)
    return str(folder / "llama.yaml")


def test_the_dry_run_names_the_cluster_and_the_reason_for_each_and_starts_nothing(
    stage: Stage, invoke: Invoke, tmp_path: Path
) -> None:
    path = job_file(tmp_path, "job: never\nclusters: {alpha: {}, beta: {options: [--account=ml]}}\n")

    shown = invoke("submit", path, "--dry-run", "-o", "json")
    page = invoke("submit", path, "--dry-run")

    assert shown.code == page.code == 0, shown.err
    assert (shown.json["id"], shown.json["choice"]) == ("job/never", "alpha")
    alpha, beta = shown.json["candidates"]
    assert (alpha["rank"], beta["rank"]) == (1, None)
    assert "no other cluster can take it" in alpha["why"]
    assert "its trial refuses the job: the simulated cluster knows no submit option '--account'" in beta["why"]
    assert "dry run: nothing was changed" in page.out
    words = " ".join(page.out.split())
    assert f"alpha {alpha['why']}" in words
    assert f"beta {beta['why']}" in words
    assert all(fact in words for fact in alpha["facts"].values())
    assert invoke("submit", path, "--dry-run", "-o", "name").out == "alpha\n"
    assert invoke("describe", "never").code == 2
    assert not [e for c in ("alpha", "beta") for e in stage.faults(c).effects("submit")]


def test_a_cluster_that_the_fleet_has_not_is_told_before_anything_is_started(
    stage: Stage, invoke: Invoke, tmp_path: Path
) -> None:
    path = job_file(tmp_path, "job: typo\nclusters: {alpha: {}, betta: {}}\n")

    for words in ((), ("--dry-run",)):
        told = invoke("submit", path, *words)
        assert told.code == 2
        assert "the job file names betta, which the fleet has not; it has alpha, beta" in told.err
    assert invoke("describe", "typo").code == 2


def test_a_job_file_runs_where_the_dry_run_said_and_its_place_is_told(
    stage: Stage, invoke: Invoke, tmp_path: Path
) -> None:
    path = job_file(tmp_path, "total_steps: 4000\n")
    choice = invoke("submit", path, "--dry-run", "-o", "name").out.strip()

    assert invoke("submit", path, "--job", "llama-1", "-o", "name").out == "job/llama-1\n"

    def runs() -> bool:
        seen = invoke("describe", "llama-1", "-o", "json").json["view"]
        return bool(seen and seen["ledger"] and seen["ledger"]["attempts"])

    wait(runs, 60)
    assert stage.faults(choice).native_ids("llama-1")
    rows = {row["id"]: row for row in invoke("list", "--all", "-o", "json").json}
    assert rows["job/llama-1"]["cluster"] == choice
    assert (rows["job/llama-1/place/1"]["kind"], rows["job/llama-1/place/1"]["status"]) == ("place", "completed")
    again = invoke("submit", path, "--job", "llama-1")
    assert again.code == 1
    assert "a name is given once" in again.err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--option=--nodes=2",), "only --job goes with a job file"),
        (("--wait", "--watch"), "give one of"),
    ],
)
def test_words_that_do_not_go_with_a_job_file_are_refused(
    invoke: Invoke, tmp_path: Path, argv: tuple[str, ...], words: str
) -> None:
    ran = invoke("submit", job_file(tmp_path), *argv)

    assert ran.code == 2
    assert words in ran.err


def test_what_is_wrong_is_told_with_file_and_line(invoke: Invoke, tmp_path: Path) -> None:
    ran = invoke("submit", job_file(tmp_path, "node: 3\n"), "--dry-run")

    assert ran.code == 2
    assert "llama.yaml:5: unknown key 'node'; allowed: " in ran.err
    other = invoke("submit", job_file(tmp_path, script="#!/bin/sh\n#SIM nodes=3\n"), "--dry-run")
    assert "train.sh:2: 3 nodes; the job file says 2" in other.err


def test_a_script_without_a_cluster_says_what_is_missing(invoke: Invoke, tmp_path: Path) -> None:
    job_file(tmp_path)

    assert "name its cluster first" in invoke("submit", str(tmp_path / "train.sh")).err
    assert "it needs a job file" in invoke("submit", "alpha", str(tmp_path / "train.sh"), "--dry-run").err


def test_a_template_of_the_wrong_language_or_with_a_secret_is_refused(tmp_path: Path) -> None:
    path = Path(job_file(tmp_path, script="apiVersion: batch/v1\nkind: Job\n"))
    with pytest.raises(InvalidInputError, match=r"train\.sh:1: sim takes a batch script"):
        read_job(path)
    job_file(tmp_path, script=SCRIPT + "export AWS_SECRET_ACCESS_KEY=abcdefghijklmnopqrstuvwxyz0123456789ABCD\n")
    with pytest.raises(CliError, match=r"train\.sh:3 looks like a secret"):
        read_job(path)
    (tmp_path / "train.sh").unlink()
    with pytest.raises(CliError, match=r"train\.sh cannot be read"):
        read_job(path)
