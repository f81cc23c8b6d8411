"""GPU products, topology labels and quotas of namespaces, as the apiserver writes them."""

from typing import Any

import pytest

from activities.backends.kubernetes.records import TOPOLOGY, NodeRecord, node_record
from activities.backends.kubernetes.room import quotas_of
from fleet.model import Quota
from tests.kubernetes.making import RESOURCE


def node(**labels: str) -> NodeRecord:
    return node_record({"metadata": {"name": "n1", "uid": "u", "labels": labels}}, RESOURCE)


def test_a_node_says_its_gpu_product_by_its_label() -> None:
    assert node(**{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}).gpu_model == "NVIDIA-H100-80GB-HBM3"
    assert node().gpu_model == ""


@pytest.mark.parametrize("place", range(len(TOPOLOGY)))
def test_the_nearest_topology_label_is_the_domain(place: int) -> None:
    labels = {key: key.rpartition("/")[2] for key in TOPOLOGY[place:]}

    assert node(**labels).domain == TOPOLOGY[place].rpartition("/")[2]


def test_a_node_without_such_labels_has_no_domain() -> None:
    assert node(**{"kubernetes.io/hostname": "n1", TOPOLOGY[0]: ""}).domain == ""


def quota(namespace: str, spec: dict[str, str], **status: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"namespace": namespace, "name": "limits"}, "spec": {"hard": spec}, "status": status}


def test_a_quota_leaves_what_its_namespace_does_not_use() -> None:
    gpus = f"requests.{RESOURCE}"
    found = quotas_of(
        [
            quota("vision", {gpus: "16"}, hard={gpus: "16"}, used={gpus: "12"}),
            quota("ml", {gpus: "8"}),  # no controller has counted yet
            quota("web", {"requests.cpu": "8"}, hard={"requests.cpu": "8"}, used={}),
        ],
        RESOURCE,
    )

    assert found == (
        Quota(name="ResourceQuota ml/limits", scope="ml", gpus_left=8),
        Quota(name="ResourceQuota vision/limits", scope="vision", gpus_left=4),
    )
