"""The commands on a real server and worker, over the embedded fleet; effects are looked up in the fleet itself."""

import asyncio
import json
import signal
import time

import httpx2
import pytest

from activities.store import HistoryStore, sqlite_url
from clients.commands.runs import CANCEL_WAIT
from fleet.faults.evidence import Evidence, Kind, Source
from fleet.model import NativeJob, NodeFacts, Phase
from fleet.orders import JobSpec
from fleet.strikes import Strike, StrikeKind
from tests.clients.stage import XID_79, Invoke, Ran, Stage, process
from tests.temporal.waiting import wait

ROW = {
    "id",
    "kind",
    "status",
    "cluster",
    "job",
    "node",
    "step",
    "fault",
    "needs_human",
    "started_at",
    "ended_at",
}


@pytest.fixture(scope="module")
def job(stage_of_module: Stage) -> str:
    """Name of a job that trains on alpha."""
    ended = process(
        stage_of_module, ["submit", "alpha", str(stage_of_module.script), "--job", "train-a", "-o", "name"]
    )
    out, err = ended.communicate(timeout=60)
    assert (ended.returncode, out) == (0, "job/train-a\n"), err
    return "train-a"


def native(stage: Stage, cluster: str, native_id: str) -> NativeJob:
    return asyncio.run(stage.backend(cluster).job(native_id))


def node(stage: Stage, cluster: str, name: str) -> NodeFacts:
    return asyncio.run(stage.backend(cluster).node(name))


def view(invoke: Invoke, subject: str) -> dict[str, object]:
    shown = invoke("describe", subject, "-o", "json")
    assert shown.code == 0, shown.err
    seen: dict[str, object] = shown.json["view"]
    return seen


def attempts(invoke: Invoke, job: str) -> list[dict[str, object]]:
    ledger = view(invoke, job)["ledger"]
    assert isinstance(ledger, dict)
    found: list[dict[str, object]] = ledger["attempts"]
    return found


def until_attempt(invoke: Invoke, job: str, generation: int) -> dict[str, object]:
    wait(lambda: len(attempts(invoke, job)) >= generation, 30)
    return attempts(invoke, job)[generation - 1]


def refused(ran: Ran, code: int, *words: str) -> None:
    assert ran.code == code, ran
    assert ran.out == ""
    assert ran.err.startswith("error: ")
    for word in words:
        assert word in ran.err


# -- what is there


def test_list_json_has_its_promised_keys_and_the_subjects_of_each_runbook(
    stage: Stage, invoke: Invoke, job: str
) -> None:
    rows = {row["id"]: row for row in invoke("list", "-o", "json").json}
    assert all(set(row) == ROW for row in rows.values())
    assert rows["job/train-a"]["kind"] == "job"
    assert rows["job/train-a"]["cluster"] == "alpha"
    assert rows["job/train-a"]["job"] == "train-a"
    assert rows["job/train-a"]["status"] == "running"
    assert {"guard/fleet", "guard/alpha", "watch/alpha", "watch/beta"} <= set(rows)


def test_list_filters_by_kind_and_cluster(stage: Stage, invoke: Invoke, job: str) -> None:
    assert invoke("list", "--kind", "job", "-o", "name").out == "job/train-a\n"
    assert "watch/beta" not in invoke("list", "--cluster", "alpha", "-o", "name").out
    nothing = invoke("list", "--kind", "failover", "--cluster", "nowhere")
    assert (nothing.code, nothing.out) == (0, "")
    assert "no such runbook" in nothing.err


def test_list_table_begins_with_name_and_ends_with_age(stage: Stage, invoke: Invoke, job: str) -> None:
    head, *rows = invoke("list").out.splitlines()
    assert head.split()[0] == "NAME"
    assert head.split()[-1] == "AGE"
    assert any(row.startswith("job/train-a ") for row in rows)
    assert "\x1b" not in invoke("list").out


def test_describe_shows_the_attempt_and_a_whole_id_means_the_same_runbook(
    stage: Stage, invoke: Invoke, job: str
) -> None:
    first = until_attempt(invoke, job, 1)
    assert first["cluster"] == "alpha"
    page = invoke("describe", "job/train-a")
    assert page.code == 0
    assert str(first["native_id"]) in page.out
    assert "submitted as" in page.out


