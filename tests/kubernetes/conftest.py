"""A private Kubernetes cluster for the tests marked `kubernetes`; a missing lab is a visible skip, or a failure."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager

import pytest

from tests.kubernetes.lab import Cluster, cluster, isolated, why_not, why_not_controllers
from tests.require import missing

Opener = Callable[..., AbstractAsyncContextManager[Cluster]]


@pytest.fixture(scope="session")
def k8s_lab() -> Iterator[Opener]:
    """Starts clusters, in a network namespace of this process's own; skips, or fails where it is required."""
    if (why := why_not()) is not None:
        missing("kubernetes", why)
    with isolated():
        yield cluster


@pytest.fixture(scope="module")
def gamma(k8s_lab: Opener, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One cluster of two nodes for a module: its tests leave both nodes up and no job.

    A module that says `CONTROLLERS = ("jobset", "kueue")` has these in it.
    """
    controllers = getattr(request.module, "CONTROLLERS", ())
    if controllers and (why := why_not_controllers(*controllers)) is not None:
        missing("kubernetes", why)
    with asyncio.Runner() as runner:
        opened = k8s_lab("gamma", nodes=2, controllers=controllers)
        made = runner.run(opened.__aenter__())
        try:
            yield made
        finally:
            runner.run(opened.__aexit__(None, None, None))
