"""`runbook lab k8s` and `runbook lab shell`: real private Kubernetes clusters on this machine."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from clients.embedded import home
from clients.output import Screen
from fleet.errors import InvalidInputError
from workers.lab_events import Events
from workers.lab_fleet import check_fleet_file, write_k8s_fleet
from workers.lab_k8s import CONTROLLERS, MOST_FAKE_NODES, MOST_NODES, K8sCluster, K8sLab
from workers.lab_place import DEPLOY, default_root
from workers.lab_words import Output, State, indented, names_of, root_option, take_down

if TYPE_CHECKING:
    from rich.table import Table

k8s = App(name="k8s", help="Real Kubernetes: control planes, kubelets, containers, power and faults. Needs root.")

Root = Annotated[Path | None, Parameter(help="Folder of the lab, a short path; default /tmp/gpu-runbooks-k8s-UID.")]
EXAMPLE = "gamma,delta"

EVENTS = Events(
    command="runbook lab k8s",
    node_suffix="-n1",
    of_node={
        "crash": "node-crash",
        "freeze": "node-freeze",
        "thaw": "node-thaw",
        "kill-kubelet": "kubelet-kill",
        "start-kubelet": "kubelet-start",
        "reboot": "node-reboot",
        "power-off": "power-off",
        "power-on": "power-on",
        "gpu-lose": "gpu-lose",
        "check-fail": "check-fail",
    },
    of_cluster={
        "kill-apiserver": "api-kill",
        "start-apiserver": "api-start",
        "freeze-apiserver": "api-freeze",
        "thaw-apiserver": "api-thaw",
        "slow-apiserver": "api-slow",
        "kill-controller": "controller-kill",
        "start-controller": "controller-start",
    },
    wants={
        "gpu-lose": "the index of the GPU, from 0",
        "check-fail": "a text, or ok",
        "slow-apiserver": "the percentage of time that it stands still",
        "kill-controller": f"one of {', '.join(CONTROLLERS)}",
        "start-controller": f"one of {', '.join(CONTROLLERS)}",
    },
)


@k8s.command
def up(
    *,
    clusters: str = "gamma,delta",
    nodes: int = 2,
    gpus: int = 8,
    fake_nodes: int = 0,
    controllers: str = "",
    root: Root = None,
    state: State = None,
) -> int:
    """Build what is missing, start the clusters and write their fleet.yaml; those that run stay as they are.

    Parameters
    ----------
    clusters
        Names, separated by commas; default gamma,delta.
    nodes
        Real nodes of each cluster, at most 8; default 2.
    gpus
        GPUs of each node; default 8.
    fake_nodes
        Further nodes that kwok answers for, without kubelets; default none.
    controllers
        Controllers of job kinds, separated by commas, of jobset, kueue, training-operator, trainer, kuberay; default
        none. Each is built when it is first asked for.
    """
    names = names_of(clusters, EXAMPLE)
    check_numbers(nodes, gpus, fake_nodes)
    wanted = controllers_of(controllers)
    place = K8sLab(root or default_root("k8s"))
    fleet = home(state) / "fleet.yaml"
    check_fleet_file(fleet, place.root)
    place.check(wanted)
    started = place.up(names, nodes=nodes, gpus=gpus, fake_nodes=fake_nodes, controllers=wanted)
    screen = Screen()
    try:
        from workers.fleets import ALL_AUTO

        write_k8s_fleet(fleet, place, names, ALL_AUTO)
    except OSError as error:
        screen.note(f"the clusters run, but {fleet} cannot be written: {error.strerror}; give another --state")
        return 1
    more = (f" and {fake_nodes} fake ones" if fake_nodes else "") + "".join(f", {name}" for name in wanted)
    for name in names:
        screen.line(f"{name}: {f'{nodes} nodes{more} started' if name in started else 'runs already, left as it is'}")
    screen.line(f"fleet file: {fleet} (every step automatic: it is a lab)")
    _next_steps(screen, place, names, fleet, state)
    return 0


@k8s.command
def down(*, clusters: str | None = None, root: Root = None, state: State = None, output: Output = "table") -> int:
    """Remove the clusters with everything of them, and look whether anything is left.

    Parameters
    ----------
    clusters
        Names, separated by commas; default all of the lab.
    """
    names = names_of(clusters, EXAMPLE) if clusters else None
    place, fleet = K8sLab(root or default_root("k8s")), home(state) / "fleet.yaml"
    return take_down(place, names, fleet, output, nothing="no process, no mount, no namespace, no cgroup")


@k8s.command
def status(*, root: Root = None, output: Output = "table") -> int:
    """Show daemons, power, processes and the apiserver's view of each node."""
    place = K8sLab(root or default_root("k8s"))
    found = place.status()
    Screen(output).rows(
        found,
        [c.cluster for c in found],
        _table(found),
        empty=f"no cluster under {place.root}; `runbook lab k8s up`",
    )
    return 0


