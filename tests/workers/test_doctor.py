"""The doctor: each trouble is made and must be named, on the embedded server with a real worker or on values."""

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import WorkerVersioningMode
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.api.workflowservice.v1 import DescribeTaskQueueResponse, RegisterNamespaceRequest
from temporalio.service import RPCError

from clients.app import main, make_app
from clients.connection import connect
from clients.embedded import HOME_VARIABLE
from clients.guards import current
from fleet.identity import TOKEN_PREFIX
from fleet.model import JobTokens, NativeJob, Phase
from fleet.orders import JobSpec
from fleet.policy import Notify, Policy
from fleet.policy_file import parse_policy
from tests.clients.stage import Ran, Stage
from tests.conftest import FAST_VALUES
from workers import doctor_fleet, doctor_here, doctor_job
from workers.doctor_checks import Area, Check, Grade
from workers.doctor_cluster import judge_settings
from workers.doctor_temporal import POLL_FRESH, answers, polled, versioned
from workers.main import COMMANDS
from workers.server import ensure_server, stop_server

Doctor = Callable[..., Ran]
SIM = "version: 1\nclusters:\n  alpha: {kind: sim, path: world.sqlite}\n"


@pytest.fixture(scope="module")
def whole_stage(temporal_binary_found: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Server, worker process and a sim fleet."""
    home = tmp_path_factory.mktemp("doctor")
    stage = Stage(home, ensure_server(home, values=FAST_VALUES))
    try:
        stage.start_worker()
        yield stage
    finally:
        stage.stop_worker()
        assert stop_server(home)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """Runs `runbook` in this process, up to the very exit."""
    for name in [n for n in os.environ if n.startswith(("TEMPORAL_", "GPU_RUNBOOKS_"))]:
        monkeypatch.delenv(name)

    def run(home: Path, *argv: str) -> Ran:
        monkeypatch.setenv(HOME_VARIABLE, str(home))
        monkeypatch.chdir(home)
        capsys.readouterr()
        code = main(make_app(COMMANDS), argv)
        shown = capsys.readouterr()
        return Ran(int(code), shown.out, shown.err)

    return run


@pytest.fixture
def doctor(cli: Doctor) -> Doctor:
    """Runs `runbook doctor`."""
    return lambda home, *argv: cli(home, "doctor", *argv)


def found(ran: Ran) -> dict[tuple[str, str], dict[str, Any]]:
    return {(check["area"], check["name"]): check for check in ran.json["checks"]}


def failed(ran: Ran) -> set[tuple[str, str]]:
    return {key for key, check in found(ran).items() if check["grade"] == "fail"}


# -- everything together


def test_a_whole_installation_has_no_failure_and_says_loudly_that_unsigned_answers_count(
    whole_stage: Stage, doctor: Doctor
) -> None:
    ran = doctor(whole_stage.home, "-o", "json")
    checks = found(ran)
    assert failed(ran) == set()
    assert (ran.code, ran.json["ok"]) == (0, True)
    assert checks["temporal", "answers"]["grade"] == "warn"
    assert "UNSIGNED ANSWERS COUNT" in checks["temporal", "answers"]["text"]
    ok = {key for key, check in checks.items() if check["grade"] == "ok"}
    assert ok >= {
        ("here", "temporal program"),
        ("fleet", "fleet.yaml"),
        ("temporal", "search attributes"),
        ("temporal", "worker of runbooks"),
        ("temporal", "worker of cluster.alpha"),
        ("temporal", "worker of cluster.beta"),
        ("temporal", "watch/alpha"),
        ("temporal", "guard/fleet"),
        ("temporal", "guard/beta"),
        ("temporal", "freeze"),
        ("alpha", "probe"),
        ("beta", "nodes"),
    }


def test_the_table_shows_what_was_seen_what_to_do_and_the_count(whole_stage: Stage, doctor: Doctor) -> None:
    ran = doctor(whole_stage.home)
    assert re.search(r"^temporal +server +ok +\S+ at 127\.0\.0\.1:\d+ .*embedded", ran.out, re.MULTILINE)
    assert "→ list approvers in fleet.yaml" in ran.out
    assert re.search(r"^\d+ ok, \d+ warn, 0 fail$", ran.err.strip())


def test_a_freeze_is_shown_with_its_author_and_how_to_end_it(whole_stage: Stage, cli: Doctor, doctor: Doctor) -> None:
    common = ("--reason", "power work", "--as", "ada")
    assert cli(whole_stage.home, "freeze", "beta", *common).code == 0
    try:
        ran = doctor(whole_stage.home, "-o", "json")
    finally:
        assert cli(whole_stage.home, "unfreeze", "beta", *common).code == 0
    freeze = found(ran)["temporal", "freeze"]
    assert freeze["grade"] == "warn"
    assert "beta by ada: power work" in freeze["text"]
    assert "runbook unfreeze beta" in freeze["todo"]
    assert found(doctor(whole_stage.home, "-o", "json"))["temporal", "freeze"]["grade"] == "ok"


def test_a_cluster_that_cannot_be_read_fails_alone(whole_stage: Stage, doctor: Doctor, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(
        f"version: 1\nclusters:\n  alpha: {{kind: sim, path: {whole_stage.home}/world.sqlite}}\n"
        "  gamma: {kind: slurm, conf: /nowhere/slurm.conf}\n"
    )
    ran = doctor(whole_stage.home, "--fleet", str(fleet), "-o", "json")
    checks = found(ran)
    assert ran.code == 1
    assert "/nowhere/slurm.conf" in checks["gamma", "probe"]["text"]
    assert checks["gamma", "probe"]["todo"]
    assert [name for area, name in checks if area == "gamma"] == ["probe"]
    assert checks["alpha", "probe"]["grade"] == "ok"
    assert checks["temporal", "worker of cluster.gamma"]["grade"] == "fail"
    assert "runbook worker --cluster gamma" in checks["temporal", "worker of cluster.gamma"]["todo"]
    assert checks["temporal", "watch/gamma"]["grade"] == "fail"


def test_a_broken_fleet_file_is_named_with_its_line_and_temporal_is_looked_at_all_the_same(
    whole_stage: Stage, doctor: Doctor, tmp_path: Path
) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(SIM + "modes: {isolat: auto}\n")
    ran = doctor(whole_stage.home, "--fleet", str(fleet), "-o", "json")
    assert ran.code == 1
    assert f"{fleet}:4" in found(ran)["fleet", "fleet.yaml"]["text"]
    assert found(ran)["temporal", "server"]["grade"] == "ok"
    assert not any(area == "alpha" for area, _ in found(ran))


# -- a server that lacks something


def test_without_a_server_it_says_what_starts_one_and_still_looks_at_the_clusters(
    temporal_binary_found: None, doctor: Doctor, tmp_path: Path
) -> None:
    Stage(tmp_path, None)  # type: ignore[arg-type]  # writes the sim fleet; no server runs
    ran = doctor(tmp_path, "-o", "json")
    assert ran.code == 1
    assert failed(ran) == {("here", "embedded server"), ("temporal", "server")}
    assert "runbook dev" in found(ran)["temporal", "server"]["todo"]
    assert found(ran)["alpha", "probe"]["grade"] == "ok"


async def test_missing_search_attributes_are_named_and_registered_by_fix_only(
    whole_stage: Stage, doctor: Doctor
) -> None:
    client = await connect(whole_stage.server.address)
    request = RegisterNamespaceRequest(namespace="bare")
    request.workflow_execution_retention_period.FromSeconds(86400)
    await client.workflow_service.register_namespace(request)
    await _until_known(whole_stage.server.address, "bare")
    ran = await _in_thread(doctor, whole_stage.home, "--namespace", "bare", "-o", "json")
    lost = found(ran)["temporal", "search attributes"]
    assert (lost["grade"], lost["todo"]) == ("fail", "runbook doctor --fix")
    assert "RunbookNeedsHuman" in lost["text"]
    await _in_thread(doctor, whole_stage.home, "--namespace", "bare", "--fix", "-o", "json")
    again = await _in_thread(doctor, whole_stage.home, "--namespace", "bare", "-o", "json")
    assert found(again)["temporal", "search attributes"]["grade"] == "ok"
    assert {n for a, n in failed(again) if n.startswith("worker of")} == {
        "worker of runbooks",
        "worker of cluster.alpha",
        "worker of cluster.beta",
    }


async def _until_known(address: str, namespace: str) -> None:
    """A new namespace takes some seconds until every part of the server knows it."""
    client = await connect(address, namespace)
    async with asyncio.timeout(60):
        while True:
            try:
                await current(client, "fleet")
            except RPCError:
                await asyncio.sleep(0.1)
            else:
                return


async def _in_thread(doctor: Doctor, *argv: Any) -> Ran:
    return await asyncio.to_thread(doctor, *argv)


def test_an_unknown_namespace_is_named(whole_stage: Stage, doctor: Doctor) -> None:
    ran = doctor(whole_stage.home, "--namespace", "nowhere", "-o", "json")
    assert ran.code == 1
    seen = found(ran)["temporal", "namespace"]
    assert (seen["grade"], "nowhere does not exist" in seen["text"]) == ("fail", True)


@pytest.mark.parametrize("age", [0.0, POLL_FRESH - 1, POLL_FRESH + 1, None])
def test_only_a_worker_that_polled_lately_counts(age: float | None) -> None:
    """The server itself remembers a killed worker for five minutes."""
    now = 1_800_000_000.0
    answer = DescribeTaskQueueResponse()
    if age is not None:
        poller = PollerInfo(identity="7@host")
        poller.last_access_time.FromMilliseconds(int((now - age) * 1000))
        answer.pollers.append(poller)
    check = polled("cluster.alpha", "alpha", {"activities": answer}, now)
    lives = age is not None and age < POLL_FRESH
    assert check.grade is (Grade.OK if lives else Grade.FAIL)
    assert ("7@host" in check.text) is lives
    assert ("runbook worker --cluster alpha" in check.todo) is not lives


@pytest.mark.parametrize(("current", "grade"), [("", Grade.FAIL), ("b1", Grade.FAIL), ("b2", Grade.OK)])
def test_a_version_that_is_not_current_gets_no_work(current: str, grade: Grade) -> None:
    answer = DescribeTaskQueueResponse()
    poller = PollerInfo(identity="7@host")
    poller.deployment_options.build_id = "b2"
    poller.deployment_options.worker_versioning_mode = WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
    answer.pollers.append(poller)
    answer.versioning_info.current_deployment_version.build_id = current
    check = versioned("runbooks", answer)
    assert check is not None
    assert check.grade is grade


def test_versions_are_not_spoken_of_where_they_are_not_used() -> None:
    assert versioned("runbooks", DescribeTaskQueueResponse(pollers=[PollerInfo(identity="7@host")])) is None


@pytest.mark.parametrize(
    ("embedded", "approvers", "grade", "word"),
    [
        (True, 0, Grade.WARN, "UNSIGNED"),
        (True, 2, Grade.OK, "only signed"),
        (False, 0, Grade.WARN, "nobody can approve"),
        (False, 2, Grade.OK, "only signed"),
    ],
)
def test_it_says_whose_answers_count(embedded: bool, approvers: int, grade: Grade, word: str) -> None:
    check = answers(embedded, approvers)
    assert check.grade is grade
    assert word in check.text


# -- this machine and fleet.yaml


def test_the_fleet_file_of_the_state_folder_that_was_named_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GPU_RUNBOOKS_FLEET", raising=False)
    monkeypatch.delenv("GPU_RUNBOOKS_HOME", raising=False)
    assert f"tried fleet.yaml, {state}/fleet.yaml" in doctor_fleet.read_fleet(None, str(state))[2].text
    state.mkdir()
    (state / "fleet.yaml").write_text(SIM)
    file, known, _ = doctor_fleet.read_fleet(None, str(state))
    assert file == state / "fleet.yaml"
    assert known is not None


def test_a_package_that_is_missing_or_too_old_is_named() -> None:
    assert doctor_here.missing_package("no-such-package>=1") == "no-such-package is missing"
    assert re.fullmatch(r"pydantic is [\d.]+, 999 is needed", doctor_here.missing_package("pydantic>=999"))
    assert doctor_here.missing_package("pydantic>=2.0") == ""
    assert doctor_here.missing_package("pyslurm==25.11.2 ; extra == 'pyslurm'") == ""


def test_an_old_python_is_refused() -> None:
    assert doctor_here.python((3, 10)).grade is Grade.FAIL
    assert doctor_here.python((3, 11)).grade is Grade.OK


def test_a_missing_ssh_keygen_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "openssh-client" in doctor_here.ssh_keygen().todo
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGE5bGFzdGJ5dGVzb2ZhbmVkMjU1MTlwdWJsaWNr"
    check = doctor_fleet.approvers(policy(f"approvers: [{{name: ada, key: {key}}}]\n"))
    assert (check.grade, "ada" in check.text) == (Grade.FAIL, True)


def test_a_state_folder_that_cannot_be_made_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert doctor_here.state_folder(tmp_path / "file" / "home").grade is Grade.FAIL
    assert doctor_here.state_folder(tmp_path / "new" / "home").grade is Grade.OK
    assert not (tmp_path / "new").exists()


def policy(more: str = "") -> Policy:
    return parse_policy(SIM + more, "fleet.yaml")


def test_modes_say_what_is_automatic_and_what_waits_for_a_person() -> None:
    assert doctor_fleet.modes(policy()).text == "a person is asked before each step"
    some = doctor_fleet.modes(policy("modes: {isolate: auto}\n"))
    assert some.text.startswith("propose: evacuate")
    assert "auto: isolate" in some.text
    assert doctor_fleet.modes(policy("modes: {fence: observe}\n")).grade is Grade.WARN


def test_a_hook_that_is_not_there_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor_fleet.notification(None).grade is Grade.WARN
    gone = doctor_fleet.notification(Notify(command=(str(tmp_path / "page"),)))
    assert (gone.grade, str(tmp_path / "page") in gone.text) == (Grade.FAIL, True)
    assert doctor_fleet.notification(Notify(command=("/bin/sh", "-c", "true"))).grade is Grade.OK
    hook = Notify(url="https://pager.example/x", secret_env="PAGER_SECRET")  # noqa: S106 - the name of a variable
    assert doctor_fleet.notification(hook).grade is Grade.WARN
    monkeypatch.setenv("PAGER_SECRET", "s")
    check = doctor_fleet.notification(hook)
    assert check.grade is Grade.OK
    assert "pager.example" not in check.text


def test_looking_at_a_history_store_does_not_make_one(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    assert "not there yet" in doctor_fleet.store(f"sqlite:///{file}").text
    assert not file.exists()
    file.write_text("this is no database, whatever its name says; sqlite refuses it")
    assert doctor_fleet.store(f"sqlite:///{file}").grade is Grade.FAIL


# -- a Slurm cluster's own settings


def settings(**config: str) -> dict[str, Check]:
    good = {"RebootProgram": "/r", "JobRequeue": "1", "SlurmdTimeout": "300 sec", "MinJobAge": "900 sec"}
    return {check.name: check for check in judge_settings(Area("alpha"), good | config, has_power=True)}


def test_good_settings_are_ok() -> None:
    assert {check.grade for check in settings().values()} == {Grade.OK}


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("RebootProgram", "(null)", "power hook"),
        ("JobRequeue", "0", "--requeue"),
        ("SlurmdTimeout", "0 sec", "never gives up"),
        ("MinJobAge", "300 sec", "submitted twice"),
    ],
)
def test_a_setting_that_limits_us_is_named(key: str, value: str, word: str) -> None:
    checks = settings(**{key: value})
    assert checks[key].grade is Grade.WARN
    assert word in checks[key].text
    assert {check.grade for name, check in checks.items() if name != key} == {Grade.OK}


def test_a_min_job_age_of_zero_keeps_jobs_for_ever() -> None:
    assert settings(MinJobAge="0 sec")["MinJobAge"].grade is Grade.OK


# -- one job

_job = Area("job/x")


def job(**changes: Any) -> NativeJob:
    whole = NativeJob(
        cluster="alpha",
        native_id="7",
        name="train",
        phase=Phase.RUNNING,
        held=True,
        adopted=True,
        nodes=("alpha1",),
        tokens=JobTokens(
            supervise=True, checkpoint="/c/x", checkpoint_signal="USR1", total_steps=9, generation_check=True
        ),
    )
    return whole.model_copy(update=changes)


def tokens(**changes: Any) -> NativeJob:
    return job(tokens=job().tokens.model_copy(update=changes))


@pytest.mark.parametrize(
    ("changes", "grade"),
    [
        ({}, Grade.OK),
        ({"adopted": False}, Grade.WARN),
        ({"held": False}, Grade.FAIL),
        ({"held": False, "phase": Phase.PENDING}, Grade.OK),
        ({"held": False, "phase": Phase.PENDING, "restarts": 1}, Grade.WARN),
        ({"held": False, "phase": Phase.SUCCEEDED}, Grade.OK),
    ],
)
def test_an_adopted_job_that_is_not_held_is_a_failure(changes: dict[str, Any], grade: Grade) -> None:
    assert doctor_job.held(_job, job(**changes)).grade is grade


def test_whether_a_late_writer_could_spoil_the_newest_checkpoint() -> None:
    assert "cannot spoil" in doctor_job.generation_check(_job, job()).text
    lax = doctor_job.generation_check(_job, tokens(generation_check=False))
    assert lax.grade is Grade.WARN
    assert "COULD SPOIL" in lax.text


def test_what_a_job_does_not_declare_is_named() -> None:
    assert doctor_job.checkpoint_signal(_job, job()).grade is Grade.OK
    assert doctor_job.checkpoint_signal(_job, tokens(checkpoint_signal=None)).grade is Grade.WARN
    assert doctor_job.total_steps(_job, job()).text == "9"
    assert doctor_job.total_steps(_job, tokens(total_steps=None)).grade is Grade.WARN
    assert doctor_job.checkpoint_root(_job, job(), ("/c",)).grade is Grade.OK
    assert doctor_job.checkpoint_root(_job, job(), ("/cc", "/d")).grade is Grade.WARN
    assert doctor_job.opt_in(_job, tokens(supervise=False)).grade is Grade.WARN


def test_on_kubernetes_nobody_is_told_to_write_a_comment_or_to_call_slurm() -> None:
    words = doctor_job.WORDS["kubernetes"]
    bare = job(tokens=JobTokens(), adopted=True, held=False)
    told = [
        doctor_job.opt_in(_job, bare, words),
        doctor_job.held(_job, bare, words),
        doctor_job.checkpoint_signal(_job, bare, words),
        doctor_job.generation_check(_job, bare, words),
        doctor_job.total_steps(_job, bare, words),
        doctor_job.checkpoint_root(_job, bare, (), words),
    ]
    assert all(check.grade is not Grade.OK and check.todo for check in told)
    said = " ".join(f"{check.text} {check.todo}" for check in told)
    assert not re.search(r"comment|slurm|scontrol", said, re.IGNORECASE)
    assert "as an annotation" in said


def test_a_job_that_cannot_be_requeued_is_a_failure_with_the_command_that_mends_it() -> None:
    assert doctor_job.restartable(_job, job()).grade is Grade.OK
    assert "scontrol update JobId=7 Requeue=1" in doctor_job.restartable(_job, job(requeueable=False)).todo
    assert "sbatch" in doctor_job.restartable(_job, job(batch=False)).todo


async def test_a_supervised_job_is_found_by_its_name_and_its_runbook_seen(whole_stage: Stage, doctor: Doctor) -> None:
    words = ("supervise", "job=night", "total-steps=4000")
    spec = JobSpec(
        job="night",
        name="train",
        comment=" ".join(TOKEN_PREFIX + word for word in words),
        script=whole_stage.script.read_text(),
    )
    with contextlib.closing(whole_stage.faults("alpha")) as faults:
        native_id = faults.person_submit(spec)
    backend = whole_stage.backend("alpha")
    async with asyncio.timeout(60):
        while not ((seen := await backend.job(native_id)).adopted and seen.held):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.05)
        while (await backend.progress(native_id, 0)).step is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    ran = await _in_thread(doctor, whole_stage.home, "night", "-o", "json")
    checks = {check["name"]: check for check in ran.json["checks"]}
    assert ran.code == 0
    assert checks["found"]["text"].startswith(f"alpha/{native_id} (train) is running on alpha")
    assert checks["hold"]["text"] == "adopted and held"
    assert checks["runbook"]["text"] == "job/night runs"
    assert checks["late writer"]["grade"] == "warn"
    assert checks["log"]["grade"] == "ok"
    again = await _in_thread(doctor, whole_stage.home, f"alpha/{native_id}", "-o", "json")
    assert again.json["checks"][0] == checks["found"]
    await backend.close()


def test_a_job_may_be_named_by_two_words_and_a_third_is_refused(whole_stage: Stage, doctor: Doctor) -> None:
    assert doctor(whole_stage.home, "job", "nobody").err == doctor(whole_stage.home, "nobody").err
    refused = doctor(whole_stage.home, "alpha", "nobody")
    assert (refused.code, "one word too many" in refused.err) == (2, True)


def test_a_job_that_nobody_has_is_a_usage_error_that_says_where_it_was_looked_for(
    whole_stage: Stage, doctor: Doctor
) -> None:
    ran = doctor(whole_stage.home, "nosuch")
    assert ran.code == 2
    assert "none in alpha, beta" in ran.err
