"""Every text that we can read, by the name of its kind; and which kind a text is, where nobody says."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fleet.errors import InvalidInputError
from fleet.faults.evidence import Kind
from fleet.faults.job_log import parse_job_log
from fleet.faults.kernel_log import read_kernel_log
from fleet.faults.parse import parse_any
from fleet.faults.sources.dcgm_diag import read_dcgm_diag
from fleet.faults.sources.dcgm_metrics import read_dcgm_metrics
from fleet.faults.sources.elastic_error import read_elastic_error
from fleet.faults.sources.flight_recorder import read_flight_dump
from fleet.faults.sources.kubernetes_status import read_kubernetes_status
from fleet.faults.sources.nccl_tests import read_nccl_tests
from fleet.faults.sources.node_problems import read_node_problems
from fleet.faults.sources.nvsentinel import read_nvsentinel
from fleet.faults.sources.slurm_records import read_slurm_records
from fleet.faults.tables import Tables
from fleet.faults.texts import Origin, Parsed, decoded

HEAD = 65_536
"""Characters by which a text's kind is recognised."""

Reader = Callable[[str | bytes, Origin, Tables], Parsed]


@dataclass(frozen=True)
class Input:
    """One kind of text."""

    what: str
    """For people: what it is and where it comes from."""
    read: Reader


def _kernel(raw: str | bytes, o: Origin, tables: Tables) -> Parsed:
    return read_kernel_log(raw, cluster=o.cluster, node=o.node or "", seen_at=o.seen_at, boot=o.boot, tables=tables)


def _job(raw: str | bytes, o: Origin, tables: Tables) -> Parsed:
    ranks = {o.rank: o.node} if o.rank is not None and o.node else None
    told = parse_job_log(
        raw, cluster=o.cluster, job=o.job or "", seen_at=o.seen_at, rank_nodes=ranks, nodes=o.nodes, tables=tables
    )
    return Parsed(evidence=told, lines=decoded(raw).count("\n") + 1)


def _evidence(raw: str | bytes, o: Origin, tables: Tables) -> Parsed:
    return parse_any(raw, cluster=o.cluster, node=o.node or "", seen_at=o.seen_at, boot=o.boot)


INPUTS: Mapping[str, Input] = {
    "kernel_log": Input("a node's kernel log: dmesg, journal, syslog, /dev/kmsg", _kernel),
    "job_log": Input("a job's own output", _job),
    "elastic_error": Input("torchelastic's error file of one rank", read_elastic_error),
    "flight_recorder": Input(
        "PyTorch's Flight Recorder dump of one rank", lambda raw, o, tables: read_flight_dump(raw, o)[1]
    ),
    "dcgm_diag": Input("the report of dcgmi diag -j", lambda raw, o, tables: read_dcgm_diag(raw, o, tables=tables)),
    "dcgm_metrics": Input("a scrape of dcgm-exporter", read_dcgm_metrics),
    "nccl_tests": Input("output of nccl-tests", lambda raw, o, tables: read_nccl_tests(raw, o)),
    "slurm": Input("scontrol show job or show node, text or JSON", lambda raw, o, tables: read_slurm_records(raw, o)),
    "kubernetes": Input("kubectl get pod, node or job, as JSON", read_kubernetes_status),
    "node_problems": Input("conditions and events of node-problem-detector and its like", read_node_problems),
    "nvsentinel": Input("health events of NVSentinel", read_nvsentinel),
    "evidence": Input("evidence as our own JSON", _evidence),
}
"""Kind of a text -> how it is read. No reader raises for a bad text."""

