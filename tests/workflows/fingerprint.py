"""Renews `fingerprints.json`: `uv run python -m tests.workflows.fingerprint`.

Read the difference before you commit it: a changed order of commands breaks runbooks that are under way, unless it is
patched or the release is pinned.
"""

import json
import sys
from pathlib import Path

from tests.workflows.source import fingerprint

BASELINE = Path(__file__).with_name("fingerprints.json")


def write() -> None:
    """Writes what the source says now."""
    BASELINE.write_text(json.dumps(fingerprint(), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    write()
    sys.stdout.write(f"{BASELINE.name} is renewed; review its difference\n")
