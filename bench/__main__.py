"""`python -m bench NAME [-o table|json] [options]`: measures, prints, and says whether the goal is met.

Exit codes: 0 every goal is met, 1 one is missed, 2 wrong words (then the benches are listed),
3 it cannot be measured here.
"""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from rich.console import Console

from bench.machine import this_machine
from bench.table import Figure, Result, as_json, render
from fleet.errors import FleetError

MET, MISSED, USAGE, NOT_MEASURED = 0, 1, 2, 3


class Bench(Protocol):
    """What a bench's module offers. `run` raises FleetError when it cannot measure here."""

    SUMMARY: str

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Its own options, with defaults that finish in minutes."""

    def run(self, options: argparse.Namespace) -> tuple[tuple[Figure, ...], tuple[str, ...]]:
        """Measures; gives the figures, and what a reader must know to judge them."""


BENCHES: Mapping[str, str] = {
    "burst": "bench.burst",
    "copy": "bench.copying",
    "overhead": "bench.overhead",
    "parse": "bench.parse",
    "placement": "bench.placement",
    "recovery": "bench.recovery",
}
"""Name to module; loaded only when asked for."""


def main(argv: Sequence[str], benches: Mapping[str, Bench] | None = None) -> int:
    """Runs one bench and gives its exit code. `benches`: those of a test instead of ours."""
    names = tuple(benches if benches is not None else BENCHES)
    if not argv or argv[0] in {"-h", "--help"}:
        print(_list(names, benches), file=sys.stderr if not argv else sys.stdout)
        return MET if argv else USAGE
    name = argv[0]
    if name not in names:
        print(f"no bench {name!r}\n{_list(names, benches)}", file=sys.stderr)
        return USAGE
    bench = _load(name, benches)
    parser = argparse.ArgumentParser(prog=f"python -m bench {name}", description=bench.SUMMARY)
    parser.add_argument("-o", choices=("table", "json"), default="table", dest="form", help="what is printed")
    bench.add_options(parser)
    try:
        options = parser.parse_args(argv[1:])
    except SystemExit as asked:  # argparse has said what is wrong, or has printed its help
        return int(asked.code or 0)
    try:
        machine = this_machine()
        figures, notes = bench.run(options)
    except FleetError as error:
        print(f"{name} could not be measured: {error}", file=sys.stderr)
        return NOT_MEASURED
    result = Result(bench=name, machine=machine, figures=figures, notes=notes)
    if options.form == "json":
        print(as_json(result))
    else:
        render(result, Console(width=None if sys.stdout.isatty() else 160))
    return MET if result.goal_met else MISSED


def _load(name: str, benches: Mapping[str, Bench] | None) -> Bench:
    if benches is not None:
        return benches[name]
    return cast("Bench", importlib.import_module(BENCHES[name]))


def _list(names: tuple[str, ...], benches: Mapping[str, Bench] | None) -> str:
    lines = [f"  {name:<12}{_load(name, benches).SUMMARY}" for name in names]
    return "\n".join(["usage: python -m bench NAME [-o table|json] [options]", *lines])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that labs and servers are taken away then too
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a cancelled long poll of Temporal's client can hang a normal exit
