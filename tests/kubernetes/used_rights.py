"""Which granted rights the tests use, told by the audit logs of their apiservers.

Each cluster of a run with `GPU_RUNBOOKS_USED_RIGHTS=FILE` adds what its accounts were allowed to do. When all groups
of tests have ended, `judge(FILE)` names what rbac.yaml grants and nothing used.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from activities.backends.kubernetes.rights import RIGHTS
from tests.kubernetes.rbac import RBAC, granted

MODULE = RBAC.parents[1] / "lab" / "k8s" / "kubernetes" / "go.mod"
VARIABLE = "GPU_RUNBOOKS_USED_RIGHTS"
_DECISION, _REASON = "authorization.k8s.io/decision", "authorization.k8s.io/reason"


def collect(folder: Path) -> None:
    """Adds what one cluster's accounts used to the run's file; nothing where no run collects."""
    if VARIABLE not in os.environ:
        return
    found = {right for log in folder.glob("log/audit*.log") for right in used_in(_lines(log))}
    with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as file:
        file.write("".join(f"{role} {right}\n" for role, right in sorted(found)))


def _lines(log: Path) -> Iterator[str]:
    with log.open(encoding="utf-8") as lines:
        yield from lines


def used_in(lines: Iterable[str]) -> set[tuple[str, str]]:
    """(role, right) of each call that a role allowed. The apiserver names the first role that does; a last line may
    be torn, for apiservers are killed in tests."""
    found = set()
    for line in lines:
        if not line.endswith("\n"):
            break
        event = json.loads(line)
        notes, about = event.get("annotations", {}), event.get("objectRef", {})
        if notes.get(_DECISION) != "allow" or ' of ClusterRole "' not in notes.get(_REASON, ""):
            continue
        role = notes[_REASON].partition(' of ClusterRole "')[2].partition('"')[0]
        part, group = about.get("subresource"), about.get("apiGroup")
        resource = about["resource"] + (f"/{part}" if part else "") + (f".{group}" if group else "")
        found.add((role, f"{event['verb']} {resource}"))
    return found


def lab_release() -> tuple[int, int]:
    """Of the lab's Kubernetes, as its module is pinned."""
    found = re.search(r"k8s\.io/kubernetes v(\d+)\.(\d+)", MODULE.read_text(encoding="utf-8"))
    assert found, MODULE
    return int(found[1]), int(found[2])


class Judgement(NamedTuple):
    """What became of a run."""

    unused: tuple[str, ...]
    """One line for each right that is granted, that an apiserver of this release asks for, and that nothing used."""
    unseen: tuple[str, ...]
    """API groups of job kinds that no cluster of the run had, so that nothing is said about rights in them."""


def judge(file: Path, release: tuple[int, int]) -> Judgement:
    """Reads what the run's clusters have written."""
    used = set(file.read_text(encoding="utf-8").splitlines())
    here = {g.group for g in granted() if f"{g.role} {g}" in used} | {r.group for r in RIGHTS if not r.optional}
    asked = [g for g in granted() if g.since <= release]
    left = [f"{g.role}: {g}" for g in asked if g.group in here and f"{g.role} {g}" not in used]
    return Judgement(tuple(left), tuple(sorted({g.group for g in asked} - here)))
