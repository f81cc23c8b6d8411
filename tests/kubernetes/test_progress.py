"""Where an attempt's progress comes from besides its pods' logs: an annotation, and a shared file."""

import os
from pathlib import Path

import pytest

from activities.backends.tail import read_tail_below
from fleet.identity import TOKEN_PREFIX
from tests.kubernetes.backends import repairing
from tests.kubernetes.lab import Cluster
from tests.slurm.waiting import until


def test_a_file_is_read_only_below_a_root_also_when_links_lead_out(tmp_path: Path) -> None:
    root, secret = tmp_path / "share", tmp_path / "secret"
    root.mkdir()
    secret.write_text("secret")
    (root / "train.log").write_text("step 1\nstep 2\n")
    (root / "link").symlink_to(secret)
    (root / "inside").symlink_to(root / "train.log")
    os.mkfifo(root / "fifo")
    roots = (str(root),)
    assert read_tail_below(str(root / "train.log"), roots) == "step 1\nstep 2\n"
    assert read_tail_below(str(root / "inside"), roots) == "step 1\nstep 2\n"
    for outside in (root / "link", root / ".." / "secret", secret, root / "fifo", root, root / "absent"):
        assert read_tail_below(str(outside), roots) == ""
    assert read_tail_below(str(tmp_path / "share-2" / "x"), roots) == ""
    assert read_tail_below(str(root / "train.log"), ()) == ""


@pytest.mark.kubernetes
async def test_steps_are_read_from_a_shared_file_else_from_an_annotation_of_a_pod(gamma: Cluster) -> None:
    """The program of these pods prints nothing, so there is no other source."""
    for name in ("told", "filed"):
        made = gamma.training_job(name, nodes=1)
        made["metadata"]["labels"] = {f"{TOKEN_PREFIX}supervise": "true"}
        made["metadata"]["annotations"] = {f"{TOKEN_PREFIX}log": str(gamma.work / f"{name}.log")}
        container = made["spec"]["template"]["spec"]["containers"][0]
        container |= {"command": ["/bin/sleep"], "args": ["100000"]}
        await gamma.apply(made)
    async with repairing(gamma, roots=(str(gamma.work),)) as backend:
        (pod,) = await until(lambda: gamma.pods("told"), lambda pods: len(pods) == 1, 60)
        await gamma.kubectl(
            "annotate", "pod", pod["metadata"]["name"], f"{TOKEN_PREFIX}progress=step 40/90 loss 0.5 gen=0.0"
        )
        told = await until(lambda: backend.progress("job/default/told", 0), lambda p: p.step is not None, 30)
        assert (told.step, told.total, told.loss) == (40, 90, 0.5)

        shared = gamma.work / "filed.log"
        shared.write_text("starting at step 0 gen=0.0\nstep 7/90 loss 0.9 gen=0.0\nsaved step 5 gen=0.0\n")
        filed = await until(lambda: backend.progress("job/default/filed", 0), lambda p: p.step is not None, 30)
        assert (filed.step, filed.saved) == (7, 5)
        assert (await backend.log_tail("job/default/filed", 1)) == ("saved step 5 gen=0.0",)
        await gamma.kubectl("delete", "jobs", "told", "filed")
        gone = await until(lambda: gamma.pods("filed"), lambda pods: not pods, 60)
        assert gone == []
        assert (await backend.log_tail("job/default/filed", 1)) == ("saved step 5 gen=0.0",), "it outlives its pods"
