"""Slurm's own records: `scontrol show job` and `show node` (also with `-o`), and their `--json` form."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fleet.faults.evidence import Kind, Source
from fleet.faults.exits import end_code
from fleet.faults.tables import plain
from fleet.faults.texts import BROKEN, Findings, Origin, Parsed, decoded, junk, load_json, rows, table, whole, word

MAX_RECORDS = 20_000

_KEY = re.compile(r"(?:^|(?<=\s))([A-Z][A-Za-z0-9_:/-]{1,40})=")
_STILL = {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"}
_STILL |= {"STAGE_OUT", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD"}
_TELLING = {"NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "DEADLINE", "PREEMPTED", "CANCELLED", "REVOKED"}
_TELLING |= {"SPECIAL_EXIT", "LAUNCH_FAILED", "RECONFIG_FAIL"}
_SAYS_LITTLE = {"", "none", "nonzeroexitcode", "raisedsignal"}
_LOST = {"DOWN", "FAIL", "FAILING", "NOT_RESPONDING", "ERROR"}


def read_slurm_records(raw: str | bytes, origin: Origin) -> Parsed:
    """Evidence of each job that ended badly and each node that is down or drained; the rest is counted.

    A record of another node than the origin's is dropped. One without a state says nothing and is unreadable.
    """
    found = Findings(Source.SCHEDULER, origin)
    text = decoded(raw)
    if why := junk(text):
        found.cannot_read(why)
        return found.parsed()
    jobs, nodes = _from_json(found, text) if text.lstrip().startswith("{") else _from_text(text)
    if len(jobs) + len(nodes) > MAX_RECORDS:
        found.cannot_read(f"over the limit of {MAX_RECORDS} records")
    for job in jobs[:MAX_RECORDS]:
        found.lines += 1
        _read_job(found, job)
    for node in nodes[:MAX_RECORDS]:
        found.lines += 1
        _read_node(found, node)
    if not found.lines and not found.unreadable:
        found.cannot_read("no job and no node of Slurm in it", text[:200])
    return found.parsed()


def _from_text(text: str) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    jobs: list[dict[str, str]] = []
    nodes: list[dict[str, str]] = []
    for line in text.split("\n"):
        for key, value in _pairs(line[:65536]):
            if key == "JobId":
                jobs.append({})
            elif key == "NodeName" and value:
                nodes.append({})
            where = _owner(key, line, jobs, nodes)
            if where:
                where[-1].setdefault(key, value)
    return jobs, nodes


def _owner(
    key: str, line: str, jobs: list[dict[str, str]], nodes: list[dict[str, str]]
) -> list[dict[str, str]] | None:
    """The kind of record that stands open: the one that began last, by its first key."""
    if key in {"JobId", "NodeName"}:
        return jobs if key == "JobId" else nodes
    if jobs and nodes:
        return jobs if "Job" in line or "ExitCode" in line else nodes
    return jobs or nodes or None


def _pairs(line: str) -> Iterator[tuple[str, str]]:
    """`Key=value` of a line; a value may hold blanks and ends where the next key begins."""
    keys = list(_KEY.finditer(line))
    for at, found in enumerate(keys):
        end = keys[at + 1].start() if at + 1 < len(keys) else len(line)
        yield found.group(1), line[found.end() : end].strip()


def _from_json(found: Findings, text: str) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    document = load_json(text)
    if document is BROKEN:
        found.cannot_read("a record of Slurm that is cut off", text[:200])
        return [], []
    jobs = [_job_of(table(job)) for job in rows(table(document).get("jobs"))]
    nodes = [_node_of(table(node)) for node in rows(table(document).get("nodes"))]
    return jobs, nodes


def _job_of(raw: Mapping[str, Any]) -> dict[str, str]:
    """The text form of a job's JSON; states are a list in newer releases, numbers are wrapped."""
    status = raw.get("exit_code")
    code, sign = whole(status), 0
    if isinstance(status, dict):
        code = _number(status.get("return_code"))
        sign = _number(table(status.get("signal")).get("id", table(status.get("signal")).get("signal_id"))) or 0
    elif code is not None:
        code, sign = code >> 8, code & 0x7F
    return {
        "JobId": word(raw.get("job_id")),
        "JobState": _states(raw.get("job_state")),
        "Reason": word(raw.get("state_reason")),
        "ExitCode": f"{code or 0}:{sign}",
        "NodeList": word(raw.get("nodes")),
        "Restarts": word(raw.get("restart_cnt")),
    }


