"""What a judgement learns from the store: repeats of weeks, other jobs on the same nodes, what is seen around it."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities import api
from activities.control import ControlActivities
from activities.nodes import under_job_since
from activities.runtime import Runtime
from activities.store import AsyncHistoryStore, sqlite_url
from fleet.faults.evidence import Evidence, Fact, FaultClass, Kind, Source, Verdict
from fleet.faults.job_log import parse_job_log
from fleet.model import NodeFacts, NodeState
from tests.faults.making import traceback
from tests.fleet.make import POLICY_HEAD

DAY = 86400.0
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


class Desk:
    """`judge` on a store and a policy of its own."""

    def __init__(self, store: AsyncHistoryStore, policy: Path) -> None:
        self.store = store
        nothing: Any = None
        self._judge = ControlActivities(
            Runtime(policy_file=policy, client=nothing, make_backend=nothing, store=store, unsigned_ok=True)
        ).judge

    async def judged(self, *evidence: Evidence, node: str | None = None, job: str | None = None) -> Verdict:
        asked = api.JudgeIn(cluster="alpha", evidence=evidence, node=node, job=job)
        return await ActivityEnvironment().run(self._judge, asked)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    policy = tmp_path / "fleet.yaml"
    policy.write_text(POLICY_HEAD)
    store = await AsyncHistoryStore.open(sqlite_url(tmp_path / "history.sqlite"))
    yield Desk(store, policy)
    await store.close()


def seen(kind: Kind, code: str, *, ago: float = 10.0, node: str | None = "a1", **more: object) -> Evidence:
    at = time.time() - ago
    known = {"source": Source.KERNEL, "kind": kind, "cluster": "alpha", "code": code, "node": node}
    return Evidence.model_validate(known | {"seen_at": at, "happened_at": at} | more)


def log(*lines: str, job: str, ago: float, nodes: tuple[str, ...]) -> tuple[Evidence, ...]:
    return parse_job_log(lines, cluster="alpha", job=job, seen_at=time.time() - ago, nodes=nodes)


async def test_a_fault_that_came_back_within_a_week_is_judged_as_one(desk: Desk) -> None:
    await desk.store.add_evidence([seen(Kind.XID, "48", ago=3 * DAY, gpu="0000:1b:00")])
    again = seen(Kind.XID, "48", gpu="0000:1b:00")
    assert (await desk.judged(again, node="a1")).first_rung == "person"
    assert (await desk.judged(again.model_copy(update={"gpu": "0000:43:00"}), node="a1")).first_rung == "reset"


async def test_the_rest_of_the_cluster_tells_a_common_cause(desk: Desk) -> None:
    here = seen(Kind.XID, "119", gpu="0000:1b:00")
    assert (await desk.judged(here, node="a1")).rule == "xid:119"
    await desk.store.add_evidence([seen(Kind.XID, "119", node=f"b{n}", ago=200, gpu="0000:1b:00") for n in range(6)])
    verdict = await desk.judged(here, node="a1")
    assert (verdict.rule, verdict.first_rung, verdict.culprit.node) == ("common_cause:119", "person", None)


async def test_who_killed_a_job_is_known_from_its_nodes_kernel(desk: Desk) -> None:
    end = seen(Kind.JOB_EXIT, "SIGKILL", node=None, job="train", nodes=("a1", "a2"))
    assert (await desk.judged(end, job="train")).fault is FaultClass.UNKNOWN
    await desk.store.add_evidence([seen(Kind.KERNEL_TEXT, "oom_job", node="a2", ago=15)])
    assert (await desk.judged(end, job="train")).rule == "killed:oom_job"
    elsewhere = end.model_copy(update={"nodes": ("a3",), "raw_hash": "x"})
    assert (await desk.judged(elsewhere, job="train")).fault is FaultClass.UNKNOWN


async def test_the_node_that_failing_jobs_have_in_common_is_blamed(desk: Desk) -> None:
    for job, other in (("one", "a1"), ("two", "a2")):
        await desk.store.add_evidence(log(*traceback(ECC), job=job, ago=DAY, nodes=(other, "a7")))
    verdict = await desk.judged(*log(*traceback(ECC), job="three", ago=5, nodes=("a7", "a4")), job="three")
    assert (verdict.fault, verdict.culprit.node) == (FaultClass.HARDWARE, "a7")


def test_a_node_that_booted_lately_says_so_and_one_that_runs_for_days_does_not() -> None:
    now = time.time()
    node = NodeFacts(cluster="alpha", node="a1", state=NodeState.UP, boot="b1", booted_at=now - 40)
    (fact,) = under_job_since(node, now)
    assert (fact.kind, fact.code, fact.node, fact.happened_at) == (Kind.FACT, Fact.BOOTED, "a1", now - 40)
    assert under_job_since(node.model_copy(update={"booted_at": now - 5 * DAY}), now) == ()
    assert under_job_since(node.model_copy(update={"booted_at": 0.0}), now) == ()