def test_an_unknown_subject_is_a_usage_error_that_names_what_there_is(stage: Stage, invoke: Invoke, job: str) -> None:
    refused(invoke("describe", "nope"), 2, "no runbook job/nope", "train-a")
    refused(invoke("describe", "alpha/alpha1"), 2, "no runbook node/alpha/alpha1")
    refused(invoke("watch", "nope"), 2, "no runbook")
    refused(invoke("cancel", "nope", "--reason", "x"), 2, "no runbook")
    refused(invoke("logs", "nope"), 2, "no job 'nope'")


def test_names_from_outside_never_reach_a_query(stage: Stage, invoke: Invoke) -> None:
    for bad in ("x' OR '1'='1", "../x", "job/", "a b", ""):
        refused(invoke("describe", bad), 2)
    refused(invoke("list", "--cluster", "x' OR WorkflowType != '"), 2, "is no name of a cluster")


# -- jobs


def test_a_job_name_is_given_once(stage: Stage, invoke: Invoke, job: str) -> None:
    again = invoke("submit", "alpha", str(stage.script), "--job", "train-a")
    refused(again, 1, "train-a is under way", "runbook describe train-a")
    assert len(asyncio.run(stage.backend("alpha").jobs())) == 1


def test_submit_refuses_what_no_scheduler_would_take(stage: Stage, invoke: Invoke) -> None:
    refused(invoke("submit", "gamma", str(stage.script)), 2, "no cluster 'gamma'", "alpha, beta")
    no_shebang = stage.home / "no.sh"
    no_shebang.write_text("echo hi\n")
    refused(invoke("submit", "alpha", str(no_shebang)), 2, "#!")
    refused(invoke("submit", "alpha", "/does/not/exist"), 2, "cannot be read")
    refused(invoke("submit", "alpha", str(stage.script), "--job", "a/b"), 2, "no name of a job")
    refused(invoke("submit", "alpha", str(stage.script), "--checkpoint-signal", "KILL"), 2, "USR1 or USR2")
    refused(invoke("submit", "alpha", str(stage.script), "--checkpoint", "/a b"), 2, "without spaces")


def test_dry_run_of_a_move_prints_the_decision_and_changes_nothing(stage: Stage, invoke: Invoke, job: str) -> None:
    first = until_attempt(invoke, job, 1)
    before = native(stage, "alpha", str(first["native_id"]))
    plan = invoke("start", "failover", job, "--reason", "try", "--exclude", "alpha6", "--dry-run", "-o", "json")
    assert plan.code == 0, plan.err
    assert set(plan.json) == {
        "id",
        "action",
        "why",
        "mode",
        "when",
        "exclude",
        "delay",
        "tries_left",
        "policy_hash",
        "steps",
        "notes",
    }
    assert plan.json["action"] == "failover_in_cluster"
    assert plan.json["when"] == "at once"
    assert plan.json["exclude"] == [*first["nodes"], "alpha6"]  # type: ignore[misc]
    assert [s["text"] for s in plan.json["steps"]][1] == "stop attempt 1 with grace and keep the job held"
    after = native(stage, "alpha", str(first["native_id"]))
    assert (after.restarts, after.nodes, after.phase) == (before.restarts, before.nodes, before.phase)
    assert len(attempts(invoke, job)) == 1


def test_dry_run_says_when_a_person_would_be_asked(stage: Stage, invoke: Invoke, job: str) -> None:
    stage.policy(restart_in_place="observe", failover_in_cluster="propose")
    restart = invoke("start", "restart", job, "--reason", "try", "--dry-run", "-o", "json").json
    failover = invoke("start", "failover", job, "--reason", "try", "--dry-run", "-o", "json").json
    assert (restart["mode"], restart["when"]) == ("observe", "never")
    assert (failover["mode"], failover["when"]) == ("propose", "after an approval")


