"""`runbook preflight` and the part of `describe` that it fills, on a real server and worker."""

import pytest

from fleet.orders import JobSpec
from tests.clients.stage import Invoke, Stage, process


@pytest.fixture(scope="module")
def job(stage_of_module: Stage) -> str:
    """Name of a job that was submitted to alpha."""
    ended = process(
        stage_of_module, ["submit", "alpha", str(stage_of_module.script), "--job", "train-p", "-o", "name"]
    )
    out, err = ended.communicate(timeout=60)
    assert (ended.returncode, out) == (0, "job/train-p\n"), err
    return "train-p"


def test_a_job_that_nobody_looked_at_says_how_to_look(stage: Stage, invoke: Invoke, job: str) -> None:
    seen = invoke("preflight", job, "-o", "json")
    assert (seen.code, seen.json) == (0, [])
    assert "`--now` makes one" in seen.err
    assert invoke("describe", job, "-o", "json").json["readiness"] is None


def test_a_look_now_shows_every_check_of_each_other_cluster_and_describe_keeps_it(
    stage: Stage, invoke: Invoke, job: str
) -> None:
    seen = invoke("preflight", job, "--now", "-o", "json")
    assert seen.code == 0, seen.err
    (found,) = seen.json
    assert (found["job"], found["cluster"]) == (job, "alpha")
    (target,) = found["targets"]
    assert target["cluster"] == "beta"
    assert [check["name"] for check in target["checks"]][:2] == ["credentials", "storage"]
    assert all(check["ok"] for check in target["checks"])
    assert "submitted by us" in found["protections"]
    shown = invoke("preflight", job).out
    assert "run as" in shown
    assert "nothing is moved" in shown
    page = invoke("describe", job)
    assert "If its cluster is lost" in page.out
    assert "newest proven checkpoint" in page.out
    assert invoke("describe", job, "-o", "json").json["readiness"] == found
    table = invoke("preflight").out
    assert table.split()[:6] == ["JOB", "FROM", "TO", "READY", "WHY", "AGE"]
    assert invoke("preflight", "-o", "name").out == f"{job}\n"


def test_a_job_without_a_runbook_is_refused_with_why(stage: Stage, invoke: Invoke) -> None:
    spec = JobSpec(job="lonely", name="lonely", script=stage.script.read_text())
    native = stage.faults("beta").person_submit(spec)
    seen = invoke("preflight", f"beta/{native}", "--now")
    assert seen.code == 2
    assert "is not under supervision" in seen.err
    assert invoke("preflight", "nobody").code == 2


def test_a_job_that_fits_no_other_cluster_ends_with_exit_1(stage: Stage, invoke: Invoke) -> None:
    wide = stage.home / "wide.sh"
    wide.write_text(stage.script.read_text().replace("nodes=2", "nodes=99"))
    assert invoke("submit", "alpha", str(wide), "--job", "wide").code == 0
    seen = invoke("preflight", "wide", "--now")
    assert seen.code == 1
    assert "99 nodes" in seen.out
    listed = invoke("list", "--kind", "preflight", "--all", "-o", "name").out.split()
    assert "preflight/wide" in listed
