"""Effects that reach people: a signature verified by `ssh-keygen`, someone woken by the policy's hook.

Programs run with an argument list, no shell, a time limit, and in a process group of their own that ends with it.
"""

import asyncio
import contextlib
import email.utils
import hashlib
import hmac
import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx2

from activities.api import Told
from activities.people_api import Verified
from fleet.errors import PermanentError, TemporaryError
from fleet.model import MARK
from fleet.people import Answer, Question
from fleet.policy import Notify
from fleet.redact import redact

VERIFY_LIMIT = 10.0
"""Seconds for one `ssh-keygen -Y verify`; it takes a few milliseconds."""
NOTIFY_LIMIT = 20.0
"""Seconds for one run of the hook, or one POST."""
DELAY_CAP = 300.0
"""Longest `Retry-After` in seconds that we follow: somebody waits to be woken."""
SIGNATURE_HEADER = "X-Gpu-Runbooks-Signature"
DELIVERY_HEADER = "X-Gpu-Runbooks-Delivery"
"""The same for every try of one delivery, so that a receiver can drop a repeated one."""

_KEY = re.compile(
    r"^((?:sk-)?(?:ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521))(?:@openssh\.com)?)"
    r" ([A-Za-z0-9+/]+=*)(?: .*)?$"
)
_PRINCIPAL = "approver"
_TAIL = 2000


async def verify_signature(question: Question, answer: Answer, *, unsigned_ok: bool) -> Verified:
    """Whether the answer is its approver's own words for this question.

    `unsigned_ok` is True on the embedded server only: it lets an answer to a question *without* signers count. A
    fleet that lists signers never takes an unsigned one. Expiry, options and repetition are the validator's to
    check. Raises PermanentError without `ssh-keygen`, TemporaryError when it does not end in time.
    """
    if (answer.question, answer.plan_hash, answer.op) != (question.id, question.plan.digest, question.plan.op):
        return Verified(ok=False, why="the answer is for another question or plan; read this one and answer again")
    if not question.signers:
        return _unsigned(answer, unsigned_ok)
    if answer.signature is None:
        return Verified(ok=False, why="this fleet lists signers, so an answer must be signed: give --key")
    keys = [s.key for s in question.signers if s.name == answer.approver]
    if not keys:
        return Verified(ok=False, why=f"{answer.approver} is no approver here")
    lines = [line for line in map(_allowed_line, keys) if line]
    if not lines:
        return Verified(ok=False, why=f"fleet.yaml has no usable public key for {answer.approver}; add it there")
    if await _matches(lines, answer.signature, answer.statement):
        return Verified(ok=True, why=f"signed by {answer.approver}")
    return Verified(
        ok=False,
        why=f"the signature is not by {answer.approver}'s key in fleet.yaml, or the statement was changed after "
        "it was signed; sign the answer again with that key",
    )


async def notify(
    question: Question, workflow_id: str, link: str, settings: Notify | None, *, delivery: str = ""
) -> Told:
    """Wakes someone by the policy's hook; `delivered` is False only when no hook is configured.

    `delivery` names this delivery: alike in each retry, another one for a reminder. One try per call, for retries are
    Temporal's: TemporaryError (with the receiver's delay) when another may help, PermanentError when somebody must
    change something first.
    """
    if settings is None:
        return Told(delivered=False)
    body = json.dumps(message(question, workflow_id, link), ensure_ascii=False).encode()
    if settings.command is not None:
        await _run_hook(settings.command, body)
    else:
        await _post(settings, body, delivery)
    return Told(delivered=True)


def message(question: Question, workflow_id: str, link: str) -> dict[str, object]:
    """What a hook gets, as JSON values. Keys are a promise: they are only ever added to."""
    return {
        "version": 1,
        "kind": "question",
        "id": question.id,
        "workflow_id": workflow_id,
        "subject": question.plan.subject,
        "title": question.plan.title,
        "why": redact(question.why),
        "steps": [redact(step) for step in question.plan.steps],
        "evidence": [redact(line) for line in question.evidence],
        "options": [str(option) for option in question.options],
        "default": str(question.default),
        "expires_at": datetime.fromtimestamp(question.expires_at, UTC).isoformat(timespec="seconds"),
        "plan_hash": question.plan.digest,
        "approvers": [signer.name for signer in question.signers],
        "escalation": list(question.escalation),
        "link": link,
        "answer_with": f"runbook approve {question.id}",
    }


def signature_header(secret: str, at: int, body: bytes) -> str:
    """`t=<epoch seconds>,v1=<hex HMAC-SHA256 of "<t>." + body>`; a receiver refuses an old `t`."""
    mac = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256)
    return f"t={at},v1={mac.hexdigest()}"


# -- signatures


def _unsigned(answer: Answer, unsigned_ok: bool) -> Verified:
    if not unsigned_ok:
        why = "this fleet lists no signers and an unsigned answer counts on the embedded server only; add approvers"
        return Verified(ok=False, why=f"{why} to fleet.yaml")
    if answer.signature is not None:  # it would be shown as signed although nobody checked it
        return Verified(ok=False, why="no signers are listed to check this signature against; answer without --key")
    return Verified(
        ok=True, why="unsigned; taken because this is the embedded server and fleet.yaml lists no approver"
    )


