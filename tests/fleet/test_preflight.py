"""What a preflight judges without asking anybody: room, who the new attempt is, where files lie, what an order is."""

from typing import Any

import pytest

from fleet.errors import InvalidInputError
from fleet.identity import TOKEN_PREFIX, parse_tokens
from fleet.model import JobTokens, NativeJob, NodeGroup, Phase, Quota, Room
from fleet.orders import JobSpec
from fleet.placement import Request
from fleet.placing import PlaceWish
from fleet.policy_file import parse_policy
from fleet.preflight import cannot_become, capacity, named_in, run_as
from fleet.protected import JobOrder, accounting, protected
from fleet.sites import destination, located, moved, storage_of

KINDS = {"alpha": "slurm", "beta": "slurm", "gamma": "kubernetes"}
SHOWN = """\
JobId=7 JobName=train Account=evil QOS=evil
   UserId=ada(1000) GroupId=ada(1000) MCS_label=N/A
   Priority=1 Nice=0 Account=ml QOS=high
   WorkDir=/home/ada/my work
"""
SCRIPT = (
    "#!/bin/sh\n#SBATCH --nodes=2\nmodule load cuda/12.4 nccl\nsrun --container-image=lab/train:3 python train.py\n"
)
NATIVE = NativeJob(
    cluster="alpha",
    native_id="7",
    name="train",
    user="ada",
    phase=Phase.RUNNING,
    held=True,
    nodes_wanted=2,
    gpus_per_node=8,
    tokens=JobTokens(
        supervise=True, transfer=True, checkpoint="/ckpt/train", total_steps=100, checkpoint_signal="USR1"
    ),
)
POD = """
spec:
  template:
    spec:
      serviceAccountName: trainer
      securityContext: {runAsUser: 1000, fsGroup: 2000}
      containers: [{name: a, image: "lab/train:3"}]
"""


def room(free: int, total: int, *quotas: Quota) -> Room:
    groups = (NodeGroup(gpu_model="H100", gpus=8, free=free, total=total),)
    return Room(cluster="beta", groups=groups, quotas=quotas, waiting=(99,))


def spec(script: str = SCRIPT, **more: object) -> JobSpec:
    return JobSpec.model_validate({"job": "train", "name": "train", "script": script, **more})


@pytest.mark.parametrize(
    ("seen", "ok", "now", "why"),
    [
        (room(2, 4), True, True, "2 of 2 free nodes"),
        (room(1, 4), True, False, "when it is empty; now 1 of its 4 nodes"),
        (room(1, 1), False, False, "it has 1"),
        (room(4, 4, Quota(name="account ml", gpus_left=8)), False, False, "account ml leaves 8 GPUs, 16 are wanted"),
        (room(4, 4, Quota(name="account ml", scope="others", gpus_left=8)), True, True, "2 of 4 free nodes"),
    ],
)
def test_room_now_and_room_when_empty_are_told_apart(seen: Room, ok: bool, now: bool, why: str) -> None:
    check, has_room = capacity(Request(job="train", nodes=2, gpus_per_node=8), seen, "ml")
    assert (check.ok, has_room) == (ok, now)
    assert why in check.why
    assert bool(check.do) is not ok


def test_a_batch_job_that_would_become_somebody_else_is_refused() -> None:
    found = run_as(spec(), "slurm", "ada", "root")
    assert not found.check.ok
    assert "runs as ada now, and would run as root" in found.check.why
    assert run_as(spec(user="ada"), "slurm", "ada", "root").check.ok


def test_account_and_qos_are_named_with_the_user() -> None:
    script = SCRIPT.replace("--nodes=2", "--nodes=2 --qos=high")
    found = run_as(spec(script, user="ada", options=("--account=ml",)), "slurm", "ada", "root")
    assert found.check.why == "as ada, account ml, QOS high"
    assert found.owner == "ada"


