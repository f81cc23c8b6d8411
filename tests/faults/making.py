"""Evidence as the sources would send it, short enough to read in a table of cases."""

from fleet.faults.classify import classify
from fleet.faults.evidence import Evidence, Kind, Source, Verdict
from fleet.faults.parse import parse_job_log, parse_kernel_log
from fleet.faults.tables import load_tables

NOW = 1_760_000_000.0
TABLES = load_tables()
GPU = "0000:ab:00"
UUID = "GPU-5f0c1d2e-0001-4abc-9def-000000000001"


def kernel(*messages: str, node: str = "alpha2", at: float = NOW - 30, boot: str | None = "boot-2") -> list[Evidence]:
    """Evidence of `NVRM: Xid (PCI:...): MESSAGE` lines, one second apart."""
    lines = (f"[ {1000 + n}.5] NVRM: Xid (PCI:{GPU}): {message}" for n, message in enumerate(messages))
    return list(parse_kernel_log("\n".join(lines), cluster="alpha", node=node, seen_at=at, boot=boot))


def xid(
    code: int,
    *,
    ago: float = 30,
    gpu: str = GPU,
    node: str = "alpha2",
    job: str | None = None,
    detail: str = "",
    boot: str | None = "boot-2",
) -> Evidence:
    """An XID with a known time."""
    return seen(
        Kind.XID, Source.KERNEL, code=str(code), ago=ago, gpu=gpu, node=node, job=job, detail=detail, boot=boot
    )


def seen(
    kind: Kind,
    source: Source,
    *,
    code: str | None = None,
    ago: float = 30,
    gpu: str | None = None,
    node: str | None = None,
    job: str | None = None,
    detail: str = "",
    boot: str | None = None,
) -> Evidence:
    return Evidence(
        source=source,
        kind=kind,
        cluster="alpha",
        node=node,
        gpu=gpu,
        job=job,
        code=code,
        boot=boot,
        seen_at=NOW - ago,
        happened_at=NOW - ago,
        detail=detail,
    )


def log(*lines: str, job: str = "train-7", at: float = NOW - 10, attempt: int = 1) -> list[Evidence]:
    return list(parse_job_log(lines, cluster="alpha", job=job, seen_at=at, attempt=attempt))


def ended(code: str, *, job: str = "train-7", node: str | None = None) -> Evidence:
    return seen(Kind.JOB_EXIT, Source.SCHEDULER, code=code, job=job, node=node, ago=10)


def traceback(error: str, rank: int = 0) -> list[str]:
    body = (
        "Traceback (most recent call last):",
        '  File "/home/user/train.py", line 12, in step',
        "    work()",
        error,
    )
    return [f"{rank}: {line}" for line in body]


def judge(*evidence: Evidence, history: tuple[Evidence, ...] = (), boot: str | None = "boot-2") -> Verdict:
    return classify(evidence, history=history, tables=TABLES, boot=boot, now=NOW)
