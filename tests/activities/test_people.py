"""Whose answer counts, and who is woken: with the real ssh-keygen, real hook programs and a real HTTP server."""

import asyncio
import hashlib
import hmac
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from activities import people
from activities.people import notify, retry_after, verify_signature
from clients.signing import sign
from fleet.errors import InvalidInputError, PermanentError, TemporaryError
from fleet.people import Answer, Choice, Plan, Question, Signer
from fleet.policy import Notify
from tests.require import needs_program

PLAN = Plan(title="Reboot n1", steps=("isolate n1", "reboot n1"), subject="node/alpha/n1", op="abcdefg")
Keys = dict[str, Path]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    needs_program("ssh-keygen", "openssh-client")
    folder = tmp_path_factory.mktemp("keys")
    for name, passphrase in (("ada", ""), ("bob", ""), ("locked", "pass phrase")):
        argv = [
            "ssh-keygen",
            "-q",
            "-t",
            "ed25519",
            "-N",
            passphrase,
            "-C",
            f"{name}@example.org",
            "-f",
            folder / name,
        ]
        subprocess.run(argv, check=True)
    return {name: folder / name for name in ("ada", "bob", "locked")}


def public(key: Path) -> str:
    return key.with_suffix(".pub").read_text().strip()


def question(*signers: Signer, **more: Any) -> Question:
    return Question(
        id="node/alpha/n1/ask/1",
        plan=PLAN,
        why="XID 79 on n1",
        options=(Choice.APPROVE, Choice.DENY),
        default=Choice.DENY,
        asked_at=0.0,
        expires_at=9e9,
        signers=signers,
        **more,
    )


def answer(approver: str = "ada", **more: Any) -> Answer:
    fields: dict[str, Any] = {
        "question": "node/alpha/n1/ask/1",
        "plan_hash": PLAN.digest,
        "op": PLAN.op,
        "choice": Choice.APPROVE,
        "approver": approver,
        "expires_at": 9e9,
        "nonce": "0123456789",
        "reason": "Zeile 1\nline 2 \u2713",
    }
    return Answer.model_validate(fields | more)


def both(keys: Keys) -> Question:
    return question(Signer(name="ada", key=public(keys["ada"])), Signer(name="bob", key=public(keys["bob"])))


# -- signatures


async def test_the_approvers_own_signature_counts(keys: Keys) -> None:
    for name in ("ada", "bob"):
        signed = sign(answer(name), keys[name])
        assert await verify_signature(both(keys), signed, unsigned_ok=False) == people.Verified(
            ok=True, why=f"signed by {name}"
        )


async def test_a_signature_survives_the_way_through_json(keys: Keys) -> None:
    signed = Answer.model_validate_json(sign(answer(), keys["ada"]).model_dump_json())
    assert (await verify_signature(both(keys), signed, unsigned_ok=False)).ok


async def test_another_signers_key_does_not_count(keys: Keys) -> None:
    forged = sign(answer("ada"), keys["bob"])
    verified = await verify_signature(both(keys), forged, unsigned_ok=True)
    assert not verified.ok
    assert "not by ada's key" in verified.why


@pytest.mark.parametrize(
    "change",
    [
        {"choice": Choice.DENY},
        {"reason": "another reason"},
        {"approver": "bob"},
        {"nonce": "9876543210"},
        {"expires_at": 9.1e9},
    ],
)
async def test_an_answer_changed_after_it_was_signed_does_not_count(keys: Keys, change: dict[str, object]) -> None:
    tampered = sign(answer(), keys["ada"]).model_copy(update=change)
    assert not (await verify_signature(both(keys), tampered, unsigned_ok=True)).ok


@pytest.mark.parametrize("change", [{"question": "node/alpha/n2/ask/1"}, {"plan_hash": "0" * 16}, {"op": "bcdefgh"}])
async def test_a_good_signature_for_another_question_or_plan_does_not_count(
    keys: Keys, change: dict[str, object]
) -> None:
    other = sign(answer(**change), keys["ada"])
    assert "another question" in (await verify_signature(both(keys), other, unsigned_ok=True)).why


