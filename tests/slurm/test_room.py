"""Slurm's own words on topology, limits and GPU types. The formats: scontrol(1), topology.conf(5) and the sources of
`scontrol show assoc_mgr` (src/scontrol/info_assoc_mgr.c)."""

import json
from pathlib import Path

import pytest

from activities.backends.slurm.normalise import entries, gpu_model_in, node_record
from activities.backends.slurm.room import parse_accounts, parse_topology, quotas_of
from fleet.model import Quota

GOLDEN = Path(__file__).parents[1] / "data" / "slurm"
TREE = """\
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=alpha[1-2]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=alpha[3-4],alpha7
SwitchName=spine Level=1 LinkSpeed=1 Nodes=alpha[1-4],alpha7 Switches=leaf[1-2]
"""
BLOCKS = (
    "BlockName=b1 BlockIndex=0 Nodes=alpha[1-2] BlockSize=2\nBlockName=b2 BlockIndex=1 Nodes=alpha3 BlockSize=2\n"
)
ASSOCIATIONS = """\
Current Association Manager state

Association Records

ClusterName=alpha Account=root UserName= Partition= Priority=0 ID=1
    ParentAccount= Lft=1 DefAssoc=No
    GrpTRES=cpu=N(640),mem=N(0),node=20(12),billing=N(0),gres/gpu=160(96)
ClusterName=alpha Account=ml UserName= Partition= Priority=0 ID=3
    ParentAccount=root(1) Lft=2 DefAssoc=No
    GrpTRES=cpu=N(0),node=N(4),gres/gpu=64(32)
    MaxTRESPJ=node=2
ClusterName=alpha Account=ml UserName=tom(1000) Partition= Priority=0 ID=4
    ParentAccount= Lft=3 DefAssoc=Yes
    GrpTRES=gres/gpu=8(0)
ClusterName=alpha Account=vision UserName= Partition= Priority=0 ID=5
    ParentAccount=root(1) Lft=6 DefAssoc=No
    GrpTRES=cpu=N(0)
"""


def test_a_node_hangs_on_its_leaf_switch_or_its_block() -> None:
    assert parse_topology(TREE) == {
        "alpha1": "leaf1",
        "alpha2": "leaf1",
        "alpha3": "leaf2",
        "alpha4": "leaf2",
        "alpha7": "leaf2",
    }
    assert parse_topology(BLOCKS) == {"alpha1": "b1", "alpha2": "b1", "alpha3": "b2"}


@pytest.mark.parametrize("said", ["", "No topology information available\n", "SwitchName=s Level=0 Nodes=(null)\n"])
def test_a_cluster_that_says_no_topology_has_none(said: str) -> None:
    assert parse_topology(said) == {}


def test_an_account_is_bound_by_its_own_limit_and_by_those_above_it() -> None:
    root, ml = "the limit of Slurm's account root", "the limit of Slurm's account ml"

    assert set(quotas_of(parse_accounts(ASSOCIATIONS))) == {
        Quota(name=root, scope="root", nodes_left=8, gpus_left=64),
        Quota(name=ml, scope="ml", gpus_left=32),
        Quota(name=root, scope="ml", nodes_left=8, gpus_left=64),
        Quota(name=root, scope="vision", nodes_left=8, gpus_left=64),
    }


def test_a_record_on_one_line_reads_the_same() -> None:
    lines = ASSOCIATIONS.replace("\n    ", " ")

    assert parse_accounts(lines) == parse_accounts(ASSOCIATIONS)


def test_without_accounting_nobody_has_a_limit() -> None:
    assert quotas_of(parse_accounts("")) == ()
    assert quotas_of(parse_accounts("Current Association Manager state\n\nNo associations\n")) == ()


def test_accounts_that_name_each_other_as_parents_end() -> None:
    loop = "ClusterName=a Account=x UserName= ParentAccount=y(2) GrpTRES=node=2(1)\n"
    loop += "ClusterName=a Account=y UserName= ParentAccount=x(1) GrpTRES=node=4(1)\n"

    assert len(quotas_of(parse_accounts(loop))) == 4


@pytest.mark.parametrize(
    ("gres", "model"),
    [
        ("gpu:h100:8", "h100"),
        ("gpu:H100:8(S:0-1)", "h100"),
        ("gpu:8", ""),
        ("gpu:a100:4,gpu:a100_mig:2,nic:2", "a100+a100_mig"),
        ("", ""),
    ],
)
def test_the_type_of_a_gpu_is_in_its_gres(gres: str, model: str) -> None:
    assert gpu_model_in(gres) == model


@pytest.mark.parametrize("release", ["22.05", "25.11"])
def test_real_nodes_say_their_type(release: str) -> None:
    raw = json.loads((GOLDEN / release / "node-idle.json").read_text())

    assert [node_record(node).gpu_model for node in entries(raw, "nodes")] == ["h100"]
