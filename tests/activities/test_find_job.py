"""Which native object a name means, where a job was submitted more than once."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities import api
from activities.backends.port import ClusterBackend
from activities.backends.sim import ClusterShape, SimBackend, SimSettings, create_world
from activities.jobs import JobActivities
from activities.runtime import Runtime
from activities.store import AsyncHistoryStore, sqlite_url
from clients.errors import CliError
from fleet.model import NativeJob
from fleet.orders import JobSpec
from workers import job_by_name

SCRIPT = "#!/bin/sh\n#SIM nodes=1\n"


@pytest.fixture
async def backends(tmp_path: Path) -> AsyncIterator[dict[str, SimBackend]]:
    world = create_world(tmp_path / "world.db", {"alpha": ClusterShape(), "beta": ClusterShape()})
    made = {name: SimBackend(name, SimSettings(path=world)) for name in ("alpha", "beta")}
    yield made
    for backend in made.values():
        await backend.close()


@pytest.fixture
async def jobs(backends: dict[str, SimBackend], tmp_path: Path) -> AsyncIterator[JobActivities]:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(
        "version: 1\nclusters:\n  alpha: {kind: sim, path: world.db}\n  beta: {kind: sim, path: world.db}\n"
    )

    def backend_of(cluster: str, *_: object) -> ClusterBackend:
        return backends[cluster]

    store = await AsyncHistoryStore.open(sqlite_url(tmp_path / "history.sqlite"))
    client = cast("Client", None)  # Temporal has no part in it
    runtime = Runtime(policy_file=fleet, client=client, make_backend=backend_of, store=store, unsigned_ok=True)
    yield JobActivities(runtime)
    await store.close()


async def submitted(backend: SimBackend, epoch: int) -> NativeJob:
    return await backend.submit(JobSpec(job="night", name="train", script=SCRIPT, epoch=epoch))


async def ids_of(jobs: JobActivities, word: str) -> list[str]:
    found = await ActivityEnvironment().run(jobs.find_job, api.FindJob(cluster="alpha", job=word))
    return [hit.job.native_id for hit in found.jobs]


async def test_a_name_means_the_newest_submission_and_an_id_the_object_itself(
    jobs: JobActivities, backends: dict[str, SimBackend]
) -> None:
    old, new = [await submitted(backends["alpha"], epoch) for epoch in (0, 1)]
    await backends["alpha"].cancel(new.native_id)
    assert await ids_of(jobs, "night") == [new.native_id], "also when it has ended and the older one lives"
    assert await ids_of(jobs, old.name) == [new.native_id]
    assert await ids_of(jobs, old.native_id) == [old.native_id]


async def test_of_two_clusters_the_one_with_the_newest_submission_has_the_job(
    backends: dict[str, SimBackend],
) -> None:
    asked: dict[str, ClusterBackend] = {**backends}
    old, new = await submitted(backends["alpha"], 1), await submitted(backends["beta"], 2)
    backend, job = await job_by_name.found("night", asked)
    assert (backend.cluster, job.native_id) == ("beta", new.native_id)
    assert (await job_by_name.found(old.native_id, asked))[1].native_id == old.native_id
    await submitted(backends["alpha"], 2)
    with pytest.raises(CliError, match="several jobs"):
        await job_by_name.found("night", asked)