@pytest.mark.parametrize(
    "broken", ["", "garbage", "-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n"]
)
async def test_a_broken_signature_does_not_count(keys: Keys, broken: str) -> None:
    assert not (await verify_signature(both(keys), answer(signature=broken), unsigned_ok=True)).ok


async def test_a_signature_made_for_another_purpose_does_not_count(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("clients.signing.MARK", "git")
        signed = sign(answer(), keys["ada"])
    assert not (await verify_signature(both(keys), signed, unsigned_ok=True)).ok


async def test_an_unsigned_answer_never_counts_where_signers_are_listed(keys: Keys) -> None:
    verified = await verify_signature(both(keys), answer(), unsigned_ok=True)
    assert not verified.ok
    assert "--key" in verified.why


async def test_without_signers_only_the_embedded_server_takes_an_answer_and_says_so(keys: Keys) -> None:
    taken = await verify_signature(question(), answer(), unsigned_ok=True)
    assert taken.ok
    assert "unsigned" in taken.why
    assert not (await verify_signature(question(), answer(), unsigned_ok=False)).ok
    # Nobody can check it, so it must not look signed.
    assert not (await verify_signature(question(), sign(answer(), keys["ada"]), unsigned_ok=True)).ok


async def test_a_name_with_pattern_letters_matches_nobody_else(keys: Keys) -> None:
    wild = question(Signer(name="*", key=public(keys["bob"])), Signer(name="ada", key=public(keys["ada"])))
    assert not (await verify_signature(wild, sign(answer("ada"), keys["bob"]), unsigned_ok=True)).ok


@pytest.mark.parametrize("prefix", ["cert-authority ", 'namespaces="*" ', "x y\n* "])
async def test_a_key_line_with_options_is_not_used(keys: Keys, prefix: str) -> None:
    asked = question(Signer(name="ada", key=prefix + public(keys["ada"])))
    verified = await verify_signature(asked, sign(answer(), keys["ada"]), unsigned_ok=True)
    assert "no usable public key for ada" in verified.why


async def test_a_signer_without_a_key_is_told_what_to_add() -> None:
    verified = await verify_signature(question(Signer(name="ada")), answer(signature="x"), unsigned_ok=True)
    assert not verified.ok
    assert "fleet.yaml" in verified.why


async def test_without_ssh_keygen_the_package_is_named(
    keys: Keys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    signed = sign(answer(), keys["ada"])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PermanentError, match="apt-get install openssh-client"):
        await verify_signature(both(keys), signed, unsigned_ok=False)
    with pytest.raises(PermanentError, match="apt-get install openssh-client"):
        sign(answer(), keys["ada"])


async def test_a_verifier_that_hangs_is_temporary(
    keys: Keys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    signed = sign(answer(), keys["ada"])
    script(tmp_path / "ssh-keygen", "sleep 60")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(people, "VERIFY_LIMIT", 0.2)
    with pytest.raises(TemporaryError, match="did not end"):
        await verify_signature(both(keys), signed, unsigned_ok=False)


# -- the hook program


def script(path: Path, text: str) -> tuple[str, ...]:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return (str(path),)


async def test_the_hook_gets_the_question_as_json_and_no_key_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_API_KEY", "ours")
    monkeypatch.setenv("PAGER", "theirs")
    got = tmp_path / "got"
    hook = script(tmp_path / "hook", 'cat > "$1"; echo "$TEMPORAL_API_KEY/$PAGER/$2" >> "$1"')
    asked = question(Signer(name="ada"), evidence=("HF_TOKEN=s3cr3t on n1",), escalation=("lead",))
    settings = Notify(command=(*hook, str(got), "; touch /nowhere $(id)"))
    told = await notify(asked, "node/alpha/n1/ask/1", "http://ui/x", settings)
    assert told.delivered
    body, rest = got.read_text().split("}")
    said = json.loads(body + "}")
    assert rest.strip() == "/theirs/; touch /nowhere $(id)"
    assert (said["id"], said["link"], said["default"]) == ("node/alpha/n1/ask/1", "http://ui/x", "deny")
    assert (said["approvers"], said["escalation"]) == (["ada"], ["lead"])
    assert said["plan_hash"] == PLAN.digest
    assert "s3cr3t" not in body


async def test_a_failing_hook_is_temporary_and_its_last_words_are_told(tmp_path: Path) -> None:
    hook = script(tmp_path / "hook", "cat >/dev/null; echo 'pager is down, API_TOKEN=s3cr3t' >&2; exit 3")
    with pytest.raises(TemporaryError, match="exit 3: pager is down") as told:
        await notify(question(), "w", "", Notify(command=hook))
    assert "s3cr3t" not in str(told.value)


async def test_a_hook_that_does_not_read_its_input_is_still_delivered(tmp_path: Path) -> None:
    hook = script(tmp_path / "hook", "exit 0")
    long = question(evidence=("x" * 200_000,))
    assert (await notify(long, "w", "", Notify(command=hook))).delivered


async def test_a_slow_hook_is_ended_with_everything_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(people, "NOTIFY_LIMIT", 1.0)
    pids = tmp_path / "pids"
    hook = script(tmp_path / "hook", f"sleep 60 & echo $! > {pids}; echo $$ >> {pids}; wait")
    with pytest.raises(TemporaryError, match="ended after 1 s"):
        await notify(question(), "w", "", Notify(command=hook))
    await gone([int(pid) for pid in pids.read_text().split()])


async def test_a_cancelled_notification_ends_its_hook(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    hook = script(tmp_path / "hook", f"echo $$ > {pids}.new; mv {pids}.new {pids}; exec sleep 60")
    running = asyncio.create_task(notify(question(), "w", "", Notify(command=hook)))
    await until(pids.exists)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await gone([int(pids.read_text())])


async def test_a_background_sender_of_a_hook_that_ended_well_lives_on(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    hook = script(tmp_path / "hook", f"sleep 60 & echo $! > {pids}; exit 0")
    assert (await notify(question(), "w", "", Notify(command=hook))).delivered
    pid = int(pids.read_text())
    os.kill(pid, 0)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("mode", [None, 0o600])
async def test_a_hook_that_cannot_be_run_is_permanent(tmp_path: Path, mode: int | None) -> None:
    path = tmp_path / "hook"
    if mode is not None:
        path.write_text("no program")
        path.chmod(mode)
    with pytest.raises(PermanentError, match=r"correct notify\.command"):
        await notify(question(), "w", "", Notify(command=(str(path),)))


async def test_without_a_hook_nobody_is_told() -> None:
    assert not (await notify(question(), "w", "", None)).delivered


# -- the hook address


class Receiver:
    """A real HTTP server that answers what it is told and keeps what it got."""

    def __init__(self) -> None:
        self.status = 200
        self.headers: dict[str, str] = {}
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.hold = threading.Event()
        self.hold.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append(({k.lower(): v for k, v in self.headers.items()}, body))
                outer.hold.wait(10)
                self.send_response(outer.status)
                for key, value in outer.headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def settings(self) -> Notify:
        return Notify(url=f"http://127.0.0.1:{self.server.server_port}/hooks/private-path", secret_env="HOOK_SECRET")  # noqa: S106

    def close(self) -> None:
        self.hold.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("HOOK_SECRET", "shared")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    started = Receiver()
    yield started
    started.close()


async def test_a_post_is_signed_over_time_and_body(receiver: Receiver) -> None:
    assert (await notify(question(), "w/ask/1", "link", receiver.settings, delivery="w/ask/1#5")).delivered
    ((headers, body),) = receiver.got
    parts = dict(part.split("=", 1) for part in headers["x-gpu-runbooks-signature"].split(","))
    expected = hmac.new(b"shared", parts["t"].encode() + b"." + body, hashlib.sha256).hexdigest()
    assert parts["v1"] == expected
    assert headers["x-gpu-runbooks-delivery"] == "w/ask/1#5"
    assert json.loads(body)["workflow_id"] == "w/ask/1"
    assert b"shared" not in body


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 301])
async def test_a_refusal_by_the_receiver_is_permanent(receiver: Receiver, status: int) -> None:
    receiver.status = status
    with pytest.raises(PermanentError, match=f"answered the notification with {status}") as told:
        await notify(question(), "w", "", receiver.settings)
    assert "private-path" not in str(told.value)
    assert len(receiver.got) == 1


@pytest.mark.parametrize(
    ("status", "asked", "delay"), [(408, None, 10), (429, "7", 7), (500, None, 10), (503, "9999", 300)]
)
async def test_a_receiver_in_trouble_is_tried_again_when_it_asks(
    receiver: Receiver, status: int, asked: str | None, delay: float
) -> None:
    receiver.status = status
    receiver.headers = {"Retry-After": asked} if asked else {}
    with pytest.raises(TemporaryError) as told:
        await notify(question(), "w", "", receiver.settings)
    assert told.value.delay == delay
    assert len(receiver.got) == 1  # the retry is Temporal's


async def test_a_receiver_that_does_not_answer_is_temporary(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(people, "NOTIFY_LIMIT", 0.3)
    receiver.hold.clear()
    with pytest.raises(TemporaryError, match="could not be posted"):
        await notify(question(), "w", "", receiver.settings)


async def test_a_receiver_that_is_away_is_temporary(receiver: Receiver) -> None:
    settings = receiver.settings
    receiver.close()
    with pytest.raises(TemporaryError, match=r"could not be posted to http://127\.0\.0\.1"):
        await notify(question(), "w", "", settings)


async def test_without_the_secret_nothing_is_sent(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOOK_SECRET")
    with pytest.raises(PermanentError, match="environment variable HOOK_SECRET"):
        await notify(question(), "w", "", receiver.settings)
    assert receiver.got == []


def test_retry_after_is_read_as_seconds_or_as_a_date() -> None:
    date = "Thu, 01 Jan 1970 00:01:40 GMT"
    assert retry_after({"retry-after": date}, now=40.0) == 60.0
    assert retry_after({"retry-after": date}, now=500.0) == 1.0
    assert retry_after({"retry-after": "soon"}, now=0.0) == 10.0
    assert retry_after({}, now=0.0) == 10.0


# -- signing


def test_a_key_that_cannot_sign_is_a_clear_error(keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with pytest.raises(InvalidInputError, match="no key file"):
        sign(answer(), tmp_path / "none")
    with pytest.raises(InvalidInputError, match="ssh-add"):
        sign(answer(), alone(keys["ada"], tmp_path))
    other = tmp_path / "text"
    other.write_text("no key")
    other.chmod(0o600)
    with pytest.raises(InvalidInputError, match="could not sign"):
        sign(answer(), other)


@pytest.fixture
def agent_with_bob(keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    needs_program("ssh-agent", "openssh-client")
    socket = str(tmp_path / "agent")
    argv = ["ssh-agent", "-a", socket, "sh", "-c", f"ssh-add -q {keys['bob']} && echo ready && read end"]
    agent = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert agent.stdout
    assert agent.stdout.readline() == b"ready\n"
    monkeypatch.setenv("SSH_AUTH_SOCK", socket)
    yield
    agent.communicate(b"\n", timeout=10)


@pytest.mark.usefixtures("agent_with_bob")
async def test_a_key_held_by_the_agent_signs(keys: Keys, tmp_path: Path) -> None:
    signed = sign(answer("bob"), alone(keys["bob"], tmp_path))
    assert (await verify_signature(both(keys), signed, unsigned_ok=False)).ok


def test_a_passphrase_that_cannot_be_asked_for_is_a_clear_error(keys: Keys) -> None:
    program = (
        "import sys; from clients.signing import sign; from fleet.people import Answer;"
        "sign(Answer.model_validate_json(sys.argv[1]), sys.argv[2])"
    )
    env = {k: v for k, v in os.environ.items() if k not in {"SSH_AUTH_SOCK", "DISPLAY", "SSH_ASKPASS"}}
    argv = [sys.executable, "-c", program, answer().model_dump_json(), str(keys["locked"])]
    ended = subprocess.run(argv, capture_output=True, text=True, env=env, start_new_session=True, timeout=30)
    assert ended.returncode == 1
    assert "InvalidInputError" in ended.stderr
    assert "could not sign" in ended.stderr


# -- helpers


def alone(key: Path, folder: Path) -> Path:
    """The public key without its private half beside it."""
    copy = folder / f"{key.name}.pub"
    copy.write_text(public(key))
    return copy


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - foreign processes and files tell no event
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


async def gone(pids: list[int]) -> None:
    assert pids
    await until(lambda: not any(alive(pid) for pid in pids))
