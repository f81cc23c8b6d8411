"""A TrainJob on the real Kubeflow trainer (`make test-kinds`)."""

import pytest

from tests.runbooks_kubernetes.kinds import TRAIN_JOB
from tests.runbooks_kubernetes.stage import Stage
from tests.runbooks_kubernetes.test_kinds import is_evicted, outlives_everything

pytestmark = pytest.mark.kinds
CONTROLLERS = ("jobset", "trainer")


async def test_it_outlives_a_lost_gpu_a_lost_node_an_eviction_and_a_runbook_that_is_cancelled(shared: Stage) -> None:
    await outlives_everything(shared, TRAIN_JOB, is_evicted)
