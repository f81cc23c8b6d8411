"""`dcgmi diag -j` of DCGM 3 and 4: a failed test is a failed test, a checker that could not run is none.

DCGM publishes no stable schema. Read are the shapes of its own serialisers and schema (`DcgmDiagnostic` 4.x under
"DCGM Diagnostic", 3.x under "DCGM GPU Diagnostic", either inside "iterations"), with severities where DCGM 4 nests
them: inside `warnings`, not beside `status`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from fleet.faults.evidence import Kind, Source
from fleet.faults.tables import Tables, load_tables
from fleet.faults.texts import BROKEN, Findings, Origin, Parsed, decoded, load_json, rows, table, whole, word

ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
MAX_ITERATIONS = 1000
_RUNTIME = ("runtime_error", "Runtime Error", "runtimeError")
_WELL = {"pass", "passed"}
_SKIPPED = {"skip", "skipped", "not run", "notrun"}
_FAILED = {"fail", "failed"}
_WARNED = {"warn", "warning"}


def read_dcgm_diag(
    raw: str | bytes, origin: Origin, *, gpus: Mapping[int, str] | None = None, tables: Tables | None = None
) -> Parsed:
    """Evidence of each failed or warned test, one piece an error. `gpus`: DCGM's GPU id -> uuid, where known.

    A passed or skipped test is counted. A runtime error, a report without one test that ran, and a status that DCGM
    does not have are unreadable: nothing is known of the GPU then.
    """
    found = Findings(Source.HEALTH_CHECK, origin)
    text = decoded(raw)
    start, end = text.find("{"), text.rfind("}")
    document = load_json(text[start : end + 1]) if 0 <= start < end else BROKEN
    if document is BROKEN:
        found.cannot_read("a DCGM report that is no JSON, or cut off", text[:200])
        return found.parsed()
    reports = list(_reports(document))
    for error in _runtime_errors(document, reports):
        found.cannot_read("a DCGM diagnostic that could not run", error)
    if not reports and not found.unreadable:
        found.cannot_read("no DCGM diagnostic in it", text[:200])
    serials = _serials(document)
    for report in reports:
        for test in _tests(report):
            _read_test(found, test, serials, gpus or {}, tables or load_tables())
    ran = found.dropped["a test passed"] + len(found.evidence)
    if reports and not ran and not found.unreadable:
        found.cannot_read("a DCGM diagnostic of which no test ran")
    return found.parsed()


def _reports(document: Any) -> Iterator[Mapping[str, Any]]:
    """Each run's report: the root itself, or one of each iteration."""
    top = table(document)
    runs = [top, *(table(run) for run in rows(top.get("iterations"))[:MAX_ITERATIONS])]
    for run in runs:
        yield from (run[root] for root in ROOTS if isinstance(run.get(root), dict))
    for root in ROOTS:  # iterations may also lie inside the root
        inner = rows(table(top.get(root)).get("iterations"))[:MAX_ITERATIONS]
        for run in map(table, inner):
            yield from (run[key] for key in ROOTS if isinstance(run.get(key), dict))


def _runtime_errors(document: Any, reports: list[Mapping[str, Any]]) -> list[str]:
    places = [table(document), *reports, *(table(run) for run in rows(table(document).get("iterations")))]
    return [text for place in places for key in _RUNTIME if (text := word(place.get(key), 300))]


def _serials(document: Any) -> dict[int, str]:
    """Serial number of each GPU, by DCGM's id."""
    found: dict[int, str] = {}
    for group in map(table, rows(table(document).get("entity_groups"))):
        if word(group.get("entity_group")).upper() == "GPU":
            for entity in map(table, rows(group.get("entities"))):
                if (index := whole(entity.get("entity_id"))) is not None and entity.get("serial_num"):
                    found[index] = word(entity.get("serial_num"), 40)
    return found


def _tests(report: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for category in map(table, rows(report.get("test_categories"))):
        yield from filter(None, map(table, rows(category.get("tests"))))


def _read_test(
    found: Findings, test: Mapping[str, Any], serials: Mapping[int, str], gpus: Mapping[int, str], tables: Tables
) -> None:
    name = word(test.get("name"), 60) or "a test without a name"
    results = [table(result) for result in rows(test.get("results"))]
    summary = table(test.get("test_summary"))
    before = len(found.evidence)
    for result in results:
        found.lines += 1
        status = word(result.get("status"), 20).lower()
        if status in _WELL:
            found.drop("a test passed")
        elif status in _SKIPPED:
            found.drop("a test was skipped")
        elif status in _FAILED | _WARNED:
            _tell(found, name, result, _entity(result, serials), gpus, tables)
        else:
            found.cannot_read("a test's status that DCGM does not have", f"{name}: {result.get('status')!r}"[:100])
    if word(summary.get("status"), 20).lower() in _FAILED and len(found.evidence) == before:
        found.lines += 1
        _tell(found, name, summary, "the whole test", gpus, tables)


def _tell(
    found: Findings, name: str, result: Mapping[str, Any], entity: str, gpus: Mapping[int, str], tables: Tables
) -> None:
    """One piece for each error; a failure that names no error is a failed check by its text."""
    status = word(result.get("status"), 20).lower()
    index = _index(result)
    gpu = gpus.get(index) if index is not None else None
    warnings = rows(result.get("warnings")) or rows(result.get("error")) or [result.get("warnings")]
    for warning in warnings:
        one = table(warning)
        said = word(one.get("warning") if one else warning, 300)
        detail = f"{name}, {entity}, {status}: {said or 'no reason given'}"
        code = _code(one, tables)
        if code is None and status in _FAILED:
            found.tell(Kind.CHECK_FAILED, f"dcgm {name}", detail, gpu=gpu)
        else:
            found.tell(Kind.DCGM_ERROR, code or "severity:4", detail, gpu=gpu)


def _code(warning: Mapping[str, Any], tables: Tables) -> str | None:
    """The error's number; for one that the catalogue lacks its severity; None where DCGM gave neither."""
    error, severity = whole(warning.get("error_id")), whole(warning.get("error_severity"))
    if error is not None and (str(error) in tables.dcgm or severity is None):
        return str(error)
    return f"severity:{severity}" if severity is not None else None


def _index(result: Mapping[str, Any]) -> int | None:
    """DCGM's id of the GPU that the result is about; None for several, and for what is no GPU."""
    group = word(result.get("entity_group")).upper()
    if group and group != "GPU":
        return None
    for key in ("entity_id", "gpu_id", "gpu_ids"):
        if (index := whole(result.get(key))) is not None:
            return index
    return None


def _entity(result: Mapping[str, Any], serials: Mapping[int, str]) -> str:
    index = _index(result)
    if index is not None:
        serial = f" (serial {serials[index]})" if index in serials else ""
        return f"GPU {index}{serial}"
    group = word(result.get("entity_group"), 20)
    return f"{group} {word(result.get('entity_id'), 10)}" if group else f"GPUs {word(result.get('gpu_ids'), 60)}"
