"""The adapter on a real cluster, beyond what every backend must do (tests/contract)."""

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator

import pytest

from activities.backends.kubernetes import marks
from activities.backends.kubernetes.api import KubeApi, Raw
from activities.backends.kubernetes.backend import KubernetesBackend
from activities.backends.kubernetes.mirror import Mirror
from activities.backends.kubernetes.progress import LOG_LIMIT
from activities.backends.kubernetes.writes import TRIES
from fleet.errors import PermanentError, RefusedError, TemporaryError
from fleet.identity import TOKEN_PREFIX
from fleet.model import MARK, NativeJob, Phase, Progress, ReceiptGrade
from fleet.orders import StartOrder, StopQuery
from fleet.waves import wave_op
from tests.kubernetes.accounts import kubeconfig_of
from tests.kubernetes.backends import hooks, repairing
from tests.kubernetes.lab import Cluster
from tests.slurm.waiting import until

pytestmark = pytest.mark.kubernetes
SETTLE = 2.0
OP = "opaaaaa"


@pytest.fixture
async def backend(gamma: Cluster) -> AsyncIterator[KubernetesBackend]:
    """Our eyes and hands on the cluster; its jobs and marks are gone afterwards."""
    async with repairing(gamma, settle=SETTLE, **hooks(gamma)) as made:
        await until(made.capacity, lambda c: len(c.free_nodes) == 2, 60)
        yield made
    await gamma.kubectl("delete", "jobs", "--all", "--wait=false")
    for folder in gamma.work.iterdir():
        shutil.rmtree(folder, ignore_errors=True)


async def trained(gamma: Cluster, backend: KubernetesBackend, name: str = "llm", *words: str) -> NativeJob:
    """A person's job that asks for supervision, with steps made; `words` go to the training program."""
    made = gamma.training_job(name)
    made["metadata"]["labels"] = {f"{TOKEN_PREFIX}supervise": "true"}
    made["spec"]["template"]["spec"]["containers"][0]["args"] += words
    await gamma.apply(made)
    native_id = f"job/default/{name}"
    await until(lambda: backend.progress(native_id, 0), lambda p: p.step is not None, 60)
    return await backend.job(native_id)


async def at(backend: KubernetesBackend, job: NativeJob, phase: Phase, seconds: float = 60) -> NativeJob:
    return await until(lambda: backend.job(job.native_id), lambda j: j.phase is phase, seconds)


async def asked(backend: KubernetesBackend, job: NativeJob, *, ordered: bool) -> StopQuery:
    boots = {node: (await backend.node(node)).boot for node in job.nodes}
    return StopQuery(native_id=job.native_id, restarts=job.restarts, boots=boots, ordered=ordered, since=time.time())


async def test_a_job_that_failed_by_itself_waits_as_a_new_object_and_trains_again(
    gamma: Cluster, backend: KubernetesBackend
) -> None:
    job = await trained(gamma, backend, "llm", "--fail-at-step", "60", "--exit-code", "7", "--fault-rank", "1")
    query = await asked(backend, job, ordered=False)
    failed = await at(backend, job, Phase.FAILED)
    assert (failed.exit_code, failed.restarts) == (7, 0)
    assert any("failing on purpose" in line for line in await backend.log_tail(job.native_id))

    await backend.stop(job.native_id, 0)
    waiting = await backend.stop(job.native_id, 0)
    assert (waiting.phase, waiting.held, waiting.restarts) == (Phase.PENDING, True, 1)
    assert (waiting.native_id, waiting.fingerprint) == (job.native_id, job.fingerprint)
    jobs = {j["metadata"]["name"]: j for j in (await gamma.get("jobs"))["items"]}
    assert set(jobs) == {"llm", "llm-g1"}
    assert [c["type"] for c in jobs["llm"]["status"]["conditions"] if c["status"] == "True"][-1] == "Failed"

    settled = query.model_copy(update={"since": time.time() - 60})
    proof = await until(lambda: backend.prove_stopped(settled), lambda p: not p.unproven, 30)
    assert {r.grade for r in proof.receipts} == {ReceiptGrade.DAEMON_GONE}
    await gamma.kubectl("delete", "job", "llm", "--cascade=orphan")  # a person tidies up; the job goes on
    await backend.start_attempt(StartOrder(native_id=job.native_id, restarts=1))
    seen: Progress = await until(lambda: backend.progress(job.native_id, 1), lambda p: p.step is not None, 60)
    assert seen.resumed_from == 40
    await at(backend, job, Phase.RUNNING)
    again = await backend.settle_attempt(job.native_id)
    assert (again.phase, again.restarts, again.held, again.name) == (Phase.RUNNING, 1, True, "llm")