@k8s.command
def event(cluster: str, event: str, node: str | None = None, /, *more: str, root: Root = None) -> int:
    """Let something happen to a node, or to a whole cluster's apiserver.

    Parameters
    ----------
    cluster
        Cluster of the lab.
    event
        crash, freeze, thaw, kill-kubelet, start-kubelet, reboot, power-off, power-on, gpu-lose INDEX,
        check-fail TEXT|ok; without a node: kill-apiserver, start-apiserver, freeze-apiserver, thaw-apiserver,
        slow-apiserver PERCENT, kill-controller NAME, start-controller NAME.
    node
        Node, e.g. gamma-n2.
    more
        Index of the GPU, the text, the percentage or the controller.
    """
    words = EVENTS.words(cluster, event, node, more)
    K8sLab(root or default_root("k8s")).call(*words)
    Screen().line(" ".join(w for w in (f"{cluster}: {event}", node, *more) if w))
    return 0


def shell(*command: Annotated[str, Parameter(allow_leading_hyphen=True)], root: Root = None) -> int:
    """Enter the network namespace of the Kubernetes lab: a shell, or one command.

    Parameters
    ----------
    command
        Program and arguments, after `--`; default $SHELL. KUBECONFIG names every cluster, one context each.
    """
    place = K8sLab(root or default_root("k8s"))
    place.enter(command, [name for name, state in place.known().items() if state == "running"])
    return 1


def check_numbers(nodes: int, gpus: int, fake_nodes: int) -> None:
    """Raises InvalidInputError with the range that is allowed."""
    given = (("nodes", nodes, MOST_NODES), ("gpus", gpus, 99), ("fake-nodes", fake_nodes, MOST_FAKE_NODES))
    for option, value, most in given:
        if not 0 <= value <= most:
            raise InvalidInputError(f"--{option} is {value}; 0 to {most} is possible")


def controllers_of(text: str) -> tuple[str, ...]:
    """Names separated by commas. Raises InvalidInputError that says what is possible."""
    wanted = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if unknown := [name for name in wanted if name not in CONTROLLERS]:
        raise InvalidInputError(f"no controller {', '.join(unknown)}; there are: {', '.join(CONTROLLERS)}")
    if "trainer" in wanted and "jobset" not in wanted:
        raise InvalidInputError("--controllers: trainer makes JobSets; name jobset too")
    return wanted


def _next_steps(screen: Screen, place: K8sLab, names: Sequence[str], fleet: Path, state: str | None) -> None:
    option = f" --state {shlex.quote(state)}" if state else ""
    root = root_option(place, "k8s")
    first = names[0]
    screen.line("")
    screen.line("the clusters are reached only in their own network namespace; in one terminal:")
    indented(screen, f"runbook lab shell{root} -- runbook dev --fleet {shlex.quote(str(fleet))}{option}")
    screen.line("and in another one:")
    indented(screen, f"runbook lab shell{root}")
    job = DEPLOY / "training" / "job.yaml"
    indented(screen, f"kubectl --context {first} apply -f {shlex.quote(str(job))}")
    indented(screen, f"runbook lab k8s event {first} crash {first}-n2{root}")
    indented(screen, "runbook watch llm-demo")
    screen.line(f"at the end: runbook lab k8s down{root}{option}")


def _table(found: Sequence[K8sCluster]) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("CLUSTER", "NODE", "POWER", "KUBELET", "PROCESSES", "READY", "GPUS", "BOOT"):
        table.add_column(column)
    for cluster in found:
        table.add_row(cluster.cluster, "apiserver", "", "", "", _apiserver(cluster), "", "")
        for name in CONTROLLERS:
            if name in cluster.daemons:
                table.add_row(cluster.cluster, name, "", "", "", "runs" if cluster.daemons[name] else "down", "", "")
        for node in cluster.nodes:
            table.add_row(
                cluster.cluster,
                node.node,
                f"{node.power}, frozen" if node.frozen else node.power,
                "runs" if node.kubelet else "down",
                str(node.processes),
                (node.ready or "?") + (", cordoned" if node.cordoned else ""),
                "?" if node.gpus is None else str(node.gpus),
                node.boot_id[:8],
            )
        if cluster.fake_nodes:
            table.add_row(cluster.cluster, f"{cluster.fake_nodes} fake nodes", "", "", "", "", "", "")
    return table


def _apiserver(cluster: K8sCluster) -> str:
    if cluster.state == "stopped":
        return "stopped"
    if not cluster.daemons.get("api"):
        return "down"
    return "answers" if cluster.answers else "frozen" if cluster.frozen else "does not answer"