def _allowed_line(key: str | None) -> str | None:
    """A line of an allowed-signers file, of a plain key only: options in front of a key would change its meaning."""
    found = _KEY.match(key.strip()) if key and "\n" not in key.strip() else None
    return f'{_PRINCIPAL} namespaces="{MARK}" {found[1]} {found[2]}' if found else None


async def _matches(allowed: Sequence[str], signature: str, statement: str) -> bool:
    with tempfile.TemporaryDirectory(prefix="gpu-runbooks-") as folder:
        signers = _written(folder, "signers", "\n".join(allowed) + "\n")
        sig = _written(folder, "sig", signature)
        argv = ["ssh-keygen", "-Y", "verify", "-f", signers, "-I", _PRINCIPAL, "-n", MARK, "-s", sig]
        try:
            ended = await _run(argv, statement.encode(), VERIFY_LIMIT)
        except FileNotFoundError as error:
            raise PermanentError(
                "ssh-keygen is missing on this worker, so no signature can be checked: apt-get install openssh-client"
            ) from error
    if ended.code is None:
        raise TemporaryError(f"ssh-keygen did not end in {VERIFY_LIMIT:g} s")
    return ended.code == 0


def _written(folder: str, name: str, text: str) -> str:
    path = Path(folder, name)
    path.write_text(text, encoding="utf-8")
    return str(path)


# -- the hook


async def _run_hook(command: Sequence[str], body: bytes) -> None:
    program = command[0]
    try:
        ended = await _run(command, body, NOTIFY_LIMIT)
    except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
        raise PermanentError(
            f"the notification hook {program} cannot be run on this worker: {error.strerror}; correct notify.command"
        ) from error
    if ended.code is None:
        raise TemporaryError(
            f"the notification hook {program} was ended after {NOTIFY_LIMIT:g} s{ended.said}", delay=10
        )
    if ended.code != 0:
        raise TemporaryError(f"the notification hook {program} failed with exit {ended.code}{ended.said}", delay=10)


async def _post(settings: Notify, body: bytes, delivery: str) -> None:
    assert settings.url is not None  # noqa: S101 - `Notify` holds one of command and url
    secret = os.environ.get(settings.secret_env or "", "")
    if not secret:
        raise PermanentError(
            f"the notification cannot be signed: set the environment variable {settings.secret_env} on this worker"
        )
    headers = {
        "Content-Type": "application/json",
        "User-Agent": MARK,
        SIGNATURE_HEADER: signature_header(secret, int(time.time()), body),
    }
    if delivery:
        headers[DELIVERY_HEADER] = delivery
    where = httpx2.URL(settings.url)
    shown = f"{where.scheme}://{where.host}"  # paths of such hooks often hold a secret
    try:
        async with asyncio.timeout(NOTIFY_LIMIT), httpx2.AsyncClient(timeout=NOTIFY_LIMIT) as client:
            answer = await client.post(where, content=body, headers=headers)
    except (httpx2.TransportError, TimeoutError) as error:
        why = str(error) or type(error).__name__
        raise TemporaryError(f"the notification could not be posted to {shown}: {why}", delay=10) from error
    _judge(answer, shown)


def _judge(answer: httpx2.Response, shown: str) -> None:
    """2xx is delivered; 408, 429 and 5xx may be tried again; everything else needs a person."""
    if answer.is_success:
        return
    text = f"{shown} answered the notification with {answer.status_code}"
    if answer.status_code in {408, 429} or answer.status_code >= 500:
        raise TemporaryError(text, delay=retry_after(answer.headers, time.time()))
    raise PermanentError(f"{text}; correct notify.url or its secret")


def retry_after(headers: Mapping[str, str], now: float) -> float:
    """Seconds that the receiver asks us to wait (RFC 9110: seconds or a date), 10 without, at most `DELAY_CAP`."""
    asked = headers.get("retry-after", "").strip()
    if asked.isdigit():
        return min(float(asked), DELAY_CAP)
    with contextlib.suppress(ValueError):
        return min(max(email.utils.parsedate_to_datetime(asked).timestamp() - now, 1.0), DELAY_CAP)
    return 10.0


# -- processes


@dataclass(frozen=True)
class _Ended:
    code: int | None
    """None: it was ended at the time limit."""
    said: str
    """`: <tail of stderr>`, redacted, or empty."""


async def _run(argv: Sequence[str], stdin: bytes, limit: float) -> _Ended:
    """Runs a program to its end, at most `limit` seconds; then, or at a cancel, its whole group is killed.

    Input and stderr are files, so a grandchild that keeps a pipe open cannot hold us. What a program that ended by
    itself left in the background goes on: it may be what delivers.
    """
    env = {key: value for key, value in os.environ.items() if not key.startswith("TEMPORAL_")}  # our keys stay ours
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=given, stdout=asyncio.subprocess.DEVNULL, stderr=err, env=env, start_new_session=True
        )
        code: int | None = None
        try:
            async with asyncio.timeout(limit):
                code = await process.wait()
        except TimeoutError:
            code = None
        finally:
            if code is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        err.seek(max(err.seek(0, os.SEEK_END) - _TAIL, 0))
        said = redact(err.read().decode(errors="replace")).strip()
    return _Ended(code=code, said=f": {said}" if said else "")