async def test_a_pod_deleted_by_force_is_no_proof_until_its_kubelet_has_spoken(
    gamma: Cluster, backend: KubernetesBackend
) -> None:
    job = await trained(gamma, backend)
    await backend.adopt(job.native_id)
    query = await asked(backend, job, ordered=True)
    silent = job.nodes[1]
    pod = next(p for p in await gamma.pods("llm") if p["spec"]["nodeName"] == silent)["metadata"]["name"]
    await gamma.lab("kubelet-kill", silent)
    async with asyncio.timeout(LOG_LIMIT + 5):  # one try: a client that tries again by itself would stay here
        assert await backend.log_tail(job.native_id)
    await backend.stop(job.native_id, 0)
    with contextlib.suppress(AssertionError):  # it waits for the object, which our finalizer keeps
        await gamma.kubectl("delete", "pod", pod, "--force", "--grace-period=0", "--wait=false")
    await until(lambda: gamma.ranks_alive("llm"), lambda n: n == 1, 30)
    proof = await until(lambda: backend.prove_stopped(query), lambda p: set(p.unproven) == {silent}, 30)
    assert await gamma.ranks_alive("llm") == 1
    assert "not reported the end" in proof.unproven[silent] or "does not answer" in proof.unproven[silent]

    await gamma.lab("kubelet-start", silent)
    proof = await until(lambda: backend.prove_stopped(query), lambda p: not p.unproven, 60)
    assert await gamma.ranks_alive("llm") == 0
    assert {r.grade for r in proof.receipts} == {ReceiptGrade.DAEMON_GONE}


async def test_a_job_whose_controller_would_start_a_copy_is_refused_and_left_as_it_is(
    gamma: Cluster, backend: KubernetesBackend
) -> None:
    await gamma.apply(gamma.training_job("loose", backoffLimit=6))
    before = await gamma.get("job", "loose")
    with pytest.raises(RefusedError, match=r"set spec\.backoffLimit: 0"):
        await backend.adopt("job/default/loose")
    with pytest.raises(RefusedError, match=r"set spec\.backoffLimit: 0"):
        await backend.stop("job/default/loose", 0)
    after = await gamma.get("job", "loose")
    assert after["spec"] == before["spec"]
    assert not [key for key in after["metadata"].get("annotations", {}) if key.startswith(TOKEN_PREFIX)]


async def test_a_second_writer_on_the_same_node_loses_no_taint_and_ours_is_set(
    gamma: Cluster, backend: KubernetesBackend
) -> None:
    node = gamma.node(1)
    await gamma.kubectl("taint", "node", node, "example.com/theirs=1:PreferNoSchedule")
    writing = asyncio.create_task(_scribble(KubeApi(gamma.name, backend.settings), node))
    try:
        facts = await backend.isolate(node, OP, "XID 79")
        assert facts.op == OP
        await gamma.kubectl("taint", "node", node, "example.com/later=1:PreferNoSchedule")
        keys = {t["key"] for t in (await gamma.get("node", node))["spec"]["taints"]}
        assert {"example.com/theirs", "example.com/later", marks.ISOLATED} <= keys
        await backend.release(node, OP)
    finally:
        writing.cancel()
        written = await asyncio.gather(writing, return_exceptions=True)
    assert isinstance(written[0], asyncio.CancelledError)
    left = {t["key"] for t in (await gamma.get("node", node))["spec"].get("taints", [])}
    assert left - {"node.kubernetes.io/unschedulable"} == {"example.com/theirs", "example.com/later"}
    await gamma.kubectl("taint", "node", node, "example.com/theirs-", "example.com/later-")


async def test_the_taint_of_a_cordon_goes_and_comes_with_ours_in_one_write_and_with_anothers_stays_theirs(
    gamma: Cluster, backend: KubernetesBackend
) -> None:
    node, path = gamma.node(1), f"/api/v1/nodes/{gamma.node(1)}"
    await backend.isolate(node, OP, "XID 79")
    raw = await backend.api.get("node", path)
    assert _cordon_taints(raw) == [marks.CORDON_TAINT]
    writers = {
        f["manager"] for f in raw["metadata"]["managedFields"] if "f:taints" in f["fieldsV1"].get("f:spec", {})
    }
    assert writers == {MARK}, "the node controller had nothing left to write"
    await backend.release(node, OP)
    raw = await backend.api.get("node", path)
    assert (_cordon_taints(raw), raw["spec"].get("unschedulable")) == ([], None)

    await gamma.kubectl("cordon", node)
    before = await until(lambda: backend.api.get("node", path), lambda raw: bool(_cordon_taints(raw)), 30)
    assert (await backend.isolate(node, OP, "XID 79")).foreign_drain
    with pytest.raises(RefusedError, match="somebody else"):
        await backend.release(node, OP)
    assert (await backend.api.get("node", path))["spec"] == before["spec"]
    await gamma.kubectl("uncordon", node)


def _cordon_taints(raw: Raw) -> list[Raw]:
    return [taint for taint in raw["spec"].get("taints", []) if taint["key"] == marks.CORDON_TAINT["key"]]