@pytest.mark.parametrize(
    ("user", "me", "root", "known", "why"),
    [
        ("ada", "root", True, True, ""),
        ("ada", "ada", False, True, ""),
        ("", "runbook", False, True, ""),
        ("ada", "runbook", False, True, "cannot submit as ada"),
        ("ada", "root", True, False, "knows no user ada"),
    ],
)
def test_only_root_or_the_user_can_submit_for_a_user(user: str, me: str, root: bool, known: bool, why: str) -> None:
    check = cannot_become(user, me, root=root, known=known)
    assert (check is None) is (why == "")
    if check is not None:
        assert why in check.why
        assert check.do


@pytest.mark.parametrize(
    ("manifest", "owner", "who"),
    [
        (POD, "1000:2000", "user 1000, service account trainer"),
        (POD.replace(", fsGroup: 2000", ""), "1000", "user 1000"),
        ("spec: {}", "", "the image's user, service account default"),
        ('{"securityContext": {"runAsUser": 1000}}', "1000", "user 1000"),
    ],
)
def test_a_pods_user_owns_its_files(manifest: str, owner: str, who: str) -> None:
    found = run_as(spec(manifest), "kubernetes", "", "root")
    assert found.owner == owner
    assert who in found.check.why


def test_images_and_modules_are_named() -> None:
    assert named_in(SCRIPT) == "it names the image lab/train:3; it names the module cuda/12.4, nccl"
    assert named_in(POD) == "it names the image lab/train:3"
    assert named_in("#!/bin/sh\ntrue\n") == ""


# -- storage

SITED = """\
version: 1
clusters:
  alpha: {kind: sim, path: w, site: near}
  beta: {kind: sim, path: w, site: far}
  gamma: {kind: sim, path: w}
sites:
  near: {mount: /shared/ckpt, remote: "fr:ckpt", rate: 1GB/s}
  far: {mount: /lustre}
"""
SITES = parse_policy(SITED, "fleet.yaml")


def test_a_root_keeps_its_path_below_the_other_mount_and_each_mover_names_it_its_own_way() -> None:
    here = storage_of(SITES, "alpha", "/shared/ckpt/team/llama")
    there = moved(SITES, here, "beta")
    assert (here.seen_from("near"), here.seen_from("far")) == ("/shared/ckpt/team/llama", "fr:ckpt/team/llama")
    assert (there.path, there.seen_from("near")) == ("/lustre/team/llama", "/lustre/team/llama")
    assert here.rate == 1e9


