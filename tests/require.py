"""Missing components: one visible skip, or a failure where `GPU_RUNBOOKS_REQUIRE` names the component."""

import os
import shutil
from typing import NoReturn

import pytest


def required(component: str) -> bool:
    """`GPU_RUNBOOKS_REQUIRE=temporal,slurm` makes a missing component a failure."""
    return component in os.environ.get("GPU_RUNBOOKS_REQUIRE", "").split(",")


def missing(component: str, why: str) -> NoReturn:
    """Ends the test: a skip that says why, a failure when the component is required."""
    if required(component):
        pytest.fail(f"{component} is required here (GPU_RUNBOOKS_REQUIRE) but {why}", pytrace=False)
    pytest.skip(f"{component}: {why}")


def needs_program(program: str, package: str) -> None:
    """Skips, or fails when `package` is required, without the program."""
    if shutil.which(program) is None:
        missing(package, f"{program} is missing: apt-get install {package}")
