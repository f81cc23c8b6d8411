"""`runbook preflight` and the part of `describe` that it fills, on a real server and worker."""

import contextlib
import hashlib
import json
import re
import subprocess
from collections.abc import Iterator

import pytest

from fleet.copying.space import size_text
from fleet.orders import JobSpec
from tests.clients.stage import RUNBOOK, Invoke, Stage, process


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


def test_a_dry_run_says_where_the_checkpoint_is_and_what_moving_it_costs(stage: Stage, invoke: Invoke) -> None:
    for site in ("near", "far"):
        (stage.home / site / "state").mkdir(parents=True)
    folder = stage.home / "near" / "state" / "step_00000030.g0.0"
    folder.mkdir()
    (folder / "rank_0.json").write_text("{}")
    digest = hashlib.sha256(b"{}").hexdigest()
    (folder / "COMPLETE").write_text(json.dumps({"step": 30, "world": 1, "shards": {"rank_0.json": digest}}))
    job = stage.home / "job.yaml"
    lines = ["version: 1", "nodes: 2", "templates: {sim: train.sh}", f"checkpoint: {stage.home}/near/state"]
    job.write_text("\n".join(lines) + "\n")
    text = stage.auto
    for cluster, site in (("alpha", "near"), ("beta", "far")):
        text = re.sub(rf"(  {cluster}:.*kind: sim)", rf"\1, site: {site}", text)
    stage.fleet.write_text(
        f"{text}\nsites:\n  near: {{mount: {stage.home}/near}}\n  far: {{mount: {stage.home}/far}}\n"
    )
    with mover(stage, "near"), mover(stage, "far"):
        seen = invoke("submit", str(job), "--dry-run", "-o", "json")
        assert seen.code == 0, seen.err
        assert all(one["rank"] for one in seen.json["candidates"]), seen.json
        facts = {one["cluster"]: one["facts"]["checkpoint"] for one in seen.json["candidates"]}
        assert seen.json["choice"] == "alpha"
        assert facts["alpha"] == "step 30 there"
        size = sum(path.stat().st_size for path in folder.iterdir())
        assert facts["beta"].endswith(f"to bring step 30 ({size_text(size)}) from near")
        assert "step 30 there" in invoke("submit", str(job), "--dry-run").out


@contextlib.contextmanager
def mover(stage: Stage, site: str) -> Iterator[None]:
    """The worker of a site's storage, as a process of its own."""
    words = [*RUNBOOK, "worker", "--data", site]
    worker = subprocess.Popen(
        words, cwd=stage.home, env=stage.env(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        assert worker.stdout is not None
        assert any(b"worker is ready" in line for line in worker.stdout)
        yield
    finally:
        worker.kill()
        worker.wait()
        assert worker.stdout is not None
        worker.stdout.close()