def test_dry_run_under_a_freeze_says_that_it_would_wait(stage: Stage, invoke: Invoke, job: str) -> None:
    move = ("start", "failover", job, "--reason", "try", "--dry-run", "-o", "json")
    assert invoke("freeze", "--reason", "storage work").code == 0
    try:
        plan = invoke(*move).json
        repair = invoke("start", "heal", "beta/beta3", "--reason", "x", "--dry-run", "-o", "json").json
        stage.policy(failover_in_cluster="approve")
        asked = invoke(*move).json
    finally:
        assert invoke("unfreeze", "--reason", "done").code == 0
    assert (plan["when"], repair["when"]) == ("after the unfreeze", "after the unfreeze")
    assert asked["when"] == "after an approval and the unfreeze"
    assert (
        plan["notes"]
        == repair["notes"]
        == ["fleet is frozen by tester: storage work; it would wait for `runbook unfreeze`"]
    )


def test_dry_run_is_refused_as_the_order_is_and_what_was_denied_is_told_once(
    stage: Stage, invoke: Invoke, job: str
) -> None:
    stage.policy(failover_in_cluster="approve")
    assert invoke("start", "failover", job, "--reason", "try").code == 0
    wait(lambda: f"job/{job}/failover/2/ask/1" in invoke("list", "--kind", "ask", "-o", "name").out, 30)
    for words in (("failover", job), ("failover", job, "--dry-run"), ("restart", job, "--dry-run")):
        again = invoke("start", *words, "--reason", "me too")
        refused(again, 1, f"job/{job}/failover/2 is under way already; cancel it first")
    denied = invoke("deny", f"job/{job}/failover/2", "--reason", "no", "--yes")
    assert denied.code == 0, denied.err
    wait(lambda: view(invoke, job)["step"] == "watching", 30)
    story = view(invoke, job)["story"]
    assert isinstance(story, list)
    assert [line[9:] for line in story if "not touched" in line] == ["not allowed. the job was not touched"]
    assert story[-1].endswith("left as it is")
    assert len(attempts(invoke, job)) == 1


def test_an_ordered_failover_runs_on_other_nodes(stage: Stage, invoke: Invoke, job: str) -> None:
    first = until_attempt(invoke, job, 1)
    ordered = invoke("start", "failover", f"alpha/{first['native_id']}", "--reason", "move it", "-o", "json")
    assert ordered.code == 0, ordered.err
    assert set(ordered.json) == {"id", "state", "text", "ui"}
    assert (ordered.json["id"], ordered.json["state"]) == ("job/train-a", "ordered")
    second = until_attempt(invoke, job, 2)
    assert not set(first["nodes"]) & set(second["nodes"])  # type: ignore[call-overload]
    assert native(stage, "alpha", str(first["native_id"])).restarts == 1
    assert any("tester ordered failover_in_cluster: move it" in line for line in view(invoke, job)["story"])  # type: ignore[attr-defined]


def test_report_of_a_job_under_way_and_its_logs(stage: Stage, invoke: Invoke, job: str) -> None:
    report = invoke("report", job, "-o", "json")
    assert report.code == 0, report.err
    assert report.json[-1]["subject"] == "job/train-a"
    assert report.json[-1]["ended_at"] is None
    assert "Attempts" in invoke("report", job).out
    logs = invoke("logs", job, "-o", "json")
    assert set(logs.json) == {"job", "cluster", "native_id", "lines"}
    assert any("step" in line for line in logs.json["lines"])


def test_a_report_that_does_not_exist_is_said(stage: Stage, invoke: Invoke) -> None:
    assert invoke("report", "beta/beta1").code == 1
    assert "no report of beta/beta1 yet" in invoke("report", "beta/beta1").err
    refused(invoke("report", "nope"), 2, "no job 'nope'")
    refused(invoke("report", "beta/nope"), 2, "no node 'nope'")
    refused(invoke("report", "gamma/x"), 2, "no cluster 'gamma'")


def test_the_report_after_the_end_is_the_last_one(stage: Stage, invoke: Invoke) -> None:
    assert invoke("submit", "beta", str(stage.script), "--job", "train-r").code == 0
    until_attempt(invoke, "train-r", 1)
    ordered = invoke("start", "failover", "train-r", "--reason", "once more")
    assert ordered.code == 0, ordered.err
    second = until_attempt(invoke, "train-r", 2)
    wait(lambda: view(invoke, "train-r")["step"] == "watching", 30)
    stage.faults("beta").person_cancel(str(second["native_id"]))
    wait(lambda: invoke("describe", "train-r", "-o", "json").json["run"]["status"] == "completed", 30)
    assert invoke("report", "train-r", "-o", "json").json[0]["ended_at"] is not None
    assert "still going on" not in invoke("report", "train-r").out
    both = invoke("report", "train-r", "--limit", "2", "-o", "json").json
    assert [r["kind"] for r in both] == ["incident", "job"]


