"""One vocabulary for the JSON of 22.05 and of 25.11: `JobRecord` and `NodeRecord`.

22.05 gives plain numbers (null = unset), one state word that hides the base state behind a flag, and a raw wait
status; 25.11 gives `{"set", "infinite", "number"}`, lists of states and a structured exit code.
"""

import re
from collections.abc import Mapping
from typing import Any

from activities.backends.slurm.hostlist import expand
from activities.backends.slurm.marks import NO_PIN, JobMarks, read_marks
from fleet.errors import TemporaryError, UnreadableError
from fleet.identity import parse_tokens
from fleet.model import JobTokens, NativeJob, Phase, Value

Raw = Mapping[str, Any]

_BASES = {
    "PENDING": Phase.PENDING,
    "RUNNING": Phase.RUNNING,
    "SUSPENDED": Phase.RUNNING,  # its ranks live and hold their GPUs
    "COMPLETED": Phase.SUCCEEDED,
    "CANCELLED": Phase.CANCELLED,
    "FAILED": Phase.FAILED,
    "OUT_OF_MEMORY": Phase.FAILED,
    "PREEMPTED": Phase.FAILED,  # PreemptMode=CANCEL: the site ended it, no node is at fault
    "TIMEOUT": Phase.TIMED_OUT,
    "DEADLINE": Phase.TIMED_OUT,
    "NODE_FAIL": Phase.NODE_LOST,
    "BOOT_FAIL": Phase.NODE_LOST,
}
_FLAGS = {  # in 22.05 they hide the base state, so each says where the job stands
    "COMPLETING": Phase.STOPPING,
    "STAGE_OUT": Phase.STOPPING,
    "REQUEUED": Phase.STOPPING,
    "REQUEUE_FED": Phase.STOPPING,
    "REQUEUE_HOLD": Phase.STOPPING,
    "CONFIGURING": Phase.RUNNING,
    "RESIZING": Phase.RUNNING,
    "SIGNALING": Phase.RUNNING,
    "STOPPED": Phase.RUNNING,
    "SPECIAL_EXIT": Phase.PENDING,
    "RESV_DEL_HOLD": Phase.PENDING,
    "POWER_UP_NODE": Phase.RUNNING,
    "REVOKED": Phase.CANCELLED,
    "LAUNCH_FAILED": Phase.PENDING,
    "RECONFIG_FAIL": Phase.PENDING,
    "UPDATE_DB": Phase.PENDING,
    "EXPEDITING": Phase.PENDING,
}
_TELLING = {"OUT_OF_MEMORY", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "DEADLINE"}
_GPU_MODEL = re.compile(r"(?:^|[,:/])gpu:([A-Za-z][^:,=()]*):\d+")
_GPUS = re.compile(r"(?:^|[,:/])gpu(?:[:=][A-Za-z][^:,=()]*)?[:=](\d+)")


class JobRecord(Value):
    """A job as Slurm shows it, with what the port's value leaves out."""

    job: NativeJob
    job_id: str
    """JobId as a number; `job.native_id` of an array task is `ARRAY_TASK`, for the bare id may mean the array."""
    base: str | None
    """Base state, None while 22.05 hides it."""
    marks: JobMarks = JobMarks()
    admin_comment: str = ""
    pinned: tuple[str, ...] = ()
    """ReqNodeList as it stands, also where it is ours."""
    het: bool = False
    meta: bool = False
    """The common entry of array tasks that did not start yet."""

    def called(self, native_id: str) -> bool:
        return native_id in {self.job.native_id, self.job_id}


class NodeRecord(Value):
    """A node as Slurm shows it: base state and flags, never `sinfo`'s text."""

    name: str
    base: str
    flags: frozenset[str]
    reason: str = ""
    boot_time: int = 0
    """0 = unknown: just resumed, or the controller just restarted."""
    slurmd_start: int = 0
    """When its slurmd started, by the node's own clock; 0 = unknown."""
    gpus: int = 0
    gpus_expected: int = 0
    gpu_model: str = ""
    """Type of its GPUs in Gres; several are joined by `+`."""
    reserved: bool = False
    partitions: tuple[str, ...] = ()