def _node_of(raw: Mapping[str, Any]) -> dict[str, str]:
    return {
        "NodeName": word(raw.get("name")),
        "State": _states(raw.get("state")),
        "Reason": word(raw.get("reason"), 300),
        "BootTime": word(_number(raw.get("boot_time"))),
    }


def _states(value: Any) -> str:
    return "+".join(word(state, 40) for state in rows(value)) if isinstance(value, list) else word(value, 120)


def _number(value: Any) -> int | None:
    return whole(table(value).get("number")) if isinstance(value, dict) else whole(value)


def _read_job(found: Findings, job: Mapping[str, str]) -> None:
    states = [state.upper() for state in re.split(r"[+,]", job.get("JobState", "").split(" ")[0]) if state]
    if not states:
        found.cannot_read("a job of Slurm without a state", str(dict(job))[:120])
        return
    state = states[0]
    reason = job.get("Reason", "").split("(")[0].strip()
    name = f"job {job.get('JobId', '?')}"
    where = job.get("NodeList", "")
    detail = (
        f"{name} {'+'.join(states)} {reason or 'no reason'} exit {job.get('ExitCode', '?')} on {where or 'no node'}"
    )
    node = where if re.fullmatch(r"[A-Za-z0-9][\w.-]{0,200}", where) else None
    if state == "COMPLETED" or (set(states) & _STILL and not set(states) & _TELLING):
        found.drop("a job that ended well" if state == "COMPLETED" else "a job that has not ended")
        return
    codes = [one for one in states if one in _TELLING]
    if plain(reason.split(":")[0]) not in _SAYS_LITTLE:
        codes.append(reason)
    if state == "FAILED":
        codes.append(_exit(job.get("ExitCode", "")))
    elif not codes:
        found.cannot_read("a state of a job that Slurm does not have", detail)
    for code in dict.fromkeys(codes):
        found.tell(Kind.JOB_EXIT, code, detail, node=found.origin.node or node)


def _exit(text: str) -> str:
    """`CODE:SIGNAL` of Slurm."""
    found = re.fullmatch(r"(\d{1,5}):(\d{1,5})", text)
    return end_code(int(found.group(1)), int(found.group(2))) if found else "FAILED"


def _read_node(found: Findings, node: Mapping[str, str]) -> None:
    name, states = node.get("NodeName", ""), node.get("State", "")
    if not name or not states:
        found.cannot_read("a node of Slurm without a state", str(dict(node))[:120])
        return
    if found.origin.node and name != found.origin.node:
        found.drop("another node's record")
        return
    flags = set(re.split(r"[+,]", re.sub(r"[*~#!%$@^-]", "", states.upper())))
    reason = node.get("Reason", "")
    if "*" in states:
        flags.add("NOT_RESPONDING")
    if flags & _LOST:
        detail = f"{name} is {states} ({reason or 'no reason'})"
        found.tell(Kind.NODE_DOWN, "down", detail, node=name)
    if "DRAIN" in flags or "DRAINED" in flags or "DRAINING" in flags:
        found.tell(Kind.NODE_DRAINED, "drained", reason or f"{name} is {states}, and no reason is given", node=name)
    if not flags & {*_LOST, "DRAIN", "DRAINED", "DRAINING"}:
        found.drop("a node that takes work")
