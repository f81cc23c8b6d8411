"""Answers reads of one Slurm cluster through pyslurm: JSON lines in, JSON lines out. A program, never imported.

`python -m activities.backends.slurm.pyslurm_child`, or this file by its path with any interpreter that has pyslurm;
so it needs the standard library and pyslurm only. SLURM_CONF names the cluster. It is a process of its own because
pyslurm holds the interpreter's lock for a whole RPC, is bound to one cluster, ends the process when it finds no
configuration, and can crash it.

Asked `{"id": 1, "call": "hello" | "jobs" | "nodes" | "reservations"}` it answers with the same id and one of
`data`; `error` and `errno`: what Slurm said; `fault`: pyslurm or this program failed. Jobs and nodes have the shape
of `squeue --json` and `scontrol show nodes --json` of Slurm 25.11 and hold what `normalise.py` reads, so that one
normaliser serves both. A job's `unsure` names the fields that pyslurm cannot tell. It ends at the end of its input.
"""

import functools
import json
import os
import pwd
import re
import sys
from typing import Any, TextIO

NUMBER_UNSET = {"set": False, "infinite": False, "number": 0}
NO_IMPORT = 3
"""Exit code: this interpreter has no pyslurm."""
LIVE = {"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "STAGE_OUT"}
"""States in which an exit code means nothing yet."""

_BASES: dict[str, list[str]] = {
    "CONFIGURING": ["RUNNING", "CONFIGURING"],
    "POWER_UP_NODE": ["RUNNING", "POWER_UP_NODE"],
    "RESIZING": ["RUNNING", "RESIZING"],
    "SIGNALING": ["RUNNING", "SIGNALING"],
    "STOPPED": ["RUNNING", "STOPPED"],
    "REQUEUED": ["PENDING", "REQUEUED"],
    "REQUEUE_FED": ["PENDING", "REQUEUE_FED"],
    "REQUEUE_HOLD": ["PENDING", "REQUEUE_HOLD"],
    "SPECIAL_EXIT": ["PENDING", "SPECIAL_EXIT"],
    "RESV_DEL_HOLD": ["PENDING", "RESV_DEL_HOLD"],
}
"""pyslurm shows one word for a job's state; a flag hides the base state, which these flags imply
(`job_state_string` in Slurm's slurm_protocol_defs.c). COMPLETING and STAGE_OUT hide it for good."""

_REASONS = {
    "job requeued in held state": "JobHeldUser",
    "launch failed requeued held": "JobHeldUser",
}
"""pyslurm shows a job's state description instead of its reason; these two stand for a hold (measured on 25.11.7)."""


def number(value: float | None) -> dict[str, Any]:
    """Slurm's JSON form of a number that may be unset."""
    return NUMBER_UNSET if value is None else {"set": True, "infinite": False, "number": value}


def gres_text(gres: dict[str, Any]) -> str:
    """`{"gpu:h100": 8}` -> `gpu:h100:8`."""
    return ",".join(f"{name}:{count['count'] if isinstance(count, dict) else count}" for name, count in gres.items())


def gres_detail(layout: dict[str, Any]) -> list[str]:
    """One text a node of the allocation, as `gres_detail` has it."""
    texts = []
    for node in layout.values():
        for name, count in (node.get("gres") or {}).items():
            known = isinstance(count, dict)
            texts.append(f"{name}:{count['count']}(IDX:{count['indexes']})" if known else f"{name}:{count}")
    return texts


def text(thing: Any, field: str) -> str:
    """A text field, "" when it is unset. pyslurm raises for bytes that are no UTF-8; one job must not hide all."""
    try:
        return getattr(thing, field) or ""
    except UnicodeDecodeError as error:
        return error.object.decode("utf-8", "replace")


@functools.cache
def user_name(uid: int) -> str:
    """As Slurm's own commands show it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def exit_code(code: int, signal: int) -> dict[str, Any]:
    """An exit code or a signal; pyslurm takes 128 off an exit code above it (see `unsure`)."""
    return {
        "status": ["SIGNALED" if signal else "ERROR" if code else "SUCCESS"],
        "return_code": NUMBER_UNSET if signal else number(code),
        "signal": {"id": number(signal) if signal else NUMBER_UNSET, "name": ""},
    }


def unsure(job: Any) -> list[str]:
    """Fields to ask Slurm's own commands for: pyslurm's exit code 11 may be 139."""
    return ["exit_code"] if job.exit_code and not job.exit_code_signal and job.state not in LIVE else []


def reason_of(text: str) -> tuple[str, str]:
    """State reason and state description, of pyslurm's one text for both; the description is always right."""
    if text in _REASONS:
        return _REASONS[text], text
    if re.fullmatch(r"[A-Za-z()]+", text):
        return text, ""
    head = re.match(r"([A-Z][A-Za-z]+)[,:]", text)
    return (head[1] if head else text), text


def array_task(job: Any) -> int | None:
    """pyslurm shows task 0 as None; an array's common entry lists its waiting tasks, a task of it does not."""
    if job.array_task_id is None and job.array_id is not None and not job.array_tasks_waiting:
        return 0
    task: int | None = job.array_task_id
    return task


def waiting_tasks(job: Any) -> str:
    """An array's tasks that did not start yet, with the limit that pyslurm takes off: `2-3%2`."""
    if not job.array_tasks_waiting:
        return ""
    return (
        f"{job.array_tasks_waiting}%{job.array_tasks_parallel}"
        if job.array_tasks_parallel
        else job.array_tasks_waiting
    )


def tres_text(tres: Any) -> str:
    """The number of nodes asked for; pyslurm keeps no text of it."""
    return f"node={tres.node.count}" if tres is not None and tres.node is not None else ""


def job_record(job: Any) -> dict[str, Any]:
    """One job in the shape of `squeue --json`."""
    reason, description = reason_of(text(job, "state_reason") or "None")
    layout = job.get_resource_layout_per_node() if job.state in {"RUNNING", "SUSPENDED"} else {}
    return {
        "job_id": job.id,
        "name": text(job, "name"),
        "user_name": user_name(job.user_id),
        "comment": text(job, "comment"),
        "admin_comment": text(job, "admin_comment"),
        "job_state": _BASES.get(job.state, [job.state]),
        "state_reason": reason,
        "state_description": description,
        "hold": job.priority == 0,
        "priority": number(job.priority),
        "restart_cnt": job.requeue_count,
        "requeue": job.is_requeueable,
        "batch_flag": job.is_batch_job,
        "partition": text(job, "partition"),
        "nodes": text(job, "allocated_nodes"),
        "node_count": number(job.num_nodes),
        "gres_detail": gres_detail(layout),
        "tres_per_node": gres_text(job.gres_per_node),
        "tres_req_str": tres_text(job.requested_tres),
        "excluded_nodes": text(job, "excluded_nodes"),
        "required_nodes": text(job, "required_nodes"),
        "exit_code": exit_code(job.exit_code, job.exit_code_signal),
        "submit_time": number(job.submit_time or 0),
        "eligible_time": number(job.eligible_time or 0),
        "start_time": number(job.start_time or 0),
        "end_time": number(job.end_time or 0),
        "array_job_id": number(job.array_id or 0),
        "array_task_id": number(array_task(job)),
        "array_task_string": waiting_tasks(job),
        "het_job_id": number(job.heterogeneous_id or 0),
        "unsure": unsure(job),
    }


def node_record(node: Any) -> dict[str, Any]:
    """One node in the shape of `scontrol show nodes --json`."""
    return {
        "name": node.name,
        "state": node.state.split("+"),
        "reason": text(node, "reason"),
        "boot_time": number(node.boot_time or 0),
        "slurmd_start_time": number(node.slurmd_start_time or 0),
        "gres": gres_text(node.configured_gres),
        "partitions": node.partitions,
        "comment": text(node, "comment"),
        "extra": text(node, "extra"),
    }


class Reader:
    """The calls, on the one cluster that SLURM_CONF names."""

    def __init__(self, pyslurm: Any, conf: str) -> None:
        self.pyslurm = pyslurm
        self.conf = conf
        self.calls = {"hello": self.hello, "jobs": self.jobs, "nodes": self.nodes, "reservations": self.reservations}
        self._ready = False

    def answer(self, line: str) -> dict[str, Any]:
        """One answer to one line, whatever happens."""
        asked = json.loads(line)
        try:
            return {"id": asked["id"], "data": self.calls[asked["call"]]()}
        except self.pyslurm.RPCError as error:
            return {"id": asked["id"], "error": str(error), "errno": error.errno}
        except Exception as error:  # noqa: BLE001  # the process edge: every failure goes to the parent in words
            return {"id": asked["id"], "fault": f"{type(error).__name__}: {error}"}

    def hello(self) -> dict[str, Any]:
        """Version of pyslurm; needs no controller."""
        return {"version": self.pyslurm.__version__}

    def jobs(self) -> dict[str, Any]:
        """Every job in the controller."""
        self._start()
        return {"jobs": [job_record(job) for job in self.pyslurm.Jobs.load().values()]}

    def nodes(self) -> dict[str, Any]:
        """Every node."""
        self._start()
        return {"nodes": [node_record(node) for node in self.pyslurm.Nodes.load().values()]}

    def reservations(self) -> dict[str, Any]:
        """Every reservation: name, hostlist, whether it is for maintenance."""
        self._start()
        maintenance = self.pyslurm.ReservationFlags.MAINTENANCE
        found = self.pyslurm.Reservations.load().values()
        return {
            "reservations": [
                {"name": one.name, "nodes": one.nodes or "", "maintenance": maintenance in one.flags} for one in found
            ]
        }

    def _start(self) -> None:
        """Once; a missing file is told at once, where Slurm would wait 60 s and then end this process."""
        if not self._ready:
            with open(self.conf, "rb"):  # noqa: PTH123  # is it readable? the error names the file
                pass
            self.pyslurm.slurm_init(self.conf)
            self._ready = True


def private_output() -> TextIO:
    """Our end of standard output; what a library prints goes to standard error and cannot spoil an answer."""
    kept = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(kept, "w", encoding="utf-8")


def main() -> None:
    """Serves until the end of input."""
    out = private_output()
    os.environ["PYSLURM_DISABLE_AUTO_INIT"] = "1"
    try:
        import pyslurm
    except ImportError as error:
        sys.stderr.write(f"pyslurm cannot be imported: {error}\n")
        sys.stderr.flush()
        os._exit(NO_IMPORT)
    reader = Reader(pyslurm, os.environ.get("SLURM_CONF", ""))
    for line in sys.stdin:
        out.write(json.dumps(reader.answer(line), separators=(",", ":")) + "\n")
        out.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
