"""The fleet files that `runbook lab slurm up` and `k8s up` write, and how they are told from one of a person."""

import contextlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from fleet.errors import RefusedError
from workers.lab_k8s import NODE_GRACE, K8sLab
from workers.lab_place import DEPLOY, Lab
from workers.lab_slurm import SlurmLab

EXAMPLE_ROOT = "/tmp/llm-demo"  # noqa: S108 - as in the example job of deploy/lab/training
K8S_MARKER = "# written by `runbook lab k8s up`; it may be overwritten and removed by `runbook lab`"
MARKER = "# written by `runbook lab slurm up`; it may be overwritten and removed by `runbook lab`"


def check_fleet_file(file: Path, root: Path | None = None) -> None:
    """Raises RefusedError for a fleet file that no lab wrote, and for one of another lab that is still there."""
    if file.exists() and not written_by_us(file):
        raise RefusedError(
            f"{file} is not of `runbook lab` and is left as it is; move it away, or give another folder with --state"
        )
    other = lab_of_fleet(file)
    if root is not None and other not in {None, root.absolute()} and other.is_dir():
        raise RefusedError(f"{file} is of the lab under {other}; end that one, or give another folder with --state")


def written_by_us(file: Path) -> bool:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return file.read_text(encoding="utf-8").partition("\n")[0] in {MARKER, K8S_MARKER}
    return False


def write_fleet(file: Path, lab: SlurmLab, clusters: Sequence[str], modes: str) -> None:
    """Policy of the lab's clusters: power hook, check program, every step automatic. Raises RefusedError."""
    lines = []
    for name in clusters:
        lines += [f"  {name}:", "    kind: slurm", f"    conf: {_quoted(str(lab.conf(name)))}", "    power:"]
        lines += _power(lab, name)
        check = (sys.executable, str(DEPLOY / "check_gpus.py"), "--expect", "{gpus}")
        lines += [
            f"    check: {_list(check)}",
            f"    checkpoint_roots: {_list((str(lab.jobs_folder), EXAMPLE_ROOT))}",
            f"    site: at-{name}",
        ]
    _write(file, MARKER, lab, lines, modes, clusters)


def write_k8s_fleet(file: Path, lab: K8sLab, clusters: Sequence[str], modes: str) -> None:
    """Policy of the lab's Kubernetes clusters: kubeconfig, power hook, every step automatic. Raises RefusedError."""
    lines = []
    for name in clusters:
        lines += [f"  {name}:", "    kind: kubernetes", f"    kubeconfig: {_quoted(str(lab.kubeconfig(name)))}"]
        lines += [f"    context: {name}", "    power:", *_power(lab, name)]
        lines += [
            f"    check: {_quoted(str(lab.check_pod(name)))}",
            f"    node_down_after: {NODE_GRACE}s",
            f"    checkpoint_roots: {_list((str(lab.jobs_folder), EXAMPLE_ROOT))}",
            f"    site: at-{name}",
        ]
    _write(file, K8S_MARKER, lab, lines, modes, clusters)


def _write(
    file: Path, marker: str, lab: SlurmLab | K8sLab, clusters: Sequence[str], modes: str, names: Sequence[str]
) -> None:
    """Each cluster has a storage of its own, a folder: a job moves with its checkpoint."""
    check_fleet_file(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [marker, f"# lab: {lab.root}", "version: 1", "clusters:", *clusters, "sites:"]
    for name in names:
        mount = lab.jobs_folder / f"at-{name}"
        mount.mkdir(parents=True, exist_ok=True)
        lines.append(f"  at-{name}: {{mount: {_quoted(str(mount))}}}")
    file.write_text("\n".join(lines) + "\n" + modes, encoding="utf-8")


def _power(lab: Lab, cluster: str) -> list[str]:
    return [
        f"      {key}: {_list(lab.command(verb, cluster, '{node}'))}"
        for key, verb in (("off", "power-off"), ("on", "power-on"), ("status", "power-status"))
    ]


def lab_of_fleet(file: Path) -> Path | None:
    """Root of the lab that wrote the file; None for a file that none wrote."""
    if not written_by_us(file):
        return None
    found = re.search(r"^# lab: (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return Path(found[1]) if found else None


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _list(words: Sequence[str]) -> str:
    return "[" + ", ".join(map(_quoted, words)) + "]"
