"""`runbook lab k8s` and `runbook lab shell` on the real thing, what they refuse, and the build of the programs."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.app import main, make_app
from fleet.errors import InvalidInputError, RefusedError
from fleet.policy import KubernetesCluster
from fleet.policy_file import parse_policy
from tests.kubernetes.lab import REPOSITORY, why_not, why_not_controllers
from tests.require import missing
from tests.slurm.lab import leftovers, short_folder
from tests.workers.test_lab import runbook
from workers import lab_k8s
from workers.fleets import ALL_AUTO
from workers.lab_fleet import check_fleet_file, lab_of_fleet, write_k8s_fleet
from workers.lab_k8s import BUILD, K8sLab, parse_status
from workers.lab_k8s_commands import EVENTS, controllers_of
from workers.main import COMMANDS


@pytest.fixture
def root() -> Iterator[Path]:
    """A short folder whose clusters are gone after the test, whatever it did."""
    if (why := why_not() or why_not_controllers("jobset")) is not None:
        missing("kubernetes", why)
    folder = short_folder()
    yield folder
    lab = K8sLab(folder)
    for name in lab.known():
        lab.call("rm", name)
    shutil.rmtree(folder, ignore_errors=True)
    assert not leftovers(folder)


@pytest.mark.kubernetes
def test_two_clusters_come_up_are_seen_broken_and_go_without_a_trace(root: Path, tmp_path: Path) -> None:
    place = ("--root", str(root))
    words = ("--nodes", "1", "--gpus", "4", "--fake-nodes", "5", "--controllers", "jobset")
    up = runbook("lab", "k8s", "up", *place, *words, folder=tmp_path)
    assert up.returncode == 0, up.stderr
    fleet = tmp_path / "state" / "fleet.yaml"
    policy = parse_policy(fleet.read_text(), str(fleet))
    assert set(policy.clusters) == {"gamma", "delta"}
    assert {str(mode) for mode in policy.modes.values()} == {"auto"}

    words = ("lab", "shell", *place, "--", "kubectl", "--context", "delta", "get", "nodes", "-o", "name")
    inside = runbook(*words, folder=tmp_path)
    assert inside.stdout.split() == sorted(["node/delta-n1", *(f"node/delta-f{i}" for i in range(1, 6))])
    links = runbook("lab", "shell", *place, "--", "ip", "-o", "link", folder=tmp_path).stdout.splitlines()
    assert {line.split()[1].partition("@")[0].rstrip(":") for line in links} == {"lo", "lab0n1", "lab1n1"}

    for event in (("crash", "gamma-n1"), ("kill-controller", "jobset"), ("freeze-apiserver",)):
        done = runbook("lab", "k8s", "event", "gamma", *event, *place, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    missing = runbook("lab", "k8s", "event", "gamma", "kill-controller", "kueue", *place, folder=tmp_path)
    assert (missing.returncode, "no controller 'kueue'; it has: jobset" in missing.stderr) == (2, True)
    missing = runbook("lab", "k8s", "event", "gamma", "crash", "gamma-n7", *place, folder=tmp_path)
    assert (missing.returncode, "no node 'gamma-n7' in gamma" in missing.stderr) == (2, True)
    seen = {
        c["cluster"]: c
        for c in json.loads(runbook("lab", "k8s", "status", "-o", "json", *place, folder=tmp_path).stdout)
    }
    assert [(n["node"], n["power"], n["ready"], n["gpus"]) for n in seen["delta"]["nodes"]] == [
        ("delta-n1", "on", "True", 4)
    ]
    assert [(n["node"], n["power"], n["kubelet"]) for n in seen["gamma"]["nodes"]] == [("gamma-n1", "off", False)]
    assert (seen["gamma"]["answers"], seen["gamma"]["frozen"], seen["delta"]["fake_nodes"]) == (False, True, 5)
    assert [seen[cluster]["daemons"]["jobset"] for cluster in ("gamma", "delta")] == [False, True]

    again = runbook("lab", "k8s", "up", *place, folder=tmp_path)
    assert "gamma: runs already, left as it is" in again.stdout
    other = runbook("lab", "slurm", "up", "--root", str(root / "other"), folder=tmp_path)
    assert "end that one, or give another folder" in other.stderr

    down = runbook("lab", "k8s", "down", *place, "-o", "json", folder=tmp_path)
    left = json.loads(down.stdout)
    assert down.returncode == 0, down.stderr
    assert left["ended"] > 12
    assert (left["processes"], left["mounts"], left["namespaces"], left["cgroups"]) == ([], [], 0, [])
    assert not fleet.exists()
    assert not root.exists()
    assert not leftovers(root)


@pytest.mark.kubernetes
def test_a_build_that_is_stopped_leaves_nothing_half_and_the_check_says_what_is_missing(tmp_path: Path) -> None:
    if (why := why_not()) is not None:
        missing("kubernetes", why)
    words = [sys.executable, str(BUILD), "--cache", str(tmp_path / "cache")]
    check = subprocess.run([*words, "--check"], capture_output=True, text=True)
    assert check.returncode == 3
    assert "not built yet: etcd, kwok, kubernetes" in check.stderr
    with subprocess.Popen([*words, "etcd"], stderr=subprocess.PIPE, text=True) as build:
        assert build.stderr is not None
        assert "building etcd" in build.stderr.readline()
        build.send_signal(signal.SIGTERM)
        assert build.wait(60) == 130
    assert [p.name for p in (tmp_path / "cache").iterdir() if not p.name.endswith(".lock")] == []


def test_the_programs_of_every_component_are_pinned_with_their_sums() -> None:
    for folder in (p for p in BUILD.parent.iterdir() if p.is_dir()):
        if (folder / "go.mod").exists():
            assert (folder / "go.sum").read_text().count("h1:") > 50
            assert "import" in (folder / "tools.go").read_text()


# -- without a cluster


def test_without_root_it_says_so_with_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lab_k8s.os, "geteuid", lambda: 65534)
    words = ["lab", "k8s", "up", "--root", str(tmp_path / "lab"), "--state", str(tmp_path / "state")]
    assert main(make_app(COMMANDS), words) == 1
    said = capsys.readouterr().err
    assert "needs root" in said
    assert lab_k8s.PACKAGES in said
    assert list(tmp_path.iterdir()) == []


def test_the_package_list_is_the_one_that_the_script_installs() -> None:
    script = (REPOSITORY / "deploy" / "lab" / "k8s_packages.sh").read_text()
    named = lab_k8s.PACKAGES.removeprefix("apt-get install --no-install-recommends ")
    assert f'PACKAGES="{named}"' in script


def test_the_labs_own_fleet_file_names_kubeconfig_context_power_and_check(tmp_path: Path) -> None:
    fleet, lab = tmp_path / "fleet.yaml", K8sLab(tmp_path / "lab")
    write_k8s_fleet(fleet, lab, ("gamma", "delta"), ALL_AUTO)
    assert lab_of_fleet(fleet) == lab.root
    policy = parse_policy(fleet.read_text(), str(fleet))
    cluster = policy.cluster("delta")
    assert Path(policy.sites["at-delta"].mount).is_dir()
    assert isinstance(cluster, KubernetesCluster)
    assert (cluster.kubeconfig, cluster.context) == (str(lab.kubeconfig("delta")), "delta")
    assert cluster.power is not None
    assert cluster.power.status[-3:] == ("power-status", "delta", "{node}")
    assert cluster.check == str(lab.check_pod("delta"))


def test_a_fleet_file_of_another_lab_is_kept_while_that_lab_is_there(tmp_path: Path) -> None:
    fleet, lab = tmp_path / "fleet.yaml", K8sLab(tmp_path / "lab")
    write_k8s_fleet(fleet, lab, ("gamma",), ALL_AUTO)
    check_fleet_file(fleet, lab.root)
    with pytest.raises(RefusedError, match="end that one"):
        check_fleet_file(fleet, tmp_path / "other")
    shutil.rmtree(lab.root)
    check_fleet_file(fleet, tmp_path / "other")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("crash", "gamma-n2"), ("node-crash", "gamma", "gamma-n2")),
        (("start-kubelet", "gamma-n2"), ("kubelet-start", "gamma", "gamma-n2")),
        (("check-fail", "gamma-n2", "ecc", "errors"), ("check-fail", "gamma", "gamma-n2", "ecc errors")),
        (("freeze-apiserver",), ("api-freeze", "gamma")),
        (("slow-apiserver", "80"), ("api-slow", "gamma", "80")),
        (("kill-controller", "jobset"), ("controller-kill", "gamma", "jobset")),
    ],
)
def test_an_event_is_passed_to_the_script(words: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    event, node, *more = (*words, None)[: max(2, len(words))]
    assert EVENTS.words("gamma", str(event), node, [str(w) for w in more]) == wanted


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (("explode", "gamma-n2"), "crash, freeze"),
        (("crash",), "event gamma crash gamma-n1"),
        (("gpu-lose", "gamma-n2"), "index of the GPU"),
        (("crash", "gamma-n2", "now"), "nothing more"),
        (("kill-apiserver", "gamma-n2"), "whole cluster"),
        (("slow-apiserver",), "percentage"),
        (("start-controller",), "one of jobset, kueue"),
    ],
)
def test_a_wrong_event_is_refused_with_what_is_allowed(words: tuple[str, ...], word: str) -> None:
    event, node, *more = (*words, None)[: max(2, len(words))]
    with pytest.raises(InvalidInputError, match=word):
        EVENTS.words("gamma", str(event), node, [str(w) for w in more])


def test_unknown_controllers_are_refused_with_those_that_there_are() -> None:
    assert controllers_of("") == ()
    assert controllers_of("jobset, kueue,jobset") == ("jobset", "kueue")
    with pytest.raises(InvalidInputError, match="no controller volcano; there are: jobset, kueue, training-operator"):
        controllers_of("volcano,jobset")
    with pytest.raises(InvalidInputError, match="name jobset too"):
        controllers_of("trainer")


def test_a_status_is_read_with_what_the_apiserver_says_and_without_it() -> None:
    daemons = "etcd=5 api=6{} manager=7 scheduler=8 kwok= jobset=9 training-operator=\n"
    lines = "g-n1 power=on,frozen init=7 kubelet=8 pids=6\ng-n2 power=off init= kubelet= pids=0\n"
    view = (
        "node g-n1   True      <none>   8        b1\n"
        "node g-n2   Unknown   true     <none>   b2\n"
        "node g-f1   True      <none>   8        b3\n"
    )
    seen = parse_status("g", "running", "/c", daemons.format("") + lines + view)
    assert [(n.node, n.power, n.frozen, n.kubelet, n.ready, n.cordoned, n.gpus, n.boot_id) for n in seen.nodes] == [
        ("g-n1", "on", True, True, "True", False, 8, "b1"),
        ("g-n2", "off", False, False, "Unknown", True, None, "b2"),
    ]
    assert (seen.answers, seen.frozen, seen.fake_nodes, seen.daemons["kwok"]) == (True, False, 1, False)
    assert (seen.daemons["jobset"], seen.daemons["training-operator"]) == (True, False)
    dead = parse_status("g", "running", "/c", daemons.format(",frozen") + lines + "the apiserver does not answer\n")
    assert (dead.answers, dead.frozen, [n.ready for n in dead.nodes]) == (False, True, ["", ""])


def test_the_shell_needs_a_lab(tmp_path: Path) -> None:
    ended = runbook("lab", "shell", "--root", str(tmp_path / "none"), folder=tmp_path)
    assert ended.returncode == 1
    assert "`runbook lab k8s up` starts some" in ended.stderr
