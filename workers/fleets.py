"""Where the fleet file is, and the fleets that `runbook lab` and `runbook demo` write. Only those say `auto`."""

import os
from pathlib import Path

from clients.embedded import home
from fleet.errors import InvalidInputError

FLEET_VARIABLE = "GPU_RUNBOOKS_FLEET"

SIM_MARKER = "# written by `runbook dev --sim` or `runbook demo`; it may be overwritten by them"

ALL_AUTO = """\
modes:  # written by `runbook lab` and `runbook demo` only: a real fleet starts with propose
  adopt: auto
  isolate: auto
  evacuate: auto
  fence: auto
  reboot: auto
  check: auto
  return: auto
  restart_in_place: auto
  failover_in_cluster: auto
  failover_across_clusters: auto
"""


def find_fleet(given: str | None, state: str | None = None) -> Path:
    """`--fleet`, else the environment, else ./fleet.yaml, else that of the state folder (`--state`, else the usual
    one). Raises InvalidInputError."""
    named = given or os.environ.get(FLEET_VARIABLE)
    places = [Path(named)] if named else [Path("fleet.yaml"), home(state) / "fleet.yaml"]
    for place in places:
        if place.is_file():
            return place.resolve()
    tried = ", ".join(str(p) for p in places)
    raise InvalidInputError(
        f"no fleet file (tried {tried}); name one with --fleet or ${FLEET_VARIABLE}, "
        "or let `runbook lab slurm up` or `runbook dev --sim` write one"
    )


def write_sim_fleet(folder: Path, clusters: tuple[str, ...] = ("alpha", "beta"), *, fresh: bool = False) -> Path:
    """An embedded fleet of six nodes a cluster, and its fleet file; an existing one is kept unless `fresh`."""
    from activities.backends.sim import ClusterShape, create_world

    folder.mkdir(parents=True, exist_ok=True)
    world, fleet = folder / "world.sqlite", folder / "fleet.yaml"
    if fresh:
        for part in folder.glob("world.sqlite*"):
            part.unlink()
    if not world.exists():
        create_world(world, {name: ClusterShape(nodes=6, gpus=8) for name in clusters})
    if fleet.exists() and not fleet.read_text(encoding="utf-8").startswith(SIM_MARKER):
        raise InvalidInputError(f"{fleet} was not written by `runbook dev --sim`; move it away")
    lines = [f"  {name}: {{kind: sim, path: world.sqlite}}" for name in clusters]
    fleet.write_text(f"{SIM_MARKER}\nversion: 1\nclusters:\n" + "\n".join(lines) + "\n" + ALL_AUTO)
    return fleet
