"""The whole product of boundaries and faults on real Slurm. Run it with `make test-matrix`."""

import pytest

from tests.crash.boundary import EVERY_CASE, ONLY_ON_SLURM, Case
from tests.crash_slurm.checks import assert_ends_alike
from tests.crash_slurm.conftest import Ended

pytestmark = [pytest.mark.slurm, pytest.mark.matrix]


@pytest.mark.parametrize("case", [*EVERY_CASE, *ONLY_ON_SLURM], ids=str)
def test_every_disturbed_failover_ends_as_an_undisturbed_one(case: Case, ended: Ended) -> None:
    assert_ends_alike(ended(case), ended(Case()), case)
