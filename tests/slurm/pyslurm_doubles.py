"""Stand-ins: pyslurm's objects made from golden JSON, an interpreter whose pyslurm misbehaves, reads in memory."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from activities.backends.slurm.normalise import JobRecord, NodeRecord
from activities.backends.slurm.reads import Reservation

FLAGS = ("COMPLETING", "STAGE_OUT", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")


def value(raw: Any) -> Any:
    """pyslurm shows unset numbers and zeros as None."""
    if not isinstance(raw, dict):
        return raw or None
    return (raw["number"] or None) if raw["set"] and not raw["infinite"] else None


def parse_gres(text: str) -> dict[str, Any]:
    """As `to_gres_dict` of pyslurm 25.11.2 does it, for the forms in the golden files."""
    gres: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        found = re.fullmatch(r"(.+?):(\d+)(?:\(IDX:(.+)\))?", part)
        assert found is not None, part
        name, count, index = found.groups()
        gres[name] = {"count": int(count), "indexes": index} if index else int(count)
    return gres


def pyslurm_job(raw: Mapping[str, Any]) -> SimpleNamespace:
    """A golden job as pyslurm 25.11.2 shows it: one word of state, one text of reason, exit codes minus 128."""
    words = raw["job_state"]
    code = value(raw["exit_code"]["return_code"]) or 0
    nodes = re.search(r"node=(\d+)", raw["tres_req_str"])
    assert nodes is not None
    layout = {f"n{at}": {"gres": parse_gres(text)} for at, text in enumerate(raw["gres_detail"])}
    return SimpleNamespace(
        id=raw["job_id"],
        name=raw["name"],
        user_id=raw["user_id"],
        comment=raw["comment"] or None,
        admin_comment=raw["admin_comment"] or None,
        state=next((flag for flag in FLAGS if flag in words), words[0]),
        state_reason=raw["state_description"] or raw["state_reason"],
        priority=raw["priority"]["number"],
        requeue_count=value(raw["restart_cnt"]) or 0,
        is_requeueable=raw["requeue"],
        is_batch_job=raw["batch_flag"],
        partition=raw["partition"] or None,
        allocated_nodes=raw["nodes"] or None,
        num_nodes=raw["node_count"]["number"],
        get_resource_layout_per_node=lambda: layout,
        gres_per_node=parse_gres(raw["tres_per_node"]),
        requested_tres=SimpleNamespace(node=SimpleNamespace(count=int(nodes[1]))),
        excluded_nodes=raw["excluded_nodes"] or None,
        required_nodes=raw["required_nodes"] or None,
        exit_code=code - 128 if code >= 128 else code,
        exit_code_signal=value(raw["exit_code"]["signal"]["id"]) or 0,
        submit_time=value(raw["submit_time"]),
        eligible_time=value(raw["eligible_time"]),
        start_time=value(raw["start_time"]),
        end_time=value(raw["end_time"]),
        array_id=value(raw["array_job_id"]),
        array_task_id=value(raw["array_task_id"]),
        array_tasks_waiting=raw["array_task_string"].split("%")[0] or None,
        array_tasks_parallel=value(raw["array_max_tasks"]),
        heterogeneous_id=value(raw["het_job_id"]),
    )


def pyslurm_node(raw: Mapping[str, Any]) -> SimpleNamespace:
    """A golden node as pyslurm shows it: the state in one text."""
    return SimpleNamespace(
        name=raw["name"],
        state="+".join(raw["state"]),
        reason=raw["reason"] or None,
        boot_time=value(raw["boot_time"]),
        slurmd_start_time=value(raw["slurmd_start_time"]),
        configured_gres=parse_gres(raw["gres"]),
        partitions=list(raw["partitions"]),
        comment=raw["comment"] or None,
        extra=raw["extra"] or None,
    )


class ReadsInMemory:
    """The commands' reads, and how often they were asked."""

    def __init__(self, jobs: tuple[JobRecord, ...] = (), version: str = "25.11.7") -> None:
        self.jobs = jobs
        self.version = version
        self.asked: list[str] = []

    async def ping(self) -> None:
        self.asked.append("ping")

    async def config(self) -> Mapping[str, str]:
        self.asked.append("config")
        return {"ClusterName": "gold", "SLURM_VERSION": self.version}

    async def list_jobs(self) -> tuple[JobRecord, ...]:
        self.asked.append("jobs")
        return self.jobs

    async def list_nodes(self) -> tuple[NodeRecord, ...]:
        self.asked.append("nodes")
        return ()

    async def list_reservations(self) -> tuple[Reservation, ...]:
        self.asked.append("reservations")
        return ()

    async def close(self) -> None:
        self.asked.append("close")


STUB = """
import enum, os, signal, time
__version__ = "25.11.2"
class RPCError(Exception):
    def __init__(self, errno, text):
        super().__init__(text)
        self.errno = errno
ReservationFlags = enum.Flag("ReservationFlags", "MAINTENANCE")
def slurm_init(conf):
    with open(conf) as file:
        behaviour.extend(file.read().split())
behaviour = []
class Jobs:
    @staticmethod
    def load():
        print("a library's own words", flush=True)
        for word in behaviour:
            if word == "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            if word == "hang":
                time.sleep(600)
            if word == "silent":
                raise RPCError(5004, "Socket timed out on send/recv operation")
            if word == "odd":
                raise RPCError(-1, "Unspecified error")
        return {}
class Nodes(Jobs): pass
class Reservations(Jobs): pass
"""
"""A pyslurm whose calls do what the words in the "slurm.conf" say."""


def python_with_stub(folder: Path, stub: str = STUB) -> str:
    """An interpreter that has the stub as its pyslurm; takes `-I FILE` as the parent calls it."""
    site = folder / "stub"
    site.mkdir(exist_ok=True)
    (site / "pyslurm.py").write_text(stub)
    program = (
        f"import sys, runpy; sys.path.insert(0, {str(site)!r}); runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec python3 -c "{program}" "$2"\n')
    python.chmod(0o755)
    return str(python)
