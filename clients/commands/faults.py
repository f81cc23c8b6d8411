"""`classify`."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from clients.options import COMMON, Common, Fleet


def classify(
    file: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    kind: str | None = None,
    context: Path | None = None,
    fleet: Fleet = None,
    common: Common = COMMON,
) -> int:
    """Judge one text here: a kernel log, a job's log, a report, a dump. Nothing is sent and nothing is changed.

    Parameters
    ----------
    file
        Any text that is known (docs/faults.md), or `-` for standard input.
    kind
        What it is: kernel_log, job_log, elastic_error, flight_recorder, dcgm_diag, dcgm_metrics, nccl_tests, slurm,
        kubernetes, node_problems, nvsentinel or evidence; else it is recognised by how it begins.
    context
        JSON file with what the text does not say: cluster, node, job, boot, rank, now, nodes, history, around, facts.
    """
    from rich.text import Text

    from clients.classifying import classify_text, read_context
    from clients.errors import usage
    from clients.fleet_file import policy
    from clients.output import clean

    known, screen = read_context(context), common.screen
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise usage(f"{file} cannot be read: {error.strerror}") from error
    found = classify_text(raw, kind=kind, context=known, policy=policy(fleet), name="" if file == "-" else file)
    page = "\n".join(clean(line) for line in found.page().split("\n"))
    screen.one(found.record(), name=found.verdict.fault.value, page=Text(page))
    for note in found.notes():
        screen.note(note)
    return 0