def number(value: object) -> int | None:
    """A number of either release; None for unset, infinite and null."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set", True) and not value.get("infinite") else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value)


def entries(answer: object, key: str) -> list[Raw]:
    """The list under `key`. Raises UnreadableError for any other shape.

    A controller that does not answer makes 22.05 print an empty list beside `errors`, with exit code 0: that is
    TemporaryError and never "no jobs".
    """
    if not isinstance(answer, Mapping) or not isinstance(answer.get(key), list):
        raise UnreadableError(f"Slurm's answer has no list of {key}; is this release newer than 25.11?")
    if answer.get("errors"):
        raise TemporaryError(f"Slurm could not list its {key}: {str(answer['errors'])[:300]}; it is asked again")
    return list(answer[key])


def states_of(value: object) -> tuple[str, frozenset[str]]:
    """Base state ("" while hidden) and flags of a job, from a word or a list."""
    words = [value] if isinstance(value, str) else list(value) if isinstance(value, list) else []
    names = [str(word).upper() for word in words]
    if not names:
        raise UnreadableError(f"a job has no state: {value!r}")
    bases = [name for name in names if name in _BASES]
    return (bases[0] if bases else ""), frozenset(name for name in names if name not in _BASES)


def phase_of(base: str, flags: frozenset[str]) -> Phase:
    """COMPLETING beats all: ranks may live. A state that nobody has described is unreadable, never "ended"."""
    for flag in ("COMPLETING", "STAGE_OUT"):
        if flag in flags:
            return Phase.STOPPING
    if base:
        return _BASES[base]
    for flag, phase in _FLAGS.items():
        if flag in flags:
            return phase
    raise UnreadableError(f"unknown job state {sorted(flags)}")


def exit_of(value: object) -> tuple[int | None, int | None]:
    """Exit code and signal; a raw wait status in 22.05."""
    if isinstance(value, Mapping):
        signal = value.get("signal")
        signal_number = number(signal.get("id")) if isinstance(signal, Mapping) else None
        return number(value.get("return_code")), signal_number or None
    raw = number(value)
    return (None, None) if raw is None else (raw >> 8 & 0xFF, raw & 0x7F or None)


def gpus_in(text: str) -> int:
    """GPUs in `gres:gpu:8`, `gres/gpu:h100=4`, `gpu:h100:8(IDX:0-7)`."""
    return sum(int(count) for count in _GPUS.findall(text))


def gpu_model_in(text: str) -> str:
    """Type in `gpu:h100:8`, `gpu:h100:8(S:0-1)`; empty where it has none, as `gpu:8`."""
    return "+".join(sorted({found.lower() for found in _GPU_MODEL.findall(text)}))


def job_record(raw: Raw, cluster: str) -> JobRecord:
    """One entry of `jobs`."""
    base, flags = states_of(raw["job_state"])
    phase = phase_of(base, flags)
    marks = read_marks(str(raw.get("admin_comment") or ""))
    array, task = number(raw.get("array_job_id")) or 0, number(raw.get("array_task_id"))
    waiting_tasks = str(raw.get("array_task_string") or "")
    meta = bool(array and waiting_tasks)
    native_id = f"{array}_{task}" if array and task is not None and not meta else str(raw["job_id"])
    tokens = JobTokens() if meta else parse_tokens(str(raw.get("comment") or ""))
    name = str(raw.get("name") or "")
    priority = number(raw.get("priority"))
    reason = str(raw.get("state_reason") or "")
    excluded = expand(str(raw.get("excluded_nodes") or ""))
    required = expand(str(raw.get("required_nodes") or ""))
    code, signal = exit_of(raw.get("exit_code")) if phase.ended else (None, None)
    started = number(raw.get("start_time")) or None
    job = NativeJob(
        cluster=cluster,
        native_id=native_id,
        name=name,
        key=tokens.job if tokens.job and name.endswith(f".{tokens.job}") else None,
        user=str(raw.get("user_name") or ""),
        phase=phase,
        held=not phase.ended and priority == 0 and (base != "SUSPENDED" or reason.startswith("JobHeld")),
        reason=_reason(raw, base, reason),
        restarts=number(raw.get("restart_cnt")) or 0,
        nodes=expand(str(raw.get("nodes") or "")),
        nodes_wanted=_nodes_wanted(raw),
        gpus_per_node=_gpus_per_node(raw),
        excluded=excluded,
        own_excluded=tuple(node for node in excluded if node not in marks.excluded),
        required=_owners_pin(marks, required, phase),
        exit_code=code,
        exit_signal=signal,
        priority=priority,
        submitted_at=marks.since if marks.since is not None else float(number(raw.get("submit_time")) or 0),
        started_at=float(started) if started and phase is not Phase.PENDING else None,
        eligible_at=float(number(raw.get("eligible_time")) or 0) or None,
        tokens=tokens,
        adopted=marks.ours,
        batch=bool(raw.get("batch_flag", True)),
        requeueable=bool(raw.get("requeue", True)),
        array_task=waiting_tasks if meta else (str(task) if array and task is not None else None),
    )
    return JobRecord(
        job=job,
        job_id=str(raw["job_id"]),
        base=base or None,
        marks=marks,
        admin_comment=str(raw.get("admin_comment") or ""),
        pinned=required,
        het=bool(number(raw.get("het_job_id"))),
        meta=meta,
    )


def _owners_pin(marks: JobMarks, required: tuple[str, ...], phase: Phase) -> tuple[str, ...]:
    """What the owner pinned the job to. Ours binds only while it waits: Slurm cannot clear it on a running job."""
    if marks.pin is None or phase is Phase.PENDING:
        return required
    return () if marks.pin == NO_PIN else expand(marks.pin)


def _reason(raw: Raw, base: str, reason: str) -> str:
    described = str(raw.get("state_description") or "")
    if described:
        return described
    return reason if reason not in {"", "None"} else (base if base in _TELLING else "")


def _nodes_wanted(raw: Raw) -> int:
    """From the request, for `node_count` shrinks while a job is COMPLETING."""
    asked = re.search(r"(?:^|,)node=(\d+)", str(raw.get("tres_req_str") or ""))
    return int(asked.group(1)) if asked else number(raw.get("node_count")) or 1


def _gpus_per_node(raw: Raw) -> int:
    asked = gpus_in(str(raw.get("tres_per_node") or ""))
    given = [gpus_in(str(text)) for text in raw.get("gres_detail") or []]
    return asked or max(given, default=0)


def node_record(raw: Raw) -> NodeRecord:
    """One entry of `nodes` (`sinfo --json` of 22.05, `scontrol show nodes --json` of later ones)."""
    state = raw["state"]
    names = [state] if isinstance(state, str) else list(state)
    if not names:
        raise UnreadableError(f"node {raw.get('name')} has no state")
    words = [str(name).upper() for name in (*names, *(raw.get("state_flags") or ()))]
    reason = str(raw.get("reason") or "")
    missing = re.search(r"gres/gpu count reported lower than configured \((\d+) < \d+\)", reason)
    return NodeRecord(
        name=str(raw["name"]),
        base=words[0],
        flags=frozenset(words[1:]),
        reason=reason,
        boot_time=number(raw.get("boot_time")) or 0,
        slurmd_start=number(raw.get("slurmd_start_time")) or 0,
        gpus=gpus_in(str(raw.get("gres") or "")) if missing is None else int(missing.group(1)),
        gpus_expected=gpus_in(str(raw.get("gres") or "")),
        gpu_model=gpu_model_in(str(raw.get("gres") or "")),
        partitions=tuple(str(name) for name in raw.get("partitions") or ()),
        reserved="RESERVED" in words or "MAINTENANCE" in words,
    )
