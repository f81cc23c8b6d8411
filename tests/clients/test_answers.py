"""Answers from the command line: who may give one, when it counts, and which question is meant."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.clients.stage import Invoke, Ran, Stage, process
from tests.require import needs_program
from tests.temporal.waiting import wait

NODES = iter(f"{cluster}/{cluster}{number}" for number in range(1, 7) for cluster in ("alpha", "beta"))
OUTCOME = {"question", "choice", "by", "signed", "at", "reason"}


def new_key(folder: Path, name: str) -> Path:
    needs_program("ssh-keygen", "openssh-client")
    path = folder / name
    if not path.exists():
        program = shutil.which("ssh-keygen") or ""
        subprocess.run([program, "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)], check=True)
    return path


def sign_policy(stage: Stage, *names: str, expiry: str = "4h") -> dict[str, Path]:
    """The fleet lists these approvers, and lets nobody isolate a node without one."""
    keys = {name: new_key(stage.home, name) for name in names}
    stage.policy(isolate="approve")
    lines = [f"  - {{name: {n}, key: '{k.with_suffix('.pub').read_text().strip()}'}}" for n, k in keys.items()]
    approvers = "approvers:\n" + "\n".join(lines) + "\n" if lines else ""
    stage.fleet.write_text(
        stage.fleet.read_text() + f"limits: {{question_expiry: {expiry}, nodes_out: 6}}\n" + approvers
    )
    return keys


def ask(stage: Stage, invoke: Invoke) -> tuple[str, str]:
    """A node whose isolation waits for an answer: the node and the question."""
    node = next(NODES)
    assert invoke("start", "heal", node, "--reason", "a test").code == 0
    question = f"node/{node}/ask/1"
    wait(lambda: question in invoke("list", "--kind", "ask", "-o", "name").out)
    return node, question


def close(invoke: Invoke, question: str) -> None:
    """Ends what a test left open, so that the next one finds only its own question."""
    invoke("cancel", question.partition("/ask/")[0], "--reason", "test over")


def outcome(invoke: Invoke, question: str) -> dict[str, object] | None:
    found: dict[str, object] | None = invoke("describe", question, "-o", "json").json["view"]["outcome"]
    return found


def refused(ran: Ran, code: int, *words: str) -> None:
    assert ran.code == code, ran
    for word in words:
        assert word in ran.err


def test_without_signers_the_embedded_server_takes_an_unsigned_answer_and_says_so(
    stage: Stage, invoke: Invoke
) -> None:
    sign_policy(stage)
    node, question = ask(stage, invoke)
    given = invoke("approve", question, "--reason", "seen", "--yes")
    assert given.code == 0, given.err
    assert "UNSIGNED" in given.err
    assert "unsigned, which only the embedded server takes" in given.out
    assert "plan hash" in given.out
    wait(lambda: invoke("watch", node, "--timeout", "60s").code == 0, 60)


def test_nobody_is_asked_blindly_without_a_terminal(stage: Stage, invoke: Invoke) -> None:
    sign_policy(stage)
    _, question = ask(stage, invoke)
    refused(invoke("approve", question, "--reason", "x"), 2, "--yes")
    refused(invoke("approve", question, "--reason", "x", "--yes", "--plan-hash", "0" * 16), 1, "read it again")
    refused(invoke("approve", question, "--reason", "x", "--yes", "--choice", "retry"), 2, "approve, deny")
    assert outcome(invoke, question) is None
    close(invoke, question)


def test_on_a_terminal_only_a_yes_answers(stage: Stage, invoke: Invoke) -> None:
    sign_policy(stage)
    _, question = ask(stage, invoke)
    for typed, code, choice in (("\n", 1, None), ("no\n", 1, None), ("y\n", 0, "deny")):
        ours, theirs = os.openpty()
        ran = process(stage, ["deny", question, "--reason", "x"], stdin=theirs)
        os.write(ours, typed.encode())
        out, err = ran.communicate(timeout=60)
        os.close(ours)
        os.close(theirs)
        assert ran.returncode == code, err
        assert "plan hash" in out
        assert "Answer 'deny' as tester? [y/N]" in err
        found = outcome(invoke, question)
        assert (found or {}).get("choice") == choice


def test_an_approver_signs_and_the_outcome_says_so(stage: Stage, invoke: Invoke) -> None:
    keys = sign_policy(stage, "ada", "bob")
    _, question = ask(stage, invoke)
    given = invoke(
        "approve", question, "--reason", "seen", "--yes", "--as", "ada", "--key", str(keys["ada"]), "-o", "json"
    )
    assert given.code == 0, given.err
    assert set(given.json) == OUTCOME
    assert (given.json["choice"], given.json["by"], given.json["signed"]) == ("approve", "ada", True)
    close(invoke, question)


def test_the_wrong_person_the_wrong_key_and_no_key_are_not_allowed(stage: Stage, invoke: Invoke) -> None:
    keys = sign_policy(stage, "ada", "bob")
    eve = new_key(stage.home, "eve")
    _, question = ask(stage, invoke)
    words = ("approve", question, "--reason", "x", "--yes", "--as")
    refused(invoke(*words, "eve", "--key", str(eve)), 4, "eve is no approver here", "ada, bob")
    refused(invoke(*words, "ada", "--key", str(keys["bob"])), 4, "the signature is not by ada's key")
    refused(invoke(*words, "ada"), 4, "must be signed", "--key")
    assert outcome(invoke, question) is None
    close(invoke, question)


def test_a_second_answer_changes_nothing_and_learns_of_the_first(stage: Stage, invoke: Invoke) -> None:
    keys = sign_policy(stage, "ada", "bob")
    _, question = ask(stage, invoke)
    assert invoke("deny", question, "--reason", "no", "--yes", "--as", "ada", "--key", str(keys["ada"])).code == 0
    late = invoke("approve", question, "--reason", "yes", "--yes", "--as", "bob", "--key", str(keys["bob"]))
    refused(late, 1, "answered already by ada: deny", "nothing was changed")
    found = outcome(invoke, question)
    assert found is not None
    assert found["by"] == "ada"


def test_an_answer_after_the_expiry_learns_of_the_safe_default(stage: Stage, invoke: Invoke) -> None:
    keys = sign_policy(stage, "ada", expiry="1s")
    node = next(NODES)
    assert invoke("start", "heal", node, "--reason", "a test").code == 0
    ended = invoke("watch", node, "--timeout", "30s", "-o", "json")
    assert ended.code == 1
    late = invoke("approve", f"node/{node}/ask/1", "--reason", "x", "--yes", "--as", "ada", "--key", str(keys["ada"]))
    refused(late, 1, "nobody (expired): deny")


def test_several_open_questions_are_listed_with_their_plan_hashes_and_none_is_answered(
    stage: Stage, invoke: Invoke
) -> None:
    sign_policy(stage)
    first, second = ask(stage, invoke), ask(stage, invoke)
    listed = invoke("approve", "--reason", "x", "--yes", "-o", "json")
    assert listed.code == 8
    rows = {row["id"]: row for row in listed.json}
    assert set(rows) == {first[1], second[1]}
    assert all(len(row["plan_hash"]) == 16 for row in rows.values())
    assert rows[first[1]]["plan_hash"] != rows[second[1]]["plan_hash"]
    table = invoke("approve", "--reason", "x", "--yes")
    assert table.code == 8
    assert "choose one" in table.err
    assert rows[first[1]]["plan_hash"] in table.out
    assert outcome(invoke, first[1]) is None
    assert outcome(invoke, second[1]) is None
    one = invoke("deny", first[0], "--reason", "x", "--yes", "-o", "json")
    assert one.json["question"] == first[1]
    close(invoke, second[1])


def test_no_open_question_is_said(stage: Stage, invoke: Invoke) -> None:
    refused(invoke("approve", "--reason", "x", "--yes"), 1, "no question is open")
    refused(invoke("approve", "job/nope/ask/1", "--reason", "x", "--yes"), 2, "no question job/nope/ask/1")
