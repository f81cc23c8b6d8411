"""A backend that cannot be tested here is one visible skip, and a failure where it is required."""

import pytest

from tests.contract.conftest import required
from tests.contract.rig import RigKind


def test_the_rig_can_start(rig_kind: RigKind) -> None:
    why = rig_kind.why_not()
    if why is None:
        return
    if required(rig_kind.name) or required(rig_kind.name.split("-")[0]):
        pytest.fail(f"{rig_kind.name} is required (GPU_RUNBOOKS_REQUIRE): {why}")
    pytest.skip(f"the contract suite does not run on {rig_kind.name}: {why}")
