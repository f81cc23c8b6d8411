"""Holds our answers against the libraries' own: what we call complete they load, what we call broken they refuse.

Each root and each variant is judged by us and its newest entry is loaded by its library. Where a library cannot tell
a broken entry (it loads one without an optimizer, say), the variant says so, and that too is checked.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from activities.checkpoints import look
from tests.checkpoints.real import copy_of, unpack
from tests.checkpoints.variants import NEWEST, VARIANTS, Variant

_ERROR = re.compile(r"[\w.]*(Error|Exception)\b")
Child = Callable[..., "subprocess.CompletedProcess[str]"]


def verify(child: Child, word: str = "") -> int:
    """Prints a line for each question with this word in its name; gives back the number of disagreements."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        unpacked = unpack(Path(folder) / "real")
        for library, entry in NEWEST.items():
            if word in (what := f"{library}: whole"):
                root = copy_of(unpacked, library, Path(folder) / "whole")
                wrong += _line(what, _ours(root, entry), _loads(child, library, root, entry), "loads step 30")
        for number, variant in enumerate(VARIANTS):
            if variant.library_tells is not None and word in str(variant):
                root = copy_of(unpacked, variant.library, Path(folder) / str(number))
                variant.breaks(root)
                wrong += _one(child, variant, root)
    print(f"{wrong} disagreements")
    return wrong


def _one(child: Child, variant: Variant, root: Path) -> int:
    loaded = _loads(child, variant.library, root, variant.entry)
    return _line(
        str(variant), _ours(root, variant.entry), loaded, "refuses" if variant.library_tells else "loads step"
    )


def _ours(root: Path, entry: str) -> str:
    found = next((c for c in look(root).candidates if c.entry.name == entry), None)
    if found is None:
        return "none"
    return "complete" if found.complete else f"broken ({found.reason})"


def _loads(child: Child, library: str, root: Path, entry: str) -> str:
    """The step that was loaded, or the refusal's own words."""
    done = child("load", library, root, entry)
    if done.returncode == 0:
        return f"loads step {done.stdout.split()[-1]}"
    words = [line for line in done.stderr.splitlines() if _ERROR.match(line) and "ProcessExited" not in line]
    return f"refuses ({words[-1][:100] if words else f'exit code {done.returncode}'})"


def _line(what: str, ours: str, theirs: str, wanted: str) -> int:
    """1 where the library does not do what is wanted of it."""
    agreed = theirs.startswith(wanted)
    print(f"{'ok   ' if agreed else 'WRONG'} {what:40} | we: {ours} | library: {theirs}", flush=True)
    return not agreed