def person_submits(stage: Stage, name: str) -> str:
    """By plain means, without a word of ours; the native id once it runs."""
    spec = JobSpec(job=name, name="plain", script=stage.script.read_text().replace("nodes=2", "nodes=1"))
    native_id = stage.faults("beta").person_submit(spec)
    wait(lambda: native(stage, "beta", native_id).phase is Phase.RUNNING)
    return native_id


def test_an_order_on_a_job_that_is_not_supervised_adopts_it(stage: Stage, invoke: Invoke) -> None:
    first, second = person_submits(stage, "p1"), person_submits(stage, "p2")
    refused(invoke("start", "failover", "beta/plain", "--reason", "x"), 2, f"beta/{first}", f"beta/{second}")
    dry = invoke("start", "failover", f"beta/{first}", "--reason", "x", "--dry-run", "-o", "json").json
    assert "adopts it" in dry["notes"][0]
    assert not native(stage, "beta", first).held
    ordered = invoke("start", "failover", f"beta/{first}", "--reason", "my wish", "-o", "json")
    assert ordered.code == 0, ordered.err
    moved = until_attempt(invoke, ordered.json["id"], 2)
    assert moved["rung"] == "in_cluster"
    assert native(stage, "beta", first).restarts == 1
    assert native(stage, "beta", second).restarts == 0


# -- watching


def test_watch_without_a_terminal_prints_lines_and_its_timeout_leaves_the_runbook_alone(
    stage: Stage, invoke: Invoke, job: str
) -> None:
    seen = invoke("watch", job, "--timeout", "2s")
    assert seen.code == 124
    assert "submitted as" in seen.out
    assert "goes on" in seen.err
    assert view(invoke, job)["result"] == ""


def test_ctrl_c_while_watching_detaches_and_cancels_nothing(stage: Stage, invoke: Invoke, job: str) -> None:
    watching = process(stage, ["watch", job])
    assert watching.stdout is not None
    assert "submitted as" in watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=20)
    assert watching.returncode == 130
    assert err.count("detached; job/train-a goes on") == 1
    assert "Traceback" not in err
    assert invoke("describe", job, "-o", "json").json["run"]["status"] == "running"


def test_cancel_describes_what_it_leaves_and_release_gives_it_back(stage: Stage, invoke: Invoke) -> None:
    started = invoke("submit", "beta", str(stage.script), "--job", "train-b", "-o", "json")
    assert started.code == 0, started.err
    first = until_attempt(invoke, "train-b", 1)
    wait(lambda: native(stage, "beta", str(first["native_id"])).held)
    gone = invoke("cancel", "train-b", "--reason", "not needed", "-o", "json")
    assert gone.code == 0, gone.err
    assert (gone.json["id"], gone.json["status"]) == ("job/train-b", "cancelled")
    assert "runbook release train-b" in gone.json["result"]
    assert native(stage, "beta", str(first["native_id"])).held
    refused(invoke("cancel", "train-b", "--reason", "again"), 1, "has ended already")
    back = invoke("release", "train-b", "-o", "json")
    assert back.code == 0, back.err
    assert set(back.json) == {"subject", "cancelled", "lines", "failed", "changed"}
    assert not native(stage, "beta", str(first["native_id"])).held
    assert invoke("release", "train-b", "--error-unchanged").code == 3
    refused(invoke("submit", "beta", str(stage.script), "--job", "train-b"), 1, "has been used before")


# -- nodes