@pytest.mark.parametrize(
    ("cluster", "path", "why"),
    [
        ("gamma", "/shared/ckpt/a", "names no site for gamma"),
        ("alpha", "/shared/ckpt", "not below /shared/ckpt"),
        ("alpha", "/shared/ckpt2/a", "not below"),
        ("alpha", "/shared/ckpt/../../etc", "not below"),
        ("alpha", "/shared/ckpt//a", "not below"),
        ("alpha", "/lustre/a", "not below"),
    ],
)
def test_a_root_outside_of_its_clusters_storage_says_what_to_do(cluster: str, path: str, why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        storage_of(SITES, cluster, path)


@pytest.mark.parametrize(
    ("named", "there"),
    [
        ({}, "/lustre/team/llama"),
        ({"own": {"beta": "/lustre/mine"}, "common": "/shared/ckpt/team/llama"}, "/lustre/mine"),
        ({"own": {"alpha": "/shared/ckpt/team/llama"}, "common": "/lustre/all"}, "/lustre/all"),
        ({"own": {"alpha": "/shared/ckpt/team/llama"}, "common": "/shared/ckpt/all"}, "/lustre/all"),
    ],
    ids=["none of its own", "one there", "one here", "one here, the common one named as it is here"],
)
def test_a_job_goes_on_in_the_root_that_it_names_there(named: dict[str, Any], there: str) -> None:
    assert destination(SITES, "alpha", "/shared/ckpt/team/llama", "beta", **named).path == there


def test_roots_that_cannot_be_are_told_before_anything_is_copied() -> None:
    with pytest.raises(InvalidInputError, match="/shared/ckpt/a is not below /lustre, the storage of beta"):
        located(SITES, "/shared/ckpt/a", ("alpha", "beta"), own={"beta": "/shared/ckpt/a"})
    both = parse_policy(SITED.replace("site: far", "site: near"), "fleet.yaml")
    with pytest.raises(InvalidInputError, match="alpha and beta share the storage near"):
        destination(both, "alpha", "/shared/ckpt/a", "beta", common="/shared/ckpt/a", own={"beta": "/shared/ckpt/b"})
    with pytest.raises(InvalidInputError, match="/nowhere/a is in no cluster's storage"):
        destination(SITES, "alpha", "/shared/ckpt/a", "beta", common="/nowhere/a", own={"alpha": "/shared/ckpt/a"})


# -- what a job's next attempt would be


def order(**more: object) -> JobOrder:
    given = {
        "job": "train",
        "cluster": "alpha",
        "native_id": "7",
        "kinds": KINDS,
        "script": SCRIPT,
        "spec_text": SHOWN,
    }
    return JobOrder.model_validate(given | more)


def test_an_adopted_job_goes_on_from_its_saved_script_as_its_user_account_and_qos() -> None:
    found, why = protected(order(), NATIVE)
    assert found is not None
    assert why == ""
    made = found.wish.spec("beta", "slurm")
    assert (made.user, made.script, made.workdir) == ("ada", SCRIPT, "/home/ada/my work")
    assert made.options == ("--gres=gpu:8", "--account=ml", "--qos=high", "--nodes=2")
    assert parse_tokens(made.comment).checkpoint == "/ckpt/train"
    assert found.wish.request == Request(job="train", nodes=2, gpus_per_node=8)
    assert found.targets == ("beta",)
    assert (found.user, found.total_steps) == ("ada", 100)


def test_its_checkpoints_are_where_its_cluster_says_and_while_that_is_away_where_they_were_last() -> None:
    wish = PlaceWish(
        request=Request(job="train"),
        name="train",
        templates={"slurm": SCRIPT},
        comment=f"{TOKEN_PREFIX}checkpoint=/common/train",
        roots={"alpha": "/own/train"},
    )
    seen, _ = protected(order(wish=wish), NATIVE)
    away, _ = protected(order(wish=wish, remembered=seen), None)
    elsewhere, _ = protected(order(wish=wish, remembered=seen, cluster="beta"), None)
    never, _ = protected(order(wish=wish), None)
    assert [one and one.checkpoint for one in (seen, away, elsewhere, never)] == [
        "/ckpt/train",
        "/ckpt/train",
        "/common/train",
        "/own/train",
    ]


def test_a_name_cannot_pose_as_an_account() -> None:
    assert accounting(SHOWN) == ("ml", "high")
    assert accounting("Account=evil QOS=evil") == ("", "")
    assert accounting(SHOWN.replace("Account=ml", "Account=(null)")) == ("", "high")


def test_a_job_for_any_cluster_has_every_cluster_of_its_templates_as_a_target() -> None:
    wish = PlaceWish(request=Request(job="train"), name="train", templates={"slurm": SCRIPT, "kubernetes": POD})
    found, _ = protected(order(wish=wish), NATIVE)
    assert found is not None
    assert found.targets == ("beta", "gamma")
    only = wish.model_copy(update={"templates": {"kubernetes": POD}})
    here, why = protected(order(wish=only, cluster="gamma"), None)
    assert here is not None
    assert here.targets == ()
    assert "template for kubernetes only" in why


@pytest.mark.parametrize(
    ("given", "native", "why"),
    [
        ({"redacted": True}, NATIVE, "held a secret"),
        ({"script": None}, NATIVE, "could not be read"),
        ({}, None, "nothing was saved of it before"),
    ],
)
def test_a_job_that_cannot_be_submitted_again_says_why(
    given: dict[str, object], native: NativeJob | None, why: str
) -> None:
    found, told = protected(order(**given), native)
    assert found is None
    assert why in told


def test_what_was_made_of_it_before_serves_while_its_cluster_is_away() -> None:
    before, _ = protected(order(), NATIVE)
    after, _ = protected(order(remembered=before), None)
    assert after is not None
    assert before is not None
    assert (after.wish, after.user, after.targets) == (before.wish, "ada", ("beta",))
    assert "does not answer" in after.protections[0]
