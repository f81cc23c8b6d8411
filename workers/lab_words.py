"""What the commands of every lab say and take alike."""

import shlex
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from clients.output import Screen
from fleet.errors import InvalidInputError
from workers.lab_fleet import lab_of_fleet
from workers.lab_place import Lab, default_root

State = Annotated[str | None, Parameter(help="Folder of fleet.yaml; default $GPU_RUNBOOKS_HOME or ./.runbook.")]
Output = Annotated[
    Literal["table", "json"], Parameter(name=["--output", "-o"], help="table for people, json with stable keys.")
]


def names_of(text: str, example: str) -> tuple[str, ...]:
    """Raises InvalidInputError for an empty list."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InvalidInputError(f"name at least one cluster, e.g. --clusters {example}")
    return names


def take_down(
    place: Lab, clusters: tuple[str, ...] | None, fleet: Path, output: Literal["table", "json"], *, nothing: str
) -> int:
    """Removes the clusters, with the last one their fleet file, and says what is left; `nothing` when all is gone."""
    screen = Screen(output)
    left = place.down(clusters)
    if not place.known() and lab_of_fleet(fleet) == place.root:
        fleet.unlink()
        screen.note(f"{fleet} removed with its lab")
    if output == "json":
        screen.data(left)
    elif not left.clusters:
        screen.line(f"no cluster under {place.root}; nothing to remove")
    else:
        screen.line(f"removed: {', '.join(left.clusters)} ({left.ended} processes ended)")
        screen.line(f"left behind: {nothing if left.clean else 'see below'}")
    for line in (*left.processes, *left.mounts, *left.cgroups):
        screen.note(f"LEFT {line}")
    if left.namespaces:
        screen.note(f"LEFT {left.namespaces} PID namespaces of nodes")
    return 0 if left.clean else 1


def indented(screen: Screen, text: str) -> None:
    """A command to copy: never wrapped."""
    screen.out.print(f"  {text}", soft_wrap=True)


def root_option(place: Lab, purpose: str) -> str:
    """` --root DIR` where it is not the default one of that purpose."""
    return "" if place.root == default_root(purpose) else f" --root {shlex.quote(str(place.root))}"
