"""Which jobs that the watch sees get a runbook, and what it puts on record of nodes."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.backends.port import Change, ClusterBackend
from activities.runtime import Runtime
from activities.store import AsyncHistoryStore, sqlite_url
from activities.watching import WatchActivities, _Told
from fleet.model import JobTokens, NativeJob, NodeFacts, NodeState, Phase
from fleet.strikes import StrikeKind


class NoRunbooks:
    """A Temporal client of a server that has none; notes what is started."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def get_workflow_handle(self, _id: str) -> "NoRunbooks":
        return self

    async def signal(self, *_args: object) -> None:
        raise RPCError("no such workflow", RPCStatusCode.NOT_FOUND, b"")

    async def describe(self) -> None:
        raise RPCError("no such workflow", RPCStatusCode.NOT_FOUND, b"")

    async def start_workflow(self, *_args: object, id: str, **_more: Any) -> None:  # noqa: A002 - the SDK's name
        self.started.append(id)


class OnlyAWatch(NoRunbooks):
    """One whose watch takes what it is told."""

    async def signal(self, *_args: object) -> None:
        return


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[AsyncHistoryStore]:
    opened = await AsyncHistoryStore.open(sqlite_url(tmp_path / "history.sqlite"))
    yield opened
    await opened.close()


def watcher(client: NoRunbooks, store: AsyncHistoryStore) -> WatchActivities:
    def no_backend(*_: object) -> ClusterBackend:
        raise AssertionError("no cluster is asked")

    runtime = Runtime(
        policy_file=Path("no-fleet.yaml"),
        client=cast("Client", client),
        make_backend=no_backend,
        store=store,
        unsigned_ok=True,
    )
    return WatchActivities(runtime)


Started = Callable[..., Awaitable[list[str]]]


@pytest.fixture
def started_for(store: AsyncHistoryStore) -> Started:
    async def tell(phase: Phase, *, supervise: bool = True) -> list[str]:
        client = NoRunbooks()
        tokens = JobTokens(job="t", supervise=supervise)
        job = NativeJob(cluster="alpha", native_id="7", name="t", phase=phase, tokens=tokens)
        await watcher(client, store)._tell("alpha", Change(jobs=(job,)), _Told())
        return client.started

    return tell


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.RUNNING, Phase.STOPPING])
async def test_a_job_that_asks_for_supervision_gets_a_runbook(started_for: Started, phase: Phase) -> None:
    assert await started_for(phase) == ["job/t"]


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED, Phase.TIMED_OUT, Phase.ABSENT])
async def test_a_job_that_is_over_or_purged_gets_none_and_wakes_nobody(started_for: Started, phase: Phase) -> None:
    assert await started_for(phase) == []


async def test_a_job_that_does_not_ask_is_left_alone(started_for: Started) -> None:
    assert await started_for(Phase.RUNNING, supervise=False) == []


async def test_what_is_left_of_an_older_submission_is_not_told_as_the_job(store: AsyncHistoryStore) -> None:
    def native(native_id: str, epoch: int) -> NativeJob:
        tokens = JobTokens(job="t", supervise=True, epoch=epoch)
        return NativeJob(cluster="alpha", native_id=native_id, name="t", phase=Phase.RUNNING, tokens=tokens)

    told = _Told()
    assert told.newest((native("1", 0),)) == (native("1", 0),)
    assert told.newest((native("1", 0), native("2", 1))) == (native("2", 1),)
    assert told.newest((native("1", 0),)) == (), "also when only the older one changed"
    assert told.newest((native("2", 1),)) == (native("2", 1),)
    client = NoRunbooks()
    await watcher(client, store)._tell("alpha", Change(jobs=(native("1", 0),)), told)
    assert client.started == []


async def test_what_jobs_say_of_nodes_is_put_on_record_once(store: AsyncHistoryStore) -> None:
    def native(native_id: str, phase: Phase, *nodes: str, **more: Any) -> NativeJob:
        return NativeJob(cluster="alpha", native_id=native_id, name=native_id, phase=phase, nodes=nodes, **more)

    alone, wide = native("1", Phase.RUNNING, "a1"), native("2", Phase.NODE_LOST, "a1", "a2")
    choosy = native("3", Phase.PENDING, excluded=("a2",), user="ada")
    down = NodeFacts(cluster="alpha", node="a2", state=NodeState.DOWN, responding=False)
    watching, told = watcher(OnlyAWatch(), store), _Told()
    for _ in range(2):
        await watching._tell("alpha", Change(jobs=(alone, wide, choosy), nodes=(down,)), told)
    await watching._tell("alpha", Change(jobs=(alone, wide, choosy), nodes=(down,)), _Told())  # another watch
    record = await store.record(since=0)
    assert {(s.kind, s.node) for s in record.strikes if s.kind is not StrikeKind.TAKEN_OUT} == {
        (StrikeKind.MULTI_NODE_FAIL, "a2"),
        (StrikeKind.EXCLUDED, "a2"),
    }
    assert [run.node for run in record.runs] == ["a1"]
    assert len(record.strikes) == 2


async def test_a_store_that_cannot_be_written_stops_no_watch(store: AsyncHistoryStore, tmp_path: Path) -> None:
    client = NoRunbooks()
    watching = watcher(client, store)
    await store.close()
    (tmp_path / "history.sqlite").write_bytes(b"not a database any more" * 1000)
    lost = NativeJob(cluster="alpha", native_id="1", name="x", phase=Phase.NODE_LOST, nodes=("a1",))
    asks = NativeJob(cluster="alpha", native_id="7", name="t", phase=Phase.RUNNING, tokens=JobTokens(supervise=True))
    await watching._tell("alpha", Change(jobs=(lost, asks)), _Told())
    assert len(client.started) == 1