def test_evidence_refuses_unknown_targets_and_empty_texts(stage: Stage, invoke: Invoke) -> None:
    log = stage.home / "kernel.log"
    log.write_text(XID_79)
    refused(invoke("evidence", "alpha/alpha9", str(log)), 2, "no node 'alpha9'", "alpha1, alpha2")
    refused(invoke("evidence", "gamma/x", str(log)), 2, "no cluster 'gamma'")
    refused(invoke("evidence", "alpha", str(log)), 1, "it names no node of the cluster", "nothing sent")
    log.write_text(" \n")
    refused(invoke("evidence", "alpha/alpha1", str(log)), 2, "empty")
    log.write_text("all is well\n")
    refused(invoke("evidence", "alpha/alpha1", str(log)), 1, "none of them is evidence")
    refused(invoke("why", "alpha/x/y"), 2)
    refused(invoke("why", "alpha/nope"), 2, "no node 'nope'", "alpha1, alpha2")
    clear = invoke("why", "alpha/alpha5")
    assert (clear.code, "Nothing is known against alpha/alpha5" in clear.out) == (0, True), clear


def test_evidence_of_a_lost_gpu_is_routed_and_the_repair_waits_for_a_person(stage: Stage, invoke: Invoke) -> None:
    stage.policy(isolate="approve")
    told = stage.home / "told"
    hook = stage.home / "hook"
    hook.write_text(f"#!/bin/sh\ncat >> {told}\necho >> {told}\n")
    hook.chmod(0o700)
    stage.fleet.write_text(stage.fleet.read_text() + f"notify: {{command: [{hook}]}}\n")
    log = stage.home / "kernel.log"
    log.write_text(XID_79 + "something else\n")
    sent = invoke("evidence", "beta/beta6", str(log), "-o", "json")
    assert sent.code == 0, sent.err
    assert set(sent.json) == {"id", "cluster", "node", "sent", "lines", "dropped"}
    assert (sent.json["sent"], sent.json["lines"]) == (1, 2)
    assert "1 dropped" in sent.err
    wait(lambda: "node/beta/beta6" in invoke("list", "--kind", "node", "-o", "name").out)
    assert invoke("watch", "beta/beta6", "--until-question", "--timeout", "30s", "-o", "json").code == 8
    why = invoke("why", "beta/beta6", "-o", "json").json
    keys = {"cluster", "node", "source", "step", "result", "ended_at", "verdict", "evidence", "strikes", "baselines"}
    assert set(why) == keys
    assert why["strikes"]["xid"] == 1
    assert (why["result"], why["ended_at"]) == ("", None)
    assert (why["verdict"]["fault"], why["verdict"]["culprit"]["node"]) == ("hardware", "beta6")
    assert "XID 79" in invoke("why", "beta/beta6").out
    again = invoke("start", "heal", "beta/beta6", "--reason", "me too")
    refused(again, 1, "node/beta/beta6 is under way already")
    assert not node(stage, "beta", "beta6").drained
    read = invoke("deny", "beta/beta6", "--reason", "not yet")
    assert (read.code, "xid 79 on beta6" in " ".join(read.out.split())) == (2, True), read
    wait(lambda: bool(told.exists() and told.read_text()), 30)
    woken = json.loads(told.read_text().splitlines()[0])
    assert "xid 79 on beta6" in woken["evidence"][0]
    assert woken["link"] == f"{stage.server.ui}/namespaces/default/workflows/node%2Fbeta%2Fbeta6%2Fask%2F1"
    assert httpx2.get(woken["link"]).status_code == httpx2.codes.OK
    denied = invoke("deny", "beta/beta6", "--reason", "known", "--yes", "-o", "json")
    assert denied.json["choice"] == "deny"
    ended = invoke("watch", "beta/beta6", "--timeout", "30s", "-o", "json")
    assert (ended.code, ended.json["ok"]) == (1, False)
    assert "isolation not allowed" in ended.json["result"]


def test_dry_run_of_a_repair_names_holders_and_modes(stage: Stage, invoke: Invoke, job: str) -> None:
    stage.policy(reboot="propose")
    held = attempts(invoke, job)[-1]["nodes"][0]  # type: ignore[index]
    plan = invoke("start", "heal", f"alpha/{held}", "--reason", "noise", "--dry-run", "-o", "json").json
    steps = {s["step"]: s for s in plan["steps"]}
    assert list(steps) == ["lease", "isolate", "evacuate", "reboot", "check", "return"]
    assert "train-a: moved by the job's own runbook" in steps["evacuate"]["text"]
    assert steps["reboot"]["when"] == "after an approval"
    assert not node(stage, "alpha", str(held)).drained


