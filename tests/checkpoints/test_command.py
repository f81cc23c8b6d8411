"""`runbook checkpoints`, as a person and as a script run it, in this process up to the very exit."""

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from activities.backends.factory import make_backend
from activities.backends.sim import ClusterShape, create_world
from clients.app import main, make_app
from fleet.errors import InvalidInputError
from fleet.model import JobTokens, NativeJob, Phase
from fleet.orders import JobSpec
from fleet.policy_file import parse_policy
from tests.checkpoints.conftest import Real
from tests.clients.stage import Ran
from workers.checkpoints import checkpoint_root
from workers.main import COMMANDS

Cli = Callable[..., Ran]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """Runs `runbook checkpoints`."""
    for name in [n for n in os.environ if n.startswith(("TEMPORAL_", "GPU_RUNBOOKS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def run(*argv: str | Path) -> Ran:
        capsys.readouterr()
        code = main(make_app(COMMANDS), ["checkpoints", *map(str, argv)])
        shown = capsys.readouterr()
        return Ran(int(code), shown.out, shown.err)

    return run


def test_a_person_sees_each_one_the_reason_and_what_it_costs(cli: Cli, real: Real) -> None:
    root = real("torch_dist")
    (root / "iter_0000030/.metadata").unlink()

    ran = cli(root)

    assert ran.code == 0
    rows = [line.split()[:4] for line in ran.out.splitlines()]
    assert rows == [
        ["ENTRY", "STEP", "COMPLETE", "LOST"],
        ["iter_0000030", "30", "no", "10"],
        ["iter_0000020", "20", "newest", "-"],
        ["iter_0000010", "10", "yes", "-"],
    ]
    assert "there is no .metadata" in ran.out
    assert "resume from iter_0000020 (step 20, 10 steps before the newest)" in ran.err


def test_json_has_the_promised_shape_and_nothing_else(cli: Cli, real: Real) -> None:
    root = real("torch_dist")
    (root / "iter_0000030/.metadata").unlink()

    ran = cli(root, "-o", "json")

    shape = json.loads(ran.out)
    assert set(shape) == {"format", "newest_complete", "candidates"}
    assert shape["format"] == "torch_dist"
    assert shape["newest_complete"] == {"step": 20, "entry": "iter_0000020"}
    assert [(c["entry"], c["step"], c["complete"]) for c in shape["candidates"]] == [
        ("iter_0000030", 30, False),
        ("iter_0000020", 20, True),
        ("iter_0000010", 10, True),
    ]
    assert all(set(c) == {"entry", "step", "complete", "reason"} and c["reason"] for c in shape["candidates"])


def test_a_script_gets_the_name_alone(cli: Cli, real: Real) -> None:
    assert cli(real("orbax"), "-o", "name").out == "30\n"


def test_none_complete_is_a_failure_and_says_that_step_0_is_no_answer(cli: Cli, real: Real) -> None:
    root = real("dcp")
    for folder in root.iterdir():
        (folder / ".metadata").unlink()

    ran = cli(root, "-o", "json")

    assert ran.code == 1
    assert json.loads(ran.out)["newest_complete"] is None
    assert "no step 0 is started without a person" in ran.err


def test_an_unknown_layout_waits_for_a_person(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "weights.h5").write_bytes(b"x")

    ran = cli(tmp_path, "-o", "json")

    assert ran.code == 8
    assert json.loads(ran.out) == {"format": None, "newest_complete": None, "candidates": []}
    assert "a person looks: no layout that is known here; it holds weights.h5" in ran.err


def test_the_number_of_ranks_and_of_steps_can_be_told(cli: Cli, real: Real, tmp_path: Path) -> None:
    from tests.checkpoints.by_hand import nvrx

    local = nvrx(tmp_path / "local", (20,), range(4))

    assert cli(local).code == 1
    ran = cli(local, "--ranks", "4")
    assert ran.code == 0
    assert "no source for another cluster" in ran.err
    assert cli(real("dcp"), "--total-steps", "25", "-o", "name").out == "step_20\n"


def test_a_name_that_steers_a_terminal_is_shown_with_escapes(cli: Cli, real: Real) -> None:
    root = real("dcp")
    (root / "step_30/\x1b[2Jx\ny").write_bytes(b"x")

    ran = cli(root)

    assert "\x1b" not in ran.out + ran.err
    assert "step_30/\\x1b[2Jx\\ny" in ran.out


@pytest.mark.parametrize("where", ["/no/such/folder", "./nothing", "../nothing"])
def test_a_folder_that_is_not_here_is_wrong_words(where: str, cli: Cli) -> None:
    ran = cli(where)

    assert ran.code == 2
    assert "run it where the store is mounted" in ran.err


@pytest.fixture
def job(tmp_path: Path) -> Callable[[str], None]:
    """Submits a job with this comment to an embedded cluster whose roots are below `store`."""
    create_world(tmp_path / "world.sqlite", {"alpha": ClusterShape(nodes=1, gpus=8)})
    (tmp_path / "fleet.yaml").write_text(
        "version: 1\nclusters:\n"
        f"  alpha: {{kind: sim, path: world.sqlite, checkpoint_roots: [{tmp_path / 'store'}]}}\n"
    )

    def submit(comment: str) -> None:
        async def go() -> None:
            backend = make_backend(
                "alpha", parse_policy((tmp_path / "fleet.yaml").read_text(), "fleet.yaml"), tmp_path
            )
            script = "#!/bin/sh\n#SIM nodes=1 gpus=8 steps=25 step_time=100\n"
            await backend.submit(JobSpec(job="llama-1", name="llama", script=script, comment=comment))
            await backend.close()

        asyncio.run(go())

    return submit


def test_a_job_is_looked_at_where_it_says_and_with_its_own_total(
    cli: Cli, job: Callable[[str], None], real: Real, tmp_path: Path
) -> None:
    shutil.copytree(real("dcp"), tmp_path / "store/llama")
    job(f"gpu-runbooks.io/checkpoint={tmp_path}/store/llama gpu-runbooks.io/total-steps=25")

    ran = cli("alpha/llama-1", "-o", "name")

    assert (ran.code, ran.out) == (0, "step_20\n")


@pytest.mark.parametrize(
    ("comment", "why"),
    [
        ("", "declares no checkpoint root; name the folder"),
        ("gpu-runbooks.io/checkpoint=/etc", "is under none of the checkpoint_roots of cluster alpha"),
    ],
)
def test_a_job_that_names_no_root_of_its_cluster_is_refused(
    comment: str, why: str, cli: Cli, job: Callable[[str], None]
) -> None:
    job(comment)

    ran = cli("llama-1")

    assert ran.code == 2
    assert why in ran.err


def test_a_root_is_below_a_root_of_the_cluster_with_its_links_followed(tmp_path: Path) -> None:
    allowed = tmp_path / "store"
    allowed.mkdir()
    (allowed / "out").symlink_to("/etc")

    def of(path: Path | str) -> NativeJob:
        tokens = JobTokens(checkpoint=str(path))
        return NativeJob(cluster="alpha", native_id="1", name="llama", phase=Phase.RUNNING, tokens=tokens)

    assert checkpoint_root(of(allowed / "llama"), (str(allowed),)) == allowed.resolve() / "llama"
    for outside in (allowed / "out/ssl", f"{allowed}/../x", "/etc"):
        with pytest.raises(InvalidInputError, match="under none of the checkpoint_roots"):
            checkpoint_root(of(outside), (str(allowed),))
