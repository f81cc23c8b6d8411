"""Coverage-guided fuzzing of one reader of bytes: `python -m tests.fuzz.targets READER CORPUS [libFuzzer options]`.

A process of its own, for libFuzzer ends it. It ends with another code than 0, and the input beside it, when a reader
raises what it must not, calls something well that it could not read, runs anything, or takes longer than `-timeout`.
"""

import sys
from collections.abc import Callable

import atheris

with atheris.instrument_imports(include=["fleet.faults", "fleet.checkpoints.pickles", "pickletools"]):
    from fleet.checkpoints.dcp import metadata_name
    from fleet.checkpoints.pickles import PickleError, read_pickle
    from fleet.errors import InvalidInputError
    from fleet.faults.classify import classify
    from fleet.faults.evidence import Evidence, FaultClass, Kind
    from fleet.faults.inputs import read_input
    from fleet.faults.parse import parse_any
    from fleet.faults.sources.flight_recorder import read_flight_dump
    from fleet.faults.tables import load_tables
    from fleet.faults.texts import Origin

NOW = 1_760_000_000.0
TABLES = load_tables()
ORIGIN = Origin(cluster="alpha", node="alpha2", seen_at=NOW)
FORBIDDEN = frozenset(
    {"os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect", "pickle.find_class"}
)
"""Audit events of Python (PEP 578) that no reader may cause: a program, a connection, a pickle's name looked up."""


def kernel_log(data: bytes) -> None:
    """A kernel's log or evidence as JSON, then the judgement of it."""
    _judged(parse_any(data, cluster="alpha", node="alpha2", seen_at=NOW, boot="b").evidence)


def report(data: bytes) -> None:
    """Any text of a kind that is recognised by how it begins."""
    try:
        _, parsed = read_input(data, ORIGIN, TABLES)
    except InvalidInputError:
        return  # it looks like none, and that is said
    _judged(parsed.evidence)


def flight_recorder(data: bytes) -> None:
    """A rank's dump, pickle or JSON."""
    dump, parsed = read_flight_dump(data, ORIGIN)
    assert dump is not None or parsed.evidence or parsed.dropped, "what cannot be read is told or counted"
    _judged(parsed.evidence)


def checkpoint_pickle(data: bytes) -> None:
    """Metadata of a checkpoint."""
    try:
        read_pickle(data, metadata_name)
    except PickleError:
        return


READERS: dict[str, Callable[[bytes], None]] = {
    reader.__name__: reader for reader in (kernel_log, report, flight_recorder, checkpoint_pickle)
}


def _judged(evidence: tuple[Evidence, ...]) -> None:
    verdict = classify(evidence, tables=TABLES, now=NOW)
    if evidence and all(e.kind is Kind.UNREADABLE for e in evidence):
        assert verdict.fault is FaultClass.UNKNOWN, verdict


def _audit(event: str, _args: object) -> None:
    if event in FORBIDDEN:
        raise AssertionError(f"a reader caused {event}")


def main() -> None:
    """Never returns: libFuzzer ends the process."""
    reader = READERS[sys.argv.pop(1)]
    sys.addaudithook(_audit)
    atheris.Setup(sys.argv, reader)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