def test_a_repair_by_order_ends_well_and_the_node_is_back(stage: Stage, invoke: Invoke) -> None:
    booted = node(stage, "beta", "beta5").boot
    assert invoke("start", "heal", "beta/beta5", "--reason", "fan noise", "-o", "name").out == "node/beta/beta5\n"
    ended = invoke("watch", "beta/beta5", "--timeout", "60s", "-o", "json")
    assert (ended.code, ended.json["ok"]) == (0, True), ended
    after = node(stage, "beta", "beta5")
    assert not after.drained
    assert after.boot != booted
    assert invoke("why", "beta/beta5", "-o", "json").json["result"] == "repaired, checked and back at work"
    page = " ".join(invoke("why", "beta/beta5").out.split())
    assert page.startswith("beta/beta5: repaired, checked and back at work,"), page
    assert "Its verdict was hardware" in page


def test_release_of_a_node_takes_our_mark_away_and_leaves_a_foreign_drain(stage: Stage, invoke: Invoke) -> None:
    asyncio.run(stage.backend("beta").isolate("beta4", "abcdefg", "by a test"))
    assert node(stage, "beta", "beta4").op == "abcdefg"
    back = invoke("release", "beta/beta4", "--reason", "looked at it")
    assert back.code == 0, back.err
    assert "our mark gpu-runbooks:abcdefg is gone" in back.out
    assert not node(stage, "beta", "beta4").drained
    stage.faults("beta").person_drain("beta4", "bad fan, ask Ann")
    left = invoke("release", "beta/beta4", "--error-unchanged")
    assert (left.code, "drained by somebody else ('bad fan, ask Ann')" in left.out) == (3, True)
    assert node(stage, "beta", "beta4").foreign_drain
    stage.faults("beta").person_undrain("beta4")
    refused(invoke("release", "beta/nope"), 2, "no node 'nope'", "no job of that cluster")


# -- guards


def test_freeze_holds_in_its_scope_until_it_is_lifted(stage: Stage, invoke: Invoke) -> None:
    frozen = invoke("freeze", "beta", "--reason", "power work", "-o", "json")
    assert (frozen.code, frozen.json["id"], frozen.json["state"]) == (0, "guard/beta", "frozen")
    again = invoke("freeze", "beta", "--reason", "me too", "--as", "other", "--error-unchanged")
    assert again.code == 3
    assert "frozen already by tester: power work" in again.out
    assert invoke("freeze", "beta", "--reason", "power work", "--error-unchanged").code == 3
    assert view(invoke, "guard/beta")["freeze"]["by"] == "tester"  # type: ignore[index]
    assert view(invoke, "guard/alpha")["freeze"] is None
    refused(invoke("release", "beta/beta1", "--fleet", "/nope"), 2, "--fleet")
    assert invoke("unfreeze", "beta", "--reason", "done").code == 0
    assert view(invoke, "guard/beta")["freeze"] is None
    assert invoke("unfreeze", "beta", "--reason", "done", "--error-unchanged").code == 3
    refused(invoke("freeze", "gamma", "--reason", "x"), 2, "no cluster 'gamma'")
    refused(invoke("freeze", "--reason", " "), 2, "say why")


def test_unfreezing_a_cluster_under_a_frozen_fleet_names_the_fleets_freeze(stage: Stage, invoke: Invoke) -> None:
    assert invoke("freeze", "--reason", "storage work").code == 0
    try:
        left = invoke("unfreeze", "alpha", "--reason", "done")
        assert left.code == 0, left.err
        assert "the whole fleet stays frozen by tester: storage work" in " ".join(left.out.split())
    finally:
        assert invoke("unfreeze", "--reason", "done").code == 0


def test_release_of_everything_asks_first_and_without_a_terminal_needs_yes(
    stage: Stage, invoke: Invoke, job: str
) -> None:
    refused(invoke("release", "--all"), 2, "--yes")
    refused(invoke("release"), 2, "--all")
    refused(invoke("release", "train-a", "--all"), 2, "--all")
    assert invoke("describe", job, "-o", "json").json["run"]["status"] == "running"
    held = [j for j in asyncio.run(stage.backend("alpha").jobs()) if j.held]
    assert held
    done = invoke("release", "--all", "--yes", "--reason", "going home", "-o", "json")
    assert done.code == 0, done.err
    assert "job/train-a" in done.json["cancelled"]
    assert not [
        j for c in ("alpha", "beta") for j in asyncio.run(stage.backend(c).jobs()) if j.held and not j.phase.ended
    ]
    assert invoke("describe", job, "-o", "json").json["run"]["status"] == "cancelled"