_OWN = "|".join(kind.value for kind in Kind)
_IN_JSON = (
    ("dcgm_diag", re.compile(r'"DCGM (?:GPU )?Diagnostic"|"runtime_error"')),
    ("flight_recorder", re.compile(r'"pg_status"|"pg_config"|"collective_seq_id"')),
    ("nvsentinel", re.compile(r'"check[Nn]ame"|"healthevent"|"healthEvent"')),
    ("elastic_error", re.compile(r'"extraInfo"|"py_callstack"|^\{\s{0,40}"message"\s{0,9}:')),
    ("nccl_tests", re.compile(r'"out_of_place"')),
    ("slurm", re.compile(r'"job_state"|"slurmd_version"|"nodes"\s{0,9}:\s{0,9}\[|"jobs"\s{0,9}:\s{0,9}\[')),
    ("node_problems", re.compile(r'"involvedObject"|^\{\s{0,40}"conditions"|^\[\s{0,40}\{\s{0,40}"type"')),
    ("kubernetes", re.compile(r'"kind"\s{0,9}:\s{0,9}"[A-Z][A-Za-z]{1,40}"')),
    ("evidence", re.compile(rf'"kind"\s{{0,9}}:\s{{0,9}}"(?:{_OWN})"')),
)
_IN_TEXT = (
    ("dcgm_metrics", re.compile(r"^(?:# (?:HELP|TYPE) )?DCGM_(?:FI|EXP)_", re.MULTILINE)),
    ("nccl_tests", re.compile(r"^# nThread \d|^# Avg bus bandwidth|#wrong", re.MULTILINE)),
    ("slurm", re.compile(r"^(?:JobId|NodeName)=", re.MULTILINE)),
    (
        "kernel_log",
        re.compile(
            r"NVRM: |SXid {0,4}\(|kernel: |^(?:<\d{1,3}>)?\[ {0,9}\d{1,9}\.\d{6}\]|^\d{1,3},\d{1,12},\d{1,16},",
            re.MULTILINE,
        ),
    ),
    ("job_log", re.compile(r"Traceback \(most recent call last\)|NCCL (?:WARN|INFO)|CUDA|slurmstepd|\bloss\b|torch")),
)


def recognise(raw: str | bytes) -> str | None:
    """Kind of a text by how it begins, also of one that is cut off; None where it looks like none of ours."""
    if isinstance(raw, bytes) and raw[:1] == b"\x80":
        return "flight_recorder"
    head = decoded(raw[:HEAD]).lstrip("\ufeff \t\r\n")
    if head.startswith(("{", "[{", "[\n", "[ {", "[\r")):
        found = next((kind for kind, pattern in _IN_JSON if pattern.search(head)), None)
        if found is not None or head.startswith("{"):
            return found
    return next((kind for kind, pattern in _IN_TEXT if pattern.search(head)), None)


def read_input(raw: str | bytes, origin: Origin, tables: Tables, kind: str | None = None) -> tuple[str, Parsed]:
    """(kind, what was read). Raises InvalidInputError for an unknown kind, and for a text of which nobody can say
    what it is."""
    if kind is not None and kind not in INPUTS:
        raise InvalidInputError(f"no kind {kind!r}; known: {', '.join(INPUTS)}")
    named = kind or recognise(raw)
    if named is None:
        raise InvalidInputError(f"the text looks like none that is known; name its kind: {', '.join(INPUTS)}")
    parsed = INPUTS[named].read(raw, origin, tables)
    told = tuple(e.model_copy(update={"node": e.node or None, "job": e.job or None}) for e in parsed.evidence)
    return named, parsed.model_copy(update={"evidence": told})


OF_A_NODE = frozenset({"dcgm_diag", "dcgm_metrics", "nccl_tests", "node_problems", "nvsentinel"})
"""Kinds that are about a node alone, beside its kernel log and evidence as JSON."""


def read_of_node(raw: str | bytes, origin: Origin, tables: Tables) -> Parsed:
    """What a text says about one node: a report or metrics that are recognised, else a kernel log or evidence."""
    kind = recognise(raw)
    if kind in OF_A_NODE:
        return read_input(raw, origin, tables, kind)[1]
    return parse_any(raw, cluster=origin.cluster, node=origin.node or "", seen_at=origin.seen_at, boot=origin.boot)
