"""Everything a user may set (`fleet.yaml`), each with unit, default, effect and reason. Strict."""

from enum import StrEnum


class StepMode(StrEnum):
    """What automation may do at a step (DESIGN.md law 10). Missing = propose."""

    OBSERVE = "observe"
    PROPOSE = "propose"
    APPROVE = "approve"
    AUTO = "auto"
