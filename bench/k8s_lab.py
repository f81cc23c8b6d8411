"""A private Kubernetes cluster of the lab for a bench, in a network namespace that nothing leads out of."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fleet.errors import PermanentError, TemporaryError
from workers.demo_kubernetes import enter_network
from workers.lab_k8s import K8sLab

TRIES = 3
PATIENT = "300s"
"""--node-monitor-grace-period where there are fake nodes: one kwok renews the leases of all of them, and on a full
machine it gets late. No figure here is about a silent node."""


@contextmanager
def lab(*clusters: str, nodes: int, fake_nodes: int = 0, gpus: int = 8) -> Iterator[K8sLab]:
    """Starts the clusters and moves this thread, and all that it starts from now on, into their network. Fake nodes
    are not given up because their one kwok is late.

    To be entered before there are other threads. Nothing of it is left afterwards. Raises PermanentError, with the
    command that installs what is missing, where the lab cannot run.
    """
    folder = Path(tempfile.mkdtemp(prefix="grk"))  # short: sockets lie below it
    folder.chmod(0o755)
    place = K8sLab(folder / "lab")
    if fake_nodes:
        os.environ["NODE_GRACE"] = PATIENT
    try:
        place.check()
        place.up(clusters, nodes=nodes, gpus=gpus)
        for cluster in clusters if fake_nodes else ():
            _fake_nodes(place, cluster, fake_nodes, gpus)
        enter_network(place)
        yield place
    finally:
        if place.root.is_dir():
            place.down()
        shutil.rmtree(folder, ignore_errors=True)


def _fake_nodes(place: K8sLab, cluster: str, count: int, gpus: int) -> None:
    """The lab waits two minutes for them to be Ready; a machine that is full takes longer for many."""
    for left in reversed(range(TRIES)):
        try:
            place.call("fake-nodes", cluster, str(count), "-g", str(gpus))
        except (PermanentError, subprocess.TimeoutExpired) as error:
            if not left:
                raise TemporaryError(f"{count} kwok nodes are not Ready; the machine is full ({error})") from error
        else:
            return
