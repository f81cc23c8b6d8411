"""What sites hold becomes what the offers say: there, the cost of bringing it, or not known."""

import pytest

from fleet.copying.space import PER_FILE
from fleet.errors import InvalidInputError
from fleet.ettr import copy_time
from fleet.model import NodeGroup, Room
from fleet.orders import CHECKPOINT_ENV
from fleet.placement import CriterionName, Offer, Request, Stock, place
from fleet.placing import PlaceWish
from fleet.sites import Storage
from fleet.stock import Held, dataset_of, held_checkpoint, held_dataset, spec_at, weigh

NEAR = Storage(site="near", path="/near/train", remote="/near/train", rate=1e9)
FAR = Storage(site="far", path="/far/train", remote="/far/train", rate=1e8)
PLACES = {"alpha": NEAR, "beta": FAR}
CLUSTERS = ("alpha", "beta", "gamma")
SIZE, FILES, STREAMS = 10**12, 800, 8
NOTHING = Held(there=False)


def test_the_newest_is_there_or_costs_what_its_bytes_and_files_take_over_the_targets_line() -> None:
    found = weigh(
        "checkpoint",
        CLUSTERS,
        PLACES,
        {"near": held_checkpoint(30, SIZE, FILES), "far": held_checkpoint(20, 5, 1)},
        STREAMS,
    )
    cost = copy_time(SIZE, FAR.rate * 8, files=FILES, per_file=PER_FILE, streams=STREAMS)
    assert found.stocks["alpha"] == Stock(there=True, detail="step 30")
    assert found.stocks["beta"] == Stock(there=False, seconds=cost, detail="step 30 (931.3 GiB) from near")
    assert (found.stocks["gamma"].there, found.stocks["gamma"].seconds) == (False, None)
    assert (found.source, found.text, found.lacks) == ("near", "step 30 at near", {})


def test_the_same_step_on_two_sites_is_there_on_both() -> None:
    held = {"near": held_checkpoint(30, SIZE, FILES), "far": held_checkpoint(30, SIZE, FILES)}
    found = weigh("checkpoint", CLUSTERS[:2], PLACES, held, STREAMS)
    assert [found.stocks[c].there for c in CLUSTERS[:2]] == [True, True]


def test_no_checkpoint_anywhere_is_none_needed_but_a_dataset_that_is_nowhere_keeps_all_clusters_out() -> None:
    held = {"near": NOTHING, "far": held_dataset(False, "shard 7 is not there", 0, 0)}
    assert not weigh("checkpoint", CLUSTERS, PLACES, held, STREAMS).stocks
    found = weigh("dataset", CLUSTERS, PLACES, held, STREAMS, needed=True)
    assert set(found.lacks) == set(CLUSTERS)
    assert "far: shard 7 is not there; near: nothing" in found.lacks["alpha"][0]


def test_a_site_that_cannot_be_asked_is_never_taken_for_an_empty_one() -> None:
    held = {"near": held_checkpoint(30, SIZE, FILES), "far": Held(there=False, unknown="nobody polls data.far")}
    found = weigh("checkpoint", CLUSTERS, PLACES, held, STREAMS)
    assert set(found.lacks) == set(CLUSTERS)
    assert "far: nobody polls data.far" in found.lacks["alpha"][0]


def test_the_choice_says_what_lies_where_and_what_bringing_it_takes() -> None:
    held = {"near": held_checkpoint(30, SIZE, FILES), "far": NOTHING}
    found = weigh("checkpoint", CLUSTERS, PLACES, held, STREAMS)
    groups = (NodeGroup(gpu_model="H100", gpus=8, free=4, total=4),)
    offers = [
        Offer(cluster=c, room=Room(cluster=c, groups=groups), checkpoint=found.stocks[c])
        for c in ("alpha", "beta", "gamma")
    ]
    made = place(Request(job="train", nodes=2, gpus_per_node=8), offers)
    facts = {c.cluster: c.facts.get(CriterionName.CHECKPOINT, c.why) for c in made.candidates}
    assert made.order == ("alpha", "beta")
    assert facts["alpha"] == "step 30 there"
    assert facts["beta"].endswith("to bring step 30 (931.3 GiB) from near")
    assert facts["gamma"].startswith("the newest complete checkpoint (step 30; gamma has no site) is not there")


def test_a_dataset_is_named_by_its_manifest() -> None:
    root, parts = dataset_of("/lustre/data/c4/SHA256SUMS")
    assert (root, parts.name, parts.sums) == ("/lustre/data", "c4", "c4/SHA256SUMS")
    with pytest.raises(InvalidInputError, match="needs a folder of its own"):
        dataset_of("/c4/SHA256SUMS")


def test_a_job_is_told_where_its_checkpoints_are_in_the_cluster_that_it_goes_to() -> None:
    wish = PlaceWish(
        request=Request(job="train"),
        name="train",
        templates={"slurm": "#!/bin/sh\n"},
        comment="gpu-runbooks.io/checkpoint=/near/train mine",
    )
    assert spec_at(wish, "alpha", "slurm", NEAR) == wish.spec("alpha", "slurm")
    moved = spec_at(wish, "beta", "slurm", FAR)
    assert moved.comment == "mine gpu-runbooks.io/checkpoint=/far/train"
    assert moved.env[CHECKPOINT_ENV] == "/far/train"
    own = wish.model_copy(update={"roots": {"beta": "/mine"}})
    assert spec_at(own, "beta", "slurm", None).env[CHECKPOINT_ENV] == "/mine", "a fleet without sites"
    assert spec_at(own, "alpha", "slurm", None) == own.spec("alpha", "slurm")
