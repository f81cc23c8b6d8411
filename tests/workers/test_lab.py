"""`runbook lab slurm` on the real thing: two clusters up, an event, status, down, and nothing left."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from clients.app import main, make_app
from fleet.errors import InvalidInputError, PermanentError, RefusedError
from fleet.policy_file import parse_policy
from tests.require import missing
from tests.slurm.lab import leftovers, short_folder, why_not
from workers import lab_slurm
from workers.fleets import ALL_AUTO
from workers.lab import EVENTS
from workers.lab_fleet import MARKER, check_fleet_file, lab_of_fleet, write_fleet
from workers.lab_slurm import SlurmLab, free_blocks, parse_status
from workers.main import COMMANDS

RUNBOOK = (sys.executable, "-c", "from workers.main import main; main()")


@pytest.fixture
def needs_slurm() -> None:
    if (why := why_not()) is not None:
        missing("slurm", why)


@pytest.fixture
def root(needs_slurm: None) -> Iterator[Path]:
    """A short folder whose clusters are gone after the test, whatever it did."""
    folder = short_folder()
    yield folder
    lab = SlurmLab(folder)
    for name in lab.known():
        lab.call("rm", name)
    shutil.rmtree(folder, ignore_errors=True)
    assert not leftovers(folder)


def runbook(*argv: str, folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TEMPORAL_", "GPU_RUNBOOKS_", "SLURM_"))}
    return subprocess.run(
        [*RUNBOOK, *argv],
        cwd=folder,
        env={**kept, "GPU_RUNBOOKS_HOME": str(folder / "state"), "TERM": "dumb", **settings},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.slurm
def test_two_clusters_come_up_are_seen_broken_and_go_without_a_trace(root: Path, tmp_path: Path) -> None:
    place = ("--root", str(root))
    up = runbook("lab", "slurm", "up", *place, "--nodes", "2", "--gpus", "4", folder=tmp_path)
    assert up.returncode == 0, up.stderr
    assert f"export SLURM_CONF={root}/alpha/etc/slurm.conf" in up.stdout
    fleet = tmp_path / "state" / "fleet.yaml"
    policy = parse_policy(fleet.read_text(), str(fleet))
    assert set(policy.clusters) == {"alpha", "beta"}
    assert {str(mode) for mode in policy.modes.values()} == {"auto"}
    config = subprocess.run(
        ["scontrol", "show", "config"],  # noqa: S607 - where the machine has it
        env={**os.environ, "SLURM_CONF": f"{root}/beta/etc/slurm.conf"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "cred_expire=120" in config

    assert runbook("lab", "slurm", "event", "alpha", "crash", "alpha2", *place, folder=tmp_path).returncode == 0
    seen = json.loads(runbook("lab", "slurm", "status", "-o", "json", *place, folder=tmp_path).stdout)
    powers = {node["node"]: (node["power"], node["slurmd"]) for cluster in seen for node in cluster["nodes"]}
    assert powers == {
        "alpha1": ("on", True),
        "alpha2": ("off", False),
        "beta1": ("on", True),
        "beta2": ("on", True),
    }

    again = runbook("lab", "slurm", "up", *place, "--nodes", "2", folder=tmp_path)
    assert again.returncode == 0
    assert "alpha: runs already, left as it is" in again.stdout
    after = json.loads(runbook("lab", "slurm", "status", "-o", "json", *place, folder=tmp_path).stdout)
    assert [n["power"] for c in after for n in c["nodes"]] == ["on", "off", "on", "on"]

    down = runbook("lab", "slurm", "down", *place, "-o", "json", folder=tmp_path)
    left = json.loads(down.stdout)
    assert down.returncode == 0
    assert left["ended"] > 8
    assert (left["processes"], left["mounts"], left["namespaces"]) == ([], [], 0)
    assert not fleet.exists()
    assert not root.exists()
    assert not leftovers(root)


@pytest.mark.slurm
def test_the_doctor_finds_a_whole_lab_in_order_and_a_dead_controller_at_once(root: Path, tmp_path: Path) -> None:
    place = ("--root", str(root))
    assert runbook("lab", "slurm", "up", *place, "--nodes", "2", folder=tmp_path).returncode == 0
    fleet = ("--fleet", str(tmp_path / "state" / "fleet.yaml"))
    whole = json.loads(runbook("doctor", *fleet, "-o", "json", folder=tmp_path).stdout)
    grades = {(c["area"], c["name"]): c["grade"] for c in whole["checks"]}
    names = (
        "probe",
        "nodes",
        "RebootProgram",
        "JobRequeue",
        "SlurmdTimeout",
        "transport",
        "power hook",
        "check program",
    )
    assert {grades[cluster, name] for cluster in ("alpha", "beta") for name in names} == {"ok"}

    kill = runbook("lab", "slurm", "event", "alpha", "kill-controller", *place, folder=tmp_path)
    assert kill.returncode == 0, kill.stderr
    broken = json.loads(runbook("doctor", *fleet, "-o", "json", folder=tmp_path).stdout)
    grades = {(c["area"], c["name"]): c["grade"] for c in broken["checks"]}
    assert grades["alpha", "probe"] == "fail"
    assert grades["beta", "power hook"] == "ok"


@pytest.mark.slurm
def test_when_one_cluster_does_not_start_none_is_left(root: Path) -> None:
    (root / "beta").mkdir()
    (root / "beta" / "somebody's file").write_text("")  # the script refuses a folder that is not its own
    lab = SlurmLab(root)
    with pytest.raises(PermanentError, match=r"beta did not start: .*is not a cluster of this lab"):
        lab.up(("alpha", "beta"), nodes=2)
    assert lab.known() == {}
    assert not leftovers(root)


@pytest.mark.slurm
def test_down_says_what_it_could_not_end(root: Path) -> None:
    lab = SlurmLab(root)
    lab.up(("alpha",), nodes=2)
    # Looks like a daemon of the lab, and no verb of the script ends that one.
    stray = subprocess.Popen(
        ["munged", "-c", f": {root}/alpha/x; read line"],  # noqa: S607 - the name it shall show, not a program
        executable="/bin/sh",
        stdin=subprocess.PIPE,
    )
    try:
        left = lab.down()
        assert left.clusters == ("alpha",)
        assert not left.clean
        assert [line.split()[0] for line in left.processes] == [str(stray.pid)]
    finally:
        stray.communicate()


def test_without_root_it_says_so_with_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lab_slurm.os, "geteuid", lambda: 65534)
    words = ["lab", "slurm", "up", "--root", str(tmp_path / "lab"), "--state", str(tmp_path / "state")]
    assert main(make_app(COMMANDS), words) == 1
    said = capsys.readouterr().err
    assert "needs root" in said
    assert lab_slurm.PACKAGES in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slurm
def test_a_missing_package_is_named_with_the_command_that_installs_it(root: Path, tmp_path: Path) -> None:
    """The program is covered in a mount namespace of this one command."""
    slurmctld = shutil.which("slurmctld", path=f"{os.environ['PATH']}:/usr/sbin")
    cover = 'mount --bind /dev/null "$1" && shift && exec "$@"'
    ended = subprocess.run(
        ["unshare", "--mount", "sh", "-c", cover, "sh", str(slurmctld), *RUNBOOK, "lab", "slurm", "up"],  # noqa: S607
        cwd=tmp_path,
        env={**os.environ, "GPU_RUNBOOKS_HOME": str(tmp_path / "state"), "TERM": "dumb"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert "missing: slurmctld" in ended.stderr
    assert "apt-get install --no-install-recommends slurmctld slurmd" in ended.stderr


# -- without a cluster


def test_a_fleet_file_of_a_person_is_never_touched(tmp_path: Path) -> None:
    fleet = tmp_path / "state" / "fleet.yaml"
    fleet.parent.mkdir()
    fleet.write_text("version: 1\nclusters: {alpha: {kind: sim, path: w.sqlite}}\n")
    before = fleet.read_text()
    ended = runbook("lab", "slurm", "up", "--root", str(tmp_path / "lab"), folder=tmp_path)
    assert ended.returncode == 1
    assert f"{fleet} is not of `runbook lab`" in ended.stderr
    assert fleet.read_text() == before
    assert not (tmp_path / "lab").exists()  # refused before anything was started
    with pytest.raises(RefusedError):
        check_fleet_file(fleet)


def test_the_labs_own_fleet_file_is_valid_says_whose_it_is_and_may_be_written_again(tmp_path: Path) -> None:
    fleet, lab = tmp_path / "fleet.yaml", SlurmLab(tmp_path / 'a "quoted" lab')
    write_fleet(fleet, lab, ("alpha", "beta"), ALL_AUTO)
    write_fleet(fleet, lab, ("alpha",), ALL_AUTO)
    policy = parse_policy(fleet.read_text(), str(fleet))
    assert fleet.read_text().startswith(MARKER)
    assert lab_of_fleet(fleet) == lab.root
    cluster = policy.cluster("alpha")
    assert cluster.kind == "slurm"
    assert cluster.conf == str(lab.conf("alpha"))
    assert cluster.power is not None
    assert cluster.power.status[-3:] == ("power-status", "alpha", "{node}")
    storage = policy.sites["at-alpha"]
    assert cluster.site == "at-alpha"
    assert Path(storage.mount).is_dir(), "a job can move with its checkpoint"


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("crash", "alpha2"), ("node-crash", "alpha", "alpha2")),
        (("reboot", "alpha2"), ("power-cycle", "alpha", "alpha2")),
        (("gpu-lose", "alpha2", "3"), ("gpu-lose", "alpha", "alpha2", "3")),
        (("health", "alpha2", "ecc", "errors"), ("health", "alpha", "alpha2", "ecc errors")),
        (("freeze-controller",), ("ctld-freeze", "alpha")),
    ],
)
def test_an_event_is_passed_to_the_script(words: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    event, node, *more = (*words, None)[: max(2, len(words))]
    assert EVENTS.words("alpha", str(event), node, [str(w) for w in more]) == wanted


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (("explode", "alpha2"), "crash, freeze"),
        (("crash",), "needs a node"),
        (("gpu-lose", "alpha2"), "index of the GPU"),
        (("crash", "alpha2", "now"), "nothing more"),
        (("kill-controller", "alpha2"), "whole cluster"),
    ],
)
def test_a_wrong_event_is_refused_with_what_is_allowed(words: tuple[str, ...], word: str) -> None:
    event, node, *more = (*words, None)[: max(2, len(words))]
    with pytest.raises(InvalidInputError, match=word):
        EVENTS.words("alpha", str(event), node, [str(w) for w in more])


def test_port_blocks_do_not_overlap_and_are_below_the_temporal_servers() -> None:
    blocks = sorted(free_blocks(5, 31))
    assert all(later - earlier >= 31 for earlier, later in pairwise(blocks))
    assert blocks[-1] + 31 <= 20000


def test_a_status_is_read_with_what_slurm_says_and_without_it() -> None:
    lines = "munged 5 slurmctld 6\na1 power=on,frozen init=7 slurmd=8 pids=3\na2 power=off init= slurmd= pids=0\n"
    table = "NODELIST STATE REASON\na1 idle none\na2 down* Not responding\n"
    seen = parse_status("a", "running", "/c", lines + table)
    assert [(n.node, n.power, n.frozen, n.slurmd, n.state, n.reason) for n in seen.nodes] == [
        ("a1", "on", True, True, "idle", ""),
        ("a2", "off", False, False, "down*", "Not responding"),
    ]
    assert (seen.munged, seen.slurmctld, seen.answers) == (True, True, True)
    dead = parse_status("a", "running", "/c", "munged 5 slurmctld \n" + "slurmctld does not answer\n")
    assert (dead.munged, dead.slurmctld, dead.answers) == (True, False, False)