async def test_many_nodes_are_isolated_with_one_patch_each_and_no_read_beside_a_second_writer(
    gamma: Cluster, backend: KubernetesBackend
) -> None:
    await gamma.lab("fake-nodes", "40")
    nodes = [f"gamma-f{n}" for n in range(1, 41)]
    ops = {node: wave_op("gamma", node, "test/1") for node in nodes}
    scribbling = [asyncio.create_task(_scribble(KubeApi(gamma.name, backend.settings), node)) for node in nodes[:2]]
    await until(lambda: backend.nodes(60), lambda seen: set(nodes) <= {n.node for n in seen}, 30)
    try:
        before = dict(backend.api.calls)
        found = await backend.isolate_many(ops, "XID 79", _go)
        calls = dict(backend.api.calls)
    finally:
        for task in scribbling:
            task.cancel()
        await asyncio.gather(*scribbling, return_exceptions=True)
    assert (set(found.marked), dict(found.left)) == (set(nodes), {})
    patches, reads = (calls[method] - before.get(method, 0) for method in ("PATCH", "GET"))
    assert len(nodes) <= patches <= len(nodes) + 2 * TRIES
    assert reads <= patches - len(nodes) + 1, "only what was refused is read, and that the apiserver answers"
    raws = {n["metadata"]["name"]: n for n in (await gamma.get("nodes"))["items"]}
    for node in nodes:
        taints = {t["key"]: t.get("value") for t in raws[node]["spec"]["taints"]}
        assert taints[marks.ISOLATED] == ops[node]
        assert "kwok.x-k8s.io/node" in taints
    await until(lambda: backend.nodes(60), lambda seen: {n.node for n in seen if n.op} >= set(nodes), 30)
    calls = dict(backend.api.calls)
    again = await backend.isolate_many({**ops, "gamma-f99": OP}, "XID 79", _go)
    assert (set(again.marked), set(again.left)) == (set(nodes), {"gamma-f99"})
    assert backend.api.calls["PATCH"] == calls["PATCH"], "what is marked is not written again"
    assert backend.api.calls["GET"] - calls["GET"] in {1, 2}, "a list, and perhaps a question whether it answers"
    await gamma.kubectl("delete", "nodes", "-l", "type=kwok")


async def _go(done: int) -> None:
    """Lets every write pass."""


async def _scribble(api: KubeApi, node: str) -> None:
    """Changes the node as often as it can."""
    try:
        for number in range(100_000):
            patch = {"metadata": {"annotations": {"example.com/number": str(number)}}}
            await api.write("PATCH", f"/api/v1/nodes/{node}", patch, "application/merge-patch+json")
    finally:
        await api.close()


async def test_the_watched_picture_goes_on_after_the_apiserver_was_killed(
    gamma: Cluster, backend: KubernetesBackend
) -> None:
    assert {n.node for n in await backend.nodes(60)} == {gamma.node(1), gamma.node(2)}
    lists = backend.view.node_mirror.lists
    await gamma.lab("api-kill")
    await until(lambda: _fails(backend), bool, 30)
    await gamma.lab("api-start")
    await gamma.kubectl("label", "node", gamma.node(2), "example.com/after=1")
    await gamma.kubectl("cordon", gamma.node(2))
    seen = await until(lambda: backend.nodes(60), lambda ns: any(n.drained for n in ns), 30)
    assert [n.node for n in seen if n.foreign_drain] == [gamma.node(2)]
    await gamma.kubectl("uncordon", gamma.node(2))
    await until(lambda: backend.nodes(60), lambda ns: not any(n.drained for n in ns), 30)
    assert backend.view.node_mirror.lists - lists <= 1, "it goes on from its version, or lists once"


async def _fails(backend: KubernetesBackend) -> bool:
    try:
        await backend.nodes(0)
    except TemporaryError:
        return True
    return False


async def test_a_version_that_is_too_old_makes_the_picture_list_again(
    gamma: Cluster, backend: KubernetesBackend
) -> None:
    api = KubeApi(gamma.name, backend.settings)
    mirror: Mirror[str] = Mirror(api, "nodes", ("/api/v1/nodes",), lambda raw: str(raw["metadata"]["name"]))
    try:
        version = await mirror._watch("/api/v1/nodes", "1")
        assert version == "", "the apiserver says 410 to a version from before it started"
        await mirror.ready(10)
        assert sorted(mirror.values()) == [gamma.node(1), gamma.node(2)]
    finally:
        await mirror.close()
        await api.close()


async def test_an_account_that_may_only_see_is_told_which_right_is_missing(
    gamma: Cluster, backend: KubernetesBackend
) -> None:
    kubeconfig = str(await kubeconfig_of(gamma, "observe"))
    eyes = KubernetesBackend(gamma.name, backend.settings.model_copy(update={"kubeconfig": kubeconfig}))
    try:
        assert len(await eyes.nodes(0)) == 2
        assert (await eyes.probe()).version
        with pytest.raises(PermanentError, match='cannot patch resource "nodes"'):
            await eyes.isolate(gamma.node(1), OP, "sick")
        assert not (await backend.node(gamma.node(1))).drained
    finally:
        await eyes.close()


async def test_reads_of_many_runbooks_share_one_watch(gamma: Cluster, backend: KubernetesBackend) -> None:
    await backend.nodes(60)
    before = dict(backend.api.calls)
    for _ in range(50):
        await backend.nodes(2.0)
        await backend.jobs(2.0)
    assert backend.api.calls["GET"] - before["GET"] <= 4, "a pulse a second at most, and no list"
