"""`runbook lab`: real private clusters on this machine, their faults, and their removal."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from clients.embedded import home
from clients.output import Screen
from workers.lab_events import Events
from workers.lab_fleet import check_fleet_file, write_fleet
from workers.lab_place import DEPLOY, default_root
from workers.lab_slurm import DEFAULT_REQUEUE, LabCluster, SlurmLab
from workers.lab_words import Output, State, indented, names_of, root_option, take_down

if TYPE_CHECKING:
    from rich.table import Table

lab = App(name="lab", help="Real private clusters on this machine.", default_parameter=Parameter(show_default=False))
slurm = App(name="slurm", help="Real Slurm: controllers, node daemons, power and faults. Needs root.")
lab.command(slurm)
lab.command(
    "workers.lab_k8s_commands:k8s",
    name="k8s",
    help="Real Kubernetes: control planes, kubelets, containers, power and faults. Needs root.",
)
lab.command("workers.lab_k8s_commands:shell", name="shell", help="Enter the Kubernetes lab's network namespace.")

Root = Annotated[Path | None, Parameter(help="Folder of the lab, a short path; default /tmp/gpu-runbooks-lab-UID.")]
EXAMPLE = "alpha,beta"

EVENTS = Events(
    command="runbook lab slurm",
    node_suffix="1",
    of_node={
        "crash": "node-crash",
        "freeze": "node-freeze",
        "thaw": "node-thaw",
        "kill-slurmd": "slurmd-kill",
        "start-slurmd": "slurmd-start",
        "reboot": "power-cycle",
        "power-off": "power-off",
        "power-on": "power-on",
        "gpu-lose": "gpu-lose",
        "health": "health",
        "check-fail": "check-fail",
    },
    of_cluster={
        "kill-controller": "ctld-kill",
        "start-controller": "ctld-start",
        "freeze-controller": "ctld-freeze",
        "thaw-controller": "ctld-thaw",
    },
    wants={"gpu-lose": "the index of the GPU, from 0", "health": "a text, or ok", "check-fail": "a text, or ok"},
)


@slurm.command
def up(
    *,
    clusters: str = "alpha,beta",
    nodes: int = 6,
    gpus: int = 8,
    root: Root = None,
    requeue_delay: int = DEFAULT_REQUEUE,
    state: State = None,
) -> int:
    """Start the clusters, all at once, and write their fleet.yaml; those that run already stay as they are.

    Parameters
    ----------
    clusters
        Names, separated by commas; default alpha,beta.
    nodes
        Nodes of each cluster; default 6.
    gpus
        GPUs of each node; default 8.
    requeue_delay
        Slurm's cred_expire in seconds: how long Slurm itself keeps a requeued job waiting. Default 120, as Slurm's.
    """
    names = names_of(clusters, EXAMPLE)
    place = SlurmLab(root or default_root())
    fleet = home(state) / "fleet.yaml"
    check_fleet_file(fleet, place.root)
    place.check()
    started = place.up(names, nodes=nodes, gpus=gpus, requeue_delay=requeue_delay)
    screen = Screen()
    try:
        from workers.fleets import ALL_AUTO

        write_fleet(fleet, place, names, ALL_AUTO)
    except OSError as error:
        screen.note(f"the clusters run, but {fleet} cannot be written: {error.strerror}; give another --state")
        return 1
    for name in names:
        screen.line(f"{name}: {f'{nodes} nodes started' if name in started else 'runs already, left as it is'}")
    screen.line(f"fleet file: {fleet} (every step automatic: it is a lab)")
    _next_steps(screen, place, names, fleet, state)
    return 0


@slurm.command
def down(*, clusters: str | None = None, root: Root = None, state: State = None, output: Output = "table") -> int:
    """Remove the clusters with everything of them, and look whether anything is left.

    Parameters
    ----------
    clusters
        Names, separated by commas; default all of the lab.
    """
    names = names_of(clusters, EXAMPLE) if clusters else None
    place, fleet = SlurmLab(root or default_root()), home(state) / "fleet.yaml"
    return take_down(place, names, fleet, output, nothing="no process, no mount, no namespace")


@slurm.command
def status(*, root: Root = None, output: Output = "table") -> int:
    """Show daemons, power, processes and Slurm's view of each node."""
    place = SlurmLab(root or default_root())
    found = place.status()
    Screen(output).rows(
        found,
        [c.cluster for c in found],
        _table(found),
        empty=f"no cluster under {place.root}; `runbook lab slurm up`",
    )
    return 0


@slurm.command
def event(
    cluster: str,
    event: str,
    node: str | None = None,
    /,
    *more: str,
    root: Root = None,
) -> int:
    """Let something happen to a node, or to a whole cluster's controller.

    Parameters
    ----------
    cluster
        Cluster of the lab.
    event
        crash, freeze, thaw, kill-slurmd, start-slurmd, reboot, power-off, power-on, gpu-lose INDEX,
        health TEXT|ok, check-fail TEXT|ok; without a node: kill-controller, start-controller, freeze-controller,
        thaw-controller.
    node
        Node, e.g. alpha2.
    more
        Index of the GPU, or the text.
    """
    words = EVENTS.words(cluster, event, node, more)
    SlurmLab(root or default_root()).call(*words)
    Screen().line(" ".join(w for w in (f"{cluster}: {event}", node, *more) if w))
    return 0


def _next_steps(screen: Screen, place: SlurmLab, names: Sequence[str], fleet: Path, state: str | None) -> None:
    job = DEPLOY / "training" / "job.sbatch"
    option = f" --state {shlex.quote(state)}" if state else ""
    first, root = names[0], root_option(place, "lab")
    screen.line("")
    screen.line("next, in one terminal:")
    indented(screen, f"runbook dev --fleet {shlex.quote(str(fleet))}{option}")
    screen.line("and in another one:")
    indented(screen, f"export SLURM_CONF={place.conf(first)}")
    indented(screen, f"TRAIN={DEPLOY / 'training' / 'train.py'} sbatch --output={place.jobs_folder}/%x-%j.out {job}")
    indented(screen, f"runbook lab slurm event {first} crash {first}2{root}")
    indented(screen, "runbook watch llm-demo")
    screen.line(f"at the end: runbook lab slurm down{root}{option}")


def _table(found: Sequence[LabCluster]) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("CLUSTER", "NODE", "POWER", "SLURMD", "PROCESSES", "SLURM", "REASON"):
        table.add_column(column)
    for cluster in found:
        controller = "answers" if cluster.answers else "does not answer" if cluster.slurmctld else "down"
        table.add_row(
            cluster.cluster, "controller", "", "", "", controller if cluster.state == "running" else "stopped"
        )
        for node in cluster.nodes:
            power = f"{node.power}, frozen" if node.frozen else node.power
            daemon = "runs" if node.slurmd else "down"
            table.add_row(
                cluster.cluster, node.node, power, daemon, str(node.processes), node.state or "?", node.reason
            )
    return table
