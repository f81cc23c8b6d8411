"""`runbook diagnose hang`: which rank a job waits for, from a folder of Flight Recorder dumps."""

import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from activities.backends.dumps import read_dumps
from clients.errors import Exit
from clients.names import name as checked_name
from clients.options import COMMON, Common
from fleet.errors import InvalidInputError, NotFoundError
from fleet.faults.hangs.diagnose import HangReport, Suspect, diagnose
from fleet.faults.hangs.meetings import world_size
from fleet.faults.hangs.places import MAX_LINES, Place, by_blocks, from_log, parse_table
from fleet.faults.hangs.words import numbers
from fleet.faults.sources.flight_recorder import MAX_RANKS
from fleet.faults.tables import load_tables
from fleet.report import moment

if TYPE_CHECKING:
    from rich.console import RenderableType


def hang(
    folder: Path,
    /,
    *,
    ranks: Annotated[int, Parameter(name="--ranks")] = 0,
    nodes: str = "",
    places: Path | None = None,
    log: Path | None = None,
    job: str | None = None,
    common: Common = COMMON,
) -> int:
    """Name the rank that a hung job waits for, its node and GPU, and say why; exit 1 without a dump to read.

    Reads what PyTorch's Flight Recorder wrote, one file a rank, as pickle or JSON; a pickle is read without running
    anything of it. Nothing is changed. The newest file of each rank counts.

    Parameters
    ----------
    folder
        Where the dumps are; each name ends in its rank (nccl_trace_rank_12).
    ranks
        How many ranks the job has; else the dumps' own process groups tell.
    nodes
        Its nodes, separated by commas and in the order of its ranks: they are taken to lie on them in blocks.
    places
        File with lines RANK NODE [GPU], where the ranks do not lie in blocks.
    log
        The job's log: NCCL's own lines (NCCL_DEBUG=INFO) tell node and GPU of each rank.
    job
        Name of the job, for the verdict.
    """
    if not 0 <= ranks <= MAX_RANKS:
        raise InvalidInputError(f"--ranks is from 0 to {MAX_RANKS}")
    if not folder.is_dir():
        raise NotFoundError(f"there is no folder {json.dumps(str(folder))} on this machine; name the dumps' folder")
    found = read_dumps(str(folder), lambda _: True, limit=math.inf)
    count = max(ranks, world_size(found.dumps))
    report = diagnose(
        found.dumps,
        places=_places(nodes, places, log, count),
        ranks=count,
        job=checked_name(job, "job") if job else None,
        catalogue=load_tables().version,
    )
    screen = common.screen
    if screen.form == "json":
        screen.data(as_json(report, found.left))
    elif screen.form == "name":
        for suspect in report.suspects:
            screen.line(suspect.node or f"rank {suspect.rank}")
    else:
        screen.show(as_page(report))
    for name, why in found.left.items():
        screen.note(f"not read: {name}: {why}")
    return Exit.DONE if found.dumps else Exit.FAILED


def as_json(report: HangReport, left: Mapping[str, str]) -> dict[str, Any]:
    """The promised shape."""
    verdict = report.verdict
    return {
        "class": verdict.fault,
        "culprit": verdict.culprit.model_dump(),
        "rule": verdict.rule,
        "title": verdict.title,
        "suspects": [suspect.model_dump() for suspect in report.suspects],
        "waits": [wait.model_dump() for wait in report.waits],
        "mismatches": [mismatch.model_dump() for mismatch in report.mismatches],
        "companions": verdict.companions,
        "refused": verdict.refused,
        "confidence": verdict.confidence,
        "catalogue": verdict.catalogue,
        "ranks": report.ranks,
        "dumped": report.dumped,
        "left": dict(left),
    }


def as_page(report: HangReport) -> "RenderableType":
    """The verdict, who is suspected, who waits for what, and what was refused."""
    from rich.console import Group

    from clients.tables import cell, grid, table

    verdict = report.verdict
    parts: list[RenderableType] = [
        cell(verdict.title, "bold"),
        grid(
            [
                ("class", f"{verdict.fault}, rule {verdict.rule}, confidence {verdict.confidence:.0%}"),
                ("dumps", f"{report.dumped} of {report.ranks} ranks"),
            ]
        ),
    ]
    if report.suspects:
        suspects = table("SUSPECT", "NODE", "GPU", "WHY")
        for s in report.suspects:
            suspects.add_row(cell(f"rank {s.rank}"), cell(s.node or "-"), cell(_gpu(s)), cell(s.why))
        parts += ["", suspects]
    if report.waits:
        waits = table("NOT OVER", "SINCE", "AT", "WAITING", "DID NOT COME", "NO DUMP")
        for w in report.waits:
            since = moment(w.since) if w.since is not None else "-"
            who = (cell(numbers(r)) for r in (w.waiting, w.missing, w.silent))
            waits.add_row(cell(w.what, "" if w.first else "dim"), cell(since), cell(w.place), *who)
        parts += ["", waits]
    parts += [""] if verdict.refused or verdict.companions else []
    parts += [cell(f"refused: {text}", "dim") for text in verdict.refused]
    parts += [cell(f"note: {text}") for text in verdict.companions]
    return Group(*parts)


def _gpu(suspect: Suspect) -> str:
    return suspect.gpu or ("-" if suspect.local is None else f"{suspect.local}")


def _places(nodes: str, places: Path | None, log: Path | None, ranks: int) -> dict[int, Place]:
    """Blocks, over them NCCL's lines, over them the table. Raises InvalidInputError for what does not fit."""
    names = [checked_name(node, "node") for node in nodes.split(",") if node]
    found = by_blocks(names, ranks)
    if names and not found:
        raise InvalidInputError(
            f"{ranks} ranks do not lie in blocks over {len(names)} nodes; say how many ranks there are (--ranks), or "
            "where each is (--places)"
        )
    if log is not None:
        try:
            with log.open(encoding="utf-8", errors="replace") as lines:
                told = from_log(itertools.islice(lines, MAX_LINES), ranks)
        except OSError as error:
            raise InvalidInputError(f"{log} cannot be read: {error.strerror}") from error
        if not told:
            raise InvalidInputError(
                f"{log} holds no line of NCCL that says where one of {ranks} ranks is; run the job with "
                "NCCL_DEBUG=INFO, or give --nodes or --places"
            )
        found |= told
    if places is not None:
        try:
            found |= parse_table(places.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInputError(f"{places} cannot be read: {error}") from error
    return found