# -- what is missing


def test_without_a_worker_the_missing_one_is_named_and_what_the_server_knows_is_shown(
    stage: Stage, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An order that was told as not taken is not carried out once a worker comes."""
    job = "train-w"
    assert invoke("submit", "alpha", str(stage.script), "--job", job).code == 0
    until_attempt(invoke, job, 1)
    monkeypatch.setattr("clients.ask_cluster.WORKER_LIMIT", 0.5)
    monkeypatch.setattr("clients.talk.UPDATE_LIMIT", 1.0)
    monkeypatch.setattr("clients.jobs.ORDER_VALID", 0.0)
    stage.stop_worker()
    try:
        refused(invoke("why", "alpha/alpha1"), 1, "no worker polls runbooks", "runbook worker")
        refused(
            invoke("start", "heal", "beta/beta1", "--reason", "x"),
            1,
            "no worker polls cluster.beta",
            "--cluster beta",
        )
        late = ("start", "failover", job, "--reason", "nobody takes it")
        refused(invoke(*late), 1, "no worker took the order", "runbook worker")
        assert "watch/alpha" in invoke("list").out
        page = invoke("describe", "guard/alpha")
        assert page.code == 0
        assert "no worker" in page.out
        began = time.monotonic()
        asked = invoke("cancel", "watch/beta", "--reason", "by hand", "-o", "json")
        assert time.monotonic() - began < CANCEL_WAIT / 2
        assert (asked.code, asked.json["status"], asked.json["ok"]) == (124, "running", False), asked
        assert "takes effect when a worker comes (`runbook worker`)" in asked.json["result"]
    finally:
        stage.start_worker()
    assert "nobody takes it" not in " ".join(view(invoke, job)["story"])
    wait(lambda: "cancelled" in invoke("list", "--all", "--kind", "watch", "--cluster", "beta").out, 30)


# -- lemons


def test_lemons_are_listed_with_what_stands_out(stage: Stage, invoke: Invoke) -> None:
    none = invoke("lemons", "-o", "json")
    assert (none.code, none.json) == (0, []), none
    store = HistoryStore(sqlite_url(stage.home / "history.sqlite"))
    kind, now = StrikeKind.SINGLE_NODE_FAIL, time.time()
    store.add_strikes(
        Strike(kind=kind, cluster="beta", node="beta4", at=now - days * 86400, source=str(days)) for days in (1, 5)
    )
    store.close()
    (row,) = invoke("lemons", "-o", "json").json
    assert (row["subject"], row["node"], row["gpu"], row["out"]) == ("beta/beta4", "beta4", None, False)
    assert row["strikes"] >= 2  # the fleet is shared: a repair that another test ordered may have left one, too
    assert invoke("lemons", "-o", "name").out == "beta/beta4\n"
    table = invoke("lemons").out
    assert "single-node jobs ended 2 (fleet 0)" in " ".join(table.split())


def test_why_shows_the_nodes_figures_beside_the_fleets(stage: Stage, invoke: Invoke) -> None:
    store = HistoryStore(sqlite_url(stage.home / "history.sqlite"))
    now = time.time()

    def measured(node: str, value: float, days_ago: float) -> Evidence:
        given = {"source": Source.HEALTH_CHECK, "kind": Kind.MEASURED, "cluster": "beta", "node": node}
        at = now - days_ago * 86400
        return Evidence.model_validate(given | {"code": "hbm_gb_s", "value": value, "seen_at": at, "happened_at": at})

    store.add_evidence([measured("beta1", 2900.0, 9), measured("beta1", 2000.0, 1), measured("beta2", 2950.0, 2)])
    store.close()
    (figure,) = invoke("why", "beta/beta1", "-o", "json").json["baselines"]
    assert (figure["last"], figure["own"], figure["fleet"], figure["count"]) == (2000.0, 2450.0, 2950.0, 2)
    assert "2000 low" in invoke("why", "beta/beta1").out
    assert "2950 low" not in invoke("why", "beta/beta2").out
