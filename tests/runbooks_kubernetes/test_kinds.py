"""Jobs of other kinds on their real controllers: whatever happens to one, it trains on elsewhere, and never with more
ranks than one attempt has."""

from collections.abc import Awaitable, Callable

import pytest

from fleet.model import NativeJob, Phase, ReceiptGrade
from tests.clients.stage import XID_79
from tests.runbooks_kubernetes.kinds import JOBSET, QUEUED_JOB, QUEUED_JOBSET, Kind
from tests.runbooks_kubernetes.stage import Stage
from tests.runbooks_kubernetes.test_lost_gpu import looking

CONTROLLERS = ("jobset", "kueue")
KINDS = (JOBSET, QUEUED_JOB, QUEUED_JOBSET)
FENCED = {ReceiptGrade.POWER_OFF, ReceiptGrade.BOOT_CHANGED}


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
async def test_it_outlives_a_lost_gpu_a_lost_node_an_eviction_and_a_runbook_that_is_cancelled(
    shared: Stage, kind: Kind
) -> None:
    await outlives_everything(shared, kind, is_evicted)


async def outlives_everything(stage: Stage, kind: Kind, evicted: Callable[[Stage, str], Awaitable[None]]) -> None:
    """One job of that kind, and all that may happen to it. `evicted`: what happens when a pod of it is."""
    native_id = await stage.apply("train", kind=kind)
    async with looking(stage, "train") as seen:
        await stage.trains("train", 1)
        await stage.held_and_saved(native_id)
        await loses_a_gpu(stage, native_id)
        await loses_a_node(stage, native_id)
        await evicted(stage, native_id)
        await is_cancelled_half_way(stage, native_id)
    assert {frozenset({number}) for number in range(4)} <= seen
    assert all(len(together) < 2 for together in seen)


async def moved(stage: Stage, native_id: str, attempt: int, away: str) -> NativeJob:
    """Waits until that attempt trains, from a checkpoint, and not on the node `away`, which comes back."""
    await stage.trains("train", attempt)
    job = await stage.backend.job(native_id)
    assert (job.phase, job.restarts) == (Phase.RUNNING, attempt - 1)
    assert away not in job.nodes
    resumed = (await stage.backend.progress(native_id, attempt - 1)).resumed_from
    assert resumed is not None
    assert list(stage.lab.checkpoints("train").glob(f"step_{resumed:08d}.*/COMPLETE"))
    assert await stage.result(f"node/gamma/{away}") == "repaired, checked and back at work"
    return job


async def loses_a_gpu(stage: Stage, native_id: str) -> None:
    first = await stage.backend.job(native_id)
    handed_in = await stage.cli("evidence", f"gamma/{first.nodes[1]}", "-", stdin=XID_79)
    assert handed_in.code == 0, handed_in.err
    again = await moved(stage, native_id, 2, first.nodes[1])
    assert again.excluded == (first.nodes[1],)
    assert again.fingerprint == first.fingerprint


async def loses_a_node(stage: Stage, native_id: str) -> None:
    """Its kubelet dies, and the rank there writes on until it is fenced."""
    before = await stage.backend.job(native_id)
    lost = before.nodes[1]
    await stage.held_and_saved(native_id)
    await stage.lab.lab("kubelet-kill", lost)
    await moved(stage, native_id, 3, lost)
    view = await stage.view("job/train")
    assert view.ledger is not None
    receipt = view.ledger.attempts[1].receipt
    assert receipt is not None
    assert {r.node: r.grade in FENCED for r in receipt.nodes} == {node: node == lost for node in before.nodes}


async def is_evicted(stage: Stage, native_id: str) -> None:
    before = await stage.backend.job(native_id)
    await stage.held_and_saved(native_id)
    await evict(stage, before.nodes[0])
    await stage.trains("train", 4)
    after = await stage.backend.job(native_id)
    assert (after.phase, after.restarts, after.fingerprint) == (Phase.RUNNING, 3, before.fingerprint)


async def evict(stage: Stage, node: str) -> None:
    """The pod of the job on that node, by the Eviction API."""
    pods = await stage.lab.get("pods", "--field-selector", f"spec.nodeName={node}")
    (name,) = [p["metadata"]["name"] for p in pods["items"] if "deletionTimestamp" not in p["metadata"]]
    eviction = f'{{"apiVersion":"policy/v1","kind":"Eviction","metadata":{{"name":"{name}","namespace":"default"}}}}'
    path = f"/api/v1/namespaces/default/pods/{name}/eviction"
    await stage.lab.kubectl("create", "--raw", path, "-f", "-", stdin=eviction)


async def is_cancelled_half_way(stage: Stage, native_id: str) -> None:
    """It is left held, or with one attempt that runs, and trains on when it is given back."""
    await stage.held_and_saved(native_id)
    ordered = await stage.cli("start", "failover", "train", "--reason", "a try")
    assert ordered.code == 0, ordered.err

    async def is_stopped() -> bool:
        return (await stage.backend.job(native_id)).phase is not Phase.RUNNING

    await stage.until(is_stopped, "its attempt is stopped", every=0.05)
    ended = await stage.cli("cancel", "train", "--reason", "not now")
    assert ended.code == 0, ended.err
    given = await stage.cli("release", "train")
    assert given.code == 0, given.err

    async def one_attempt_runs() -> bool:
        return list(stage.attempts_alive("train").values()) == [2]

    await stage.until(one_attempt_runs, "both ranks of one attempt run")
