"""What `fleet.yaml` says, and whether what it names is there: modes, approvers, the hook, the history store."""

import os
import shutil
from pathlib import Path

from sqlalchemy.engine import make_url

from activities.store import HistoryStore
from fleet.errors import FleetError, InvalidInputError
from fleet.policy import Notify, Policy, Step, StepMode
from fleet.policy_file import parse_policy
from fleet.report import moment
from workers.doctor_checks import Area, Check
from workers.fleets import find_fleet

_fleet = Area("fleet")


def read_fleet(given: str | None, state: str | None = None) -> tuple[Path | None, Policy | None, Check]:
    """The file and the policy, or None and a failed check in the parser's own words (file, line, what is allowed)."""
    try:
        file = find_fleet(given, state)
    except InvalidInputError as error:
        text, _, todo = str(error).partition("; ")
        return None, None, _fleet.fail("fleet.yaml", text, todo)
    try:
        policy = parse_policy(file.read_text(encoding="utf-8"), str(file))
    except (InvalidInputError, OSError, UnicodeDecodeError) as error:
        return (
            file,
            None,
            _fleet.fail("fleet.yaml", str(error), "correct it: nothing is decided with a broken policy"),
        )
    clusters = ", ".join(f"{name} ({cluster.kind})" for name, cluster in policy.clusters.items())
    return file, policy, _fleet.ok("fleet.yaml", f"{file} is valid, policy {policy.digest}: {clusters}")


def look_at_fleet(policy: Policy, store_url: str) -> tuple[Check, ...]:
    """Everything that the policy names, apart from the clusters."""
    return (modes(policy), approvers(policy), notification(policy.notify), store(store_url))


def modes(policy: Policy) -> Check:
    """Which steps are done without a person, and which are not done at all."""
    by_mode = {mode: [step for step in Step if policy.mode(step) is mode] for mode in StepMode}
    said = "; ".join(f"{mode}: {', '.join(steps)}" for mode, steps in by_mode.items() if steps)
    if by_mode[StepMode.OBSERVE]:
        return _fleet.warn("modes", said, "a step in observe is never done, and nobody is asked")
    if len(by_mode[StepMode.PROPOSE]) + len(by_mode[StepMode.APPROVE]) == len(Step):
        return _fleet.ok("modes", "a person is asked before each step")
    return _fleet.ok("modes", said)


def approvers(policy: Policy) -> Check:
    if not policy.approvers:
        return _fleet.warn("approvers", "nobody is listed, so no answer is signed", "approvers: in fleet.yaml")
    names = ", ".join(approver.name for approver in policy.approvers)
    if shutil.which("ssh-keygen") is None:
        return _fleet.fail(
            "approvers",
            f"{names}, but ssh-keygen is missing here: a worker on this machine cannot verify an answer",
            "apt-get install openssh-client",
        )
    return _fleet.ok("approvers", names)


def notification(notify: Notify | None) -> Check:
    """Whether somebody is woken. Nothing is sent."""
    if notify is None:
        return _fleet.warn(
            "notify",
            "nobody is woken: questions only wait in `runbook list` and in the Temporal UI",
            "notify: in fleet.yaml",
        )
    if notify.command is not None:
        program = notify.command[0]
        if shutil.which(program) is None:
            return _fleet.fail("notify", f"{program} is no program on this machine", "correct notify.command")
        return _fleet.ok("notify", f"by {program}")
    if not os.environ.get(notify.secret_env or ""):
        return _fleet.warn(
            "notify",
            f"by a signed POST, but {notify.secret_env} is not set in this shell",
            f"see that the worker of {'runbooks'} has it",
        )
    return _fleet.ok("notify", f"by a POST signed with ${notify.secret_env}")


def store(url: str) -> Check:
    """Size of the history store; one that is not there yet is not made by looking."""
    database = make_url(url)
    if database.get_backend_name() == "sqlite" and not Path(database.database or "").exists():
        return _fleet.ok("history store", f"{database.database} is not there yet; the first worker makes it")
    try:
        opened = HistoryStore(url)
        try:
            size = opened.size()
        finally:
            opened.close()
    except FleetError as error:
        return _fleet.fail("history store", str(error), "correct `store` in fleet.yaml, or mend the database")
    rows = f"{size.specs} specs, {size.evidence} pieces of evidence, {size.verdicts} verdicts, {size.reports} reports"
    rows += f", {size.strikes} strikes, {size.runs} runs, {size.samples} figures, {size.inventories} inventories"
    since = f", the oldest of {moment(size.oldest)}" if size.oldest is not None else ""
    where = database.render_as_string(hide_password=True)
    return _fleet.ok("history store", f"{rows}, {size.bytes / 1e6:.1f} MB{since} in {where}")
